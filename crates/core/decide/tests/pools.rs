//! Pools in decisions: which GPU a task may get, how much of a pool a project may have, and what comes back.
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something is wrong")]

use std::collections::BTreeSet;

use cantle_decide::{Offer, SnapshotBuilder, check, decide, describe_waiting, policy_under, pool_rules};
use cantle_model::{
    Fleet, Gpu, GpuRequest, HeldTask, Holder, Lease, LeaseId, Milli, Pool, PoolQuota, ProjectQuota,
    QueueSpec, QueueWant, Quota, QuotaView, Slice, TaskId, TaskTerms, WaitingTask,
};
use cantle_sched::{Plan, Policy, Running, Snapshot, Waiting};

const GIB: u64 = 1 << 30;

fn gpu(uuid: &str, model: &str) -> Gpu {
    Gpu { uuid: uuid.into(), index: 0, model: model.to_owned(), memory_bytes: 40 * GIB, mig: false }
}

fn pool(name: &str, models: &str) -> Pool {
    Pool { name: name.to_owned(), nodes: Vec::new(), models: vec![models.to_owned()] }
}

fn quota(project: &str, milli: u64) -> QuotaView {
    let gpu = Quota { deserved: Some(milli), ..Quota::NONE };
    QuotaView { project: project.to_owned(), quota: ProjectQuota { gpu, ..ProjectQuota::default() } }
}

fn only(mut view: QuotaView, pools: &[&str]) -> QuotaView {
    view.quota.pools = pools.iter().map(|&pool| pool.to_owned()).collect();
    view
}

fn of_pool(mut view: QuotaView, pool: &str, deserved: u64, limit: Option<u64>) -> QuotaView {
    view.quota.by_pool.insert(pool.to_owned(), PoolQuota { deserved, limit });
    view
}

/// One A100, which is in the pool `big`, and one T4, which is in `small`.
struct World {
    fleet: Fleet,
    leases: Vec<Lease>,
    waiting: Vec<Waiting>,
}

impl World {
    fn new(projects: Vec<QuotaView>) -> Self {
        let pools = vec![pool("big", "A100"), pool("small", "T4")];
        Self { fleet: Fleet { projects, pools, ..Fleet::default() }, leases: Vec::new(), waiting: Vec::new() }
    }

    fn waits(mut self, task: &str, project: &str, preemptible: bool) -> Self {
        let mut waiting = Waiting::new(TaskId(task.to_owned()), 0).wanting(GpuRequest::Gpus(1));
        let known = WaitingTask { project: Some(project.to_owned()), ..WaitingTask::default() };
        let terms = TaskTerms { cpu_milli: 0, memory_bytes: 0, priority: 0, preemptible };
        describe_waiting(&mut waiting, &known, Some(terms));
        self.waiting.push(waiting);
        self
    }

    /// A task that holds the whole GPU.
    fn holds(mut self, task: &str, project: &str, gpu: &str) -> Self {
        let slice = Slice { gpu: gpu.into(), milli: Milli(1000), memory_limit_bytes: 40 * GIB, mig: None };
        let holder = Holder { pid: 1, start_ticks: 0 };
        self.leases.push(Lease::new(LeaseId::from(task), TaskId::from(task), vec![slice], holder));
        self.fleet.held.push(HeldTask {
            task: task.to_owned(),
            lease: task.to_owned(),
            cpu_milli: 0,
            memory_bytes: 0,
            project: Some(project.to_owned()),
            priority: 0,
            preemptible: true,
            started_ms: 0,
            stopping: None,
        });
        self
    }

    fn snapshot(&self) -> Snapshot {
        let spec = QueueSpec { name: "q".to_owned(), want: QueueWant::Task };
        SnapshotBuilder::default()
            .node("box", [gpu("GPU-a", "A100"), gpu("GPU-t", "T4")].map(Offer::new))
            .running(self.leases.iter().map(|lease| Running::of_lease(lease, "box", 0)))
            .queue(spec, self.waiting.clone())
            .under_quotas(&self.fleet, BTreeSet::new())
            .build()
    }

    fn plan(&self) -> Plan {
        decide(&self.snapshot(), &policy_under(&Policy::default(), &self.fleet), 1_000_000).unwrap()
    }
}

/// Tasks and the GPUs that they get.
fn starts(plan: &Plan) -> Vec<(&str, &str)> {
    plan.starts.iter().map(|start| (start.task.0.as_str(), start.slices[0].gpu.0.as_str())).collect()
}

fn why(plan: &Plan, task: &str) -> String {
    plan.waits.iter().find(|wait| wait.task.0 == task).unwrap().reason.to_string()
}

#[test]
fn a_task_gets_a_gpu_of_its_pools_and_no_other() {
    let world = World::new(vec![only(quota("a", 2000), &["small"]), quota("b", 2000)]);
    let world = world.waits("a1", "a", true).waits("a2", "a", true).waits("b1", "b", true);
    let plan = world.plan();
    assert_eq!(BTreeSet::from_iter(starts(&plan)), BTreeSet::from([("a1", "GPU-t"), ("b1", "GPU-a")]));
    assert_eq!(
        why(&plan, "a2"),
        "needs 1 GPU, nothing free (1 of 1 in use); project a may use the pool small"
    );
    // The audit refuses the other GPU, whatever made the plan.
    let alone = World::new(vec![only(quota("a", 2000), &["small"])]).waits("a1", "a", true);
    let mut start = alone.plan().starts.remove(0);
    assert_eq!(check(&alone.snapshot(), start.clone()), Ok(()));
    start.slices[0].gpu = "GPU-a".into();
    let refused = check(&alone.snapshot(), start).unwrap_err().to_string();
    assert_eq!(refused, "task a1: gets 1 slices that are not what its queue q gives");
}

