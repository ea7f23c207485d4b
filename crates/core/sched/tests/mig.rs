//! GPUs in MIG mode next to shared ones: where requests land, which task stops for which, and what the audit refuses.

#![expect(clippy::disallowed_methods, reason = "the planner itself is what is tested here")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_mig::{GpuGeometry, Instance, Table};
use cantle_model::{
    ComputeMode, ComputeRequest, Gpu, GpuRequest, GpuUuid, Isolation, LeaseId, QueueSpec, QueueWant, Slice,
    TaskId,
};
use cantle_sched::{
    Demand, GpuState, Node, Plan, Policy, Project, Queue, Running, Snapshot, Violation, Waiting, audit, plan,
};

fn table(gpu: &str) -> Arc<Table> {
    let file: serde_json::Value = serde_json::from_str(include_str!("../../mig/data/profiles.json")).unwrap();
    let tables: BTreeMap<String, Table> = serde_json::from_value(file["gpus"].clone()).unwrap();
    Arc::new(tables[gpu].clone())
}

fn gpu(index: u32, mig: Option<&str>) -> GpuState {
    let uuid = GpuUuid(format!("GPU-{index}"));
    let geometry = mig.map(|name| GpuGeometry { table: table(name), instances: Vec::new() });
    let of_profiles = |geometry: &GpuGeometry| {
        geometry.table.profiles.iter().map(|profile| profile.memory_bytes).max().unwrap()
    };
    let memory_bytes = geometry.as_ref().map_or(40 << 30, of_profiles);
    let gpu = Gpu { uuid, index, model: "A100".into(), memory_bytes, mig: mig.is_some() };
    let mut state = GpuState::new(gpu);
    state.mig = geometry;
    state
}

fn profile(name: &str) -> GpuRequest {
    GpuRequest::MigProfile(name.to_owned())
}

/// A node and what has been started on it.
struct World {
    state: Snapshot,
    policy: Policy,
    now_ms: i64,
}

impl World {
    fn new(gpus: Vec<GpuState>) -> Self {
        let spec = QueueSpec { name: "q".into(), want: QueueWant::Task };
        let queue = Queue::new(spec, Vec::new());
        let state = Snapshot::new(vec![Node::new("box", gpus)], Vec::new(), vec![queue]);
        Self { state, policy: Policy::default(), now_ms: 0 }
    }

    fn submit(&mut self, task: Waiting) {
        self.state.queues[0].waiting.push(task);
    }

    /// Plans, checks, and starts what is to be started.
    fn round(&mut self) -> Plan {
        self.now_ms += 1000;
        let decided = plan(&self.state, &self.policy, self.now_ms);
        assert_eq!(audit(&self.state, &decided), []);
        for start in &decided.starts {
            let waiting = &mut self.state.queues[0].waiting;
            let at = waiting.iter().position(|waiting| waiting.task == start.task).unwrap();
            let task = waiting.remove(at);
            let lease = LeaseId(start.task.0.clone());
            self.state.running.push(Running::of_start(start, &task, lease, self.now_ms));
        }
        decided
    }

    /// The place of a task's instance: profile and start.
    fn run(&mut self, name: &str, request: GpuRequest) -> Option<(String, u32)> {
        self.submit(Waiting::new(TaskId::from(name), self.now_ms).wanting(request));
        let decided = self.round();
        let slice = decided.starts.first()?.slices[0].clone();
        slice.mig.map(|mig| (mig.profile, mig.start))
    }

    fn end(&mut self, name: &str) {
        self.state.running.retain(|running| running.task.0 != name);
    }
}

fn got(name: &str, start: u32) -> Option<(String, u32)> {
    Some((name.to_owned(), start))
}

#[test]
fn a_fraction_gets_the_profile_that_holds_it_and_counts_what_it_costs() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
    assert_eq!(world.run("a", GpuRequest::from_fraction("0.375").unwrap()), got("3g.20gb", 4));
    let slice = &world.state.running[0].slices[0];
    assert_eq!((slice.milli.0, slice.memory_limit_bytes), (500, 19_968 << 20));
    assert_eq!(world.run("b", GpuRequest::from_memory("4G").unwrap()), got("1g.5gb", 3));
    assert_eq!(world.run("c", GpuRequest::from_memory("10G").unwrap()), got("1g.10gb", 0));
}

