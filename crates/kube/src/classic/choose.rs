//! Which GPU of which node a pod gets: the scheduler of every other part of cantle, asked about nodes of a cluster. Pure.

use std::sync::Arc;

use cantle_agent::{Award, Place};
use cantle_mig::GpuGeometry;
use cantle_model::{Bytes, GpuRequest, LeaseId, Milli, QueueSpec, QueueWant, Slice, TaskId};
use cantle_sched::{GpuState, Host, Node, Plan, Policy, Queue, Running, Start, State, Waiting, audit, plan};

use super::book::{Book, Placement};
use crate::ask::{Ask, PARTS};
use crate::names::resource_of_profile;

/// The one queue: which pod is next, the cluster's scheduler has decided.
const QUEUE: &str = "kube-scheduler";

/// Where the pod with this UID goes, and what it gets there.
///
/// # Errors
/// Says why none of these nodes will do.
pub(super) fn choose(books: &[&Book], ask: &Ask, uid: &str) -> Result<(String, Vec<Slice>), String> {
    let mut waiting = Waiting::new(TaskId(uid.to_owned()), 0).wanting(request(ask, books));
    waiting.devices = devices(ask);
    let spec = QueueSpec { name: QUEUE.to_owned(), want: QueueWant::Task };
    let nodes = books.iter().map(|book| Node::new(&book.node, gpus(book))).collect();
    // What the pod itself has, after an attempt that came to nothing, is free for it.
    let others = |running: &Running| running.lease.0 != uid;
    let running = books.iter().flat_map(|book| running(book)).filter(others).collect();
    let state = State::new(nodes, running, vec![Queue::new(spec, vec![waiting])]);
    let Plan { mut starts, waits, .. } = audited(&state)?;
    match (starts.pop(), waits.first()) {
        (Some(start), _) => Ok((start.node, start.slices)),
        (None, Some(wait)) => Err(wait.reason.to_string()),
        (None, None) => Err("no GPU of cantle's on this node".to_owned()),
    }
}

fn audited(state: &State) -> Result<Plan, String> {
    let plan = plan(state, &Policy::default(), 0);
    match audit(state, &plan).first() {
        Some(violation) => Err(violation.to_string()),
        None => Ok(plan),
    }
}

fn gpus(book: &Book) -> Vec<GpuState> {
    let state = |offered: &super::book::Offered| {
        let mut state = GpuState::new(offered.gpu.clone());
        let geometry = |table| GpuGeometry { table: Arc::new(table), instances: Vec::new() };
        state.mig = offered.table.clone().map(geometry);
        state
    };
    book.gpus.iter().map(state).collect()
}

/// Those who have something of the GPUs that are there now.
fn running(book: &Book) -> impl Iterator<Item = Running> + '_ {
    let is_there = |slice: &&Slice| book.gpus.iter().any(|offered| offered.gpu.uuid == slice.gpu);
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

/// What a pod asks for, as every other task of cantle's. A fraction counts in thousandths, rounded up.
fn request(ask: &Ask, books: &[&Book]) -> GpuRequest {
    match ask {
        Ask::Fraction { parts, .. } => GpuRequest::Fraction(Milli((parts * 1000).div_ceil(PARTS))),
        Ask::Memory { mib, .. } => GpuRequest::Memory(Bytes(Ask::mib_charged(*mib) << 20)),
        Ask::Whole { gpus } => GpuRequest::Gpus(*gpus),
        Ask::Mig { profile } => {
            // A `+` in a profile's name can't be in the name of an object.
            let tables =
                books.iter().flat_map(|book| &book.gpus).filter_map(|offered| offered.table.as_ref());
            let mut known = tables.flat_map(|table| &table.profiles).map(|profile| &profile.name);
            let found = known.find(|known| resource_of_profile(known) == resource_of_profile(profile));
            GpuRequest::MigProfile(found.unwrap_or(profile).clone())
        }
    }
}

const fn devices(ask: &Ask) -> u32 {
    match ask {
        Ask::Fraction { gpus, .. } | Ask::Memory { gpus, .. } => *gpus,
        Ask::Whole { .. } | Ask::Mig { .. } => 1,
    }
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
        request: request(&ask, &[book]),
        places: placement.slices.iter().map(place).collect(),
    })
}

#[cfg(test)]
mod tests {
    use cantle_model::{Gpu, GpuUuid};

    use super::super::book::Offered;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn book(node: &str, gpus: u32) -> Book {
        let offered = |index| {
            let uuid = GpuUuid(format!("GPU-{node}-{index}"));
            let gpu = Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 * GIB, mig: false };
            Offered { gpu, table: None }
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
