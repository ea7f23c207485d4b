//! The node's GPUs and the slices of each task, for reports and metrics.

use std::cell::LazyCell;
use std::cmp::Reverse;

use cantle_clearml::SuspendedView;
use cantle_clearml::cantle::{ComputeView, DirectSlice, ForeignView, GpuView, ProcessView, SliceView};
use cantle_driver::Driver;
use cantle_ledger::host::{Observer, SliceUse};
use cantle_model::{Gpu, GpuMode, Lease, MigInstance, Milli, Slice};
use cantle_node::{NodeStore, UserNames, compute_use, gpu_uuid_bytes, mig, uid_of_lease};

/// The number of a slice's processes that are shown: a task may have thousands.
const PROCESSES: usize = 16;

/// The current allocations of these GPUs. Slices keep their order from one report to the next: MIG instances by
/// placement, others by age.
pub(crate) fn gpus(driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu]) -> Vec<GpuView> {
    let mut leases = node.leases().unwrap_or_else(|error| {
        tracing::error!(%error, "leases cannot be read");
        Vec::new()
    });
    leases.sort_by(|a, b| (a.placed_ms, &a.id).cmp(&(b.placed_ms, &b.id)));
    // Most reports name nobody.
    let users = LazyCell::new(UserNames::read as fn() -> UserNames);
    let view = |gpu: &Gpu| {
        let foreign = mig::foreign(driver, node, gpu, &leases).into_iter().map(foreign_view).collect();
        GpuView { foreign, ..gpu_view(node, gpu, &leases, &users) }
    };
    gpus.iter().map(view).collect()
}

fn foreign_view((MigInstance { profile, start, size, .. }, milli): (MigInstance, Milli)) -> ForeignView {
    ForeignView { profile, start, size, milli: milli.0 }
}

/// The suspended tasks among these leases.
pub(crate) fn suspended(leases: &[Lease]) -> Vec<SuspendedView> {
    let out = cantle_node::suspended(leases);
    out.map(|(lease, suspension)| SuspendedView {
        task: lease.task.0.clone(),
        parked_bytes: suspension.parked_bytes,
        since: jiff::Timestamp::from_millisecond(suspension.since_ms)
            .map_or_else(|_| String::new(), |time| time.to_string()),
    })
    .collect()
}

fn gpu_view(node: &NodeStore, gpu: &Gpu, leases: &[Lease], users: &LazyCell<UserNames>) -> GpuView {
    let mine = |slice: &&Slice| slice.gpu == gpu.uuid;
    let held =
        leases.iter().flat_map(|lease| lease.slices.iter().filter(mine).map(move |slice| (lease, slice)));
    let mut slices: Vec<SliceView> =
        held.map(|(lease, slice)| slice_view(node, lease, slice, users)).collect();
    slices.sort_by_key(|slice| slice.mig.as_ref().map(|mig| mig.start));
    let allocated: Milli = slices.iter().map(|slice| Milli(slice.milli)).sum();
    let mode = match slices.as_slice() {
        _ if gpu.mig => GpuMode::Mig,
        [] => GpuMode::Idle,
        [one] if one.milli == Milli::ONE.0 => GpuMode::Whole,
        _ => GpuMode::Shared,
    };
    GpuView {
        index: gpu.index,
        uuid: gpu.uuid.0.clone(),
        model: gpu.model.clone(),
        memory_bytes: gpu.memory_bytes,
        mode,
        allocated_milli: allocated.0,
        slices,
        foreign: Vec::new(),
        fault: node.gpu_fault(&gpu.uuid).map(|fault| fault.to_string()),
    }
}

fn slice_view(node: &NodeStore, lease: &Lease, slice: &Slice, users: &LazyCell<UserNames>) -> SliceView {
    let now = Observer::open(&node.slice_dir(&lease.id)).and_then(|region| region.snapshot()).ok();
    // A slice whose accounting region does not exist (yet, or any more) uses nothing.
    let on_gpu = now.as_ref().and_then(|now| {
        let uuid = gpu_uuid_bytes(slice.device())?;
        now.gpus.iter().position(|gpu| gpu.uuid == uuid).map(|at| (now, at))
    });
    SliceView {
        task: lease.task.0.clone(),
        lease: lease.id.0.clone(),
        milli: slice.milli.0,
        memory_limit_bytes: slice.memory_limit_bytes,
        memory_used_bytes: on_gpu.map_or(0, |(now, at)| now.gpus[at].used_bytes()),
        mig: slice.mig.clone(),
        enforcement: lease.enforcement,
        enforced_by: lease.enforced_by(slice),
        processes: on_gpu.map(|(now, at)| processes(now, at)).unwrap_or_default(),
        compute: compute_view(node, lease),
        direct: lease.queue.is_none().then(|| direct(lease, users)),
    }
}

