//! Enters running and waiting tasks into the accounts of the projects, and computes fair shares.

use super::accounts::{Accounts, GpuShare};
use crate::{Amounts, Cluster, Demand, Policy, PoolMilli, Running, Snapshot, Waiting};

/// The accounts of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) now: Accounts,
    /// Once all that was asked to stop has, and all that was promised is held.
    pub(crate) later: Accounts,
    /// The demand of each waiting task, by queue and position.
    pub(crate) needs: Vec<Vec<Amounts>>,
}

impl Tally {
    /// `idle` is the idle cluster of the same nodes.
    pub(crate) fn new(state: &Snapshot, policy: &Policy, idle: &Cluster) -> Self {
        let capacity = Cluster::empty(&state.nodes).capacity().plus(state.elsewhere.capacity);
        let mut now = Accounts::new(&state.projects, capacity);
        let mut needs = Vec::new();
        for queue in &state.queues {
            let need = |task: &Waiting| task.counts(idle.shape(&Demand::of(queue, task)).amounts());
            let of_queue: Vec<Amounts> = queue.waiting.iter().map(need).collect();
            for (task, amounts) in queue.waiting.iter().zip(&of_queue) {
                now.request(now.position(task.project.as_deref()), *amounts);
            }
            needs.push(of_queue);
        }
        let mut stopping = Vec::new();
        let in_pools = in_pools(state, idle);
        let here = state.running.iter().zip(in_pools).map(|(running, in_pools)| {
            let (project, stops) = (running.project.as_deref(), running.stopping.is_some());
            (project, running.amounts(), in_pools, running.preemptible, stops)
        });
        let elsewhere = state.elsewhere.held.iter().map(|held| {
            let project = held.project.as_deref();
            (project, held.amounts, held.pool_milli.clone(), held.preemptible, held.stopping)
        });
        for (project, amounts, in_pools, preemptible, stops) in here.chain(elsewhere) {
            let project = now.position(project);
            now.request(project, amounts);
            now.hold(project, amounts, !preemptible);
            now.hold_in(project, &in_pools, !preemptible);
            if stops {
                stopping.push((project, amounts, in_pools));
            }
        }
        now.share_out(if policy.kai_compat { 1000 } else { 1 }, policy.usage_weight_percent);
        let mut later = now.clone();
        for (project, amounts, in_pools) in stopping {
            later.release(project, amounts);
            later.release_in(project, &in_pools);
        }
        Self { now, later, needs }
    }
}

/// The amount that each running task holds of each pool; nothing where no project has a quota of one.
fn in_pools(state: &Snapshot, idle: &Cluster) -> Vec<PoolMilli> {
    if state.projects.iter().all(|project| project.by_pool.is_empty()) {
        return vec![PoolMilli::new(); state.running.len()];
    }
    let by_name = idle.by_name();
    let of = |running: &Running| {
        let place = idle.place_of(&by_name, running);
        place.map(|place| idle.in_pools(&place)).unwrap_or_default()
    };
    state.running.iter().map(of).collect()
}

/// The holdings, demand, quota and fair share of each project, in the order of [`Snapshot::projects`].
#[must_use]
pub fn shares(state: &Snapshot, policy: &Policy) -> Vec<GpuShare> {
    Tally::new(state, policy, &Cluster::nominal(&state.nodes)).now.gpu_shares()
}