#[test]
fn a_place_decides_and_not_the_sum_of_what_is_free() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
    for (task, start) in [("a", 2), ("b", 0), ("c", 4)] {
        assert_eq!(world.run(task, profile("2g.10gb")), got("2g.10gb", start));
    }
    world.end("b");
    world.submit(Waiting::new(TaskId::from("large"), world.now_ms).wanting(profile("3g.20gb")));
    let reason = world.round().waits[0].reason.to_string();
    assert_eq!(
        reason, "needs a 3g.20gb MIG instance, free 0.5 of GPU 0 but no place for 3g.20gb (0.5 of 1 in use)",
        "half the GPU is free, but in two pieces"
    );
    assert_eq!(world.run("small", profile("1g.5gb")), None, "nobody passes the head");
    world.end("a");
    let decided = world.round();
    assert_eq!(decided.starts[0].slices[0].mig.as_ref().unwrap().start, 0);
}

#[test]
fn exactly_the_task_whose_place_makes_room_is_stopped() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
    world.policy = Policy { reclaim: true, ..Policy::default() };
    world.state.projects = vec![Project::new("p", 1000)];
    for name in ["a", "b", "c"] {
        let mut task = Waiting::new(TaskId::from(name), 0).wanting(profile("2g.10gb"));
        task.project = Some("p".into());
        world.submit(task);
        world.round();
    }
    let start_of = |world: &World, name: &str| {
        let running = world.state.running.iter().find(|running| running.task.0 == name).unwrap();
        running.slices[0].mig.as_ref().unwrap().start
    };
    assert_eq!(["a", "b", "c"].map(|name| start_of(&world, name)), [2, 0, 4]);
    // The longest-running task is the most expensive one; still it is one against two.
    world.now_ms += 1_000_000;
    let mut urgent = Waiting::new(TaskId::from("urgent"), 0).wanting(profile("3g.20gb"));
    (urgent.priority, urgent.project) = (10, Some("p".into()));
    world.submit(urgent);
    let decided = world.round();
    let stopped: Vec<&str> = decided.evictions.iter().map(|eviction| eviction.task.0.as_str()).collect();
    assert_eq!(stopped, ["c"]);
    world.end("c");
    let decided = world.round();
    assert_eq!(decided.starts[0].slices[0].mig.as_ref().unwrap().start, 4);
    assert_eq!(["a", "b"].map(|name| start_of(&world, name)), [2, 0]);
}

#[test]
fn a_request_lands_on_either_kind_and_may_demand_one() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB")), gpu(1, None)]);
    let ask = |name: &str, fraction: &str, isolation| {
        let request = GpuRequest::from_fraction(fraction).unwrap();
        let mut task = Waiting::new(TaskId::from(name), 0).wanting(request);
        task.isolation = isolation;
        task
    };
    world.submit(ask("any", "0.375", Isolation::Any));
    world.submit(ask("mig", "0.375", Isolation::Mig));
    world.submit(ask("shared", "0.5", Isolation::Shared));
    world.submit(ask("rest", "0.5", Isolation::Any));
    let decided = world.round();
    let on: Vec<(&str, &str)> =
        decided.starts.iter().map(|start| (start.task.0.as_str(), start.slices[0].gpu.0.as_str())).collect();
    let expected = [("any", "GPU-1"), ("mig", "GPU-0"), ("shared", "GPU-1"), ("rest", "GPU-0")];
    assert_eq!(on, expected, "0.375 costs half a GPU in MIG mode, so the shared one is cheaper");
}

#[test]
fn whole_gpus_prefer_those_without_mig() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB")), gpu(1, None)]);
    assert_eq!(world.run("first", GpuRequest::Gpus(1)), None);
    assert_eq!(world.state.running[0].slices[0].gpu.0, "GPU-1");
    assert_eq!(world.run("second", GpuRequest::Gpus(1)), got("7g.40gb", 0));
}

