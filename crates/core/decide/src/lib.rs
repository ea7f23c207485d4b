//! The single entry point to the scheduler.
//!
//! A program that places tasks describes its world with a [`SnapshotBuilder`] (GPUs as [`Offer`]s, leases, waiting tasks,
//! quotas) and calls [`decide`]: plan, then audit. `cantle run`, the agent, both Kubernetes paths, the controller of
//! queues, the server and the simulator do the same and differ only in the world that they describe. [`check`] applies the
//! same rules to a placement that a cluster's scheduler has decided.
//!
//! Pure: the clock and ids are arguments.

mod offer;
mod quota;
mod snapshot;

use cantle_sched::{Plan, Policy, Snapshot, Start, Violation};

pub use offer::Offer;
pub use quota::{describe_waiting, policy_under, pool_rules, victims};
pub use snapshot::SnapshotBuilder;

/// A plan that must not be carried out, and the rules that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct BrokenPlan {
    /// At least one.
    pub violations: Vec<Violation>,
}

/// Decides which tasks start at `now_ms` (milliseconds since the epoch), which have to stop, and why the
/// rest waits.
///
/// # Errors
/// If the plan breaks a rule; nothing of it may be carried out.
#[expect(clippy::disallowed_methods, reason = "the one caller of the planner")]
pub fn decide(snapshot: &Snapshot, policy: &Policy, now_ms: i64) -> Result<Plan, BrokenPlan> {
    audited(snapshot, cantle_sched::plan(snapshot, policy, now_ms))
}

/// Holds a placement that was decided elsewhere against the rules that every plan is held against.
///
/// # Errors
/// Names the rules that it breaks; it may not be carried out.
pub fn check(snapshot: &Snapshot, start: Start) -> Result<(), BrokenPlan> {
    let mut plan = Plan::default();
    plan.starts.push(start);
    audited(snapshot, plan).map(|_| ())
}

#[expect(clippy::disallowed_methods, reason = "the one caller of the audit")]
fn audited(snapshot: &Snapshot, plan: Plan) -> Result<Plan, BrokenPlan> {
    let violations = cantle_sched::audit(snapshot, &plan);
    if violations.is_empty() { Ok(plan) } else { Err(BrokenPlan { violations }) }
}

#[cfg(test)]
mod tests {
    use cantle_model::{Cause, Gpu, LeaseId, QueueSpec, QueueWant, TaskId};
    use cantle_sched::{Eviction, Waiting};

    use super::*;

    fn one_gpu_one_task() -> Snapshot {
        let memory_bytes = 40 << 30;
        let gpu = Gpu { uuid: "GPU-a".into(), index: 0, model: "A100".into(), memory_bytes, mig: false };
        let spec = QueueSpec { name: "q".into(), want: QueueWant::Task };
        let waiting = vec![Waiting::new(TaskId("t".into()), 0)];
        SnapshotBuilder::default().node("here", [Offer::new(gpu)]).queue(spec, waiting).build()
    }

    #[test]
    fn a_plan_that_breaks_a_rule_is_refused() {
        let snapshot = one_gpu_one_task();
        let good = decide(&snapshot, &Policy::default(), 0).unwrap();
        assert_eq!(good.starts.len(), 1);
        let mut over = good.clone();
        over.starts[0].slices[0].memory_limit_bytes += 1;
        let refused = audited(&snapshot, over.clone()).unwrap_err();
        assert!(matches!(
            refused.violations[..],
            [Violation::NotAsAsked { .. }, Violation::OverMemory { .. }]
        ));
        assert_eq!(check(&snapshot, over.starts.remove(0)).unwrap_err(), refused);
        assert_eq!(check(&snapshot, good.starts[0].clone()), Ok(()));
        let mut stops_nobody = good;
        stops_nobody.evictions.push(Eviction {
            task: TaskId("x".into()),
            lease: LeaseId::from("x"),
            node: "here".into(),
            for_task: TaskId("t".into()),
            cause: Cause::Reclaim,
        });
        assert!(audited(&snapshot, stops_nobody).is_err(), "nobody of that name runs");
    }
}
