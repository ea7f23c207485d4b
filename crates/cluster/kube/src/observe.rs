//! Health and metrics of the cluster's components, over plain HTTP: `/healthz`, `/readyz` and `/metrics`.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::door::Door;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cantle_metrics::{Exposition, Histogram, precise};

/// A part that can be watched.
pub(crate) trait Observed: Send + Sync + 'static {
    /// The conditions that it waits for before it serves.
    fn waits_for(&self) -> Option<&'static str> {
        None
    }

    /// Writes all that it counts.
    fn write(&self, text: &mut Exposition);
}

/// Serves the endpoints of a component; if that fails, its work continues without them.
pub(crate) async fn show(listener: TcpListener, part: Arc<impl Observed>) {
    let served = async { axum::serve(Door::new(listener, None)?, routes(part)).await };
    if let Err(error) = served.await {
        tracing::error!("metrics: {error}");
    }
}

fn routes<T: Observed>(part: Arc<T>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<T>))
        .route("/metrics", get(metrics::<T>))
        .with_state(part)
}

async fn readyz<T: Observed>(State(part): State<Arc<T>>) -> (StatusCode, String) {
    match part.waits_for() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(what) => (StatusCode::SERVICE_UNAVAILABLE, format!("no {what} yet\n")),
    }
}

async fn metrics<T: Observed>(State(part): State<Arc<T>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut text = Exposition::new(accept);
    part.write(&mut text);
    let (content_type, text) = text.finish();
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

/// Calls of one kind: how they ended, and how long they took.
pub(crate) struct Calls {
    ends: &'static [&'static str],
    counts: Vec<AtomicU64>,
    durations: Mutex<Histogram>,
}

impl Calls {
    /// None yet. `ends` are the ways in which one can end, `bounds_s` those of the histogram.
    pub(crate) fn new(ends: &'static [&'static str], bounds_s: &'static [f64]) -> Self {
        let counts = ends.iter().map(|_| AtomicU64::new(0)).collect();
        Self { ends, counts, durations: Mutex::new(Histogram::new(bounds_s)) }
    }

    /// One has ended in the way at this position.
    pub(crate) fn ended(&self, end: usize, took: Duration) {
        self.counts[end].fetch_add(1, Ordering::Relaxed);
        self.durations.lock().unwrap_or_else(PoisonError::into_inner).observe(took.as_secs_f64());
    }

    /// The count of the outcome at this position.
    pub(crate) fn count(&self, end: usize) -> u64 {
        self.counts[end].load(Ordering::Relaxed)
    }

    /// The counts by outcome (label `answer`), as samples of a counter's family.
    pub(crate) fn write_answers(&self, text: &mut Exposition, labels: &[(&str, &str)]) {
        for (at, end) in self.ends.iter().enumerate() {
            text.sample(&[labels, &[("answer", *end)]].concat(), precise(self.count(at)));
        }
    }

    /// Their durations, as samples of a histogram's family.
    pub(crate) fn write_durations(&self, text: &mut Exposition, labels: &[(&str, &str)]) {
        text.histogram(labels, &self.durations.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Fails unless each metric of a part is in `docs/metrics.md` and in the dashboard; returns their names.
#[cfg(test)]
pub(crate) fn documented(part: &impl Observed) -> Vec<String> {
    let mut text = Exposition::new("text/plain");
    part.write(&mut text);
    let (_, text) = text.finish();
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let names: Vec<String> = names.map(str::to_owned).collect();
    for name in &names {
        assert!(include_str!("../../../../docs/metrics.md").contains(&format!("`{name}`")), "{name}: docs");
        assert!(include_str!("../../../../docs/grafana/cantle.json").contains(name), "{name}: dashboard");
    }
    names
}
