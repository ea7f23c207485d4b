//! Workers and queues over time, for ClearML's graphs.

use std::collections::{BTreeMap, BTreeSet};

use cantle_store::{QueueSample, WorkerSample};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::error::ApiError;
use crate::projection::few;
use crate::routes::Routes;

/// ClearML's name for all queues together.
const ALL_QUEUES: &str = "total";
/// Limit of samples for one graph: a week of ten workers, or half a day of 140.
const MAX_SAMPLES: i64 = 100_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("queues.get_queue_metrics", queue_metrics);
    routes.on("workers.get_stats", stats);
    routes.on("workers.get_activity_report", activity_report);
    routes.on("workers.get_metric_keys", metric_keys);
}

/// Beginning, end, and distance of the points, in seconds.
#[derive(Deserialize)]
struct Span {
    from_date: f64,
    to_date: f64,
    interval: i64,
}

impl Span {
    fn check(&self) -> Result<(), ApiError> {
        // Written so that it refuses NaN, too.
        if !(self.from_date >= 0.0 && self.from_date < self.to_date) {
            return Err(ApiError::invalid("from_date must be less than to_date, and not negative"));
        }
        if self.interval < 1 {
            return Err(ApiError::invalid(format!("interval is {} s; at least 1", self.interval)));
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "saturates, and no sample is that far away")]
    fn limits_us(&self) -> (i64, i64) {
        ((self.from_date * 1e6) as i64, (self.to_date * 1e6) as i64)
    }

    /// The point that a time belongs to, in milliseconds like all times of ClearML's graphs.
    fn point_ms(&self, time_us: i64) -> i64 {
        let interval_ms = self.interval.saturating_mul(1000);
        let time_ms = time_us / 1000;
        time_ms - time_ms.rem_euclid(interval_ms)
    }
}

#[derive(Deserialize)]
struct QueueMetrics {
    #[serde(flatten)]
    span: Span,
    #[serde(default)]
    queue_ids: Vec<String>,
    /// Sample now, too.
    #[serde(default)]
    refresh: bool,
}

/// How many tasks wait, and the sum of their waiting times.
#[derive(Clone, Copy, Default)]
struct Waiting {
    tasks: i64,
    total_s: i64,
}

impl Waiting {
    fn average_s(self) -> f64 {
        if self.tasks == 0 { 0.0 } else { self.total_s as f64 / self.tasks as f64 }
    }
}

async fn queue_metrics(call: Call, request: QueueMetrics) -> Result<Value, ApiError> {
    request.span.check()?;
    few(&request.queue_ids)?;
    if request.refresh {
        call.store.sample_queues(call.now_us).await?;
    }
    let (from_us, to_us) = request.span.limits_us();
    let samples = call.store.queue_samples(&request.queue_ids, from_us, to_us).await?;
    let mut lines: BTreeMap<String, BTreeMap<i64, Waiting>> =
        request.queue_ids.iter().map(|id| (id.clone(), BTreeMap::new())).collect();
    if request.queue_ids.is_empty() {
        lines.insert(ALL_QUEUES.to_owned(), BTreeMap::new());
    }
    for (name, time_us, waiting) in by_moment(samples, request.queue_ids.is_empty()) {
        let point = lines.entry(name).or_default().entry(request.span.point_ms(time_us)).or_insert(waiting);
        // The worst sample of an interval represents it.
        if (waiting.average_s(), waiting.tasks) > (point.average_s(), point.tasks) {
            *point = waiting;
        }
    }
    let line = |(queue, points): (String, BTreeMap<i64, Waiting>)| {
        json!({
            "queue": queue,
            "dates": points.keys().collect::<Vec<_>>(),
            "avg_waiting_times": points.values().map(|point| point.average_s()).collect::<Vec<_>>(),
            "queue_lengths": points.values().map(|point| point.tasks).collect::<Vec<_>>(),
        })
    };
    Ok(json!({ "queues": lines.into_iter().map(line).collect::<Vec<_>>() }))
}

