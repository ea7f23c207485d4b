//! `events.*`: single plots and debug images with their neighbors, raw scalars, and the deletion of reported values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::events::{must_exist, page_size, scalar_event};
use crate::app::Call;
use crate::error::ApiError;
use crate::rights::Allowed;
use crate::rights::act::{Change, Read};
use crate::rights::object::{Reporter, Task};
use crate::routes::Routes;

const IMAGE: &str = "training_debug_image";
const PLOT: &str = "plot";
const VECTOR: &str = "training_stats_vector";

pub(crate) fn add(routes: &mut Routes) {
    routes.on("events.get_debug_image_sample", |call, r| first(call, r, IMAGE));
    routes.on("events.next_debug_image_sample", |call, r| next(call, r, IMAGE));
    routes.on("events.get_plot_sample", |call, r| first(call, r, PLOT));
    routes.on("events.next_plot_sample", |call, r| next(call, r, PLOT));
    routes.on("events.get_scalar_metric_data", scalar_data);
    routes.on("events.scalar_metrics_iter_raw", raw_scalars);
    routes.on("events.get_vector_metrics_and_variants", vector_names);
    routes.on("events.vector_metrics_iter_histogram", vectors);
    routes.on("events.clear_task_log", clear_log);
    routes.on("events.delete_for_task", delete_for_task);
    routes.on("events.delete_for_model", delete_for_model);
    routes.on("events.clear_scroll", |_call, _request: Value| async { Ok(json!({})) });
}

/// The position of a reader: the scroll id contains it, so the server keeps nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct ReaderPosition {
    iter: i64,
    metric: String,
    /// Empty for plots, of which those of one graph are shown together.
    variant: String,
    /// Neighbors are those of the same graph only.
    one_graph: bool,
}

impl ReaderPosition {
    fn same_line(&self, other: &Self) -> bool {
        self.metric == other.metric && self.variant == other.variant
    }
}

/// All samples of a kind, in the order in which a reader goes through them.
async fn samples(
    call: &Call,
    of: &Allowed<Reporter, Read>,
    kind: &str,
    at: &ReaderPosition,
) -> Result<BTreeMap<ReaderPosition, Vec<Value>>, ApiError> {
    let mut found: BTreeMap<ReaderPosition, Vec<Value>> = BTreeMap::new();
    for report in call.store.reports(of, kind).await? {
        if at.one_graph && report.metric != at.metric {
            continue;
        }
        let variant = if kind == PLOT { String::new() } else { report.variant };
        let place =
            ReaderPosition { iter: report.iter, metric: report.metric, variant, one_graph: at.one_graph };
        found.entry(place).or_default().push(report.doc);
    }
    Ok(found)
}