fn direct(lease: &Lease, users: &LazyCell<UserNames>) -> DirectSlice {
    let owner = uid_of_lease(lease).map(|uid| format!("unix:{}", users.name(uid)));
    DirectSlice {
        name: lease.name.clone(),
        since_ms: Some(lease.placed_ms),
        owner: owner.unwrap_or_default(),
    }
}

/// The share of the lease; before its pages exist, it has used nothing.
fn compute_view(node: &NodeStore, lease: &Lease) -> Option<ComputeView> {
    let share = lease.compute?;
    let had = compute_use(&node.slice_dir(&lease.id));
    Some(ComputeView {
        mode: share.mode,
        request_milli: share.request_milli.0,
        limit_milli: share.limit_milli.map(|limit| limit.0),
        share_ppm: had.and_then(|had| had.share_ppm),
        gpu_time_us: had.map_or(0, |had| had.granted_us),
        gate_wait_us: had.map_or(0, |had| had.gate_wait_us),
    })
}

/// The processes that hold memory of the slice's GPU number `at`.
fn processes(now: &SliceUse, at: usize) -> Vec<ProcessView> {
    let alive = now.processes.iter().filter(|process| process.alive);
    let mut views: Vec<ProcessView> = alive
        .filter_map(|process| Some((process.pid, *process.held_bytes.get(at)?)))
        .filter(|(_, memory_bytes)| *memory_bytes > 0)
        .map(|(pid, memory_bytes)| ProcessView { pid, memory_bytes })
        .collect();
    views.sort_by_key(|process| (Reverse(process.memory_bytes), process.pid));
    views.truncate(PROCESSES);
    views
}

#[cfg(test)]
mod tests {
    use cantle_model::{LeaseId, TaskId};

    use super::*;
    use cantle_node::new_lease;

    fn lease(id: &str, placed_ms: i64, mig: Option<MigInstance>) -> Lease {
        let slice = Slice { gpu: "GPU-a".into(), milli: Milli(250), memory_limit_bytes: 10 << 30, mig };
        let lease = new_lease(TaskId::from(id), String::new(), None, vec![slice]);
        Lease { id: LeaseId::from(id), placed_ms, ..lease }
    }

    fn order(leases: &[Lease]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let node = NodeStore::open(root.path()).unwrap();
        for lease in leases {
            node.lock().unwrap().put(lease).unwrap();
        }
        let gpu =
            Gpu { uuid: "GPU-a".into(), index: 0, model: "X".into(), memory_bytes: 40 << 30, mig: false };
        gpus(cantle_driver::no_gpus().as_ref(), &node, &[gpu])[0]
            .slices
            .iter()
            .map(|slice| slice.lease.clone())
            .collect()
    }

    #[test]
    fn slices_stay_where_they_are_when_others_come() {
        assert_eq!(order(&[lease("b", 1, None), lease("a", 2, None)]), ["b", "a"]);
        assert_eq!(order(&[lease("b", 1, None), lease("a", 2, None), lease("0", 3, None)]), ["b", "a", "0"]);
        let at = |start| Some(MigInstance { profile: "1g.5gb".into(), start, size: 1, uuid: "MIG-0".into() });
        assert_eq!(order(&[lease("a", 1, at(4)), lease("b", 2, at(0))]), ["b", "a"], "as they lie in memory");
    }

    #[test]
    fn of_many_processes_the_biggest_that_live_are_shown() {
        use cantle_ledger::host::ProcessUse;
        let process = |pid, bytes, alive| ProcessUse { pid, alive, held_bytes: vec![0, bytes], uses: 0 };
        let mut all: Vec<_> =
            (1..=40).map(|pid| process(pid + 1_000_000_000, u64::from(pid), true)).collect();
        all.extend([process(7, 900, false), process(8, 0, true)]);
        let now = SliceUse { lease: "a".into(), gpus: Vec::new(), processes: all };
        let shown = processes(&now, 1);
        assert_eq!((shown.len(), shown[0].memory_bytes, shown[15].memory_bytes), (16, 40, 25));
        assert_eq!(processes(&now, 5), [], "a GPU that is not the slice's");
    }
}
