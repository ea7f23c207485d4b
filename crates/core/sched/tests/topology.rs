//! Which of a node's equal GPUs a task gets where their connections differ.

#![expect(clippy::disallowed_methods, reason = "the planner itself is what is tested here")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_model::{
    Gpu, GpuLink, GpuRequest, GpuUuid, LeaseId, Milli, PciePath, QueueSpec, QueueWant, TaskId, Topology,
};
use cantle_sched::{
    Fabric, GpuState, Node, Placement, Policy, Queue, Running, Snapshot, Waiting, audit, plan,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Two GPUs at each PCIe switch, two switches at each socket.
fn pcie(one: usize, other: usize) -> GpuLink {
    let path = match (one / 2 == other / 2, one / 4 == other / 4) {
        (true, _) => PciePath::Pix,
        (_, true) => PciePath::Node,
        _ => PciePath::Sys,
    };
    GpuLink { nvlinks: 0, path: Some(path) }
}

/// The same with an NVLink bridge over each switch.
fn bridges(one: usize, other: usize) -> GpuLink {
    GpuLink { nvlinks: if one / 2 == other / 2 { 4 } else { 0 }, ..pcie(one, other) }
}

/// Eight V100 in a hybrid cube mesh: NVLinks of each GPU to the others.
fn cube_mesh(one: usize, other: usize) -> GpuLink {
    const NVLINKS: [[u32; 8]; 8] = [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ];
    GpuLink { nvlinks: NVLINKS[one][other], ..pcie(one, other) }
}

/// All links of each GPU lead to switches.
fn nvswitch(one: usize, other: usize) -> GpuLink {
    GpuLink { nvlinks: 18, ..pcie(one, other) }
}

type Links = fn(usize, usize) -> GpuLink;

fn gpu(index: usize) -> Gpu {
    Gpu {
        uuid: GpuUuid(format!("GPU-{index}")),
        index: u32::try_from(index).unwrap(),
        model: "A100".to_owned(),
        memory_bytes: 40 << 30,
        mig: false,
    }
}

/// A node with these connections, and its running tasks.
struct Box8 {
    node: Node,
    running: BTreeMap<String, Running>,
    placement: Placement,
}

impl Box8 {
    fn new(count: usize, links: Links) -> Self {
        let gpus: Vec<Gpu> = (0..count).map(gpu).collect();
        let topology = Topology::new(gpus.iter().map(|gpu| gpu.uuid.clone()).collect(), links);
        let uuids: Vec<&GpuUuid> = gpus.iter().map(|gpu| &gpu.uuid).collect();
        let fabric = Fabric::of(&topology, &uuids).map(Arc::new);
        let mut node = Node::new("n", gpus.iter().cloned().map(GpuState::new).collect());
        node.fabric = fabric;
        Self { node, running: BTreeMap::new(), placement: Placement::Binpack }
    }

    /// The same without a topology.
    fn blind(count: usize) -> Self {
        Self::new(count, |_, _| GpuLink::default())
    }

    /// Positions that the task gets, if it fits.
    fn place(&self, request: &GpuRequest, devices: u32) -> Option<(Vec<usize>, Running)> {
        let mut waiting = Waiting::new(TaskId::from("t"), 0).wanting(request.clone());
        waiting.devices = devices;
        let queue = Queue::new(QueueSpec { name: "q".into(), want: QueueWant::Task }, vec![waiting.clone()]);
        let running = self.running.values().cloned().collect();
        let state = Snapshot::new(vec![self.node.clone()], running, vec![queue]);
        let policy = Policy { placement: self.placement, ..Policy::default() };
        let plan = plan(&state, &policy, 0);
        assert_eq!(audit(&state, &plan), []);
        let start = plan.starts.first()?;
        let at = |uuid: &GpuUuid| self.node.gpus.iter().position(|gpu| gpu.gpu.uuid == *uuid).unwrap();
        let gpus = start.slices.iter().map(|slice| at(&slice.gpu)).collect();
        Some((gpus, Running::of_start(start, &waiting, LeaseId::from("l"), 0)))
    }

    fn start(&mut self, task: &str, request: GpuRequest) -> Option<Vec<usize>> {
        let (gpus, mut running) = self.place(&request, 1)?;
        running.task = TaskId::from(task);
        running.lease = LeaseId::from(task);
        self.running.insert(task.to_owned(), running);
        Some(gpus)
    }

    fn gpus(&mut self, task: &str, count: u32) -> Option<Vec<usize>> {
        self.start(task, GpuRequest::Gpus(count))
    }

    /// Whole GPUs at these positions are in use.
    fn busy(&mut self, gpus: &[usize]) {
        for at in gpus {
            self.node.gpus[*at].usable = false;
        }
    }

    fn idle(&self) -> Vec<usize> {
        let taken = |gpu: &GpuState| {
            let mut slices = self.running.values().flat_map(|running| &running.slices);
            slices.any(|slice| slice.gpu == gpu.gpu.uuid)
        };
        let free = |at: &usize| self.node.gpus[*at].usable && !taken(&self.node.gpus[*at]);
        (0..self.node.gpus.len()).filter(free).collect()
    }
}

/// All sets of `size` members of `from`.
fn sets(from: &[usize], size: usize) -> Vec<Vec<usize>> {
    let Some((first, rest)) = from.split_first() else {
        return if size == 0 { vec![Vec::new()] } else { Vec::new() };
    };
    let with = if size > 0 { sets(rest, size - 1) } else { Vec::new() };
    let with = with.into_iter().map(|set| [vec![*first], set].concat());
    with.chain(sets(rest, size)).collect()
}

/// Rank of the worst connection and sum of all.
fn quality(links: Links, set: &[usize]) -> (u32, u32) {
    let ranks: Vec<u32> = sets(set, 2).iter().map(|pair| links(pair[0], pair[1]).rank()).collect();
    (ranks.iter().copied().min().unwrap_or(u32::MAX), ranks.iter().sum())
}

/// Sets of four whose worst connection is as good as the best one on the idle node.
fn quads(links: Links, count: usize, idle: &[usize]) -> usize {
    let worst = |set: &Vec<usize>| quality(links, set).0;
    let best = sets(&(0..count).collect::<Vec<_>>(), 4).iter().map(worst).max();
    sets(idle, 4).iter().filter(|set| Some(worst(set)) == best).count()
}

#[test]
fn a_pair_is_linked_and_leaves_a_quad() {
    let mut node = Box8::new(8, pcie);
    node.busy(&[0]);
    assert_eq!(node.gpus("a", 2), Some(vec![2, 3]), "not 1 and 2, which are at two switches");
    assert_eq!(node.gpus("b", 4), Some(vec![4, 5, 6, 7]));
    // Without a topology, the lowest positions are taken, and no socket has four GPUs left.
    let mut blind = Box8::blind(8);
    blind.busy(&[0]);
    assert_eq!(blind.gpus("a", 2), Some(vec![1, 2]));
    blind.busy(&[4]);
    assert_eq!(blind.gpus("b", 4), Some(vec![3, 5, 6, 7]));
}

#[test]
fn bridged_pairs_are_taken_first() {
    let mut node = Box8::new(8, bridges);
    node.busy(&[0, 4]);
    assert_eq!(node.gpus("a", 2), Some(vec![2, 3]));
    assert_eq!(node.gpus("b", 2), Some(vec![6, 7]));
    // Only GPUs without a partner are left.
    assert_eq!(node.gpus("c", 2), Some(vec![1, 5]));
}

#[test]
fn one_gpu_breaks_no_pair_and_no_quad() {
    let mut node = Box8::new(8, pcie);
    node.busy(&[5]);
    assert_eq!(node.gpus("a", 1), Some(vec![4]));
    assert_eq!(node.start("part", GpuRequest::Fraction(Milli(500).into())), Some(vec![6]));
    assert_eq!(node.start("part2", GpuRequest::Fraction(Milli(500).into())), Some(vec![6]), "packing first");
    assert_eq!(node.gpus("b", 1), Some(vec![7]));
    assert_eq!(node.gpus("c", 4), Some(vec![0, 1, 2, 3]));
}

#[test]
fn a_cube_mesh_gives_double_links_inside_a_quad() {
    let mut node = Box8::new(8, cube_mesh);
    let pair = node.gpus("a", 2).unwrap();
    assert_eq!(cube_mesh(pair[0], pair[1]).nvlinks, 2);
    assert!(pair[0] / 4 == pair[1] / 4, "{pair:?} breaks both quads");
    let quad = node.gpus("b", 4).unwrap();
    assert_eq!(quad, if pair[0] < 4 { [4, 5, 6, 7] } else { [0, 1, 2, 3] });
    let last = node.gpus("c", 2).unwrap();
    assert!(cube_mesh(last[0], last[1]).nvlinks > 0, "{last:?}");
}

#[test]
fn gpus_of_a_switch_differ_by_their_socket_only() {
    let mut node = Box8::new(8, nvswitch);
    node.busy(&[0, 1, 2]);
    assert_eq!(node.gpus("a", 2), Some(vec![4, 5]), "not 3 and 4, which are at two sockets");
}

#[test]
fn several_parts_are_linked_too() {
    let mut node = Box8::new(8, bridges);
    node.busy(&[0]);
    let half = GpuRequest::Fraction(Milli(500).into());
    assert_eq!(node.place(&half, 2).unwrap().0, [2, 3]);
    // GPUs that are in use already come first, whatever their connection.
    node.start("a", half.clone());
    assert_eq!(node.idle(), [2, 3, 4, 5, 6, 7]);
    assert_eq!(node.place(&half, 2).unwrap().0, [1, 2]);
}

#[test]
fn equal_connections_change_nothing() {
    let alike: Links = |_, _| GpuLink { nvlinks: 12, path: Some(PciePath::Node) };
    assert!(Box8::new(8, alike).node.fabric.is_none());
    assert!(Box8::new(17, pcie).node.fabric.is_none(), "too many GPUs");
    assert!(Box8::new(1, pcie).node.fabric.is_none());
}

fn any_links() -> impl Strategy<Value = Links> {
    prop_oneof![
        Just(pcie as Links),
        Just(bridges as Links),
        Just(cube_mesh as Links),
        Just(nvswitch as Links)
    ]
}

/// Cases of each property, unless `PROPTEST_CASES` requests another number.
fn cases() -> u32 {
    let asked = std::env::var_os("PROPTEST_CASES");
    asked.and_then(|cases| cases.to_str()?.parse().ok()).unwrap_or(200)
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(), rng_seed: RngSeed::Fixed(92), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Compared with all sets: none is connected better, and none that is connected as well leaves more quads.
    #[test]
    fn the_set_is_the_best_of_all(
        links in any_links(),
        busy in prop::collection::btree_set(0usize..8, 0..6),
        count in 1usize..6,
        worth in any::<bool>(),
    ) {
        let mut node = Box8::new(8, links);
        node.placement = if worth { Placement::Worth } else { Placement::Spread };
        node.busy(&busy.into_iter().collect::<Vec<_>>());
        let idle = node.idle();
        let request = GpuRequest::Gpus(u32::try_from(count).unwrap());
        let Some((chosen, _)) = node.place(&request, 1) else {
            prop_assert!(idle.len() < count);
            return Ok(());
        };
        let without = |set: &[usize]| idle.iter().copied().filter(|at| !set.contains(at)).collect::<Vec<_>>();
        let score = |set: &[usize]| (quality(links, set), quads(links, 8, &without(set)));
        let best = sets(&idle, count).iter().map(|set| score(set)).max();
        prop_assert_eq!(Some(score(&chosen)), best, "{:?} of {:?}", chosen, idle);
    }

    /// Pairs come and go. Whenever four GPUs of one socket are free, a task of four gets such a set.
    #[test]
    fn a_quad_is_found_where_there_is_one(steps in prop::collection::vec((any::<bool>(), 0usize..8), 1..20)) {
        let mut node = Box8::new(16, pcie);
        for (at, (comes, which)) in steps.into_iter().enumerate() {
            if comes {
                node.gpus(&format!("t{at}"), 2);
            } else if let Some(task) = node.running.keys().nth(which).cloned() {
                node.running.remove(&task);
            }
            let free = quads(pcie, 16, &node.idle());
            let Some((quad, _)) = node.place(&GpuRequest::Gpus(4), 1) else {
                prop_assert_eq!(free, 0);
                continue;
            };
            prop_assert_eq!(quad.iter().all(|at| at / 4 == quad[0] / 4), free > 0, "{:?}", quad);
        }
    }
}

/// Single GPUs, pairs and quads come and go on a PCIe machine of 16 GPUs. Counts how often a task of four found a socket of its own, of
/// all that started.
fn quads_in_one_socket(mut node: Box8) -> (u32, u32) {
    let (mut whole, mut all, mut draw) = (0, 0, 0u32);
    for step in 0..1_000u32 {
        // A linear congruential generator: the same sequence for both.
        draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (kind, which) = (draw >> 28, (draw >> 16 & 0xff) as usize);
        if node.running.len() > 2 + which % 4 {
            let task = node.running.keys().nth(which % node.running.len()).cloned().unwrap();
            node.running.remove(&task);
        }
        let count = [1, 1, 2, 2, 2, 2, 4, 4][kind as usize % 8];
        let Some(gpus) = node.gpus(&format!("t{step}"), count) else { continue };
        if count == 4 {
            all += 1;
            whole += u32::from(gpus.iter().all(|at| at / 4 == gpus[0] / 4));
        }
    }
    (whole, all)
}

#[test]
fn sockets_stay_whole_more_often_than_by_lowest_position() {
    let (with, without) = (quads_in_one_socket(Box8::new(16, pcie)), quads_in_one_socket(Box8::blind(16)));
    assert_eq!(with.1, without.1, "packing starts the same tasks");
    assert!(with.1 > 100 && with.0 > 10 * without.0, "{with:?} {without:?}");
}