#[test]
fn a_foreign_instance_is_left_alone() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
    let geometry = world.state.nodes[0].gpus[0].mig.as_mut().unwrap();
    let profile_at = geometry.table.position("3g.20gb").unwrap();
    geometry.occupy(profile_at, 4);
    assert_eq!(world.run("a", profile("3g.20gb")), got("3g.20gb", 0));
    assert_eq!(world.run("b", profile("1g.5gb")), None);
}

/// A node reads its instances and its leases one after the other.
#[test]
fn the_instance_of_a_task_that_just_got_it_is_no_foreign_one() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
    let small = world.state.nodes[0].gpus[0].mig.as_ref().unwrap().table.position("2g.10gb").unwrap();
    assert_eq!(world.run("a", profile("2g.10gb")), got("2g.10gb", 2));
    world.submit(Waiting::new(TaskId::from("b"), 0).wanting(profile("2g.10gb")));
    let next = plan(&world.state, &world.policy, 0);
    let (mut seen, mut taken) = (world.state.clone(), world.state.clone());
    seen.nodes[0].gpus[0].mig.as_mut().unwrap().occupy(small, 2);
    assert_eq!(audit(&seen, &next), []);
    // Negative control: at the place of the task that is to start, it belongs to another process.
    taken.nodes[0].gpus[0].mig.as_mut().unwrap().occupy(small, 0);
    assert!(matches!(audit(&taken, &next)[..], [Violation::Instances { .. }]));
}

#[test]
fn an_instance_goes_where_it_leaves_room_for_what_is_expected() {
    // Units 0 and 1 are taken. Unit 6 is in no 2g's way but in that of the last 3g; units 2 and 3 the other way round.
    for (expected, starts) in [("3g.20gb", 2..4), ("2g.10gb", 6..7)] {
        let mut gpu = gpu(0, Some("A100-40GB"));
        let geometry = gpu.mig.as_mut().unwrap();
        let taken = geometry.table.position("2g.10gb").unwrap();
        geometry.instances.push(Instance { id: 1, profile: taken, start: 0, busy: true });
        let mut world = World::new(vec![gpu]);
        let typical = Waiting::new(TaskId::from("typical"), 0).wanting(profile(expected));
        world.state.expected = vec![(Demand::of(&world.state.queues[0], &typical), 100)];
        let (_, start) = world.run("small", profile("1g.5gb")).unwrap();
        assert!(starts.contains(&start), "{expected}: {start}");
    }
}

#[test]
fn what_can_never_be_says_why() {
    let reason = |gpus, request, isolation| {
        let mut world = World::new(gpus);
        let mut task = Waiting::new(TaskId::from("t"), 0).wanting(request);
        task.isolation = isolation;
        world.submit(task);
        world.round().waits[0].reason.to_string()
    };
    let shared = || vec![gpu(0, None)];
    let mig = || vec![gpu(0, Some("A100-40GB"))];
    let half = || GpuRequest::from_fraction("0.5").unwrap();
    assert!(reason(shared(), profile("1g.5gb"), Isolation::Any).ends_with("no GPU here is in MIG mode"));
    assert!(reason(shared(), half(), Isolation::Mig).ends_with("no GPU here is in MIG mode"));
    assert!(reason(mig(), half(), Isolation::Shared).contains("in MIG mode, which this request cannot use"));
    assert!(reason(mig(), profile("9g.1gb"), Isolation::Any).contains("it has 1g.5gb, 1g.10gb, 2g.10gb"));
    let memory = GpuRequest::from_memory("40Gi").unwrap();
    assert!(reason(mig(), memory, Isolation::Any).contains("the largest GPU has 39.25 GiB"));
}

