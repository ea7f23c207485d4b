use std::collections::BTreeMap;

use cantle_model::{Gpu, GpuUuid};

use super::rules::{Placed, Seen, Steps, has_room, holder, place, settle};
use crate::classic::book::{Book, Holder, Offered};
use crate::classic::kubelet::{Devices, Held};

const LATER_MS: i64 = 120_000;

fn gpu(index: u32) -> Gpu {
    let uuid = GpuUuid(format!("GPU-{index}"));
    Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 << 30, mig: false }
}

/// A node with its pods, as the cluster would have them.
struct World {
    book: Book,
    pods: BTreeMap<String, Seen>,
}

impl World {
    fn of(gpus: u32) -> Self {
        let offered =
            |index| Offered { gpu: gpu(index), table: None, switches: false, holder: Some(Holder::Nobody) };
        let book = Book { node: "n".to_owned(), gpus: (0..gpus).map(offered).collect(), ..Book::default() };
        Self { book, pods: BTreeMap::new() }
    }

    fn place(&mut self, uid: &str, ask: &str) -> Result<Placed, String> {
        place(&mut self.book, uid, uid, &ask.parse().unwrap(), 0)
    }

    fn hold(&mut self, index: usize, holder: Holder) {
        self.book.gpus[index].holder = Some(holder);
    }

    fn reserved(&mut self, index: usize, name: &str) {
        self.hold(index, Holder::Pod(format!("cantle-reservation/{name}")));
    }

    /// Looks after the reservations, and does what is to be done.
    fn settle(&mut self, now_ms: i64) -> Steps {
        let steps = settle(&mut self.book, &self.pods, now_ms);
        for name in &steps.create {
            self.pods.insert(name.clone(), Seen { ended: false, deleting: false, made_ms: now_ms });
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

const HALF: &str = "cantle-fraction-5000";

#[test]
fn a_gpu_is_reserved_first_shared_then_and_given_back_at_last() {
    let mut world = World::of(2);
    assert_eq!(world.place("a", HALF), Ok(Placed::Asked));
    // The second one waits for the same GPU.
    assert_eq!(world.place("b", HALF), Ok(Placed::Asked));
    assert_eq!(world.settle(0).create, names(&["gpu-0.n"]));
    assert_eq!(world.settle(0), Steps::default());
    world.reserved(1, "gpu-0.n");
    assert_eq!(world.place("a", HALF), Ok(Placed::Here));
    assert_eq!(world.place("b", HALF), Ok(Placed::Here));
    assert_eq!(world.book.placements["b"].slices[0].gpu, GpuUuid("GPU-1".to_owned()));
    assert_eq!(world.place("c", HALF), Ok(Placed::Asked));
    assert_eq!(world.settle(0).create, names(&["gpu-1.n"]));
    world.reserved(0, "gpu-1.n");
    assert_eq!(world.place("c", HALF), Ok(Placed::Here));
    assert!(world.place("d", "cantle-whole-1").is_err());

    world.book.placements.remove("c");
    assert_eq!(world.settle(0).delete, names(&["gpu-1.n"]));
    // The kubelet may still have it: nothing is placed there, and the name is not free.
    assert!(world.place("d", HALF).is_err());
    world.settle(0);
    assert!(world.book.reservations.contains_key("gpu-1.n"));
    world.hold(0, Holder::Nobody);
    world.settle(0);
    assert_eq!(world.book.reservations.len(), 1);
    world.book.placements.clear();
    world.settle(0);
    world.hold(1, Holder::Nobody);
    world.settle(0);
    assert!(world.book.reservations.is_empty() && world.pods.is_empty());
}

#[test]
fn what_was_reserved_for_nobody_is_given_back() {
    let mut world = World::of(1);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.reserved(0, "gpu-0.n");
    assert_eq!(world.settle(1000), Steps::default());
    assert_eq!(world.settle(LATER_MS).delete, names(&["gpu-0.n"]));
}

#[test]
fn other_pods_gpus_are_out_of_reach() {
    let mut world = World::of(2);
    world.hold(0, Holder::Pod("team/train".to_owned()));
    world.hold(1, Holder::Barred("it is given out as 8 replicas".to_owned()));
    let why = has_room(&world.book, &HALF.parse().unwrap(), "a").unwrap_err();
    assert!(why.contains("GPU 0 is another pod's nvidia.com/gpu; GPU 1: it is given out as 8"), "{why}");
    assert_eq!(world.place("a", HALF), Err(why));
    assert!(world.book.reservations.is_empty());
}

#[test]
fn a_reservation_that_was_deleted_comes_back_to_its_gpu() {
    let mut world = World::of(3);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.reserved(2, "gpu-0.n");
    world.place("a", HALF).unwrap();
    world.pods.clear();
    world.hold(2, Holder::Nobody);
    assert_eq!(world.settle(LATER_MS).create, names(&["gpu-0.n"]));
    // The kubelet gives it another GPU: it is kept, and one more asked for, until the right one is found.
    world.reserved(0, "gpu-0.n");
    assert_eq!(world.settle(LATER_MS).create, names(&["gpu-1.n"]));
    world.reserved(2, "gpu-1.n");
    assert_eq!(world.settle(LATER_MS), Steps { create: vec![], delete: names(&["gpu-0.n"]) });
    assert_eq!(world.place("b", HALF), Ok(Placed::Here));
    assert_eq!(world.book.placements["b"].slices[0].gpu, GpuUuid("GPU-2".to_owned()));
}

#[test]
fn while_another_pod_has_a_gpu_with_slices_nothing_more_is_placed_there() {
    let mut world = World::of(1);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.reserved(0, "gpu-0.n");
    world.place("a", HALF).unwrap();
    world.pods.clear();
    world.hold(0, Holder::Pod("team/train".to_owned()));
    assert!(world.place("b", HALF).is_err());
    // No pod waits in vain meanwhile; when the other one is gone, the GPU is reserved again.
    world.settle(LATER_MS);
    assert!(world.settle(LATER_MS).create.is_empty() && world.book.reservations.is_empty());
    world.hold(0, Holder::Nobody);
    assert_eq!(world.settle(LATER_MS).create, names(&["gpu-0.n"]));
}

#[test]
fn failed_pods_are_made_anew_and_strays_go() {
    let mut world = World::of(1);
    world.place("a", HALF).unwrap();
    world.settle(0);
    world.pods.insert("gpu-7.n".to_owned(), Seen { ended: false, deleting: false, made_ms: 0 });
    assert_eq!(world.settle(0).delete, names(&["gpu-7.n"]));
    world.pods.get_mut("gpu-0.n").unwrap().ended = true;
    assert_eq!(world.settle(1000), Steps::default());
    assert_eq!(world.settle(6000).delete, names(&["gpu-0.n"]));
    assert_eq!(world.settle(6000).create, names(&["gpu-0.n"]));
}

#[test]
fn holders_are_read_from_the_kubelets_ids() {
    let id = |id: &str| Held { id: id.to_owned(), namespace: "team".to_owned(), pod: "train".to_owned() };
    let devices =
        Devices { all: names(&["GPU-0", "GPU-1", "GPU-2::0", "GPU-2::1"]), held: vec![id("GPU-1")] };
    assert_eq!(holder(&gpu(0), &devices), Holder::Nobody);
    assert_eq!(holder(&gpu(1), &devices), Holder::Pod("team/train".to_owned()));
    let barred = |index| match holder(&gpu(index), &devices) {
        Holder::Barred(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(barred(2).contains("2 replicas"), "{}", barred(2));
    assert!(barred(3).contains("does not give it out"), "{}", barred(3));
}
