//! The documented ClearML examples, and the correct results where ClearML's agent 3.0.3 has bugs.

#![expect(clippy::disallowed_methods, reason = "the planner itself is what is tested here")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use cantle_model::{Gpu, GpuRequest, GpuUuid, Holder, Lease, LeaseId, Milli, QueueSpec, Slice, TaskId};
use cantle_sched::{
    GpuState, Node, Order, Plan, Policy, Queue, Running, Snapshot, Waiting, audit, plan, validate_queues, why,
};

const GIB: u64 = 1 << 30;

fn gpus(count: u32) -> Vec<Gpu> {
    let gpu = |index| Gpu {
        uuid: GpuUuid(format!("GPU-{index}")),
        index,
        model: "NVIDIA A100-SXM4-40GB".into(),
        memory_bytes: 40 * GIB,
        mig: false,
    };
    (0..count).map(gpu).collect()
}

fn node(count: u32) -> Node {
    Node::new("box", gpus(count).into_iter().map(GpuState::new).collect())
}

fn queue(spec: &str, tasks: &[&str]) -> Queue {
    let waiting = tasks.iter().map(|&task| Waiting::new(TaskId::from(task), 0)).collect();
    Queue::new(QueueSpec::parse(spec).unwrap(), waiting)
}

fn state(count: u32, queues: Vec<Queue>) -> Snapshot {
    Snapshot::new(vec![node(count)], Vec::new(), queues)
}

/// Plans, proves the plan, and carries it out.
fn step(state: &mut Snapshot, policy: &Policy) -> Plan {
    let plan = plan(state, policy, 0);
    assert_eq!(audit(state, &plan), []);
    for start in &plan.starts {
        let owner = Holder { pid: 1, start_ticks: 1 };
        let id = LeaseId(format!("lease-{}", start.task));
        let lease = Lease::new(id, start.task.clone(), start.slices.clone(), owner);
        let lease = Lease { queue: Some(start.queue.clone()), ..lease };
        state.running.push(Running::of_lease(&lease, &start.node, 0));
        for queue in &mut state.queues {
            queue.waiting.retain(|waiting| waiting.task != start.task);
        }
    }
    state.last_served = plan.last_served().map(str::to_owned).or_else(|| state.last_served.take());
    plan
}

fn end(state: &mut Snapshot, task: &str) {
    state.running.retain(|running| running.task.0 != task);
}

/// `task@gpu+gpu` of each start.
fn starts(plan: &Plan) -> Vec<String> {
    let gpus =
        |slices: &[Slice]| slices.iter().map(|s| s.gpu.0[4..].to_owned()).collect::<Vec<_>>().join("+");
    plan.starts.iter().map(|start| format!("{}@{}", start.task, gpus(&start.slices))).collect()
}

fn reason(plan: &Plan, task: &str) -> String {
    plan.waits.iter().find(|wait| wait.task.0 == task).unwrap().reason.to_string()
}

#[test]
fn the_documented_example() {
    let queues = vec![
        queue("dual_gpus=2", &["dual"]),
        queue("quarter_gpu=0.25", &["quarter"]),
        queue("half_gpu=0.5", &["half"]),
        queue("single_gpu=1", &["single"]),
    ];
    let mut state = state(3, queues);
    let first = step(&mut state, &Policy::default());
    assert_eq!(starts(&first), ["dual@0+1", "quarter@2", "half@2"]);
    assert_eq!(reason(&first, "single"), "needs 1 GPU, free 0.25 of GPU 2 (2.75 of 3 in use)");
    assert_eq!(first.starts[1].slices[0].memory_limit_bytes, 10 * GIB);
    let explained = why(&state, &Policy::default(), &TaskId::from("single"), 0).unwrap();
    assert_eq!(explained.summary, "needs 1 GPU, free 0.25 of GPU 2 (2.75 of 3 in use)");
    assert_eq!(explained.nodes[0].lacks, "no GPU has room");

    end(&mut state, "dual");
    assert_eq!(starts(&step(&mut state, &Policy::default())), ["single@0"]);
}

