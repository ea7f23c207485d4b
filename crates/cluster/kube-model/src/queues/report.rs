//! Reports the cluster as one node, for `cantle gpus`, `projects` and `why`. Pure.

use std::time::Duration;

use cantle_clearml::cantle::{GpuView, NodeQueue, ReportNode, SliceView, WaitReport};
use cantle_model::{Fraction, Slice};
use cantle_sched::Wait;

use super::builder::PodBuilder;
use super::pod_request::PodRequest;
use crate::SliceName;
use crate::cluster::{ClusterView, ViewGpu};

/// How often the server gets the report even if nothing has changed.
pub const REPORT_EVERY: Duration = Duration::from_secs(20);

/// The report to the server.
pub fn node_report(builder: &PodBuilder, view: &ClusterView, waits: &[Wait]) -> ReportNode {
    let queue = |queue: &super::config::QueueConfig| NodeQueue {
        name: queue.name.clone(),
        spec: spec(
            PodRequest::of_task(&queue.template, &cantle_clearml::TaskRequest::default()).gpu.as_ref(),
        ),
    };
    let waiting = |wait: &Wait| WaitReport {
        task: wait.task.0.clone(),
        reason: wait.reason.to_string(),
        remedy: Some(wait.reason.remedy()),
    };
    let gpus = view.nodes.iter().flat_map(|node| &node.gpus).zip(0..);
    ReportNode {
        node: builder.owner.clone(),
        worker: builder.owner.clone(),
        queues: builder.file.queues.iter().map(queue).collect(),
        gpus: gpus.map(|(gpu, index)| gpu_view(view, gpu, index)).collect(),
        waiting: waits.iter().map(waiting).collect(),
        // GPUs of all nodes of the cluster: resource slices say nothing about their connections.
        links: Vec::new(),
        suspended: Vec::new(),
        interval_ms: u64::try_from(REPORT_EVERY.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The slice of a queue's tasks, as on the command line of an agent.
fn spec(gpu: Option<&SliceName>) -> String {
    match gpu {
        Some(SliceName::Fraction { parts, gpus: 1 }) => Fraction::from_ten_thousandths(*parts).to_string(),
        Some(SliceName::Whole { gpus }) => gpus.to_string(),
        _ => "task".to_owned(),
    }
}

fn gpu_view(view: &ClusterView, seen: &ViewGpu, index: u32) -> GpuView {
    let all =
        view.holdings.iter().flat_map(|holding| holding.slices.iter().map(move |slice| (holding, slice)));
    let held: Vec<_> = all.filter(|(_, slice)| slice.gpu == seen.offer.gpu.uuid).collect();
    let mode = seen.offer.mode(&held.iter().map(|(_, slice)| *slice).collect::<Vec<&Slice>>());
    let slices: Vec<SliceView> = held
        .into_iter()
        .map(|(holding, slice)| SliceView {
            compute: None,
            task: holding.name.clone(),
            lease: holding.pod.clone(),
            milli: slice.milli.0,
            memory_limit_bytes: slice.memory_limit_bytes,
            memory_used_bytes: 0,
            mig: slice.mig.clone(),
            enforcement: None,
            enforced_by: Vec::new(),
            processes: Vec::new(),
        })
        .collect();
    let allocated: u32 = slices.iter().map(|slice| slice.milli).sum();
    GpuView {
        index,
        uuid: seen.offer.gpu.uuid.0.clone(),
        model: seen.offer.gpu.model.clone(),
        memory_bytes: seen.offer.gpu.memory_bytes,
        mode,
        allocated_milli: allocated,
        slices,
        fault: None,
    }
}