/// Only a shared GPU has a gate. A request by profile has its own part of the hardware and is refused where it starts.
#[test]
fn an_enforced_compute_share_gets_no_instance() {
    let half = || GpuRequest::from_fraction("0.5").unwrap();
    for (request, mode) in [
        (half(), ComputeMode::Fair),
        (half(), ComputeMode::Strict),
        (GpuRequest::Gpus(1), ComputeMode::Fair),
        (GpuRequest::from_memory("4Gi").unwrap(), ComputeMode::Strict),
    ] {
        let task = |name: &str, mode| {
            let mut task = Waiting::new(TaskId::from(name), 0).wanting(request.clone());
            task.compute = ComputeRequest { mode, ..ComputeRequest::default() };
            task
        };
        let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
        world.submit(task("alone", mode));
        let reason = world.round().waits[0].reason.to_string();
        assert!(reason.contains(&format!("compute {mode} is kept on GPUs without MIG only")), "{reason}");

        // The shared GPU is the worse fit, and still the only one that will do.
        let mut world = World::new(vec![gpu(0, Some("A100-40GB")), gpu(1, None)]);
        world.submit(task("gated", mode));
        let decided = world.round();
        assert_eq!(decided.starts[0].slices[0].gpu.0, "GPU-1", "{request} {mode}");
        world.submit(task("second", mode).wanting(GpuRequest::Gpus(1)));
        let waits = world.round().waits;
        let expected = format!("needs 1 GPU without MIG (compute {mode}), ");
        assert!(waits[0].reason.to_string().starts_with(&expected), "{}", waits[0].reason);
        world.state.queues[0].waiting.clear();
        // The audit is written apart: the same start of a task without a gate may be an instance, with one it may not.
        world.submit(task("next", ComputeMode::Even));
        world.state.queues[0].waiting[0].isolation = Isolation::Mig;
        let next = plan(&world.state, &world.policy, 0);
        let waiting = &mut world.state.queues[0].waiting[0];
        (waiting.isolation, waiting.compute.mode) = (Isolation::Any, mode);
        assert!(matches!(audit(&world.state, &next)[..], [Violation::NotAsAsked { .. }]));
    }
}

#[test]
fn finer_and_coarser_grids() {
    for (name, asked, cost) in [
        ("RTX-PRO-6000-Blackwell-96GB", [("0.25", "1g.24gb", 9), ("0.5", "2g.48gb", 0)], [250, 500]),
        ("A30-24GB", [("0.25", "1g.6gb", 3), ("0.5", "2g.12gb", 0)], [250, 500]),
        ("H200-141GB (SXM5 0x2335, NVL 0x233B)", [("0.25", "1g.35gb", 6), ("0.5", "3g.71gb", 0)], [250, 500]),
        ("B200-180GB", [("0.25", "1g.45gb", 6), ("0.5", "3g.90gb", 0)], [250, 500]),
    ] {
        let mut world = World::new(vec![gpu(0, Some(name))]);
        for ((fraction, profile, start), cost) in asked.into_iter().zip(cost) {
            let request = GpuRequest::from_fraction(fraction).unwrap();
            assert_eq!(world.run(fraction, request), got(profile, start), "{name} {fraction}");
            assert_eq!(world.state.running.last().unwrap().slices[0].milli.0, cost);
        }
    }
}

#[test]
fn the_audit_refuses_what_cannot_be() {
    let mut world = World::new(vec![gpu(0, Some("A100-40GB"))]);
    world.submit(Waiting::new(TaskId::from("a"), 0).wanting(profile("2g.10gb")));
    let good = plan(&world.state, &world.policy, 0);
    let with = |change: &dyn Fn(&mut Slice)| {
        let mut bad = good.clone();
        change(&mut bad.starts[0].slices[0]);
        audit(&world.state, &bad)
    };
    assert_eq!(with(&|_| {}), []);
    let not_as_asked = |violations: Vec<Violation>| matches!(violations[..], [Violation::NotAsAsked { .. }]);
    assert!(not_as_asked(with(&|slice| slice.mig.as_mut().unwrap().start = 1)), "no such place");
    assert!(not_as_asked(with(&|slice| slice.mig.as_mut().unwrap().profile = "3g.20gb".into())));
    assert!(not_as_asked(with(&|slice| slice.memory_limit_bytes += 1)));
    assert!(matches!(with(&|slice| slice.mig = None)[..], [Violation::BadGpu { .. }, ..]), "a share of it");
    world.round();
    world.submit(Waiting::new(TaskId::from("b"), 0).wanting(profile("2g.10gb")));
    let mut overlapping = plan(&world.state, &world.policy, 0);
    overlapping.starts[0].slices[0].mig.as_mut().unwrap().start = 2;
    assert!(matches!(audit(&world.state, &overlapping)[..], [Violation::Instances { .. }]));
}