#[test]
fn four_halves_on_two_gpus_and_the_fifth_waits() {
    let mut state = state(2, vec![queue("half_gpu=0.5", &["a", "b", "c", "d", "e", "f"])]);
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["a@0", "b@0", "c@1", "d@1"]);
    assert_eq!(reason(&plan, "e"), "needs 0.5 GPU, nothing free (2 of 2 in use)");
    assert_eq!(reason(&plan, "f"), "behind task e of queue half_gpu, which needs 0.5 GPU");
}

#[test]
fn a_range_takes_what_is_free_up_to_its_maximum() {
    let mut state = state(8, vec![queue("dual=2", &["d"]), queue("opp=1-4", &["o1", "o2"])]);
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["d@0+1", "o1@2+3+4+5", "o2@6+7"]);
}

/// Bug a: the agent gave the second task the whole GPU while 0.5 of it was in use.
#[test]
fn bug_a_a_range_never_takes_a_gpu_that_is_cut() {
    let mut state = state(1, vec![queue("half=0.5", &["h"]), queue("opp=1-1", &["o"])]);
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["h@0"]);
    assert_eq!(reason(&plan, "o"), "needs 1 GPU, free 0.5 of GPU 0 (0.5 of 1 in use)");
    assert!(QueueSpec::parse("opp=0.25-1").is_err(), "the range that triggered it is refused");
}

/// Bug b: with order fairness, the agent failed forever once all GPUs were full.
#[test]
fn bug_b_fair_order_survives_full_gpus() {
    let policy = Policy { order: Order::Fair, ..Policy::default() };
    let mut state = state(1, vec![queue("a=0.5", &["a1", "a2", "a3"]), queue("b=0.5", &["b1", "b2"])]);
    assert_eq!(starts(&step(&mut state, &policy)), ["a1@0", "b1@0"]);
    assert_eq!(starts(&step(&mut state, &policy)), [""; 0], "full: nothing starts, nothing fails");
    end(&mut state, "a1");
    assert_eq!(starts(&step(&mut state, &policy)), ["a2@0"], "b was served last, so it is a's turn");
    end(&mut state, "a2");
    assert_eq!(starts(&step(&mut state, &policy)), ["b2@0"]);
}

/// Bug c: a dead child kept its slice for 600 s. Here a slice is free as soon as its lease is gone.
#[test]
fn bug_c_a_slice_is_free_when_its_lease_is_gone() {
    let mut state = state(1, vec![queue("one=1", &["a", "b"])]);
    step(&mut state, &Policy::default());
    assert_eq!(starts(&step(&mut state, &Policy::default())), [""; 0]);
    end(&mut state, "a");
    assert_eq!(starts(&step(&mut state, &Policy::default())), ["b@0"]);
}

/// Bug d: a queue that could never be served was accepted and blocked all below it in silence.
#[test]
fn bug_d_the_impossible_is_refused_at_start_and_blocks_nobody() {
    let specs = ["four=4", "half=0.5"].map(|spec| QueueSpec::parse(spec).unwrap());
    assert_eq!(
        validate_queues(&specs, &gpus(2)).unwrap_err().to_string(),
        "--queue four: needs 4 GPUs, but this agent has 2; lower it or give the agent more GPUs"
    );
    assert!(validate_queues(&specs[1..], &gpus(2)).is_ok());

    // A GPU may be lost after the start: then the task reports it and the others continue.
    let mut state = state(2, vec![queue("four=4", &["big"]), queue("half=0.5", &["h"])]);
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["h@0"]);
    assert_eq!(reason(&plan, "big"), "needs 4 GPUs, can never run here: the largest node has 2 GPUs");
}

