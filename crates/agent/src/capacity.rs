//! This node as the scheduler sees it: what the driver shows, minus what is leased, minus what others use.

use cantle_driver::{Driver, DriverError};
use cantle_model::{Gpu, Lease};
use cantle_sched::{GpuState, Node, Queue, Running, State};

use crate::members::Members;

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
    let gpus = gpus.iter().map(|gpu| gpu_state(driver, gpu, &members)).collect();
    let running = leases.iter().map(|lease| Running::of_lease(lease, name, 0)).collect();
    State::new(vec![Node::new(name, gpus)], running, queues)
}

/// A GPU that can't be asked now (lost, or the driver fails) takes nothing new; the others go on.
fn gpu_state(driver: &dyn Driver, gpu: &Gpu, members: &Members) -> GpuState {
    let mut state = GpuState::new(gpu.clone());
    match foreign_bytes(driver, gpu, members) {
        Ok(bytes) => state.foreign_bytes = bytes,
        Err(error) => {
            tracing::warn!(gpu = gpu.index, %error, "GPU takes no new tasks");
            state.usable = false;
        }
    }
    state
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
