//! The cluster as one node, for `cantle gpus`, `projects` and `why`. Pure.

use cantle_clearml::cantle::{GpuView, NodeQueue, ReportNode, SliceView, Waiting};
use cantle_model::{GpuMode, Milli};
use cantle_sched::Wait;

use super::pod::Forge;
use super::quotas::REPORT_EVERY;
use super::wants::Wants;
use crate::ask::{Ask, PARTS};
use crate::cluster::{View, ViewGpu};

/// What the server is told.
pub(super) fn node_report(forge: &Forge, view: &View, waits: &[Wait]) -> ReportNode {
    let queue = |queue: &super::config::QueueConfig| NodeQueue {
        name: queue.name.clone(),
        spec: spec(Wants::of_task(&queue.template, &cantle_clearml::TaskRequest::default()).ask.as_ref()),
    };
    let said = |wait: &Wait| Waiting {
        task: wait.task.0.clone(),
        reason: wait.reason.to_string(),
        remedy: Some(wait.reason.remedy()),
    };
    let gpus = view.nodes.iter().flat_map(|node| &node.gpus).zip(0..);
    ReportNode {
        node: forge.owner.clone(),
        worker: forge.owner.clone(),
        queues: forge.file.queues.iter().map(queue).collect(),
        gpus: gpus.map(|(gpu, index)| gpu_view(view, gpu, index)).collect(),
        waiting: waits.iter().map(said).collect(),
        interval_ms: u64::try_from(REPORT_EVERY.as_millis()).unwrap_or(u64::MAX),
    }
}

/// What a queue's tasks get, as on the command line of an agent.
fn spec(ask: Option<&Ask>) -> String {
    match ask {
        Some(Ask::Fraction { parts, gpus: 1 }) => Milli((parts * 1000).div_ceil(PARTS)).to_string(),
        Some(Ask::Whole { gpus }) => gpus.to_string(),
        _ => "task".to_owned(),
    }
}

fn gpu_view(view: &View, seen: &ViewGpu, index: u32) -> GpuView {
    let all =
        view.holdings.iter().flat_map(|holding| holding.slices.iter().map(move |slice| (holding, slice)));
    let slices: Vec<SliceView> = all
        .filter(|(_, slice)| slice.gpu == seen.gpu.uuid)
        .map(|(holding, slice)| SliceView {
            task: holding.name.clone(),
            lease: holding.pod.clone(),
            milli: slice.milli.0,
            memory_limit_bytes: slice.memory_limit_bytes,
            memory_used_bytes: 0,
            mig: slice.mig.clone(),
            enforcement: None,
            processes: Vec::new(),
        })
        .collect();
    let allocated: u32 = slices.iter().map(|slice| slice.milli).sum();
    let mode = match slices.as_slice() {
        _ if !seen.shares || slices.iter().any(|slice| slice.mig.is_some()) => GpuMode::Mig,
        [] => GpuMode::Idle,
        [one] if one.milli == Milli::ONE.0 => GpuMode::Whole,
        _ => GpuMode::Shared,
    };
    GpuView {
        index,
        uuid: seen.gpu.uuid.0.clone(),
        model: seen.gpu.model.clone(),
        memory_bytes: seen.gpu.memory_bytes,
        mode,
        allocated_milli: allocated,
        slices,
    }
}
