//! Properties that must hold for every cluster, tested on random ones.

#![expect(clippy::disallowed_methods, reason = "the planner itself is what is tested here")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use cantle_model::{
    ComputeMode, Gpu, GpuRequest, GpuUuid, LeaseId, Milli, PoolQuota, PoolRule, QueueSpec, QueueWant, TaskId,
};
use cantle_sched::{
    Cause, Demand, GpuState, Node, Order, Placement, Plan, Policy, Project, Queue, Reason, Running, Snapshot,
    Waiting, audit, plan, shares,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Cases of each property, unless `PROPTEST_CASES` requests another number.
const CASES: u32 = 10_000;
const GIB: u64 = 1 << 30;
const MODELS: [(&str, u64); 2] = [("T4", 16 * GIB), ("A100", 40 * GIB)];

fn cases() -> u32 {
    let asked = std::env::var_os("PROPTEST_CASES");
    asked.and_then(|cases| cases.to_str()?.parse().ok()).unwrap_or(CASES)
}

/// Models of the GPUs of each node.
fn nodes() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(0..MODELS.len(), 1..5), 1..5)
}

/// Request, priority, project, preemptible, gang of two with the next.
type Wish = (GpuRequest, i32, usize, bool);

fn wish() -> impl Strategy<Value = Wish> {
    let request = prop_oneof![
        6 => (1u32..8).prop_map(|eighths| GpuRequest::Fraction(Milli(eighths * 125).into())),
        2 => (1u32..1000).prop_map(|milli| GpuRequest::Fraction(Milli(milli).into())),
        2 => (1u64..41).prop_map(|gib| GpuRequest::Memory(cantle_model::Bytes(gib * GIB))),
        4 => (1u32..5).prop_map(GpuRequest::Gpus),
    ];
    (request, 0..3i32, 0..4usize, prop::bool::weighted(0.8))
}

fn policy() -> impl Strategy<Value = Policy> {
    let order = prop_oneof![Just(Order::Strict), Just(Order::Fair), Just(Order::Share)];
    let placement = prop_oneof![Just(Placement::Worth), Just(Placement::Binpack), Just(Placement::Spread)];
    (order, placement, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(order, placement, backfill, reclaim, consolidate)| Policy {
            order,
            placement,
            backfill,
            reclaim,
            consolidate,
            ..Policy::default()
        },
    )
}

/// Nodes, tasks that came before, tasks that wait, deserved eighths of projects.
type World = (Vec<Vec<usize>>, Vec<Wish>, Vec<Wish>, Vec<u64>);

fn cluster() -> impl Strategy<Value = World> {
    let wishes = || prop::collection::vec(wish(), 0..14);
    (nodes(), wishes(), wishes(), prop::collection::vec(0u64..24, 3))
}

fn state(nodes: &[Vec<usize>], wishes: &[Wish], deserved: &[u64]) -> Snapshot {
    let node = |(at, gpus): (usize, &Vec<usize>)| {
        let gpu = |(index, model): (usize, &usize)| {
            GpuState::new(Gpu {
                uuid: GpuUuid(format!("GPU-{at}-{index}")),
                index: u32::try_from(index).unwrap(),
                model: MODELS[*model].0.to_owned(),
                memory_bytes: MODELS[*model].1,
                mig: false,
            })
        };
        Node::new(format!("node{at}"), gpus.iter().enumerate().map(gpu).collect())
    };
    let mut state = Snapshot::new(nodes.iter().enumerate().map(node).collect(), Vec::new(), Vec::new());
    let queue = |name: &str| Queue::new(QueueSpec { name: name.into(), want: QueueWant::Task }, Vec::new());
    state.queues = vec![queue("first"), queue("second")];
    state.projects =
        deserved.iter().enumerate().map(|(at, n)| Project::new(format!("p{at}"), n * 125)).collect();
    enqueue(&mut state, "t", wishes);
    state
}

fn enqueue(state: &mut Snapshot, prefix: &str, wishes: &[Wish]) {
    for (at, (request, priority, project, preemptible)) in wishes.iter().enumerate() {
        let mut task = Waiting::new(TaskId(format!("{prefix}{at}")), 0).wanting(request.clone());
        task.priority = *priority;
        task.preemptible = *preemptible;
        // Some want more compute time than memory, some less.
        let compute = Milli(u32::try_from(at * 370 % 1000 + 1).unwrap());
        task.compute.mode = if at % 3 == 0 { ComputeMode::Fair } else { ComputeMode::Even };
        task.compute.request = (at % 2 == 0 && at % 3 == 0).then_some(compute);
        task.project = state.projects.get(*project).map(|project| project.name.clone());
        state.queues[at % 2].waiting.push(task);
    }
}

