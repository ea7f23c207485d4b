//! The agent's own metrics, and the endpoint that serves them: `--metrics-listen`. Names and labels are documented in
//! `docs/metrics.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::IntoResponse;
use axum::routing::get;
use cantle_clearml::cantle::{GpuView, SliceView};
use cantle_metrics::{Exposition, Fallback, Fallbacks, Histogram, MetricKind, SliceLabels, precise};
use cantle_model::{GpuUuid, Milli, Slice};
use cantle_node::mig::Stages;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::AgentError;

/// Upper bounds for the time that a decision takes, in seconds.
const DECISION_S: [f64; 8] = [0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 1.0];

/// Counts since the agent's start, and the state of its GPUs at the last scan.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Does the server answer?
    pub(crate) server_up: bool,
    /// Seconds from a snapshot of the node to an audited plan.
    pub(crate) decisions: Histogram,
    /// Tasks that got a place, by queue.
    pub(crate) placements: BTreeMap<String, u64>,
    /// Tasks that were stopped for others.
    pub(crate) preemptions: u64,
    /// Allocations that were refused, by GPU.
    pub(crate) refused: BTreeMap<GpuUuid, u64>,
    /// The findings and actions of the watchdog: `warn`, `kill`.
    pub(crate) watchdog: BTreeMap<&'static str, u64>,
    /// The slices of each task.
    pub(crate) gpus: Vec<GpuView>,
}

/// Values that the agent assumed because it could not read its input.
pub(crate) static FALLBACKS: Fallbacks =
    Fallbacks::new(&[Fallback::UnreadableLeases, Fallback::UnreadableRequest]);

/// One more.
pub(crate) fn count<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    *counts.entry(key).or_default() += 1;
}

/// Shared between the agent's loop, which counts, and the readers.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    node: Arc<str>,
    counts: Arc<Mutex<Counts>>,
    mig: Stages,
}

impl Meter {
    /// Nothing counted yet, on a node of this name.
    pub(crate) fn new(node: &str) -> Self {
        let counts = Counts {
            server_up: true,
            decisions: Histogram::new(&DECISION_S),
            placements: BTreeMap::new(),
            preemptions: 0,
            refused: BTreeMap::new(),
            // All counters exist from the start, as 0: rates need a first value.
            watchdog: BTreeMap::from([("warn", 0), ("kill", 0)]),
            gpus: Vec::new(),
        };
        Self { node: node.into(), counts: Arc::new(Mutex::new(counts)), mig: Stages::default() }
    }

    /// For the writers of MIG instances.
    pub(crate) fn mig(&self) -> Stages {
        self.mig.clone()
    }

    /// To count, or to read.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counts are whole after every statement, so a reader that panicked leaves nothing half done.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the allocations that were refused in each of a task's slices.
    pub(crate) fn refused(&self, slices: &[Slice], times: &[u64]) {
        for (slice, times) in slices.iter().zip(times).filter(|(_, times)| **times > 0) {
            *self.counts().refused.entry(slice.gpu.clone()).or_default() += times;
        }
    }

    /// Answers at `listen` from now on, without credentials.
    ///
    /// # Errors
    /// If the address is not one, or not free.
    pub(crate) async fn serve(&self, listen: &str) -> Result<JoinHandle<()>, AgentError> {
        let busy = |error: std::io::Error| AgentError::Listen {
            listen: listen.to_owned(),
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(listen).await.map_err(busy)?;
        let address = listener.local_addr().map_err(busy)?;
        tracing::info!(%address, "serving metrics");
        let router = Router::new()
            .route("/metrics", get(scrape))
            .route("/healthz", get(|| async { "ok\n" }))
            .with_state(self.clone());
        Ok(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "metrics are not served any more");
            }
        }))
    }

    fn text(&self, accept: &str) -> (&'static str, String) {
        let mut metrics = Exposition::new(accept);
        let counts = self.counts();
        of_agent(&mut metrics, &counts);
        Fallbacks::write(&mut metrics, "cantle_agent_fallbacks", &[&FALLBACKS]);
        self.mig.expose(&mut metrics);
        of_gpus(&mut metrics, &self.node, &counts);
        of_slices(&mut metrics, &self.node, &counts.gpus);
        metrics.finish()
    }
}

/// `GET /metrics`
async fn scrape(State(meter): State<Meter>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (content_type, body) = meter.text(accept);
    ([(header::CONTENT_TYPE, content_type)], body)
}

fn of_agent(metrics: &mut Exposition, counts: &Counts) {
    metrics.family(MetricKind::Gauge, "cantle_agent_build_info", "Always 1; the label says what runs.");
    metrics.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    metrics.family(MetricKind::Gauge, "cantle_agent_server_up", "Does the server answer?");
    metrics.sample(&[], f64::from(u8::from(counts.server_up)));
    let help = "How long the agent took from a picture of its GPUs to an audited plan.";
    metrics.family(MetricKind::Histogram, "cantle_agent_decision_seconds", help);
    metrics.histogram(&[], &counts.decisions);
    metrics.family(MetricKind::Counter, "cantle_agent_placements", "Tasks that got a place, by queue.");
    for (queue, placements) in &counts.placements {
        metrics.sample(&[("queue", queue)], precise(*placements));
    }
    let help = "Tasks that were stopped to make room for others.";
    metrics.family(MetricKind::Counter, "cantle_agent_preemptions", help);
    metrics.sample(&[], precise(counts.preemptions));
    let help = "Tasks that held what is not theirs: named (warn), stopped (kill).";
    metrics.family(MetricKind::Counter, "cantle_agent_watchdog_actions", help);
    for (action, times) in &counts.watchdog {
        metrics.sample(&[("action", action)], precise(*times));
    }
}

