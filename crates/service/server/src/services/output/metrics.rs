//! `events.*`: measured values as graphs and as single numbers.

use std::collections::BTreeMap;

use cantle_store::Scalar;
use md5::Digest as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::events::{must_exist, output_of};
use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::rights::Allowed;
use crate::rights::act::Read;
use crate::rights::object::Reporter;
use crate::routes::Routes;

/// The iteration under which clients report a number that has none.
const SINGLE_VALUE: i64 = -(1 << 31);
/// Default number of points of a line.
const SAMPLES: usize = 10_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("events.scalar_metrics_iter_histogram", histogram);
    routes.on("events.get_task_single_value_metrics", single_values);
    routes.on("events.get_task_latest_scalar_values", latest);
}

#[derive(Deserialize)]
struct Histogram {
    task: String,
    /// Of this run of a task; of the newest by default.
    run: Option<i64>,
    /// It is a model.
    #[serde(default)]
    model_events: bool,
    #[serde(flatten)]
    drawing: Drawing,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Axis {
    #[default]
    Iter,
    Timestamp,
    IsoTime,
}

/// The form of lines that a client requests.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Drawing {
    key: Axis,
    samples: Option<usize>,
}

/// A line of a task: its graph, its name, and its points.
pub(crate) struct Line {
    pub(crate) metric: String,
    pub(crate) variant: String,
    pub(crate) x: Vec<Value>,
    pub(crate) y: Vec<f64>,
}

/// Graph → line → points, thinned out evenly if there are too many.
async fn histogram(call: Call, request: Histogram) -> Result<Value, ApiError> {
    let of = match request.run {
        Some(_) => output_of(&call, &request.task, request.run).await?,
        None => must_exist(&call, &request.task, request.model_events).await?,
    };
    let mut graphs = json!({});
    for Line { metric, variant, x, y } in lines(&call, &of, &request.drawing).await? {
        graphs[metric][&variant] = json!({"name": variant, "x": x, "y": y});
    }
    Ok(graphs)
}

/// All lines of a task, by graph and name.
pub(crate) async fn lines(
    call: &Call,
    of: &Allowed<Reporter, Read>,
    drawing: &Drawing,
) -> Result<Vec<Line>, ApiError> {
    let mut points: BTreeMap<(String, String), Vec<Scalar>> = BTreeMap::new();
    for scalar in call.store.scalars(of).await? {
        if scalar.iter != SINGLE_VALUE {
            points.entry((scalar.metric.clone(), scalar.variant.clone())).or_default().push(scalar);
        }
    }
    let x = |scalar: &Scalar| match drawing.key {
        Axis::Iter => json!(scalar.iter),
        Axis::Timestamp => json!(scalar.timestamp_ms),
        Axis::IsoTime => json!(rfc3339(scalar.timestamp_ms.saturating_mul(1000))),
    };
    let line = |((metric, variant), points): ((String, String), Vec<Scalar>)| {
        let kept = thin(&points, drawing.samples.unwrap_or(SAMPLES));
        let (x, y) = kept.map(|point| (x(point), point.value)).unzip();
        Line { metric, variant, x, y }
    };
    Ok(points.into_iter().map(line).collect())
}

/// At most `most` points, evenly spread; the last one is always among them.
fn thin(points: &[Scalar], most: usize) -> impl Iterator<Item = &Scalar> {
    let step = points.len().div_ceil(most.max(1)).max(1);
    let offset = points.len().saturating_sub(1) % step;
    points.iter().skip(offset).step_by(step)
}

#[derive(Deserialize)]
struct OfTasks {
    tasks: Vec<String>,
    /// Of this run of each task; of the newest by default.
    run: Option<i64>,
}

async fn single_values(call: Call, request: OfTasks) -> Result<Value, ApiError> {
    let mut tasks = Vec::new();
    for task in &request.tasks {
        let of = output_of(&call, task, request.run).await?;
        let latest = call.store.latest_scalars(&of).await?;
        let single = latest.into_iter().filter(|latest| latest.last.iter == SINGLE_VALUE);
        let values: Vec<Value> = single.map(|latest| point(&latest.last)).collect();
        tasks.push(json!({ "task": task, "values": values }));
    }
    Ok(json!({ "tasks": tasks }))
}

fn point(scalar: &Scalar) -> Value {
    json!({
        "metric": scalar.metric, "variant": scalar.variant, "value": scalar.value,
        "timestamp": scalar.timestamp_ms,
    })
}

#[derive(Deserialize)]
struct OfTask {
    task: String,
}

async fn latest(call: Call, request: OfTask) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, false).await?;
    let mut metrics: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for latest in call.store.latest_scalars(&of).await? {
        metrics.entry(latest.last.metric.clone()).or_default().push(json!({
            "name": latest.last.variant, "last_value": latest.last.value,
            "last_timestamp": latest.last.timestamp_ms,
        }));
    }
    let metrics: Vec<Value> =
        metrics.into_iter().map(|(name, variants)| json!({"name": name, "variants": variants})).collect();
    Ok(json!({ "metrics": metrics }))
}

/// ClearML's key for the name of a graph or a line: names may hold dots, which its field paths cannot.
pub(crate) fn key_of(name: &str) -> String {
    md5::Md5::digest(name).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A task's `last_metrics`: newest, least and greatest value of each line.
pub(crate) async fn last_metrics(call: &Call, of: &Allowed<Reporter, Read>) -> Result<Value, ApiError> {
    let mut metrics = json!({});
    for latest in call.store.latest_scalars(of).await? {
        let Scalar { metric, variant, value, iter, .. } = latest.last;
        metrics[key_of(&metric)][key_of(&variant)] = json!({
            "metric": metric, "variant": variant, "value": value, "iteration": iter,
            "min_value": latest.least, "max_value": latest.greatest,
        });
    }
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_last_point() {
        let scalar = |iter| Scalar {
            task: String::new(),
            metric: String::new(),
            variant: String::new(),
            iter,
            timestamp_ms: 0,
            value: 0.0,
        };
        let points: Vec<Scalar> = (0..10).map(scalar).collect();
        let iters = |most| thin(&points, most).map(|point| point.iter).collect::<Vec<_>>();
        assert_eq!(iters(100), (0..10).collect::<Vec<_>>());
        assert_eq!(iters(5), [1, 3, 5, 7, 9]);
        assert_eq!(iters(3), [1, 5, 9]);
        assert_eq!(iters(0), [9]);
        assert_eq!(thin(&[], 5).count(), 0);
    }
}
