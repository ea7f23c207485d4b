//! The capacity that pods with a nomination will take.

use std::collections::BTreeMap;

use cantle_model::{GpuUuid, LeaseId, Slice, TaskId};
use cantle_sched::Running;

use super::{Nomination, Nominator};
use crate::cluster::ViewGpu;

impl<'a> Nominator<'a> {
    /// Nominations as slices. kube-scheduler takes the first GPUs of a node with enough free memory, in the order in which
    /// pods arrive, so the GPU that was chosen for a pod does not matter. One that finds no room any more will be refused
    /// there.
    pub(super) fn under_way(
        &self,
        made: &BTreeMap<String, Nomination>,
        is_open: &dyn Fn(&str) -> bool,
    ) -> Vec<Running> {
        let mut taken: BTreeMap<(&str, &GpuUuid), u64> = BTreeMap::new();
        for holding in &self.view.holdings {
            for slice in &holding.slices {
                *taken.entry((&holding.node, &slice.gpu)).or_default() += slice.memory_limit_bytes;
            }
        }
        let mut running = Vec::new();
        for (uid, one) in made.iter().filter(|(_, one)| is_open(&one.node)) {
            let (request, count) = (one.slice_name.request([]), one.slice_name.gpus());
            let node = self.view.nodes.iter().find(|node| node.name == one.node);
            let gpus = node.into_iter().flat_map(|node| &node.gpus).filter(|gpu| !gpu.by_plugin);
            let room = |gpu: &'a ViewGpu| {
                let gpu = &gpu.offer.gpu;
                let share = request.share_of(gpu.memory_bytes)?;
                let held = taken.get(&(one.node.as_str(), &gpu.uuid)).copied().unwrap_or(0);
                let memory_limit_bytes = share.memory_limit_bytes;
                let slice =
                    Slice { gpu: gpu.uuid.clone(), milli: share.milli, memory_limit_bytes, mig: None };
                (held + memory_limit_bytes <= gpu.memory_bytes).then_some((&gpu.uuid, slice))
            };
            let found: Vec<(&GpuUuid, Slice)> = gpus.filter_map(room).take(count as usize).collect();
            if found.len() < count as usize {
                continue;
            }
            for (gpu, slice) in &found {
                *taken.entry((&one.node, gpu)).or_default() += slice.memory_limit_bytes;
            }
            let slices = found.into_iter().map(|(_, slice)| slice).collect();
            let mut task = Running::new(LeaseId(uid.clone()), TaskId(uid.clone()), &one.node, slices);
            task.host = one.host;
            running.push(task);
        }
        running
    }
}
