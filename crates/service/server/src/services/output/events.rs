//! `events.*`: receives what tasks print and measure, and returns it in pages.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::events::{
    AddBatchReply, GetTaskLog, LOG, RUN_LEASE, RUN_OUTPUT, ReportedEvent, SCALAR, TaskLog,
};
use cantle_store::{LogLine, OutputPiece, ReportRow, Scalar, StoreError, TaskFilter};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::error::ApiError;
use crate::projection::few;
use crate::rights::act::Read;
use crate::rights::object::Reporter;
use crate::rights::{self, Allowed};
use crate::routes::Routes;

/// Kinds that are kept unchanged.
const REPORTS: [&str; 3] = ["plot", "training_debug_image", "training_stats_vector"];
const PAGE: i64 = 100;
const MAX_PAGE: i64 = 10_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("events.add", add_one);
    routes.typed(get_task_log);
    routes.on("events.get_task_events", get_task_events);
    routes.on("events.get_task_plots", |call, r| reports_of_task(call, r, "plot", "plots"));
    routes.on("events.debug_images", |call, r| by_iteration(call, r, "training_debug_image", "events"));
    routes.on("events.plots", |call, r| by_iteration(call, r, "plot", "plots"));
}

/// A batch, by table.
#[derive(Default)]
struct Sorted {
    logs: Vec<LogLine>,
    /// Logs of which is known where they are in the output of a run.
    pieces: BTreeMap<OutputRange, Vec<LogLine>>,
    scalars: Vec<Scalar>,
    reports: Vec<ReportRow>,
}

/// Task, lease, and the bytes of the run's output.
type OutputRange = (String, String, u64, u64);

/// Where a piece of log is in the output of a run, if its agent reports that.
fn place_of(event: &ReportedEvent, lease: Option<&Value>) -> Option<OutputRange> {
    let lease = lease?.as_str()?;
    let [begin, end] = event.more.get(RUN_OUTPUT)?.as_array()?.as_slice() else { return None };
    Some((event.task.clone(), lease.to_owned(), begin.as_u64()?, end.as_u64()?))
}

impl Sorted {
    fn put(&mut self, event: ReportedEvent, lease: Option<&Value>, now_ms: i64) -> Result<(), String> {
        let timestamp_ms = event.timestamp.unwrap_or(now_ms);
        match event.kind.as_str() {
            LOG => {
                let piece = place_of(&event, lease).map(|place| self.pieces.entry(place).or_default());
                piece.unwrap_or(&mut self.logs).push(LogLine {
                    id: 0,
                    task: event.task,
                    timestamp_ms,
                    worker: event.worker.unwrap_or_default(),
                    level: event.level.unwrap_or_default(),
                    msg: event.msg.unwrap_or_default(),
                });
            }
            SCALAR => self.scalars.push(Scalar {
                value: event.value.ok_or("a scalar needs a value")?,
                task: event.task,
                metric: event.metric.unwrap_or_default(),
                variant: event.variant.unwrap_or_default(),
                iter: event.iter.unwrap_or(0),
                timestamp_ms,
            }),
            kind if REPORTS.contains(&kind) => self.reports.push(ReportRow {
                doc: serde_json::to_value(&event).map_err(|error| error.to_string())?,
                task: event.task,
                kind: event.kind,
                metric: event.metric.unwrap_or_default(),
                variant: event.variant.unwrap_or_default(),
                iter: event.iter.unwrap_or(0),
                timestamp_ms,
            }),
            kind => return Err(format!("unknown event type \"{}\"", kind.escape_default())),
        }
        Ok(())
    }
}

/// `events.add_batch`: one JSON object per line. A bad line is counted; the others are kept.
pub(crate) async fn add_batch(call: Call, body: &[u8]) -> Result<Value, ApiError> {
    let mut errors: BTreeMap<String, u64> = BTreeMap::new();
    let mut events: Vec<ReportedEvent> = Vec::new();
    for line in body.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice(line) {
            Ok(event) => events.push(event),
            Err(error) => *errors.entry(format!("not an event: {error}")).or_default() += 1,
        }
    }
    let reply = take_in(&call, events, errors).await?;
    serde_json::to_value(reply).map_err(ApiError::unwritable)
}

async fn add_one(call: Call, event: ReportedEvent) -> Result<AddBatchReply, ApiError> {
    take_in(&call, vec![event], BTreeMap::new()).await
}

