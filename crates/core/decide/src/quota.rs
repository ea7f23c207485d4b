//! Quotas in the snapshot: the projects of running tasks, what other nodes hold, and what a waiting task counts.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{
    Amounts, Cause, Fleet, HeldElsewhere, HeldTask, LeaseId, PoolRule, QuotaView, TaskId, TaskTerms, Victim,
    WaitingTask, pools_of, projects_above,
};
use cantle_sched::{Eviction, Held, Host, Order, Policy, Project, Snapshot, Waiting};

/// The policy where these quotas hold: queues are served by project, and what is lent is taken back. Without quotas it is
/// as configured.
#[must_use]
pub fn policy_under(configured: &Policy, fleet: &Fleet) -> Policy {
    if fleet.projects.is_empty() {
        return configured.clone();
    }
    let usage_weight_percent = fleet.usage_weight_percent;
    Policy { order: Order::Share, reclaim: true, usage_weight_percent, ..configured.clone() }
}

/// Enters into `snapshot` which project everything on this node belongs to, and what is held elsewhere.
pub(crate) fn enter(snapshot: &mut Snapshot, fleet: &Fleet, ending: &BTreeSet<LeaseId>) {
    if fleet.projects.is_empty() {
        return;
    }
    snapshot.projects = projects(fleet);
    enter_pools(snapshot, fleet);
    let here: BTreeMap<&str, &HeldTask> = fleet.held.iter().map(|held| (held.lease.as_str(), held)).collect();
    for running in &mut snapshot.running {
        if let Some(held) = here.get(running.lease.0.as_str()) {
            running.project.clone_from(&held.project);
            running.priority = held.priority;
            running.preemptible = held.preemptible;
            running.host.cpu_milli = held.cpu_milli;
            running.host.memory_bytes = held.memory_bytes;
            running.started_at_ms = held.started_ms;
            running.stopping = held.stopping.as_ref().map(|stopping| stopping.cause);
        } else {
            // `cantle run`, or not yet reported to the server: the scheduler may not stop it.
            running.preemptible = false;
        }
        if ending.contains(&running.lease) {
            // Its slices will be free in any case: no other task needs to stop for the same capacity.
            running.stopping.get_or_insert(Cause::Preempt);
        }
    }
    snapshot.elsewhere.capacity = Amounts([fleet.other_gpus_milli, 0, 0]);
    snapshot.elsewhere.held.splice(0..0, fleet.elsewhere.iter().map(held_elsewhere));
}

/// Which pools the GPUs belong to, and which of them each waiting task may use.
fn enter_pools(snapshot: &mut Snapshot, fleet: &Fleet) {
    if fleet.projects.iter().all(|view| view.quota.named_pools().next().is_none()) {
        return;
    }
    for node in &mut snapshot.nodes {
        for gpu in &mut node.gpus {
            gpu.pools = pools_of(&fleet.pools, &node.name, &gpu.gpu.model);
        }
    }
    for waiting in snapshot.queues.iter_mut().flat_map(|queue| &mut queue.waiting) {
        waiting.pools = pool_rules(&fleet.projects, waiting.project.as_deref());
    }
}

/// The restrictions to pools of a project and of those above it.
#[must_use]
pub fn pool_rules(quotas: &[QuotaView], project: Option<&str>) -> Vec<PoolRule> {
    let path = project.into_iter().flat_map(|name| std::iter::once(name).chain(projects_above(name)));
    let views = path.filter_map(|name| quotas.iter().find(|view| view.project == name));
    let restricted = views.filter(|view| !view.quota.pools.is_empty());
    let rule = |view: &QuotaView| PoolRule { project: view.project.clone(), pools: view.quota.pools.clone() };
    restricted.map(rule).collect()
}

fn projects(fleet: &Fleet) -> Vec<Project> {
    let with_quota: BTreeSet<&str> = fleet.projects.iter().map(|view| view.project.as_str()).collect();
    let parent =
        |name: &str| projects_above(name).find(|above| with_quota.contains(above)).map(str::to_owned);
    let project = |view: &QuotaView| {
        let mut project = Project::with_quota(&view.project, parent(&view.project), &view.quota);
        project.usage_ppm = fleet.usage_ppm.get(&view.project).copied().unwrap_or(0);
        project
    };
    fleet.projects.iter().map(project).collect()
}

fn held_elsewhere(held: &HeldElsewhere) -> Held {
    Held {
        project: held.project.clone(),
        amounts: Amounts([held.gpu_milli, held.cpu_milli, held.memory_bytes]),
        pool_milli: held.pool_milli.clone(),
        preemptible: held.preemptible,
        stopping: held.stopping,
    }
}

/// Enters into a waiting task what counts under quotas: what the server reports about it, and its own terms.
pub fn describe_waiting(waiting: &mut Waiting, reported: &WaitingTask, terms: Option<TaskTerms>) {
    if let Some(terms) = terms {
        waiting.host = Host { cpu_milli: terms.cpu_milli, memory_bytes: terms.memory_bytes };
        waiting.priority = terms.priority;
        waiting.preemptible = terms.preemptible;
    }
    waiting.project.clone_from(&reported.project);
    waiting.yielded_to = reported.yielded_to.clone().map(TaskId);
    waiting.moved = reported.moved;
    waiting.freeing_on.clone_from(&reported.freeing_on);
}

