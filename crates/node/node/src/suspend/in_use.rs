//! The memory that a running task uses, by the driver and by the filter.

use cantle_driver::Driver;
use cantle_ledger::host::Observer;
use cantle_model::Lease;

use super::Result;
use super::process::Holding;
use crate::gpu_uuid_bytes;
use crate::members::Members;
use crate::store::NodeStore;
use crate::watchdog::ALWAYS_TOLERATED_BYTES;

/// The processes of a task that have memory on its GPUs, by the driver's figures.
pub(super) fn holders(driver: &dyn Driver, node: &NodeStore, lease: &Lease) -> Result<Vec<Holding>> {
    let leases = node.leases()?;
    let members = Members::of(node, &leases).and(&node.neighbors());
    let mut found = Vec::new();
    for slice in &lease.slices {
        for listed in driver.processes(&slice.gpu)? {
            if members.lease_of(listed.pid).as_ref() == Some(&lease.id)
                && let Some(process) = cantle_runtime::holder_of(listed.pid)
            {
                let bytes = listed.used_bytes.unwrap_or(slice.memory_limit_bytes);
                found.push(Holding { process, bytes });
            }
        }
    }
    Ok(found)
}

/// The use of the only slice of a task by the filter's count, or by the driver's figures if these are higher by more than what is always
/// tolerated, in bytes.
pub(crate) fn in_use_bytes(
    driver: &dyn Driver,
    node: &NodeStore,
    lease: &Lease,
    region: &Observer,
) -> Result<u64> {
    let uuid = lease.slices.first().and_then(|slice| gpu_uuid_bytes(slice.device()));
    let counted =
        region.snapshot()?.gpus.iter().find(|gpu| Some(gpu.uuid) == uuid).map_or(0, |gpu| gpu.used_bytes());
    let driver: u64 = holders(driver, node, lease)?.iter().map(|held| held.bytes).sum();
    Ok(counted.max(driver.saturating_sub(ALWAYS_TOLERATED_BYTES)))
}
