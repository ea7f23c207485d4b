//! Chooses the node and the GPU of a pod. It asks the scheduler that every other part of cantle uses, about the nodes of
//! a cluster. Pure.

use cantle_decide::{Offer, SnapshotBuilder, decide};
use cantle_mig::Table;
use cantle_model::{AllocatedPart, LeaseId, QueueSpec, QueueWant, Slice, TaskId};
use cantle_sched::{Plan, Policy, Running, Waiting};

use super::record::{NodeRecord, OfferedGpu, PlacedPod};
use crate::{DecidedGpu, SliceDecision, SliceName, SliceNameError};

/// The one queue: which pod is next, the cluster's scheduler has decided.
const QUEUE: &str = "kube-scheduler";

/// The placement of the pod with this UID, and its slices there.
///
/// # Errors
/// Says why none of these nodes will do.
pub fn choose(
    records: &[&NodeRecord],
    slice_name: &SliceName,
    uid: &str,
) -> Result<(String, Vec<Slice>), String> {
    let mut waiting =
        Waiting::new(TaskId(uid.to_owned()), 0).wanting(slice_name.slice_request(tables(records)));
    waiting.compute = slice_name.compute();
    waiting.devices = slice_name.devices();
    let spec = QueueSpec { name: QUEUE.to_owned(), want: QueueWant::Task };
    let others: Vec<NodeRecord> = records.iter().map(|record| without(record, uid)).collect();
    let world = others.iter().fold(SnapshotBuilder::default(), |world, record| {
        let gpus = offers(record, slice_name);
        let running: Vec<Running> = running(record, &gpus).collect();
        world.node(&record.node, gpus).running(running)
    });
    let decided = decide(&world.queue(spec, vec![waiting]).build(), &Policy::default(), 0);
    let Plan { mut starts, waits, .. } = decided.map_err(|broken| broken.to_string())?;
    match (starts.pop(), waits.first()) {
        (Some(start), _) => Ok((start.node, start.slices)),
        (None, Some(wait)) => Err(wait.reason.to_string()),
        (None, None) => Err("no GPU of cantle's on this node".to_owned()),
    }
}

fn tables<'a>(records: &'a [&NodeRecord]) -> impl Iterator<Item = &'a Table> {
    records.iter().flat_map(|record| &record.gpus).filter_map(|offered| offered.table.as_ref())
}

/// The pod's own allocation from a failed attempt counts as free for it.
fn without(record: &NodeRecord, uid: &str) -> NodeRecord {
    let mut others = record.clone();
    others.placements.remove(uid);
    others
}

/// The node's GPUs as offers for this request. A GPU that switches its mode automatically satisfies the request. But
/// shares and instances exclude each other: a GPU whose slices are of the other kind has no room.
fn offers(record: &NodeRecord, slice_name: &SliceName) -> Vec<Offer> {
    let slices = || record.placements.values().flat_map(|placement| &placement.slices);
    let offer = |offered: &OfferedGpu| {
        let mig =
            if offered.switches { matches!(slice_name, SliceName::Mig { .. }) } else { offered.gpu.mig };
        let offer = offered.offer().in_mode(mig);
        let mut held = slices().filter(|slice| slice.gpu == offered.gpu.uuid);
        if held.any(|slice| slice.mig.is_some() != mig) { offer.exhausted() } else { offer }
    };
    record.gpus.iter().map(offer).collect()
}

/// The holders of memory on the GPUs that are there now, and of their kind.
fn running<'a>(record: &'a NodeRecord, gpus: &'a [Offer]) -> impl Iterator<Item = Running> + 'a {
    let is_there = |slice: &&Slice| {
        gpus.iter().any(|offer| offer.gpu.uuid == slice.gpu && offer.gpu.mig == slice.mig.is_some())
    };
    record.placements.iter().map(move |(uid, placement)| {
        let slices = placement.slices.iter().filter(is_there).cloned().collect();
        Running::new(LeaseId(uid.clone()), TaskId(uid.clone()), &record.node, slices)
    })
}