/// The samples as they are, or with all queues of a time as one.
fn by_moment(samples: Vec<QueueSample>, together: bool) -> Vec<(String, i64, Waiting)> {
    let mut moments: BTreeMap<(i64, String), Waiting> = BTreeMap::new();
    for sample in samples {
        let name = if together { ALL_QUEUES.to_owned() } else { sample.queue };
        let sum = moments.entry((sample.time_us, name)).or_default();
        sum.tasks += sample.waiting;
        sum.total_s += sample.total_wait_s;
    }
    moments.into_iter().map(|((time_us, name), waiting)| (name, time_us, waiting)).collect()
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Aggregation {
    #[default]
    Avg,
    Min,
    Max,
}

impl Aggregation {
    const fn name(self) -> &'static str {
        match self {
            Self::Avg => "avg",
            Self::Min => "min",
            Self::Max => "max",
        }
    }

    fn of(self, values: &[f64]) -> f64 {
        match self {
            Self::Avg => values.iter().sum::<f64>() / values.len() as f64,
            Self::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
            Self::Max => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

#[derive(Deserialize)]
struct Item {
    key: String,
    #[serde(default)]
    aggregation: Aggregation,
}

#[derive(Deserialize)]
struct Stats {
    #[serde(flatten)]
    span: Span,
    #[serde(default)]
    worker_ids: Vec<String>,
    items: Vec<Item>,
}

/// Worker → measure → points.
async fn stats(call: Call, request: Stats) -> Result<Value, ApiError> {
    request.span.check()?;
    few(&request.worker_ids)?;
    let samples = worker_samples(&call, &request.worker_ids, &request.span).await?;
    let mut by_worker: BTreeMap<&str, Vec<&WorkerSample>> = BTreeMap::new();
    for sample in &samples {
        by_worker.entry(&sample.worker).or_default().push(sample);
    }
    let mut workers = Vec::new();
    for (worker, samples) in by_worker {
        let mut metrics: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for item in &request.items {
            if let Some(line) = line(&samples, item, &request.span) {
                metrics.entry(&item.key).or_default().push(line);
            }
        }
        let metric = |(key, stats): (&str, Vec<Value>)| json!({ "metric": key, "stats": stats });
        let metrics: Vec<Value> = metrics.into_iter().map(metric).collect();
        workers.push(json!({ "worker": worker, "metrics": metrics }));
    }
    Ok(json!({ "workers": workers }))
}

async fn worker_samples(call: &Call, workers: &[String], span: &Span) -> Result<Vec<WorkerSample>, ApiError> {
    let (from_us, to_us) = span.limits_us();
    let samples = call.store.worker_samples(workers, from_us, to_us, MAX_SAMPLES + 1).await?;
    if i64::try_from(samples.len()).is_ok_and(|count| count <= MAX_SAMPLES) {
        return Ok(samples);
    }
    Err(ApiError::invalid(format!(
        "more than {MAX_SAMPLES} samples; ask for fewer workers or a shorter time"
    )))
}

/// One measure of one worker over time; empty if it never reported it.
fn line(samples: &[&WorkerSample], item: &Item, span: &Span) -> Option<Value> {
    let mut points: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        let values = numbers(sample.machine_stats.get(&item.key));
        if !values.is_empty() {
            points.entry(span.point_ms(sample.time_us)).or_default().extend(values);
        }
    }
    let values: Vec<f64> = points.values().map(|values| item.aggregation.of(values)).collect();
    let dates: Vec<&i64> = points.keys().collect();
    let name = item.aggregation.name();
    (!dates.is_empty()).then(|| json!({ "aggregation": name, "dates": dates, "values": values }))
}

/// A measure is one number, or one for each CPU or GPU.
fn numbers(measure: Option<&Value>) -> Vec<f64> {
    match measure {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_f64).collect(),
        Some(item) => item.as_f64().into_iter().collect(),
        None => Vec::new(),
    }
}

/// How many workers there were, and how many of them worked on a task.
async fn activity_report(call: Call, span: Span) -> Result<Value, ApiError> {
    span.check()?;
    let (mut total, mut active) = (BTreeMap::new(), BTreeMap::new());
    for sample in worker_samples(&call, &[], &span).await? {
        let point = span.point_ms(sample.time_us);
        let busy: &mut BTreeSet<String> = active.entry(point).or_default();
        if sample.busy {
            busy.insert(sample.worker.clone());
        }
        total.entry(point).or_insert_with(BTreeSet::new).insert(sample.worker);
    }
    let series = |points: &BTreeMap<i64, BTreeSet<String>>| {
        let counts: Vec<usize> = points.values().map(BTreeSet::len).collect();
        json!({ "dates": points.keys().collect::<Vec<_>>(), "counts": counts })
    };
    Ok(json!({ "total": series(&total), "active": series(&active) }))
}

#[derive(Deserialize)]
struct OfWorkers {
    #[serde(default)]
    worker_ids: Vec<String>,
}

/// The measurements of workers, by ClearML's categories: the first word of each name.
async fn metric_keys(call: Call, request: OfWorkers) -> Result<Value, ApiError> {
    let mut categories: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for worker in call.store.workers(i64::MIN).await? {
        let wanted = request.worker_ids.is_empty() || request.worker_ids.contains(&worker.id);
        let stats = worker.machine_stats.filter(|_| wanted).unwrap_or_default();
        let stats: Map<String, Value> = serde_json::from_str(&stats).unwrap_or_default();
        for (key, _) in stats.into_iter().filter(|(_, measure)| !numbers(Some(measure)).is_empty()) {
            let category = key.split('_').next().unwrap_or_default().to_owned();
            categories.entry(category).or_default().insert(key);
        }
    }
    let category = |(name, keys)| json!({ "name": name, "metric_keys": keys });
    Ok(json!({ "categories": categories.into_iter().map(category).collect::<Vec<_>>() }))
}
