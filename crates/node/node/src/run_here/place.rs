//! Reserves the slices of a `cantle run`.

use std::time::Duration;

use cantle_driver::Driver;
use cantle_model::{Gpu, Isolation, Lease, QueueSpec, QueueWant, TaskId};
use cantle_sched::{Policy, Reason, Waiting};
use tokio::time::{Instant, sleep};

use super::RunRequest;
use crate::burst::{Awaited, burst_of, take_back};
use crate::capacity::{self, Lent};
use crate::clock::now_ms;
use crate::launch::new_lease;
use crate::mig;
use crate::store::{Locked, NodeStore};
use crate::{NodeError, own_holder};

/// How often a task that waits for capacity tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Why the task does not start now.
enum Wait {
    NoRoom(Reason),
    /// Others use memory beyond their requests that it would get.
    Lent(Awaited),
}

/// Waits until there is room for the task, and reserves it.
pub(super) async fn wait_for_capacity(
    driver: &dyn Driver,
    node: &NodeStore,
    gpus: &[Gpu],
    request: &RunRequest,
    notify: &dyn Fn(&str),
) -> Result<Lease, NodeError> {
    let until = request.timeout.map(|timeout| Instant::now() + timeout);
    let mut reported = String::new();
    loop {
        mig::look(driver, node, gpus);
        let wait = match take(driver, &node.lock()?, gpus, request)? {
            Ok(lease) => return Ok(lease),
            Err(wait) => wait,
        };
        let is_over = until.is_none_or(|until| Instant::now() >= until);
        let reason = match wait {
            Wait::NoRoom(reason) if matches!(reason, Reason::Never { .. }) => {
                return Err(NodeError::Never(Box::new(reason)));
            }
            Wait::NoRoom(reason) if is_over => return Err(NodeError::NoRoom(Box::new(reason))),
            Wait::Lent(awaited) if is_over => return Err(NodeError::Lent(awaited.to_string())),
            Wait::NoRoom(reason) => reason.to_string(),
            Wait::Lent(awaited) => awaited.to_string(),
        };
        if reason != reported {
            notify(&format!("waiting: {reason}"));
            reported = reason;
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Plans for this one task, and takes what the plan gives it.
fn take(
    driver: &dyn Driver,
    locked: &Locked<'_>,
    gpus: &[Gpu],
    request: &RunRequest,
) -> Result<Result<Lease, Wait>, NodeError> {
    let id = TaskId(format!("run-{}", own_holder().pid));
    let spec = QueueSpec { name: "run".to_owned(), want: QueueWant::Task };
    let now = now_ms();
    let mut waiting = Waiting::new(id.clone(), now).wanting(request.request.clone());
    waiting.isolation = request.memory_limit.map_or(request.isolation, |_| Isolation::Shared);
    waiting.compute = request.compute;
    let leases = locked.sweep()?;
    let world = capacity::describe(driver, locked.node(), "here", (gpus, Lent::Free), &leases);
    let decided = cantle_decide::decide(&world.queue(spec, vec![waiting]).build(), &Policy::default(), now)?;
    if let Some(wait) = decided.waits.into_iter().next() {
        return Ok(Err(Wait::NoRoom(wait.reason)));
    }
    let mut slices = decided.starts.into_iter().next().map(|start| start.slices).unwrap_or_default();
    mig::name_given(driver, &mut slices)?;
    if let Some(awaited) = take_back(driver, locked, gpus, &slices)? {
        return Ok(Err(Wait::Lent(awaited)));
    }
    let name = request.command.argv.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let compute = request.compute.share_of(&slices)?;
    let module_reserve_bytes = request.module_reserve_bytes;
    let burst = burst_of(request.memory_limit, &slices, gpus);
    let lease = Lease { compute, module_reserve_bytes, burst, ..new_lease(id, name, None, slices) };
    locked.put(&lease)?;
    Ok(Ok(lease))
}