async fn take_in(
    call: &Call,
    events: Vec<ReportedEvent>,
    mut errors: BTreeMap<String, u64>,
) -> Result<AddBatchReply, ApiError> {
    let tasks: BTreeSet<&str> = events.iter().map(|event| event.task.as_str()).collect();
    let ids: Vec<String> = tasks.into_iter().map(str::to_owned).collect();
    few(&ids)?;
    let known = if ids.is_empty() {
        Vec::new()
    } else {
        call.store.task_index(&call.seen(), TaskFilter { ids, ..TaskFilter::default() }).await?
    };
    let mut known: BTreeSet<String> = known.into_iter().map(|task| task.id).collect();
    let of_models: BTreeSet<&str> =
        events.iter().filter(|event| is_of_model(event)).map(|event| event.task.as_str()).collect();
    if !of_models.is_empty() {
        let ids: Vec<String> = of_models.into_iter().map(str::to_owned).collect();
        let models = call.store.models_seen(&call.seen(), &ids, &[]).await?;
        known.extend(models.into_iter().map(|model| model.id));
    }
    if let Some(rule) = rights::rule("events.add_batch") {
        rights::check(call, rule, &json!({ "task": known })).await?;
    }
    let (mut sorted, mut added) = (Sorted::default(), 0);
    let stale = stale_runs(call, &events).await?;
    for mut event in events {
        let run = event.more.remove(RUN_LEASE);
        let of_stale_run =
            run.as_ref().is_some_and(|lease| stale.contains(&(event.task.clone(), lease.to_string())));
        let result = if of_stale_run {
            Err(format!("Task {} is not held by this lease any more", event.task.escape_default()))
        } else if known.contains(&event.task) {
            sorted.put(event, run.as_ref(), call.now_us / 1000)
        } else {
            Err(format!("Invalid task id: id={}", event.task.escape_default()))
        };
        match result {
            Ok(()) => added += 1,
            Err(message) => *errors.entry(message).or_default() += 1,
        }
    }
    // A client repeats a batch whose answer was lost: a piece that is stored already is not stored twice.
    let known = call.store.known_logs(&sorted.logs).await?;
    sorted.logs.retain(|line| !known.contains(&(line.task.clone(), line.timestamp_ms, line.msg.clone())));
    call.store.add_logs(&sorted.logs, call.now_us).await?;
    let mut output_bytes = None;
    for ((task, lease, begin_bytes, end_bytes), lines) in sorted.pieces {
        let piece = OutputPiece { task, lease, begin_bytes, end_bytes, lines };
        output_bytes = call.store.add_output(&piece, call.now_us).await?.or(output_bytes);
    }
    call.store.add_scalars(&sorted.scalars).await?;
    call.store.add_reports(&sorted.reports).await?;
    if let (0, Some(first)) = (added, errors.keys().next()) {
        return Err(ApiError::invalid(first.clone()));
    }
    let count = errors.values().sum();
    let errors_info = errors.into_iter().map(|(message, count)| (message, json!(count))).collect();
    Ok(AddBatchReply { added, errors: count, errors_info, output_bytes })
}