#[test]
fn the_rules_of_all_projects_above_hold_together() {
    let above = only(quota("a", 2000), &["big"]);
    let rules = [above.clone(), only(quota("a/b", 1000), &["big", "small"])];
    assert_eq!(pool_rules(&rules, Some("a/b/c")).len(), 2);
    assert!(pool_rules(&rules, Some("ab")).is_empty() && pool_rules(&rules, None).is_empty());
    let plan = World::new(rules.to_vec()).waits("t", "a/b", true).holds("other", "x", "GPU-a").plan();
    assert!(starts(&plan).is_empty());
    let apart = vec![above, only(quota("a/b", 1000), &["small"])];
    let plan = World::new(apart).waits("t", "a/b", true).plan();
    assert_eq!(
        why(&plan, "t"),
        "needs 1 GPU, project a/b may use the pool small, project a may use the pool big, and no GPU here is one of these"
    );
}

#[test]
fn a_pool_that_is_not_known_here_has_no_gpu() {
    let mut world = World::new(vec![only(quota("a", 2000), &["small"])]).waits("t", "a", true);
    world.fleet.pools.clear();
    assert!(starts(&world.plan()).is_empty());
}

#[test]
fn a_limit_of_a_pool_leaves_the_other_gpus() {
    let world = |limit| {
        let world = World::new(vec![of_pool(quota("a", 2000), "big", 0, limit)]);
        world.waits("1", "a", true).waits("2", "a", true)
    };
    assert_eq!(starts(&world(Some(500)).plan()), [("1", "GPU-t")]);
    assert_eq!(
        why(&world(Some(500)).plan(), "2"),
        "needs 1 GPU, nothing free (1 of 1 in use); project a holds 0 GPUs of pool big and its limit of it is 0.5 GPUs"
    );
    assert_eq!(starts(&world(None).plan()).len(), 2);
    let held = world(Some(1000)).holds("here", "a", "GPU-a").holds("there", "a", "GPU-t");
    assert!(
        why(&held.plan(), "1").contains("project a holds 1 GPU of pool big and its limit of it is 1 GPU")
    );
}

#[test]
fn holdings_on_other_nodes_count_in_the_limit_of_a_pool() {
    let mut world = World::new(vec![only(of_pool(quota("a", 2000), "big", 0, Some(1000)), &["big"])]);
    world = world.waits("1", "a", true);
    assert_eq!(starts(&world.plan()), [("1", "GPU-a")]);
    world.fleet.elsewhere.push(cantle_model::HeldElsewhere {
        project: Some("a".to_owned()),
        gpu_milli: 1000,
        pool_milli: [("big".to_owned(), 1000)].into(),
        ..cantle_model::HeldElsewhere::default()
    });
    let plan = world.plan();
    assert_eq!(
        why(&plan, "1"),
        "needs 1 GPU, project a holds 1 GPU of pool big and its limit of it is 1 GPU"
    );
}

#[test]
fn what_cannot_be_stopped_must_fit_the_quota_of_the_pool() {
    let quota_of = |milli| vec![only(of_pool(quota("a", 2000), "big", milli, None), &["big"])];
    assert_eq!(starts(&World::new(quota_of(1000)).waits("1", "a", false).plan()), [("1", "GPU-a")]);
    let plan = World::new(quota_of(500)).waits("1", "a", false).plan();
    assert!(why(&plan, "1").ends_with(
        "project a holds 0 GPUs of pool big with tasks that cannot be stopped for others, and its quota of it is 0.5 GPUs"
    ));
}

#[test]
fn what_is_guaranteed_of_a_pool_comes_back_and_stays() {
    let owner = only(quota("owner", 1000), &["big"]);
    let guest = quota("guest", 2000);
    let full = |owner: &QuotaView| {
        let world = World::new(vec![guest.clone(), owner.clone()]);
        world.holds("g1", "guest", "GPU-a").holds("g2", "guest", "GPU-t").waits("o", "owner", true)
    };
    assert!(full(&owner).plan().evictions.is_empty(), "the guest is within its quota of all GPUs");
    let owner = of_pool(owner, "big", 1000, None);
    let plan = full(&owner).plan();
    let victims: Vec<&str> = plan.evictions.iter().map(|eviction| eviction.task.0.as_str()).collect();
    assert_eq!(victims, ["g1"], "the one on the GPU of the pool");
    // The guest, within its quota of all GPUs, does not get it back.
    let after = World::new(vec![guest, owner]).holds("o", "owner", "GPU-a").holds("g2", "guest", "GPU-t");
    assert!(after.waits("g1", "guest", true).plan().evictions.is_empty());
}

#[test]
fn what_a_project_holds_within_its_quota_of_a_pool_is_not_taken() {
    // By the quotas of all GPUs, the claimant could have either.
    let claims = |keeper: QuotaView| {
        let world = World::new(vec![keeper, quota("claimant", 1000)]);
        world
            .holds("k1", "keeper", "GPU-a")
            .holds("k2", "keeper", "GPU-t")
            .waits("c", "claimant", true)
            .plan()
    };
    assert_eq!(claims(quota("keeper", 1000)).evictions.len(), 1);
    for (pool, gone) in [("big", "k2"), ("small", "k1")] {
        let plan = claims(of_pool(quota("keeper", 1000), pool, 1000, None));
        let victims: Vec<&str> = plan.evictions.iter().map(|eviction| eviction.task.0.as_str()).collect();
        assert_eq!(victims, [gone], "its quota is of the pool {pool}");
    }
}
