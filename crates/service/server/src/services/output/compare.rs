//! `events.*`: the measured values of several tasks side by side, and the values that can be compared.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::events::SCALAR;
use cantle_store::ReportRow;
use serde::Deserialize;
use serde_json::{Value, json};

use super::events::must_exist;
use super::metrics::{Drawing, Line, lines};
use crate::app::Call;
use crate::error::ApiError;
use crate::rights::Allowed;
use crate::rights::act::Read;
use crate::rights::object::Reporter;
use crate::routes::Routes;

/// ClearML's limit, too: a graph with more lines cannot be read.
const MAX_TASKS: usize = 100;
const PLOT: &str = "plot";

pub(crate) fn add(routes: &mut Routes) {
    routes.on("events.multi_task_scalar_metrics_iter_histogram", scalars);
    routes.on("events.get_multi_task_plots", plots);
    routes.on("events.get_multi_task_metrics", metrics_of_all);
    routes.on("events.get_task_metrics", metrics_of_each);
    routes.on("events.get_scalar_metrics_and_variants", scalar_names);
}

/// The tasks and their names, all of which must exist.
async fn named(call: &Call, ids: &[String]) -> Result<Vec<(Allowed<Reporter, Read>, String)>, ApiError> {
    if ids.len() > MAX_TASKS {
        return Err(ApiError::invalid(format!("{} tasks to compare; at most {MAX_TASKS}", ids.len())));
    }
    let mut named = Vec::with_capacity(ids.len());
    for task in call.tasks(ids).await? {
        let name = call.store.task(&task).await?.index.name;
        named.push((task.into(), name));
    }
    Ok(named)
}

#[derive(Deserialize)]
struct Scalars {
    tasks: Vec<String>,
    #[serde(flatten)]
    drawing: Drawing,
}

/// Graph → line → task → points.
async fn scalars(call: Call, request: Scalars) -> Result<Value, ApiError> {
    let mut graphs = json!({});
    for (of, name) in named(&call, &request.tasks).await? {
        for Line { metric, variant, x, y } in lines(&call, &of, &request.drawing).await? {
            graphs[metric][variant][of.id()] = json!({"name": name, "x": x, "y": y});
        }
    }
    Ok(json!({ "metrics": graphs }))
}

#[derive(Deserialize)]
struct Plots {
    tasks: Vec<String>,
    /// Number of last iterations of each graph.
    iters: Option<usize>,
}

/// Graph → line → task → iteration → plots, and how many there are.
async fn plots(call: Call, request: Plots) -> Result<Value, ApiError> {
    let (mut graphs, mut returned) = (json!({}), 0);
    for (of, name) in named(&call, &request.tasks).await? {
        let mut lines: BTreeMap<(String, String), Vec<ReportRow>> = BTreeMap::new();
        for plot in call.store.reports(&of, PLOT).await? {
            lines.entry((plot.metric.clone(), plot.variant.clone())).or_default().push(plot);
        }
        for ((metric, variant), plots) in lines {
            let skip = plots.len().saturating_sub(request.iters.unwrap_or(1));
            for plot in plots.into_iter().skip(skip) {
                let place = &mut graphs[&metric][&variant][of.id()][plot.iter.to_string()];
                *place = json!({"name": name, "plots": [plot.doc]});
                returned += 1;
            }
        }
    }
    Ok(json!({ "plots": graphs, "returned": returned, "total": returned, "scroll_id": "" }))
}

#[derive(Deserialize)]
struct OfTasks {
    tasks: Vec<String>,
    event_type: Option<String>,
}

/// Graph → its lines.
type Names = BTreeMap<String, BTreeSet<String>>;

async fn names(
    call: &Call,
    of: &Allowed<Reporter, Read>,
    event_type: Option<&str>,
) -> Result<Names, ApiError> {
    let mut names = Names::new();
    if event_type.is_none_or(|kind| kind == SCALAR) {
        for latest in call.store.latest_scalars(of).await? {
            names.entry(latest.last.metric).or_default().insert(latest.last.variant);
        }
    }
    let kinds = [PLOT, "training_debug_image", "training_stats_vector"];
    for kind in kinds.into_iter().filter(|kind| event_type.is_none_or(|wanted| wanted == *kind)) {
        for report in call.store.reports(of, kind).await? {
            names.entry(report.metric).or_default().insert(report.variant);
        }
    }
    Ok(names)
}

async fn metrics_of_all(call: Call, request: OfTasks) -> Result<Value, ApiError> {
    let mut all = Names::new();
    for (of, _) in named(&call, &request.tasks).await? {
        for (metric, variants) in names(&call, &of, request.event_type.as_deref()).await? {
            all.entry(metric).or_default().extend(variants);
        }
    }
    let metric = |(metric, variants)| json!({ "metric": metric, "variants": variants });
    Ok(json!({ "metrics": all.into_iter().map(metric).collect::<Vec<_>>() }))
}

async fn metrics_of_each(call: Call, request: OfTasks) -> Result<Value, ApiError> {
    let mut metrics = Vec::new();
    for (of, _) in named(&call, &request.tasks).await? {
        let names: Vec<String> =
            names(&call, &of, request.event_type.as_deref()).await?.into_keys().collect();
        metrics.push(json!({ "task": of.id(), "metrics": names }));
    }
    Ok(json!({ "metrics": metrics }))
}

#[derive(Deserialize)]
struct OfTask {
    task: String,
}

async fn scalar_names(call: Call, request: OfTask) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, false).await?;
    Ok(json!({ "metrics": names(&call, &of, Some(SCALAR)).await? }))
}
