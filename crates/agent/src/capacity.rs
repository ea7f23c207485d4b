//! This node as the scheduler sees it: what the driver shows, minus what is leased, minus what others use.

use cantle_driver::{Driver, DriverError};
use cantle_model::{Gpu, Lease, Slice};
use cantle_sched::{GpuState, Node, Plan, Policy, Queue, Running, State, audit, plan};

use crate::clock::now_ms;
use crate::members::Members;
use crate::{AgentError, mig};

/// The state to plan on: `gpus` of the node called `name`, with the leases that stand, those of other
/// users among them, and the queues that wait.
pub(crate) fn state(
    driver: &dyn Driver,
    node: &crate::Node,
    name: &str,
    gpus: &[Gpu],
    leases: &[Lease],
    queues: Vec<Queue>,
) -> State {
    let neighbours = node.neighbours();
    let members = Members::of(node, leases).and(&neighbours);
    let gpu_state = |gpu: &Gpu| {
        let mut state = GpuState::new(gpu.clone());
        // A GPU that can't be asked now (lost, or the driver fails) takes nothing new; the others go on.
        if let Err(error) = fill_in(&mut state, driver, node, leases, &members) {
            tracing::warn!(gpu = gpu.index, %error, "GPU takes no new tasks");
            state.usable = false;
        }
        state
    };
    let gpus: Vec<GpuState> = gpus.iter().map(gpu_state).collect();
    let running = |lease: &Lease| {
        let mut running = Running::of_lease(lease, name, 0);
        running.slices.retain(|slice| counts(&gpus, slice));
        running
    };
    let running = leases.iter().chain(&neighbours).map(running).collect();
    State::new(vec![Node::new(name, gpus)], running, queues)
}

/// On a GPU of which only some instances are ours to use, others' tasks take nothing of ours.
fn counts(gpus: &[GpuState], slice: &Slice) -> bool {
    let geometry = gpus.iter().find(|gpu| gpu.gpu.uuid == slice.gpu).and_then(|gpu| gpu.mig.as_ref());
    let (Some(geometry), Some(mig)) = (geometry, &slice.mig) else { return true };
    let stands = || {
        let profile = geometry.table.profiles.iter().find(|profile| profile.name == mig.profile);
        profile.is_some_and(|profile| profile.starts.contains(&mig.start))
    };
    !geometry.table.fixed || stands()
}

/// A plan that breaks no rule; whatever is carried out comes from here.
///
/// # Errors
/// [`AgentError::Audit`] names the rule: nothing of such a plan is carried out.
pub fn decide(state: &State, policy: &Policy, now_ms: i64) -> Result<Plan, AgentError> {
    audited(state, plan(state, policy, now_ms))
}

fn audited(state: &State, plan: Plan) -> Result<Plan, AgentError> {
    match audit(state, &plan).first() {
        Some(violation) => Err(AgentError::Audit(violation.to_string())),
        None => Ok(plan),
    }
}

fn fill_in(
    state: &mut GpuState,
    driver: &dyn Driver,
    node: &crate::Node,
    leases: &[Lease],
    members: &Members,
) -> Result<(), AgentError> {
    state.mig = mig::geometry(driver, node, &state.gpu, leases, now_ms())?;
    state.gpu.mig = state.mig.is_some();
    // In MIG mode others hold instances, not bytes.
    if state.mig.is_none() {
        state.foreign_bytes = foreign_bytes(driver, &state.gpu, members)?;
    }
    Ok(())
}

/// Memory of `gpu` held by processes that no lease answers for.
///
/// # Errors
/// If the driver can't say.
pub(crate) fn foreign_bytes(driver: &dyn Driver, gpu: &Gpu, members: &Members) -> Result<u64, DriverError> {
    let mut foreign = 0;
    for process in driver.processes(&gpu.uuid)? {
        if members.lease_of(process.pid).is_some() {
            continue;
        }
        foreign += match process.used_bytes {
            Some(bytes) => bytes,
            // The driver hides sizes (some containers): then all that is in use may be theirs.
            None => return Ok(driver.memory(&gpu.uuid)?.used_bytes),
        };
    }
    Ok(foreign)
}

#[cfg(test)]
mod tests {
    use cantle_model::{LeaseId, QueueSpec, QueueWant, TaskId};
    use cantle_sched::{Eviction, Waiting};

    use super::*;

    fn one_gpu_one_task() -> State {
        let memory_bytes = 40 << 30;
        let gpu = Gpu { uuid: "GPU-a".into(), index: 0, model: "A100".into(), memory_bytes, mig: false };
        let spec = QueueSpec { name: "q".into(), want: QueueWant::Task };
        let queue = Queue::new(spec, vec![Waiting::new(TaskId("t".into()), 0)]);
        State::new(vec![Node::new("here", vec![GpuState::new(gpu)])], Vec::new(), vec![queue])
    }

    #[test]
    fn what_breaks_a_rule_is_not_carried_out() {
        let state = one_gpu_one_task();
        let good = decide(&state, &Policy::default(), 0).unwrap();
        assert_eq!(good.starts.len(), 1);
        let mut over = good.clone();
        over.starts[0].slices[0].memory_limit_bytes += 1;
        let refusal = audited(&state, over).unwrap_err();
        assert!(matches!(refusal, AgentError::Audit(_)), "{refusal}");
        let mut stops_nobody = good;
        stops_nobody.evictions.push(Eviction {
            task: TaskId("x".into()),
            lease: LeaseId::from("x"),
            node: "here".into(),
            for_task: TaskId("t".into()),
            cause: cantle_model::Cause::Reclaim,
        });
        assert!(audited(&state, stops_nobody).is_err(), "nobody of that name runs");
    }
}