/// The slices that the node creates for a placement. Its lease is the pod's, so the same pod always finds the same
/// slice.
///
/// # Errors
/// Names an ask that is none.
pub fn slice_decision(
    uid: &str,
    placement: &PlacedPod,
    record: &NodeRecord,
) -> Result<SliceDecision, String> {
    let slice_name: SliceName =
        placement.slice_name.parse().map_err(|error: SliceNameError| error.to_string())?;
    let gpu = |slice: &Slice| DecidedGpu { gpu: slice.gpu.clone(), allocated: AllocatedPart::of(slice) };
    Ok(SliceDecision {
        lease: LeaseId(uid.to_owned()),
        task: TaskId(placement.pod.clone()),
        name: placement.pod.clone(),
        request: slice_name.slice_request(tables(&[record])),
        compute: slice_name.compute(),
        gpus: placement.slices.iter().map(gpu).collect(),
    })
}

#[cfg(test)]
mod tests {
    use cantle_mig::Profile;
    use cantle_model::{Bytes, Gpu, GpuRequest, GpuUuid, Milli};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn record(node: &str, gpus: u32) -> NodeRecord {
        let offered = |index| {
            let uuid = GpuUuid(format!("GPU-{node}-{index}"));
            let gpu = Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 * GIB, mig: false };
            OfferedGpu { gpu, table: None, switches: false, holder: None, together: None }
        };
        NodeRecord { node: node.to_owned(), gpus: (0..gpus).map(offered).collect(), ..NodeRecord::default() }
    }

    fn place(record: &mut NodeRecord, uid: &str, slice_name: &str) -> Result<Vec<Slice>, String> {
        let (node, slices) = choose(&[record], &slice_name.parse().unwrap(), uid)?;
        assert_eq!(node, record.node);
        let placement =
            PlacedPod { pod: format!("team/{uid}"), slice_name: slice_name.to_owned(), slices, placed_ms: 0 };
        record.placements.insert(uid.to_owned(), placement.clone());
        Ok(placement.slices)
    }

    #[test]
    fn shares_fill_a_gpu_before_the_next_one() {
        let mut record = record("n", 2);
        let half = place(&mut record, "a", "cantle-fraction-5000").unwrap();
        assert_eq!((half[0].milli, half[0].memory_limit_bytes), (Milli(500), 20 * GIB));
        let second = place(&mut record, "b", "cantle-memory-10240").unwrap();
        assert_eq!((&second[0].gpu, second[0].memory_limit_bytes), (&half[0].gpu, 10 * GIB));
        let third = place(&mut record, "c", "cantle-fraction-5000").unwrap();
        assert_ne!(third[0].gpu, half[0].gpu);
        let why = place(&mut record, "d", "cantle-whole-1").unwrap_err();
        assert!(why.contains("needs 1 GPU"), "{why}");
        record.placements.remove("c");
        assert_eq!(place(&mut record, "d", "cantle-whole-1").unwrap()[0].gpu, third[0].gpu);
    }

    /// As an H100's, less the profiles that do not matter here.
    fn switching(node: &str, gpus: u32) -> NodeRecord {
        let profile = |name: &str, size: u32, starts: &[u32]| Profile {
            name: name.to_owned(),
            id: size,
            compute_slices: size.min(7),
            size,
            starts: starts.to_vec(),
            max_instances: u32::try_from(starts.len()).unwrap(),
            engines: cantle_mig::Engines::default(),
            memory_bytes: u64::from(size) * 5 * GIB,
        };
        let profiles = vec![
            profile("1g.5gb", 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("3g.20gb", 4, &[0, 4]),
            profile("7g.40gb", 8, &[0]),
        ];
        let table = Table { units: 8, profiles, fixed: false };
        let mut record = record(node, gpus);
        for offered in &mut record.gpus {
            offered.table = Some(table.clone());
            offered.switches = true;
        }
        record
    }

    #[test]
    fn a_gpu_that_switches_is_whatever_is_asked_for_first() {
        let mut record = switching("n", 2);
        let share = place(&mut record, "a", "cantle-fraction-5000").unwrap();
        let instance = place(&mut record, "b", "cantle-mig-3g.20gb").unwrap();
        assert_ne!(instance[0].gpu, share[0].gpu);
        assert!(instance[0].mig.is_some() && share[0].mig.is_none());
        let why = place(&mut record, "c", "cantle-fraction-6250").unwrap_err();
        assert!(why.starts_with("needs 0.625 GPU, free 0.5 of GPU "), "{why}");
        let why = place(&mut record, "c", "cantle-mig-7g.40gb").unwrap_err();
        assert!(why.contains("7g.40gb"), "{why}");
        record.placements.remove("b");
        assert_eq!(place(&mut record, "c", "cantle-fraction-6250").unwrap()[0].gpu, instance[0].gpu);
        let why = place(&mut record, "d", "cantle-mig-1g.5gb").unwrap_err();
        assert!(why.ends_with("nothing free (2 of 2 in use)"), "{why}");
    }

    /// With any arrivals and departures: a GPU has shares or instances, and neither overlap.
    #[test]
    fn no_gpu_is_shared_and_partitioned_at_once() {
        let asks = ["fraction-2500", "fraction-5000", "whole-1", "mig-1g.5gb", "mig-3g.20gb", "mig-7g.40gb"];
        let mut record = switching("n", 3);
        let (mut random, mut placed) = (9u64, [0; 2]);
        for step in 0..600u32 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random.is_multiple_of(3) {
                let at = usize::try_from(random / 3 % 8).unwrap();
                let ended = record.placements.keys().nth(at).cloned();
                ended.map(|uid| record.placements.remove(&uid));
            } else {
                let slice_name = asks[usize::try_from(random / 3 % 6).unwrap()];
                let given = place(&mut record, &format!("p{step:03}"), &format!("cantle-{slice_name}"));
                given.into_iter().for_each(|slices| placed[usize::from(slices[0].mig.is_some())] += 1);
            }
            for offered in &record.gpus {
                let slices = record.placements.values().flat_map(|placement| &placement.slices);
                let here: Vec<&Slice> = slices.filter(|slice| slice.gpu == offered.gpu.uuid).collect();
                let (instances, shares): (Vec<&Slice>, Vec<&Slice>) =
                    here.into_iter().partition(|slice| slice.mig.is_some());
                assert!(instances.is_empty() || shares.is_empty(), "{instances:?} {shares:?}");
                assert!(shares.iter().map(|slice| slice.milli.0).sum::<u32>() <= 1000);
                let units = instances.iter().filter_map(|slice| slice.mig.as_ref());
                let mut taken: Vec<u32> = units.flat_map(|mig| mig.start..mig.start + mig.size).collect();
                let all = taken.len();
                taken.sort_unstable();
                taken.dedup();
                assert_eq!(taken.len(), all, "{instances:?}");
            }
        }
        assert!(placed.iter().all(|times| *times > 50), "{placed:?}");
    }

    #[test]
    fn what_was_chosen_is_what_the_node_is_told() {
        let mut record = record("n", 2);
        let slices = place(&mut record, "a", "cantle-memory-4095-x2").unwrap();
        let decision = slice_decision("a", &record.placements["a"], &record).unwrap();
        assert_eq!(decision.request, GpuRequest::Memory(Bytes(4095 << 20)));
        assert!(slices.iter().all(|slice| slice.memory_limit_bytes == 4094 << 20), "{slices:?}");
        assert_eq!(decision.gpus.len(), 2);
        assert_eq!((decision.lease.0.as_str(), decision.name.as_str()), ("a", "team/a"));
    }

    #[test]
    fn the_fuller_node_is_the_better_one() {
        let (empty, mut used) = (record("empty", 1), record("used", 1));
        place(&mut used, "a", "cantle-fraction-2500").unwrap();
        let half = "cantle-fraction-5000".parse().unwrap();
        assert_eq!(choose(&[&empty, &used], &half, "b").unwrap().0, "used");
        assert!(choose(&[&record("none", 0)], &half, "b").is_err());
    }
}