#[test]
fn best_fit_onto_cut_gpus_before_a_fresh_one() {
    let mut state = state(3, vec![queue("default=task", &[])]);
    let enqueue = |state: &mut Snapshot, task: &str, request: &str| {
        let request = GpuRequest::from_fraction(request).unwrap();
        state.queues[0].waiting.push(Waiting::new(TaskId::from(task), 0).wanting(request));
        starts(&step(state, &Policy::default()))
    };
    assert_eq!(enqueue(&mut state, "a", "0.6"), ["a@0"]);
    assert_eq!(enqueue(&mut state, "b", "0.75"), ["b@1"], "0.4 is too little");
    assert_eq!(enqueue(&mut state, "c", "0.25"), ["c@1"], "leaves 0, on GPU 0 it would leave 0.15");
    assert_eq!(enqueue(&mut state, "d", "0.4"), ["d@0"]);
    assert_eq!(enqueue(&mut state, "e", "1"), ["e@2"]);
}

#[test]
fn strict_order_waits_and_backfill_keeps_a_place() {
    let queues = || vec![queue("dual=2", &["dual"]), queue("half=0.5", &["h1", "h2", "h3"])];
    let running = |state: &mut Snapshot| {
        state.queues.insert(0, queue("first=1", &["r"]));
        step(state, &Policy::default());
        state.queues.remove(0);
    };
    // Three GPUs, one busy with a task; make only one more free by a second such task.
    let mut strict = state(3, Vec::new());
    running(&mut strict);
    strict.queues = vec![queue("second=1", &["r2"])];
    step(&mut strict, &Policy::default());
    strict.queues = queues();
    let mut backfill = strict.clone();

    let waits = step(&mut strict, &Policy::default());
    assert_eq!(starts(&waits), [""; 0]);
    assert_eq!(reason(&waits, "h1"), "behind task dual of queue dual, which needs 2 GPUs");

    let policy = Policy { backfill: true, ..Policy::default() };
    let fills = step(&mut backfill, &policy);
    assert_eq!(starts(&fills), [""; 0], "the free GPU is kept for the dual task");
    assert_eq!(
        reason(&fills, "h1"),
        "needs 0.5 GPU, what is free is kept for task dual, which is ahead of it"
    );
    end(&mut backfill, "r");
    assert_eq!(starts(&step(&mut backfill, &policy)), ["dual@0+2"]);
}

#[test]
fn a_short_task_may_use_the_kept_place_if_it_ends_in_time() {
    let mut state = state(2, vec![queue("one=1", &["long"])]);
    step(&mut state, &Policy::default());
    state.running[0].ends_at_ms = Some(10_000);
    state.queues = vec![queue("dual=2", &["dual"]), queue("half=0.5", &["short", "slow"])];
    state.queues[1].waiting[0].max_run_ms = Some(10_000);
    state.queues[1].waiting[1].max_run_ms = Some(10_001);
    let policy = Policy { backfill: true, ..Policy::default() };
    assert_eq!(starts(&step(&mut state, &policy)), ["short@1"]);
}

#[test]
fn foreign_use_counts_in_bytes() {
    let mut state = state(1, vec![queue("half=0.5", &["a", "b"])]);
    state.nodes[0].gpus[0].foreign_bytes = 10 * GIB;
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["a@0"]);
    assert_eq!(reason(&plan, "b"), "needs 0.5 GPU, free 0.25 of GPU 0 (0.75 of 1 in use)");
}

#[test]
fn memory_requests_and_several_devices() {
    let mut state = state(2, vec![queue("default=task", &["m", "two", "huge"])]);
    let memory = |text: &str| Some(GpuRequest::from_memory(text).unwrap());
    state.queues[0].waiting[0].request = memory("30Gi");
    state.queues[0].waiting[1].request = memory("10Gi");
    state.queues[0].waiting[1].devices = 2;
    state.queues[0].waiting[2].request = memory("41Gi");
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["m@0", "two@0+1"]);
    assert_eq!(
        reason(&plan, "huge"),
        "needs 41 GiB of GPU memory, can never run here: the largest GPU has 40 GiB"
    );
}