fn sample(kind: &str, samples: &BTreeMap<ReaderPosition, Vec<Value>>, at: Option<&ReaderPosition>) -> Value {
    let Some(at) = at else { return json!({ "scroll_id": "", "event": null, "events": [] }) };
    let line: Vec<i64> = samples.keys().filter(|place| place.same_line(at)).map(|place| place.iter).collect();
    let mut answer = json!({
        "scroll_id": json!(at).to_string(), "min_iteration": line.first(), "max_iteration": line.last(),
    });
    let events = samples.get(at).cloned().unwrap_or_default();
    match kind {
        PLOT => answer["events"] = json!(events),
        _ => answer["event"] = json!(events.first()),
    }
    answer
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct First {
    task: String,
    metric: String,
    #[serde(default)]
    variant: String,
    iteration: Option<i64>,
    scroll_id: Option<String>,
    #[serde(default = "yes")]
    navigate_current_metric: bool,
    #[serde(default)]
    model_events: bool,
}

/// The sample of this iteration, or the last one before it.
async fn first(call: Call, request: First, kind: &'static str) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, request.model_events).await?;
    let First { metric, variant, iteration, scroll_id, navigate_current_metric: one_graph, .. } = request;
    let from = scroll_id.filter(|id| !id.is_empty()).map(|id| place(&id)).transpose()?;
    let iter = iteration.or_else(|| from.map(|from| from.iter)).unwrap_or(i64::MAX);
    let variant = if kind == PLOT { String::new() } else { variant };
    let wanted = ReaderPosition { iter, metric, variant, one_graph };
    let found = samples(&call, &of, kind, &wanted).await?;
    let at = found.keys().rfind(|place| place.same_line(&wanted) && place.iter <= iter).cloned();
    Ok(sample(kind, &found, at.as_ref()))
}

fn place(scroll_id: &str) -> Result<ReaderPosition, ApiError> {
    serde_json::from_str(scroll_id).map_err(|_| ApiError::invalid("scroll_id is none of ours"))
}

#[derive(Deserialize)]
struct Next {
    task: String,
    scroll_id: String,
    #[serde(default)]
    navigate_earlier: bool,
    /// The neighbor is of another iteration.
    #[serde(default)]
    next_iteration: bool,
    #[serde(default)]
    model_events: bool,
}

async fn next(call: Call, request: Next, kind: &'static str) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, request.model_events).await?;
    let from = place(&request.scroll_id)?;
    let found = samples(&call, &of, kind, &from).await?;
    let is_other = |place: &&ReaderPosition| !request.next_iteration || place.iter != from.iter;
    let at = if request.navigate_earlier {
        found.range(..&from).map(|(place, _)| place).rfind(is_other)
    } else {
        found.keys().filter(|place| **place > from).find(is_other)
    };
    Ok(sample(kind, &found, at.cloned().as_ref()))
}

#[derive(Deserialize)]
struct ScalarData {
    task: String,
    metric: String,
    scroll_id: Option<String>,
    #[serde(default)]
    no_scroll: bool,
    #[serde(default)]
    model_events: bool,
    batch_size: Option<u64>,
}

/// The events of one graph, as they were reported.
async fn scalar_data(call: Call, request: ScalarData) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, request.model_events).await?;
    let mut all = call.store.scalars(&of).await?;
    all.retain(|scalar| scalar.metric == request.metric);
    all.sort_by_key(|scalar| (scalar.iter, scalar.timestamp_ms));
    let skip = scroll_position(request.scroll_id.as_deref())?;
    let size = usize::try_from(page_size(request.batch_size.or(Some(10_000)))).unwrap_or(usize::MAX);
    let size = if request.no_scroll { usize::MAX } else { size };
    let events: Vec<Value> = all.iter().skip(skip).take(size).map(scalar_event).collect();
    let next = (skip + events.len()).to_string();
    Ok(json!({ "events": events, "returned": events.len(), "total": all.len(), "scroll_id": next }))
}

fn scroll_position(scroll_id: Option<&str>) -> Result<usize, ApiError> {
    let position = scroll_id.filter(|id| !id.is_empty()).map(str::parse).transpose();
    position.map(Option::unwrap_or_default).map_err(|_| ApiError::invalid("scroll_id is none of ours"))
}

#[derive(Deserialize)]
struct RawScalars {
    task: String,
    metric: OneMetric,
    #[serde(default = "iter")]
    key: String,
    batch_size: Option<u64>,
    #[serde(default)]
    count_total: bool,
    scroll_id: Option<String>,
    #[serde(default)]
    model_events: bool,
}

fn iter() -> String {
    "iter".to_owned()
}

#[derive(Deserialize)]
struct OneMetric {
    metric: String,
    #[serde(default)]
    variants: Vec<String>,
}