fn of_gpus(metrics: &mut Exposition, node: &str, counts: &Counts) {
    let mut family = |kind, name, help: &str, value: &dyn Fn(&GpuView) -> f64| {
        metrics.family(kind, name, help);
        for gpu in &counts.gpus {
            let index = gpu.index.to_string();
            metrics.sample(&[("gpu", &index), ("UUID", &gpu.uuid), ("Hostname", node)], value(gpu));
        }
    };
    let sum = |gpu: &GpuView, part: fn(&SliceView) -> u64| precise(gpu.slices.iter().map(part).sum());
    family(MetricKind::Gauge, "cantle_agent_gpu_memory_bytes", "Memory of the GPU.", &|gpu| {
        precise(gpu.memory_bytes)
    });
    family(
        MetricKind::Gauge,
        "cantle_agent_gpu_allocated_ratio",
        "Part of the GPU that is allocated.",
        &|gpu| f64::from(gpu.allocated_milli) / f64::from(Milli::ONE.0),
    );
    let help = "Sum of the memory limits of the slices on the GPU.";
    family(MetricKind::Gauge, "cantle_agent_gpu_limits_bytes", help, &|gpu| {
        sum(gpu, |s| s.memory_limit_bytes)
    });
    let help = "Memory that the tasks on the GPU use.";
    family(MetricKind::Gauge, "cantle_agent_gpu_used_bytes", help, &|gpu| sum(gpu, |s| s.memory_used_bytes));
    let help = "Allocations beyond a limit, refused.";
    family(MetricKind::Counter, "cantle_agent_refused_allocations", help, &|gpu| {
        precise(counts.refused.get(&GpuUuid(gpu.uuid.clone())).copied().unwrap_or(0))
    });
}

fn of_slices(metrics: &mut Exposition, node: &str, gpus: &[GpuView]) {
    let mut gauge = |name, help: &str, value: fn(&SliceView) -> u64| {
        metrics.family(MetricKind::Gauge, name, help);
        for gpu in gpus {
            let index = gpu.index.to_string();
            for slice in &gpu.slices {
                let labels = SliceLabels {
                    gpu: &index,
                    uuid: &gpu.uuid,
                    node,
                    mig_profile: slice.mig.as_ref().map_or("", |mig| &mig.profile),
                    slice: &slice.lease,
                    task: &slice.task,
                };
                metrics.sample(&labels.pairs(), precise(value(slice)));
            }
        }
    };
    gauge("cantle_agent_slice_memory_limit_bytes", "What the task may use.", |s| s.memory_limit_bytes);
    gauge("cantle_agent_slice_memory_used_bytes", "What the task uses.", |s| s.memory_used_bytes);
}

#[cfg(test)]
mod tests {
    use cantle_model::GpuMode;

    use super::*;

    fn gpu() -> GpuView {
        let slice = SliceView {
            compute: None,
            direct: None,
            task: "t".into(),
            lease: "l".into(),
            milli: 250,
            memory_limit_bytes: 10 << 30,
            memory_used_bytes: 3 << 30,
            mig: None,
            enforcement: None,
            enforced_by: Vec::new(),
            processes: Vec::new(),
        };
        GpuView {
            index: 3,
            uuid: "GPU-a".into(),
            model: "X".into(),
            memory_bytes: 40 << 30,
            mode: GpuMode::Shared,
            allocated_milli: 250,
            slices: vec![slice],
            foreign: Vec::new(),
            fault: None,
        }
    }

    #[test]
    fn counts_are_exposed_under_their_gpu() {
        let meter = Meter::new("n1");
        {
            let mut counts = meter.counts();
            counts.gpus = vec![gpu()];
            counts.decisions.observe(0.002);
            count(&mut counts.refused, GpuUuid::from("GPU-a"));
            count(&mut counts.refused, GpuUuid::from("GPU-of others"));
            count(&mut counts.watchdog, "kill");
        }
        let (_, text) = meter.text("text/plain");
        for line in [
            "cantle_agent_decision_seconds_bucket{le=\"0.005\"} 1",
            "cantle_agent_watchdog_actions_total{action=\"kill\"} 1",
            "cantle_agent_watchdog_actions_total{action=\"warn\"} 0",
            "cantle_agent_mig_stage_seconds_count{stage=\"ready\"} 0",
            "cantle_agent_mig_troubles_total{kind=\"rollback\"} 0",
            "cantle_agent_refused_allocations_total{gpu=\"3\",UUID=\"GPU-a\",Hostname=\"n1\"} 1",
            "cantle_agent_gpu_allocated_ratio{gpu=\"3\",UUID=\"GPU-a\",Hostname=\"n1\"} 0.25",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("GPU-of others"), "only GPUs that the agent has");
    }
}
