//! This node as the scheduler sees it: what the driver shows, minus what is leased, minus what others use.

use cantle_driver::{Driver, DriverError};
use cantle_model::{Gpu, Lease};
use cantle_sched::{GpuState, Node, Queue, Running, State};

use crate::clock::now_ms;
use crate::members::Members;
use crate::{AgentError, mig};

/// The state to plan on: `gpus` of the node called `name`, with the leases that stand and the queues that wait.
pub(crate) fn state(
    driver: &dyn Driver,
    node: &crate::Node,
    name: &str,
    gpus: &[Gpu],
    leases: &[Lease],
    queues: Vec<Queue>,
) -> State {
    let members = Members::of(node, leases);
    let gpu_state = |gpu: &Gpu| {
        let mut state = GpuState::new(gpu.clone());
        // A GPU that can't be asked now (lost, or the driver fails) takes nothing new; the others go on.
        if let Err(error) = fill_in(&mut state, driver, node, leases, &members) {
            tracing::warn!(gpu = gpu.index, %error, "GPU takes no new tasks");
            state.usable = false;
        }
        state
    };
    let gpus = gpus.iter().map(gpu_state).collect();
    let running = leases.iter().map(|lease| Running::of_lease(lease, name, 0)).collect();
    State::new(vec![Node::new(name, gpus)], running, queues)
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