/// Carries a plan out: starts run, the stopped go back to the front of their queue.
fn carry_out(state: &mut Snapshot, plan: &Plan, now_ms: i64) {
    for eviction in &plan.evictions {
        let at = state.running.iter().position(|running| running.lease == eviction.lease).unwrap();
        let running = state.running.remove(at);
        let milli: u32 = running.slices.iter().map(|slice| slice.milli.0).sum();
        let request = if milli.is_multiple_of(1000) {
            GpuRequest::Gpus(milli / 1000)
        } else {
            GpuRequest::Fraction(Milli(milli).into())
        };
        let mut task = Waiting::new(running.task, 0).wanting(request);
        (task.project, task.priority) = (running.project, running.priority);
        task.yielded_to = Some(eviction.for_task.clone());
        task.moved = eviction.cause == Cause::Consolidate;
        let queue =
            state.queues.iter_mut().find(|queue| Some(&queue.spec.name) == running.queue.as_ref()).unwrap();
        queue.waiting.insert(0, task);
    }
    for start in &plan.starts {
        let queue = state.queues.iter_mut().find(|queue| queue.spec.name == start.queue).unwrap();
        let at = queue.waiting.iter().position(|waiting| waiting.task == start.task).unwrap();
        let task = queue.waiting.remove(at);
        state.running.push(Running::of_start(start, &task, LeaseId(start.task.0.clone()), now_ms));
    }
}

/// A busy state: the first tasks have been started before the others came.
fn busy(nodes: &[Vec<usize>], before: &[Wish], waiting: &[Wish], deserved: &[u64]) -> Snapshot {
    let mut state = state(nodes, before, deserved);
    let first = plan(&state, &Policy { backfill: true, ..Policy::default() }, 0);
    carry_out(&mut state, &first, 0);
    enqueue(&mut state, "u", waiting);
    state
}

/// Of each project: eighths of the pool `big` that are guaranteed, the limit beyond them, and which pools it may use.
type PoolTerms = (u64, Option<u64>, usize);

fn pools() -> impl Strategy<Value = Vec<PoolTerms>> {
    prop::collection::vec((0u64..16, prop::option::of(0u64..16), 0..4usize), 3)
}

/// GPUs are in the pools `big` or `small` by their model, those of the first node in `near` too.
fn enter_pools(state: &mut Snapshot, terms: &[PoolTerms]) {
    for (at, node) in state.nodes.iter_mut().enumerate() {
        for gpu in &mut node.gpus {
            let of_model = if gpu.gpu.model == "A100" { "big" } else { "small" };
            let near = (at == 0).then_some("near");
            gpu.pools = [of_model].into_iter().chain(near).map(str::to_owned).collect();
        }
    }
    for (project, (deserved, more, _)) in state.projects.iter_mut().zip(terms) {
        let limit = more.map(|more| (deserved + more) * 125);
        project.by_pool.insert("big".to_owned(), PoolQuota { deserved: deserved * 125, limit });
        let whole = &mut project.quotas[0].deserved;
        *whole = whole.map(|whole| whole.max(deserved * 125));
    }
}

/// Enters the restrictions of their projects into all waiting tasks.
fn restrict(state: &mut Snapshot, terms: &[PoolTerms]) {
    for task in state.queues.iter_mut().flat_map(|queue| &mut queue.waiting) {
        let terms = task.project.as_ref().and_then(|name| terms.get(name[1..].parse::<usize>().unwrap()));
        let pools: &[&str] = match terms.map(|(.., rule)| rule) {
            Some(2) => &["big"],
            Some(3) => &["near", "small"],
            _ => continue,
        };
        let pools = pools.iter().map(|&pool| pool.to_owned()).collect();
        task.pools = vec![PoolRule { project: task.project.clone().unwrap(), pools }];
    }
}

/// A busy state, with pools since its beginning.
fn busy_with_pools((nodes, before, waiting, deserved): &World, terms: &[PoolTerms]) -> Snapshot {
    let mut state = state(nodes, before, deserved);
    enter_pools(&mut state, terms);
    restrict(&mut state, terms);
    let first = plan(&state, &Policy { backfill: true, ..Policy::default() }, 0);
    carry_out(&mut state, &first, 0);
    enqueue(&mut state, "u", waiting);
    restrict(&mut state, terms);
    state
}

