//! Nodes as they last reported.

use cantle_clearml::cantle::{GpuView, NodeView, ReportNode, WaitReport};
use cantle_metrics::Fallback;
use cantle_model::{Gpu, GpuMode, GpuUuid, Milli, Slice, Topology};
use cantle_sched::connection;
use cantle_store::NodeRow;

use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::metrics::FALLBACKS;

/// A node may miss two reports, and may always be as late as this.
const LATE_US: i64 = 10_000_000;

/// A node, and whether its report is recent.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) report: ReportNode,
    pub(crate) last_seen_us: i64,
    pub(crate) alive: bool,
}

impl Node {
    pub(crate) fn serves(&self, queue: &str) -> bool {
        self.report.queues.iter().any(|served| served.name == queue)
    }

    /// Why it cannot start that task, if it reported a reason.
    pub(crate) fn waiting(&self, task: &str) -> Option<&WaitReport> {
        self.report.waiting.iter().find(|waiting| waiting.task == task)
    }

    /// How the GPUs of a task that runs there are connected.
    pub(crate) fn connection_of(&self, task: &str) -> Option<String> {
        let gpus: Vec<Gpu> = self.report.gpus.iter().map(gpu).collect();
        let uuids = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let topology = Topology::from_report(uuids, self.report.links.clone());
        let slices = self.report.gpus.iter().flat_map(|gpu| gpu.slices.iter().map(move |slice| (gpu, slice)));
        let held = slices.filter(|(_, slice)| slice.task == task).map(|(gpu, slice)| Slice {
            gpu: GpuUuid(gpu.uuid.clone()),
            milli: Milli(slice.milli),
            memory_limit_bytes: slice.memory_limit_bytes,
            mig: slice.mig.clone(),
        });
        connection(&topology, &gpus, &held.collect::<Vec<_>>())
    }

    pub(crate) fn view(self) -> NodeView {
        let ReportNode { node, worker, queues, gpus, links, suspended, .. } = self.report;
        let last_seen = rfc3339(self.last_seen_us);
        NodeView { node, worker, last_seen, alive: self.alive, queues, gpus, links, suspended }
    }
}

/// All nodes that ever reported, by name.
pub(crate) async fn all(call: &Call) -> Result<Vec<Node>, ApiError> {
    let rows = call.store.nodes().await?;
    Ok(rows.into_iter().filter_map(|row| node(row, call.now_us)).collect())
}

/// All GPUs of nodes that are alive.
pub(crate) async fn gpus_alive_milli(call: &Call) -> Result<u64, ApiError> {
    let nodes = all(call).await?;
    Ok(nodes.iter().filter(|node| node.alive).map(|node| 1000 * node.report.gpus.len() as u64).sum())
}

/// Whether the node reported recently.
pub(crate) async fn is_alive(call: &Call, name: &str) -> Result<bool, ApiError> {
    let rows = call.store.nodes().await?;
    Ok(rows.iter().any(|row| row.node == name && is_recent(row, call.now_us)))
}

/// Whether its report is recent.
pub(crate) fn is_recent(row: &NodeRow, now_us: i64) -> bool {
    let patience_us = row.interval_ms.saturating_mul(3000).clamp(LATE_US, 10 * LATE_US);
    now_us - row.last_seen_us < patience_us
}

/// A report of another version that cannot be read counts as none.
fn node(row: NodeRow, now_us: i64) -> Option<Node> {
    let alive = is_recent(&row, now_us);
    match serde_json::from_str::<ReportNode>(&row.report) {
        Ok(report) => Some(Node { report, last_seen_us: row.last_seen_us, alive }),
        Err(error) => {
            let node = row.node;
            if FALLBACKS.count(Fallback::UnreadableReport, &format!("{node} {error}")) {
                tracing::warn!(node, %error, "a node's report cannot be read; the node counts as none");
            }
            None
        }
    }
}

/// A GPU as a report describes it.
pub(crate) fn gpu(view: &GpuView) -> Gpu {
    Gpu {
        uuid: GpuUuid(view.uuid.clone()),
        index: view.index,
        model: view.model.clone(),
        memory_bytes: view.memory_bytes,
        mig: view.mode == GpuMode::Mig,
    }
}