#[test]
fn an_unusable_gpu_is_left_alone() {
    let mut state = state(2, vec![queue("one=1", &["a", "b"])]);
    state.nodes[0].gpus[0].usable = false;
    let plan = step(&mut state, &Policy::default());
    assert_eq!(starts(&plan), ["a@1"]);
    assert_eq!(reason(&plan, "b"), "needs 1 GPU, nothing free (1 of 1 in use)");
}

#[test]
fn mig_gpus_are_not_cut_by_memory_limits() {
    let mut state = state(1, vec![queue("half=0.5", &["a"])]);
    state.nodes[0].gpus[0].gpu.mig = true;
    let plan = step(&mut state, &Policy::default());
    assert_eq!(
        reason(&plan, "a"),
        "needs 0.5 GPU, can never run here: its GPUs are in MIG mode, which this request cannot use"
    );
}

#[test]
fn audit_finds_what_is_wrong_with_a_plan() {
    let mut state = state(1, vec![queue("half=0.5", &["a", "b"])]);
    let good = plan(&state, &Policy::default(), 0);
    let says = |state: &Snapshot, plan: &Plan| -> Vec<String> {
        audit(state, plan).iter().map(ToString::to_string).collect()
    };
    assert_eq!(says(&state, &good), [""; 0]);

    let mut twice = good.clone();
    twice.starts[1].task = TaskId::from("a");
    assert_eq!(
        says(&state, &twice),
        ["task a: not waiting in queue half, or started twice", "task b: forgotten"]
    );

    let mut large = good.clone();
    large.starts[1].slices[0].memory_limit_bytes += 1;
    assert_eq!(
        says(&state, &large),
        [
            "task b: gets 1 slices that are not what its queue half gives",
            "GPU GPU-0: limits and foreign use add up to 42949672961 bytes, it has 42949672960"
        ]
    );

    let mut uncounted = good.clone();
    uncounted.starts[1].slices[0].milli = Milli(499);
    assert_eq!(says(&state, &uncounted), ["task b: gets 1 slices that are not what its queue half gives"]);

    let mut elsewhere = good.clone();
    elsewhere.starts[0].slices[0].gpu = GpuUuid::from("GPU-9");
    assert_eq!(says(&state, &elsewhere), ["task a: GPU GPU-9 cannot be used on node box"]);

    state.nodes[0].gpus[0].foreign_bytes = 1;
    assert_eq!(says(&state, &good).len(), 1, "one byte of foreign use is one too much");
    assert!(says(&state, &good)[0].contains("limits and foreign use add up to 42949672961 bytes"));
}

/// `--services-mode 2`: no GPU, also on a machine that has none; two at once, from any queue.
#[test]
fn tasks_without_a_gpu_run_so_many_at_once() {
    for gpus in [0, 1] {
        let mut state = state(gpus, vec![queue("a=none", &["a1"]), queue("b=none", &["b1", "b2", "b3"])]);
        state.at_once = Some(2);
        let plan = step(&mut state, &Policy::default());
        assert_eq!(starts(&plan), ["a1@", "b1@"]);
        assert_eq!(reason(&plan, "b2"), "this agent runs at most 2 tasks at a time, and 2 run");
        assert!(step(&mut state, &Policy::default()).starts.is_empty());
        end(&mut state, "a1");
        assert_eq!(starts(&step(&mut state, &Policy::default())), ["b2@"]);
        let mut over = plan;
        over.starts = vec![over.starts[0].clone()];
        over.starts[0].task = TaskId::from("b3");
        over.starts[0].queue = "b".into();
        over.waits.clear();
        assert!(!audit(&state, &over).is_empty(), "a third at once");
        state.at_once = None;
        assert_eq!(starts(&step(&mut state, &Policy::default())), ["b3@"], "no limit");
    }
}
