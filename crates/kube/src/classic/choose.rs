//! Which GPU of which node a pod gets: the scheduler of every other part of cantle, asked about nodes of a cluster. Pure.

use std::sync::Arc;

use cantle_agent::{Award, Place};
use cantle_mig::{GpuGeometry, Table};
use cantle_model::{Gpu, LeaseId, QueueSpec, QueueWant, Slice, TaskId};
use cantle_sched::{GpuState, Host, Node, Plan, Policy, Queue, Running, Start, State, Waiting, audit, plan};

use super::book::{Book, Offered, Placement};
use crate::ask::Ask;

/// The one queue: which pod is next, the cluster's scheduler has decided.
const QUEUE: &str = "kube-scheduler";

/// Where the pod with this UID goes, and what it gets there.
///
/// # Errors
/// Says why none of these nodes will do.
pub(super) fn choose(books: &[&Book], ask: &Ask, uid: &str) -> Result<(String, Vec<Slice>), String> {
    let mut waiting = Waiting::new(TaskId(uid.to_owned()), 0).wanting(ask.request(tables(books)));
    waiting.devices = ask.devices();
    let spec = QueueSpec { name: QUEUE.to_owned(), want: QueueWant::Task };
    let others: Vec<Book> = books.iter().map(|book| without(book, uid)).collect();
    let nodes: Vec<Node> = others.iter().map(|book| node(book, ask)).collect();
    let running = others.iter().zip(&nodes).flat_map(|(book, node)| running(book, node)).collect();
    let state = State::new(nodes, running, vec![Queue::new(spec, vec![waiting])]);
    let Plan { mut starts, waits, .. } = audited(&state)?;
    match (starts.pop(), waits.first()) {
        (Some(start), _) => Ok((start.node, start.slices)),
        (None, Some(wait)) => Err(wait.reason.to_string()),
        (None, None) => Err("no GPU of cantle's on this node".to_owned()),
    }
}

fn tables<'a>(books: &'a [&Book]) -> impl Iterator<Item = &'a Table> {
    books.iter().flat_map(|book| &book.gpus).filter_map(|offered| offered.table.as_ref())
}

fn audited(state: &State) -> Result<Plan, String> {
    let plan = plan(state, &Policy::default(), 0);
    match audit(state, &plan).first() {
        Some(violation) => Err(violation.to_string()),
        None => Ok(plan),
    }
}

/// What the pod itself has, after an attempt that came to nothing, is free for it.
fn without(book: &Book, uid: &str) -> Book {
    let mut others = book.clone();
    others.placements.remove(uid);
    others
}

fn node(book: &Book, ask: &Ask) -> Node {
    let slices = || book.placements.values().flat_map(|placement| &placement.slices);
    let state = |offered: &Offered| {
        let held = slices().find(|slice| slice.gpu == offered.gpu.uuid).map(|slice| slice.mig.is_some());
        gpu_state(offered, ask, held)
    };
    Node::new(&book.node, book.gpus.iter().map(state).collect())
}

/// A GPU as this ask sees it. One that changes by itself is what the ask needs, but shares and instances exclude each other:
/// of a GPU whose slices are of the other kind (`held` says whether that is instances) nothing is left.
fn gpu_state(offered: &Offered, ask: &Ask, held: Option<bool>) -> GpuState {
    let mig = if offered.switches { matches!(ask, Ask::Mig { .. }) } else { offered.gpu.mig };
    let mut state = GpuState::new(Gpu { mig, ..offered.gpu.clone() });
    let geometry = |table| GpuGeometry { table: Arc::new(table), instances: Vec::new() };
    state.mig = offered.table.clone().filter(|_| mig).map(geometry);
    if held.is_some_and(|held| held != mig) {
        state.foreign_bytes = state.gpu.memory_bytes;
        state.mig.iter_mut().for_each(occupy_all);
    }
    state
}

