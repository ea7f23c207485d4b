use std::collections::BTreeMap;

use cantle_decide::Offer;
use cantle_model::{Gpu, GpuUuid};

use super::rules::{
    Devices, HeldDevice, Placed, ReservationActions, SeenPod, has_room, holder, left_by_others, place,
    settle, together,
};

use crate::classic::record::{NodeRecord, OfferedGpu, PluginHolder};

const LATER_MS: i64 = 120_000;

fn gpu(index: u32) -> Gpu {
    let uuid = GpuUuid(format!("GPU-{index}"));
    Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 << 30, mig: false }
}

/// A node with its pods, as the cluster would have them.
struct World {
    record: NodeRecord,
    pods: BTreeMap<String, SeenPod>,
}

impl World {
    fn of(gpus: u32) -> Self {
        let holder = Some(PluginHolder::Nobody);
        let offered = |index| OfferedGpu {
            gpu: gpu(index),
            table: None,
            switches: false,
            holder: holder.clone(),
            together: None,
        };
        let record = NodeRecord {
            node: "n".to_owned(),
            gpus: (0..gpus).map(offered).collect(),
            ..NodeRecord::default()
        };
        Self { record, pods: BTreeMap::new() }
    }

    fn place(&mut self, uid: &str, slice_name: &str) -> Result<Placed, String> {
        place(&mut self.record, uid, uid, &slice_name.parse().unwrap(), 0)
    }

    fn hold(&mut self, index: usize, holder: PluginHolder) {
        self.record.gpus[index].holder = Some(holder);
    }

    fn reserved(&mut self, index: usize, name: &str) {
        self.hold(index, PluginHolder::Pod(format!("cantle-reservation/{name}")));
    }