/// Every value of a graph, line by line, page by page: none is thinned out.
async fn raw_scalars(call: Call, request: RawScalars) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, request.model_events).await?;
    let RawScalars { metric: OneMetric { metric, variants }, key, .. } = request;
    let x = |scalar: &cantle_store::Scalar| match key.as_str() {
        "iter" => Ok(json!(scalar.iter)),
        "timestamp" => Ok(json!(scalar.timestamp_ms)),
        "iso_time" => Ok(json!(crate::clock::rfc3339(scalar.timestamp_ms.saturating_mul(1000)))),
        _ => Err(ApiError::invalid("key: iter, timestamp or iso_time")),
    };
    let mut all = call.store.scalars(&of).await?;
    all.retain(|s| s.metric == metric && (variants.is_empty() || variants.contains(&s.variant)));
    all.sort_by_key(|scalar| if key == "iter" { scalar.iter } else { scalar.timestamp_ms });
    let skip = scroll_position(request.scroll_id.as_deref())?;
    let size = usize::try_from(page_size(request.batch_size.or(Some(10_000)))).unwrap_or(usize::MAX);
    let mut lines: BTreeMap<String, (Vec<Value>, Vec<f64>)> = BTreeMap::new();
    let mut returned = 0;
    for scalar in all.iter().skip(skip).take(size) {
        let (xs, ys) = lines.entry(scalar.variant.clone()).or_default();
        xs.push(x(scalar)?);
        ys.push(scalar.value);
        returned += 1;
    }
    let lines: Map<String, Value> = lines
        .into_iter()
        .map(|(variant, (xs, ys))| {
            (variant, Value::Object(Map::from_iter([(key.clone(), json!(xs)), ("y".to_owned(), json!(ys))])))
        })
        .collect();
    let mut answer =
        json!({"variants": lines, "returned": returned, "scroll_id": (skip + returned).to_string()});
    if request.count_total {
        answer["total"] = json!(all.len());
    }
    Ok(answer)
}

#[derive(Deserialize)]
struct Of {
    task: String,
}

#[derive(Deserialize)]
struct OfModel {
    model: String,
}

async fn vector_names(call: Call, request: Of) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, false).await?;
    let mut graphs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for report in call.store.reports(&of, VECTOR).await? {
        let variants = graphs.entry(report.metric).or_default();
        if variants.last() != Some(&report.variant) {
            variants.push(report.variant);
        }
    }
    Ok(json!({ "metrics": graphs }))
}

#[derive(Deserialize)]
struct Vectors {
    task: String,
    metric: String,
    variant: String,
}

async fn vectors(call: Call, request: Vectors) -> Result<Value, ApiError> {
    let of = must_exist(&call, &request.task, false).await?;
    let (mut iterations, mut values) = (Vec::new(), Vec::new());
    for report in call.store.reports(&of, VECTOR).await? {
        if report.metric == request.metric && report.variant == request.variant {
            iterations.push(report.iter);
            values.push(report.doc.get("values").cloned().unwrap_or_default());
        }
    }
    Ok(json!({ "iterations": iterations, "vectors": values }))
}

#[derive(Deserialize)]
struct ClearLog {
    task: String,
    #[serde(default)]
    allow_locked: bool,
    /// Only what is older than this.
    threshold_sec: Option<i64>,
    include_metrics: Option<Value>,
    exclude_metrics: Option<Value>,
}

async fn clear_log(call: Call, request: ClearLog) -> Result<Value, ApiError> {
    if request.include_metrics.is_some() || request.exclude_metrics.is_some() {
        return Err(ApiError::invalid(
            "include_metrics, exclude_metrics: pieces of output have no metric here",
        ));
    }
    let task = call.task(&request.task).await?;
    unlocked(&call, &task, request.allow_locked).await?;
    let before_ms = request.threshold_sec.map(|seconds| call.now_us / 1000 - seconds.saturating_mul(1000));
    Ok(json!({ "deleted": call.store.delete_logs(&task, before_ms).await? }))
}

/// The reports of a published task stay, unless the request forces the deletion.
async fn unlocked(call: &Call, task: &Allowed<Task, Change>, allow_locked: bool) -> Result<(), ApiError> {
    let status = call.store.task(task).await?.index.status;
    if allow_locked
        || !matches!(status, cantle_model::TaskStatus::Published | cantle_model::TaskStatus::Publishing)
    {
        return Ok(());
    }
    Err(ApiError::invalid("the task is published; allow_locked deletes what it reported"))
}

#[derive(Deserialize)]
struct DeleteForTask {
    task: String,
    #[serde(default)]
    allow_locked: bool,
}

async fn delete_for_task(call: Call, request: DeleteForTask) -> Result<Value, ApiError> {
    let task = call.task(&request.task).await?;
    unlocked(&call, &task, request.allow_locked).await?;
    call.store.delete_task_reports(&task).await?;
    Ok(json!({"deleted": true}))
}

async fn delete_for_model(call: Call, request: OfModel) -> Result<Value, ApiError> {
    let model = call.model(&request.model).await?;
    call.store.model(&model).await?;
    call.store.delete_model_reports(&model).await?;
    Ok(json!({"deleted": true}))
}