fn occupy_all(geometry: &mut GpuGeometry) {
    let table = Arc::clone(&geometry.table);
    for (at, profile) in table.profiles.iter().enumerate() {
        profile.starts.iter().for_each(|start| geometry.occupy(at, *start));
    }
}

/// Those who have something of the GPUs that are there now, and of their kind.
fn running<'a>(book: &'a Book, node: &'a Node) -> impl Iterator<Item = Running> + 'a {
    let is_there = |slice: &&Slice| {
        node.gpus.iter().any(|state| state.gpu.uuid == slice.gpu && state.gpu.mig == slice.mig.is_some())
    };
    book.placements.iter().map(move |(uid, placement)| {
        let task = TaskId(uid.clone());
        let start = Start {
            task: task.clone(),
            queue: QUEUE.to_owned(),
            node: book.node.clone(),
            slices: placement.slices.iter().filter(is_there).cloned().collect(),
            host: Host::default(),
        };
        Running::of_start(&start, &Waiting::new(task, 0), LeaseId(uid.clone()), 0)
    })
}

/// What the node is to make of a placement. Its lease is the pod's, so the same pod always finds the same slice.
///
/// # Errors
/// Names an ask that is none.
pub(super) fn award(uid: &str, placement: &Placement, book: &Book) -> Result<Award, String> {
    let ask: Ask = placement.ask.parse().map_err(|error: crate::NotATemplate| error.to_string())?;
    let place =
        |slice: &Slice| Place { gpu: slice.gpu.clone(), start: slice.mig.as_ref().map(|mig| mig.start) };
    Ok(Award {
        lease: LeaseId(uid.to_owned()),
        task: TaskId(placement.pod.clone()),
        name: placement.pod.clone(),
        request: ask.request(tables(&[book])),
        places: placement.slices.iter().map(place).collect(),
    })
}