    /// Looks after the reservations, and does what is to be done.
    fn settle(&mut self, now_ms: i64) -> ReservationActions {
        let steps = settle(&mut self.record, &self.pods, now_ms);
        for (name, _) in &steps.create {
            self.pods.insert(name.clone(), SeenPod { ended: false, deleting: false, made_ms: now_ms });
        }
        for name in &steps.delete {
            self.pods.remove(name);
        }
        steps
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Reservations of one GPU each.
fn single(of: &[&str]) -> Vec<(String, u32)> {
    names(of).into_iter().map(|name| (name, 1)).collect()
}

const HALF: &str = "cantle-fraction-5000";

#[test]
fn a_gpu_is_reserved_first_shared_then_and_given_back_at_last() {
    let mut world = World::of(2);
    assert_eq!(world.place("a", HALF), Ok(Placed::Asked));
    // The second one waits for the same GPU.
    assert_eq!(world.place("b", HALF), Ok(Placed::Asked));
    assert_eq!(world.settle(0).create, single(&["gpu-0.n"]));
    assert_eq!(world.settle(0), ReservationActions::default());
    world.reserved(1, "gpu-0.n");
    assert_eq!(world.place("a", HALF), Ok(Placed::Here));
    assert_eq!(world.place("b", HALF), Ok(Placed::Here));
    assert_eq!(world.record.placements["b"].slices[0].gpu, GpuUuid("GPU-1".to_owned()));
    assert_eq!(world.place("c", HALF), Ok(Placed::Asked));
    assert_eq!(world.settle(0).create, single(&["gpu-1.n"]));
    world.reserved(0, "gpu-1.n");
    assert_eq!(world.place("c", HALF), Ok(Placed::Here));
    assert!(world.place("d", "cantle-whole-1").is_err());

    world.record.placements.remove("c");
    assert_eq!(world.settle(0).delete, names(&["gpu-1.n"]));
    // The kubelet may still have it: nothing is placed there, and the name is not free.
    assert!(world.place("d", HALF).is_err());
    world.settle(0);
    assert!(world.record.reservations.contains_key("gpu-1.n"));
    world.hold(0, PluginHolder::Nobody);
    world.settle(0);
    assert_eq!(world.record.reservations.len(), 1);
    world.record.placements.clear();
    world.settle(0);
    world.hold(1, PluginHolder::Nobody);
    world.settle(0);
    assert!(world.record.reservations.is_empty() && world.pods.is_empty());
}

#[test]
fn what_was_reserved_for_nobody_is_given_back() {
    let mut world = World::of(1);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.reserved(0, "gpu-0.n");
    assert_eq!(world.settle(1000), ReservationActions::default());
    assert_eq!(world.settle(LATER_MS).delete, names(&["gpu-0.n"]));
}

#[test]
fn other_pods_gpus_are_out_of_reach() {
    let mut world = World::of(2);
    world.hold(0, PluginHolder::Pod("team/train".to_owned()));
    world.hold(1, PluginHolder::Barred("it is given out as 8 replicas".to_owned()));
    let why = has_room(&world.record, &HALF.parse().unwrap(), "a").unwrap_err();
    assert!(why.contains("GPU 0 is another pod's nvidia.com/gpu; GPU 1: it is given out as 8"), "{why}");
    assert_eq!(world.place("a", HALF), Err(why));
    assert!(world.record.reservations.is_empty());
}

#[test]
fn a_reservation_that_was_deleted_comes_back_to_its_gpu() {
    let mut world = World::of(3);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.reserved(2, "gpu-0.n");
    world.place("a", HALF).unwrap();
    world.pods.clear();
    world.hold(2, PluginHolder::Nobody);
    assert_eq!(world.settle(LATER_MS).create, single(&["gpu-0.n"]));
    // The kubelet gives it another GPU: it is kept, and one more asked for, until the right one is found.
    world.reserved(0, "gpu-0.n");
    assert_eq!(world.settle(LATER_MS).create, single(&["gpu-1.n"]));
    world.reserved(2, "gpu-1.n");
    assert_eq!(world.settle(LATER_MS), ReservationActions { create: vec![], delete: names(&["gpu-0.n"]) });
    assert_eq!(world.place("b", HALF), Ok(Placed::Here));
    assert_eq!(world.record.placements["b"].slices[0].gpu, GpuUuid("GPU-2".to_owned()));
}

#[test]
fn while_another_pod_has_a_gpu_with_slices_nothing_more_is_placed_there() {
    let mut world = World::of(1);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.reserved(0, "gpu-0.n");
    world.place("a", HALF).unwrap();
    world.pods.clear();
    world.hold(0, PluginHolder::Pod("team/train".to_owned()));
    assert!(world.place("b", HALF).is_err());
    // No pod waits in vain meanwhile; when the other one is gone, the GPU is reserved again.
    world.settle(LATER_MS);
    assert!(world.settle(LATER_MS).create.is_empty() && world.record.reservations.is_empty());
    world.hold(0, PluginHolder::Nobody);
    assert_eq!(world.settle(LATER_MS).create, single(&["gpu-0.n"]));
}

#[test]
fn failed_pods_are_made_anew_and_strays_go() {
    let mut world = World::of(1);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.pods.insert("gpu-7.n".to_owned(), SeenPod { ended: false, deleting: false, made_ms: 0 });
    assert_eq!(world.settle(0).delete, names(&["gpu-7.n"]));
    world.pods.get_mut("gpu-0.n").unwrap().ended = true;
    assert_eq!(world.settle(1000), ReservationActions::default());
    assert_eq!(world.settle(6000).delete, names(&["gpu-0.n"]));
    assert_eq!(world.settle(6000).create, single(&["gpu-0.n"]));
}

#[test]
fn time_sliced_gpus_are_reserved_all_at_once() {
    let mut world = World::of(2);
    world.record.gpus.iter_mut().for_each(|offered| offered.together = Some(8));
    assert_eq!(world.place("a", "cantle-whole-1"), Ok(Placed::Asked));
    assert_eq!(world.place("b", HALF), Ok(Placed::Asked));
    assert_eq!(world.settle(0).create, [("gpu-0.n".to_owned(), 8)]);
    world.reserved(0, "gpu-0.n");
    world.reserved(1, "gpu-0.n");
    assert_eq!(world.place("a", "cantle-whole-1"), Ok(Placed::Here));
    assert_eq!(world.place("b", HALF), Ok(Placed::Here));
    world.record.placements.remove("a");
    assert_eq!(world.settle(LATER_MS), ReservationActions::default(), "the other GPU has a slice");
    world.record.placements.clear();
    assert_eq!(world.settle(LATER_MS).delete, names(&["gpu-0.n"]));

    world.hold(0, PluginHolder::Nobody);
    world.hold(1, PluginHolder::Pod("team/train".to_owned()));
    world.settle(LATER_MS);
    let why = world.place("c", HALF).unwrap_err();
    let told = "GPU 1 is another pod's nvidia.com/gpu; NVIDIA's device plugin shares the GPUs of this node (time-slicing): \
                cantle can have all 8 replicas or none";
    assert!(why.ends_with(told), "{why}");
}

#[test]
fn holders_are_read_from_the_kubelets_ids() {
    let held = |namespace: &str, pod: &str, id: &str| HeldDevice {
        id: id.to_owned(),
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
    };
    let (ours, other) = ("cantle-reservation", PluginHolder::Pod("team/train".to_owned()));
    let mut devices = Devices { all: names(&["GPU-0", "GPU-1"]), held: vec![held("team", "train", "GPU-1")] };
    assert_eq!(holder(&gpu(0), &devices), PluginHolder::Nobody);
    assert_eq!(holder(&gpu(1), &devices), other);
    assert!(
        matches!(holder(&gpu(2), &devices), PluginHolder::Barred(why) if why.contains("does not give it out"))
    );
    assert_eq!(together(&gpu(0), &devices), None);

    devices.all = names(&["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"]);
    devices.held = vec![held(ours, "gpu-0.n", "GPU-0::0"), held(ours, "gpu-0.n", "GPU-0::1")];
    assert_eq!(holder(&gpu(0), &devices), PluginHolder::Pod(format!("{ours}/gpu-0.n")));
    assert_eq!(holder(&gpu(1), &devices), PluginHolder::Nobody);
    assert_eq!((together(&gpu(0), &devices), together(&gpu(2), &devices)), (Some(4), None));
    devices.held[1] = held("team", "train", "GPU-0::1");
    assert_eq!(holder(&gpu(0), &devices), other, "one replica is enough to use all of it");
    devices.held.pop();
    assert!(
        matches!(holder(&gpu(0), &devices), PluginHolder::Barred(why) if why == "1 of its 2 replicas are reserved")
    );
}

#[test]
fn nothing_is_left_of_gpus_that_other_pods_have() {
    let held = |id: &str, namespace: &str| HeldDevice {
        id: id.to_owned(),
        namespace: namespace.to_owned(),
        pod: "p".to_owned(),
    };
    let left = |all: &[&str], held: Vec<HeldDevice>| -> Vec<bool> {
        let offers = (0..4).map(|index| Offer::new(gpu(index))).collect();
        let offers = left_by_others(offers, &Devices { all: names(all), held });
        offers.iter().map(|offer| offer.foreign_bytes == 0).collect()
    };
    let by_uuid = ["GPU-0", "GPU-1", "GPU-2"];
    let pods = vec![held("GPU-0", "cantle-reservation"), held("GPU-1", "team")];
    assert_eq!(left(&by_uuid, pods), [true, false, true, false], "the plugin does not give out the last one");
    // With time-slicing the GPUs of a node can be reserved only together.
    let sliced = ["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"];
    assert_eq!(left(&sliced, vec![held("GPU-1::0", "team")])[..2], [false, false]);
}