/// The tasks that have to stop, as reported to the server.
#[must_use]
pub fn victims(evictions: Vec<Eviction>) -> Vec<Victim> {
    let victim = |eviction: Eviction| Victim {
        task: eviction.task.0,
        lease: eviction.lease.0,
        for_task: eviction.for_task.0,
        cause: eviction.cause,
    };
    evictions.into_iter().map(victim).collect()
}

#[cfg(test)]
mod tests {
    use cantle_model::{Holder, Milli, Preempt, ProjectQuota, Slice, Stopping};
    use cantle_sched::Running;

    use super::*;

    fn half_gpu() -> Vec<Slice> {
        vec![Slice { gpu: "GPU-a".into(), milli: Milli(500), memory_limit_bytes: 20 << 30, mig: None }]
    }

    fn held(task: &str) -> HeldTask {
        HeldTask {
            task: task.to_owned(),
            lease: task.to_owned(),
            cpu_milli: 2000,
            memory_bytes: 1 << 30,
            project: Some("a/b".to_owned()),
            priority: 7,
            preemptible: true,
            started_ms: 5,
            stopping: None,
        }
    }

    fn stopping() -> Option<Stopping> {
        Some(Stopping {
            cause: Cause::Reclaim,
            reason: "reclaimed".to_owned(),
            for_task: None,
            preempt: Preempt::Requeue,
        })
    }

    fn granted(project: &str) -> QuotaView {
        QuotaView { project: project.to_owned(), quota: ProjectQuota::default() }
    }

    fn running(lease: &str) -> Running {
        let holder = Holder { pid: 1, start_ticks: 0 };
        let lease = cantle_model::Lease::new(LeaseId::from(lease), TaskId::from(lease), half_gpu(), holder);
        Running::of_lease(&lease, "here", 0)
    }

    #[test]
    fn queues_are_served_by_project_only_where_there_are_quotas() {
        let configured = Policy { order: Order::Fair, backfill: true, ..Policy::default() };
        assert_eq!(policy_under(&configured, &Fleet::default()), configured);
        let fleet = Fleet { projects: vec![granted("a")], usage_weight_percent: 100, ..Fleet::default() };
        let with_quotas =
            Policy { order: Order::Share, reclaim: true, usage_weight_percent: 100, ..configured.clone() };
        assert_eq!(policy_under(&configured, &fleet), with_quotas);
    }

    #[test]
    fn leases_here_are_told_apart_from_those_elsewhere() {
        let project = Some("a/b".to_owned());
        let elsewhere = HeldElsewhere {
            project: project.clone(),
            gpu_milli: 500,
            pool_milli: BTreeMap::from([("fast".to_owned(), 500)]),
            cpu_milli: 2000,
            memory_bytes: 1 << 30,
            preemptible: true,
            stopping: true,
        };
        let fleet = Fleet {
            projects: vec![granted("a"), granted("a/b"), granted("ab")],
            other_gpus_milli: 8000,
            held: vec![held("mine"), HeldTask { stopping: stopping(), ..held("stops") }],
            elsewhere: vec![elsewhere],
            usage_ppm: BTreeMap::from([("a/b".to_owned(), 250_000)]),
            ..Fleet::default()
        };
        let mut state =
            Snapshot::new(Vec::new(), ["mine", "stops", "run", "ending"].map(running).to_vec(), Vec::new());
        enter(&mut state, &fleet, &BTreeSet::from([LeaseId::from("ending")]));
        let parents: Vec<_> = state.projects.iter().map(|project| project.parent.as_deref()).collect();
        assert_eq!(parents, [None, Some("a"), None]);
        assert_eq!(
            state.projects.iter().map(|project| project.usage_ppm).collect::<Vec<_>>(),
            [0, 250_000, 0]
        );
        let [mine, stops, run, ending] = [0, 1, 2, 3].map(|at| &state.running[at]);
        assert_eq!((mine.project.as_deref(), mine.priority, mine.started_at_ms), (Some("a/b"), 7, 5));
        assert!(mine.preemptible && mine.stopping.is_none() && mine.host.cpu_milli == 2000);
        assert_eq!(stops.stopping, Some(Cause::Reclaim));
        assert!(!run.preemptible, "cantle run is not ours to stop");
        assert!(ending.stopping.is_some(), "its place will be free");
        assert_eq!(state.elsewhere.capacity, Amounts([8000, 0, 0]));
        let amounts = Amounts([500, 2000, 1 << 30]);
        let pool_milli = BTreeMap::from([("fast".to_owned(), 500)]);
        assert_eq!(
            state.elsewhere.held,
            [Held { project, amounts, pool_milli, preemptible: true, stopping: true }]
        );
    }
}
