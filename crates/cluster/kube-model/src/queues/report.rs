//! Reports the cluster as one node, for `cantle gpus`, `projects` and `why`. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use cantle_clearml::cantle::{DirectSlice, GpuView, NodeQueue, ReportNode, SliceView, WaitReport};
use cantle_model::{Fraction, Slice};
use cantle_sched::Wait;

use super::builder::PodBuilder;
use super::pod_request::PodRequest;
use crate::SliceName;
use crate::cluster::{ClusterView, PodSlices, ViewGpu};

/// How often the server gets the report even if nothing has changed.
pub const REPORT_EVERY: Duration = Duration::from_secs(20);

/// The report to the server.
/// `own`: the UIDs of the pods of tasks.
pub fn node_report(
    builder: &PodBuilder,
    view: &ClusterView,
    own: &BTreeSet<String>,
    waits: &[Wait],
) -> ReportNode {
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
        gpus: gpus.map(|(gpu, index)| gpu_view(view, own, gpu, index)).collect(),
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

/// A pod without a UID has no record: its successor would look the same.
fn direct(own: &BTreeSet<String>, holding: &PodSlices) -> Option<DirectSlice> {
    let is_direct = !holding.pod.is_empty() && !own.contains(&holding.pod);
    let namespace = holding.name.split_once('/').map(|(namespace, _)| namespace);
    let owner = namespace.map(|namespace| format!("namespace:{namespace}")).unwrap_or_default();
    is_direct.then(|| DirectSlice { name: holding.name.clone(), since_ms: None, owner })
}

fn gpu_view(view: &ClusterView, own: &BTreeSet<String>, seen: &ViewGpu, index: u32) -> GpuView {
    let all =
        view.holdings.iter().flat_map(|holding| holding.slices.iter().map(move |slice| (holding, slice)));
    let held: Vec<_> = all.filter(|(_, slice)| slice.gpu == seen.offer.gpu.uuid).collect();
    let mode = seen.offer.mode(&held.iter().map(|(_, slice)| *slice).collect::<Vec<&Slice>>());
    let slices: Vec<SliceView> = held
        .into_iter()
        .map(|(holding, slice)| SliceView {
            compute: None,
            direct: direct(own, holding),
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
        foreign: Vec::new(),
        fault: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_no_queue_made_has_a_record_of_its_own() {
        let own = BTreeSet::from(["u-1".to_owned()]);
        let named = |pod: &str| {
            let (node, name) = ("n".to_owned(), "team/notebook".to_owned());
            let holding = PodSlices { node, pod: pod.to_owned(), name, slices: Vec::new(), by_claim: true };
            direct(&own, &holding).map(|direct| (direct.name, direct.owner))
        };
        assert_eq!(
            ["u-1", "u-2", ""].map(named),
            [None, Some(("team/notebook".to_owned(), "namespace:team".to_owned())), None]
        );
    }
}