/// Free milli and bytes of each GPU, worked out from the state alone.
fn free(state: &Snapshot) -> BTreeMap<GpuUuid, (u32, u64)> {
    let gpus = state.nodes.iter().flat_map(|node| &node.gpus);
    let mut free: BTreeMap<_, _> =
        gpus.map(|gpu| (gpu.gpu.uuid.clone(), (1000, gpu.gpu.memory_bytes))).collect();
    for slice in state.running.iter().flat_map(|running| &running.slices) {
        let gpu = free.get_mut(&slice.gpu).unwrap();
        *gpu = (gpu.0 - slice.milli.0, gpu.1 - slice.memory_limit_bytes);
    }
    free
}

fn fits_somewhere(state: &Snapshot, task: &Waiting) -> bool {
    let request = task.request.as_ref().unwrap();
    let compute = if let GpuRequest::Gpus(_) = request { None } else { task.compute.request };
    let free = free(state);
    state.nodes.iter().any(|node| {
        let room = node.gpus.iter().filter(|gpu| {
            let (milli, bytes) = free[&gpu.gpu.uuid];
            request.share_of(gpu.gpu.memory_bytes).is_some_and(|share| {
                share.milli.max(compute.unwrap_or_default()).0 <= milli && share.memory_limit_bytes <= bytes
            })
        });
        room.count() >= request.gpus() as usize
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    /// The audit, written apart, finds nothing: no capacity, limit or rule is violated, and no task is forgotten.
    #[test]
    fn every_plan_passes_its_audit((nodes, before, waiting, deserved) in cluster(), policy in policy()) {
        let mut state = busy(&nodes, &before, &waiting, &deserved);
        for now_ms in 1..4 {
            let decided = plan(&state, &policy, now_ms);
            prop_assert_eq!(audit(&state, &decided), []);
            carry_out(&mut state, &decided, now_ms);
        }
    }

    /// The same with pools: no GPU outside the pools of its project, no limit of a pool violated.
    #[test]
    fn every_plan_with_pools_passes_its_audit(world in cluster(), terms in pools(), policy in policy()) {
        let mut state = busy_with_pools(&world, &terms);
        for now_ms in 1..4 {
            let decided = plan(&state, &policy, now_ms);
            prop_assert_eq!(audit(&state, &decided), []);
            carry_out(&mut state, &decided, now_ms);
            restrict(&mut state, &terms);
        }
    }

    /// No two projects take what is guaranteed of a pool from each other in turn.
    #[test]
    fn rounds_with_pools_come_to_an_end(world in cluster(), terms in pools(), policy in policy()) {
        let mut state = busy_with_pools(&world, &terms);
        for round in 0.. {
            let decided = plan(&state, &policy, 1);
            if decided.starts.is_empty() && decided.evictions.is_empty() {
                break;
            }
            carry_out(&mut state, &decided, 1);
            restrict(&mut state, &terms);
            prop_assert!(round < 60, "goes in circles");
        }
    }

    /// No waiting task would fit, as computed by other means; and running tasks are where they were.
    #[test]
    fn no_room_means_no_room((nodes, before, waiting, deserved) in cluster(), policy in policy()) {
        let policy = Policy { reclaim: false, consolidate: false, ..policy };
        let mut state = busy(&nodes, &before, &waiting, &deserved);
        let untouched = state.running.clone();
        let decided = plan(&state, &policy, 1);
        prop_assert!(decided.evictions.is_empty());
        carry_out(&mut state, &decided, 1);
        for (now, before) in state.running.iter().zip(&untouched) {
            prop_assert_eq!((&now.task, &now.slices), (&before.task, &before.slices));
        }
        for wait in decided.waits.iter().filter(|wait| matches!(wait.reason, Reason::NoRoom { .. })) {
            let tasks = state.queues.iter().flat_map(|queue| &queue.waiting);
            let task = tasks.clone().find(|task| task.task == wait.task).unwrap();
            prop_assert!(!fits_somewhere(&state, task), "{}: {}", wait.task, wait.reason);
        }
    }

    /// The plan of the same state is the same, and a round with nothing new to decide changes nothing.
    #[test]
    fn rounds_without_events_change_nothing((nodes, before, waiting, deserved) in cluster(), policy in policy()) {
        let mut state = busy(&nodes, &before, &waiting, &deserved);
        let mut rounds = 0;
        loop {
            let decided = plan(&state, &policy, 1);
            prop_assert_eq!(&decided, &plan(&state, &policy, 1));
            if decided.starts.is_empty() && decided.evictions.is_empty() {
                break;
            }
            carry_out(&mut state, &decided, 1);
            rounds += 1;
            prop_assert!(rounds < 60, "goes in circles");
        }
    }

    /// Renaming and shuffling nodes and GPUs changes nothing but names.
    #[test]
    fn names_and_positions_decide_nothing(
        (nodes, before, waiting, deserved) in cluster(),
        policy in policy(),
        known in any::<bool>(),
    ) {
        let shuffled: Vec<Vec<usize>> =
            nodes.iter().rev().map(|gpus| gpus.iter().rev().copied().collect()).collect();
        let policy = Policy { reclaim: false, consolidate: false, ..policy };
        let outcome = |nodes: &[Vec<usize>]| {
            let mut state = state(nodes, &before, &deserved);
            if known {
                let tasks = state.queues.iter().flat_map(|queue| queue.waiting.iter().map(move |t| (queue, t)));
                state.expected = tasks.map(|(queue, task)| (Demand::of(queue, task), 1)).collect();
            }
            let first = plan(&state, &policy, 0);
            carry_out(&mut state, &first, 0);
            enqueue(&mut state, "u", &waiting);
            let second = plan(&state, &policy, 1);
            carry_out(&mut state, &second, 1);
            let free = free(&state);
            let mut left: Vec<Vec<(u64, u32, u64)>> = state.nodes.iter().map(|node| {
                let mut gpus: Vec<_> = node.gpus.iter().map(|gpu| {
                    let (milli, bytes) = free[&gpu.gpu.uuid];
                    (gpu.gpu.memory_bytes, milli, bytes)
                }).collect();
                gpus.sort_unstable();
                gpus
            }).collect();
            left.sort_unstable();
            let started: Vec<TaskId> =
                first.starts.iter().chain(&second.starts).map(|start| start.task.clone()).collect();
            (started, left)
        };
        prop_assert_eq!(outcome(&nodes), outcome(&shuffled));
    }

    /// Fair shares: no project gets more than its demand, all together at most the capacity, and all of it if demanded.
    #[test]
    fn fair_shares_add_up((nodes, before, waiting, deserved) in cluster()) {
        let state = busy(&nodes, &before, &waiting, &deserved);
        let capacity: u64 = nodes.iter().map(|gpus| 1000 * gpus.len() as u64).sum();
        let shares = shares(&state, &Policy { order: Order::Share, ..Policy::default() });
        let guaranteed: u64 = shares.iter().map(|share| share.deserved_milli.min(share.requested_milli)).sum();
        let asked: u64 = shares.iter().map(|share| share.requested_milli).sum();
        let fair: u64 = shares.iter().map(|share| share.fair_milli).sum();
        prop_assert!(shares.iter().all(|share| share.fair_milli <= share.requested_milli));
        prop_assert_eq!(fair, asked.min(capacity.max(guaranteed)));
    }

    /// A blocked large task starts at the latest when what ran when it was blocked has ended, for any number of
    /// arriving small ones, if all have a maximum run time.
    #[test]
    fn a_large_task_starts_within_its_reservation(
        gpus in 2u32..5,
        running in prop::collection::vec((1u32..8, 1i64..50), 1..12),
        small in prop::collection::vec((1u32..8, 1i64..50, 1i64..60), 0..40),
    ) {
        let policy = Policy { backfill: true, ..Policy::default() };
        let task = |name: String, request, run_ms| {
            let mut task = Waiting::new(TaskId(name), 0).wanting(request);
            task.max_run_ms = Some(run_ms);
            task
        };
        let eighths = |n: u32| GpuRequest::Fraction(Milli(n * 125).into());
        let mut state = state(&[vec![1; gpus as usize]], &[], &[]);
        for (at, (size, run_ms)) in running.iter().enumerate() {
            state.queues[0].waiting.push(task(format!("r{at}"), eighths(*size), *run_ms));
        }
        let first = plan(&state, &policy, 0);
        carry_out(&mut state, &first, 0);
        let latest = state.running.iter().filter_map(|running| running.ends_at_ms).max().unwrap();
        state.queues[0].waiting.clear();
        state.queues[0].waiting.push(task("large".into(), GpuRequest::Gpus(gpus), 1000));
        for now_ms in 1..=latest {
            state.running.retain(|running| running.ends_at_ms.is_none_or(|end| end > now_ms));
            for (at, (size, run_ms, _)) in small.iter().enumerate().filter(|(_, (.., comes))| *comes == now_ms) {
                state.queues[1].waiting.push(task(format!("s{at}"), eighths(*size), *run_ms));
            }
            let decided = plan(&state, &policy, now_ms);
            carry_out(&mut state, &decided, now_ms);
        }
        prop_assert!(state.running.iter().any(|running| running.task.0 == "large"));
    }
}