/// Tasks with the leases, as JSON, under which these events come and which do not hold them: another run may have begun.
async fn stale_runs(call: &Call, events: &[ReportedEvent]) -> Result<BTreeSet<(String, String)>, ApiError> {
    let run_of = |event: &ReportedEvent| Some((event.task.clone(), event.more.get(RUN_LEASE)?.to_string()));
    let mut stale: BTreeSet<(String, String)> = events.iter().filter_map(run_of).collect();
    let tasks: BTreeSet<String> = stale.iter().map(|(task, _)| task.clone()).collect();
    for task in tasks {
        let holder = match call.app.store.task(&task).await {
            Ok(row) => row.lease,
            // A task that is not there is refused for that.
            Err(StoreError::NoTask(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let holder = json!(holder).to_string();
        stale.remove(&(task, holder));
    }
    Ok(stale)
}

/// An event about a model names the model where other events name their task.
fn is_of_model(event: &ReportedEvent) -> bool {
    event.more.get("model_event") == Some(&Value::Bool(true))
}

/// The task, or with `model_events` the model, that a request is about must exist.
pub(crate) async fn must_exist(
    call: &Call,
    id: &str,
    model_events: bool,
) -> Result<Allowed<Reporter, Read>, ApiError> {
    if model_events {
        let model = call.model(id).await?;
        call.store.model(&model).await?;
        return Ok(model.into());
    }
    let task = call.task(id).await?;
    call.store.task(&task).await?;
    Ok(task.into())
}

/// The output that a run of a task reported; the newest run, if there is no number.
pub(crate) async fn output_of(
    call: &Call,
    id: &str,
    run: Option<i64>,
) -> Result<Allowed<Reporter, Read>, ApiError> {
    let task = call.task(id).await?;
    let newest = call.store.task(&task).await?.run;
    let Some(run) = run else { return Ok(task.into()) };
    if !(1..=newest).contains(&run) {
        return Err(ApiError::invalid(format!("task {id} has no run {run}; {}", known_runs(newest))));
    }
    let is_former = call.store.is_former_output(&task, run, newest).await?;
    let of: Allowed<Reporter, Read> = task.into();
    Ok(if is_former { of.of_former_run(run) } else { of })
}

fn known_runs(newest: i64) -> String {
    match newest {
        0 => "it has not run".to_owned(),
        1 => "it has run 1 only".to_owned(),
        newest => format!("its runs are 1 to {newest}"),
    }
}

pub(crate) fn page_size(asked: Option<u64>) -> i64 {
    asked.and_then(|size| i64::try_from(size).ok()).unwrap_or(PAGE).clamp(1, MAX_PAGE)
}

async fn get_task_log(call: Call, request: GetTaskLog) -> Result<TaskLog, ApiError> {
    let GetTaskLog { task, batch_size, navigate_earlier, from_timestamp, order, after, run } = request;
    let of = output_of(&call, &task, run).await?;
    let limit = page_size(batch_size);
    let lines = match after {
        Some(after) => call.store.logs_after(&of, after, limit).await?,
        None => {
            let earlier = navigate_earlier.unwrap_or(true);
            let mut lines = call.store.logs_by_time(&of, from_timestamp, earlier, limit).await?;
            if earlier == (order.as_deref() == Some("asc")) {
                lines.reverse();
            }
            lines
        }
    };
    let total = call.store.count_logs(&of).await?.unsigned_abs();
    let position = lines.iter().map(|line| line.id).max().or(after).unwrap_or(0);
    let events: Vec<ReportedEvent> = lines.into_iter().map(|line| log_event(&task, line)).collect();
    Ok(TaskLog { returned: u64::try_from(events.len()).unwrap_or(u64::MAX), events, total, position })
}

fn log_event(task: &str, line: LogLine) -> ReportedEvent {
    ReportedEvent {
        kind: LOG.to_owned(),
        task: task.to_owned(),
        timestamp: Some(line.timestamp_ms),
        worker: Some(line.worker),
        level: Some(line.level),
        msg: Some(line.msg),
        ..ReportedEvent::default()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GetTaskEvents {
    task: String,
    event_type: Option<String>,
    batch_size: Option<u64>,
    scroll_id: Option<String>,
}

/// Pages through one kind of event. The scroll id is the position of the last event of a page.
async fn get_task_events(call: Call, request: GetTaskEvents) -> Result<Value, ApiError> {
    let (task, limit) = (call.task::<Read>(&request.task).await?, page_size(request.batch_size));
    call.store.task(&task).await?;
    let of = call.task::<Read>(&request.task).await?.into();
    let scroll = request.scroll_id.filter(|scroll| !scroll.is_empty());
    let bad = |_| ApiError::invalid("scroll_id is none of ours");
    let (events, total, next) = match request.event_type.as_deref().unwrap_or(LOG) {
        LOG => {
            let after = scroll.map_or(Ok(0), |scroll| serde_json::from_str(&scroll).map_err(bad))?;
            let lines = call.store.logs_after(&of, after, limit).await?;
            let next = lines.last().map(|line| json!(line.id));
            let events = lines.into_iter().map(|line| json!(log_event(task.id(), line))).collect();
            (events, call.store.count_logs(&of).await?, next)
        }
        SCALAR => {
            let after = scroll.map(|scroll| serde_json::from_str(&scroll).map_err(bad)).transpose()?;
            let scalars = call.store.scalar_page(&task, after, limit).await?;
            let next = scalars.last().map(|last| json!([last.metric, last.variant, last.iter]));
            (scalars.iter().map(scalar_event).collect(), call.store.count_scalars(&task).await?, next)
        }
        kind => {
            let all: Vec<Value> =
                call.store.reports(&of, kind).await?.into_iter().map(|report| report.doc).collect();
            let total = i64::try_from(all.len()).unwrap_or(i64::MAX);
            let skip: usize = scroll.map_or(Ok(0), |scroll| serde_json::from_str(&scroll).map_err(bad))?;
            let size = usize::try_from(limit).unwrap_or(usize::MAX);
            let page: Vec<Value> = all.into_iter().skip(skip).take(size).collect();
            let next = (!page.is_empty()).then(|| json!(skip + page.len()));
            (page, total, next)
        }
    };
    let scroll_id = next.map(|position| position.to_string()).unwrap_or_default();
    Ok(json!({ "returned": events.len(), "total": total, "scroll_id": scroll_id, "events": events }))
}

pub(crate) fn scalar_event(scalar: &Scalar) -> Value {
    json!({
        "type": SCALAR, "task": scalar.task, "metric": scalar.metric, "variant": scalar.variant,
        "iter": scalar.iter, "timestamp": scalar.timestamp_ms, "value": scalar.value,
    })
}

#[derive(Deserialize)]
struct OfTask {
    task: String,
    /// Of this run; of the newest by default.
    run: Option<i64>,
    /// Number of last iterations of each graph; all by default.
    iters: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DebugImages {
    task: Option<String>,
    run: Option<i64>,
    metrics: Vec<ImagesOf>,
    iters: Option<usize>,
    /// The number of iterations that a reader has seen.
    scroll_id: Option<String>,
    /// The page after those that were seen, which is the default, or the one before the last.
    navigate_earlier: Option<bool>,
    /// From the newest one again.
    refresh: bool,
}

impl DebugImages {
    /// The number of iterations to skip, and the number to return.
    fn page(&self) -> Result<(usize, usize), ApiError> {
        let size = self.iters.unwrap_or(1);
        let seen = self.scroll_id.as_deref().filter(|id| !id.is_empty() && !self.refresh).map(str::parse);
        let bad = |_: std::num::ParseIntError| ApiError::invalid("scroll_id is none of ours");
        let seen: usize = seen.transpose().map_err(bad)?.unwrap_or(0);
        let earlier = self.navigate_earlier.unwrap_or(true);
        Ok((if earlier { seen } else { seen.saturating_sub(size.saturating_mul(2)) }, size))
    }
}

/// Images of a task: all, or those of one graph or of some lines in it.
#[derive(Deserialize)]
struct ImagesOf {
    task: String,
    metric: Option<String>,
    #[serde(default)]
    variants: Vec<String>,
}

/// Newest iterations first, page by page, `iters` on each.
async fn by_iteration(
    call: Call,
    request: DebugImages,
    kind: &'static str,
    answer: &'static str,
) -> Result<Value, ApiError> {
    if let (Some(task), true) = (&request.task, request.metrics.is_empty()) {
        let request = OfTask { task: task.clone(), run: request.run, iters: request.iters };
        return reports_of_task(call, request, kind, answer).await;
    }
    let (skip, size) = request.page()?;
    let mut metrics = Vec::new();
    for ImagesOf { task, metric, variants } in request.metrics {
        let of = must_exist(&call, &task, false).await?;
        let mut iterations: BTreeMap<i64, Vec<Value>> = BTreeMap::new();
        for report in call.store.reports(&of, kind).await? {
            let is_meant = metric.as_ref().is_none_or(|metric| *metric == report.metric)
                && (variants.is_empty() || variants.contains(&report.variant));
            if is_meant {
                iterations.entry(report.iter).or_default().push(report.doc);
            }
        }
        let newest = iterations.into_iter().rev().skip(skip).take(size);
        let newest: Vec<Value> =
            newest.map(|(iter, events)| json!({"iter": iter, "events": events})).collect();
        metrics.push(json!({"task": task, "iterations": newest}));
    }
    // The SDK continues until a page is empty.
    Ok(json!({"metrics": metrics, "scroll_id": skip.saturating_add(size).to_string()}))
}

async fn reports_of_task(
    call: Call,
    request: OfTask,
    kind: &'static str,
    answer: &'static str,
) -> Result<Value, ApiError> {
    let of = output_of(&call, &request.task, request.run).await?;
    let mut graphs: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    for report in call.store.reports(&of, kind).await? {
        graphs.entry((report.metric, report.variant)).or_default().push(report.doc);
    }
    let last = |events: Vec<Value>| {
        let skip = events.len().saturating_sub(request.iters.unwrap_or(usize::MAX));
        events.into_iter().skip(skip)
    };
    let events: Vec<Value> = graphs.into_values().flat_map(last).collect();
    let mut data = Map::from_iter([(answer.to_owned(), json!(events))]);
    data.insert("returned".to_owned(), json!(events.len()));
    data.insert("total".to_owned(), json!(events.len()));
    Ok(Value::Object(data))
}