#[cfg(test)]
mod tests {
    use cantle_mig::Profile;
    use cantle_model::{Bytes, GpuRequest, GpuUuid, Milli};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn book(node: &str, gpus: u32) -> Book {
        let offered = |index| {
            let uuid = GpuUuid(format!("GPU-{node}-{index}"));
            let gpu = Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 * GIB, mig: false };
            Offered { gpu, table: None, switches: false, holder: None, together: None }
        };
        Book { node: node.to_owned(), gpus: (0..gpus).map(offered).collect(), ..Book::default() }
    }

    fn place(book: &mut Book, uid: &str, ask: &str) -> Result<Vec<Slice>, String> {
        let (node, slices) = choose(&[book], &ask.parse().unwrap(), uid)?;
        assert_eq!(node, book.node);
        let placement = Placement { pod: format!("team/{uid}"), ask: ask.to_owned(), slices, placed_ms: 0 };
        book.placements.insert(uid.to_owned(), placement.clone());
        Ok(placement.slices)
    }

    #[test]
    fn shares_fill_a_gpu_before_the_next_one() {
        let mut book = book("n", 2);
        let half = place(&mut book, "a", "cantle-fraction-5000").unwrap();
        assert_eq!((half[0].milli, half[0].memory_limit_bytes), (Milli(500), 20 * GIB));
        let second = place(&mut book, "b", "cantle-memory-10240").unwrap();
        assert_eq!((&second[0].gpu, second[0].memory_limit_bytes), (&half[0].gpu, 10 * GIB));
        let third = place(&mut book, "c", "cantle-fraction-5000").unwrap();
        assert_ne!(third[0].gpu, half[0].gpu);
        let why = place(&mut book, "d", "cantle-whole-1").unwrap_err();
        assert!(why.contains("needs 1 GPU"), "{why}");
        book.placements.remove("c");
        assert_eq!(place(&mut book, "d", "cantle-whole-1").unwrap()[0].gpu, third[0].gpu);
    }

    /// As an H100's, less the profiles that do not matter here.
    fn switching(node: &str, gpus: u32) -> Book {
        let profile = |name: &str, size: u32, starts: &[u32]| Profile {
            name: name.to_owned(),
            id: size,
            compute_slices: size.min(7),
            size,
            starts: starts.to_vec(),
            max_instances: u32::try_from(starts.len()).unwrap(),
            memory_bytes: u64::from(size) * 5 * GIB,
        };
        let profiles = vec![
            profile("1g.5gb", 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("3g.20gb", 4, &[0, 4]),
            profile("7g.40gb", 8, &[0]),
        ];
        let table = Table { units: 8, profiles, fixed: false };
        let mut book = book(node, gpus);
        for offered in &mut book.gpus {
            offered.table = Some(table.clone());
            offered.switches = true;
        }
        book
    }

    #[test]
    fn a_gpu_that_switches_is_whatever_is_asked_for_first() {
        let mut book = switching("n", 2);
        let share = place(&mut book, "a", "cantle-fraction-5000").unwrap();
        let instance = place(&mut book, "b", "cantle-mig-3g.20gb").unwrap();
        assert_ne!(instance[0].gpu, share[0].gpu);
        assert!(instance[0].mig.is_some() && share[0].mig.is_none());
        let why = place(&mut book, "c", "cantle-fraction-6250").unwrap_err();
        assert!(why.starts_with("needs 0.625 GPU, free 0.5 of GPU "), "{why}");
        let why = place(&mut book, "c", "cantle-mig-7g.40gb").unwrap_err();
        assert!(why.contains("7g.40gb"), "{why}");
        book.placements.remove("b");
        assert_eq!(place(&mut book, "c", "cantle-fraction-6250").unwrap()[0].gpu, instance[0].gpu);
        let why = place(&mut book, "d", "cantle-mig-1g.5gb").unwrap_err();
        assert!(why.ends_with("nothing free (2 of 2 in use)"), "{why}");
    }

    /// Whatever comes and goes: a GPU has shares or instances, and neither overlap.
    #[test]
    fn no_gpu_is_shared_and_partitioned_at_once() {
        let asks = ["fraction-2500", "fraction-5000", "whole-1", "mig-1g.5gb", "mig-3g.20gb", "mig-7g.40gb"];
        let mut book = switching("n", 3);
        let (mut random, mut placed) = (9u64, [0; 2]);
        for step in 0..600u32 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random.is_multiple_of(3) {
                let at = usize::try_from(random / 3 % 8).unwrap();
                let ended = book.placements.keys().nth(at).cloned();
                ended.map(|uid| book.placements.remove(&uid));
            } else {
                let ask = asks[usize::try_from(random / 3 % 6).unwrap()];
                let given = place(&mut book, &format!("p{step:03}"), &format!("cantle-{ask}"));
                given.into_iter().for_each(|slices| placed[usize::from(slices[0].mig.is_some())] += 1);
            }
            for offered in &book.gpus {
                let slices = book.placements.values().flat_map(|placement| &placement.slices);
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
        let mut book = book("n", 2);
        place(&mut book, "a", "cantle-memory-4095-x2").unwrap();
        let award = award("a", &book.placements["a"], &book).unwrap();
        assert_eq!(award.request, GpuRequest::Memory(Bytes(4 * GIB)));
        assert_eq!(award.places.len(), 2);
        assert_eq!((award.lease.0.as_str(), award.name.as_str()), ("a", "team/a"));
    }

    #[test]
    fn the_fuller_node_is_the_better_one() {
        let (empty, mut used) = (book("empty", 1), book("used", 1));
        place(&mut used, "a", "cantle-fraction-2500").unwrap();
        let half = "cantle-fraction-5000".parse().unwrap();
        assert_eq!(choose(&[&empty, &used], &half, "b").unwrap().0, "used");
        assert!(choose(&[&book("none", 0)], &half, "b").is_err());
    }
}
