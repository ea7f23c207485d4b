//! MIG instances: made for a task when it starts, kept when it has ended, destroyed when their room is needed.
//!
//! A lease names a place (GPU, profile, first unit) before anything is made there; the name of the MIG device comes into
//! it when the instance is ready. In between everything may be killed:
//!
//! ```text
//! lease on disk ─► journal: "ours" ─► GPU instance ─► compute instance ─► its name in the lease ─► task starts
//!       │                │                  │                │
//!    swept with       dropped, as       counts as room, is destroyed when the room is needed or a daemon starts
//!    its owner       nothing is there
//! ```
//!
//! The [`journal`] says which places are ours, by place, because that is known before an instance exists. What stands
//! elsewhere was made by others and is never touched. An instance is in use if a lease names its device, never because
//! of what the journal says; one without a lease is room, unless a process is still in it.
//!
//! Whoever makes or destroys holds the lock of that GPU ([`Writer`]), which may take seconds; whoever plans holds the
//! node's lock, for milliseconds. The node's is taken inside the GPU's, never the other way round.
//!
//! Instances that an administrator names are used as they are ([`fixed`]): the driver then shows these and no other, and
//! refuses to make or to destroy one.

mod fixed;
mod journal;
mod mode;
mod stages;
mod view;
mod writer;

use cantle_driver::Driver;
use cantle_mig::{GpuGeometry, Instance};
use cantle_model::{Gpu, Lease};

pub(crate) use fixed::{chosen, fixed_by_gpu, name_given};
pub(crate) use journal::Journal;
pub use mode::WholeGpu;
pub(crate) use mode::{sweep, turn_on};
pub(crate) use stages::Stages;
pub use view::{MigGpu, MigPlace, PlaceState, mig_gpus};
pub use writer::Adopt;
pub(crate) use writer::{Writer, make_instances};

use crate::{AgentError, Node};

/// What a GPU in MIG mode offers and has, as the scheduler counts it: without the instances that leases name, and with
/// those as busy that are not ours, have a process in them, or would not go away. `None` if it is not in MIG mode.
///
/// # Errors
/// If the driver can't say.
pub(crate) fn geometry(
    driver: &dyn Driver,
    node: &Node,
    gpu: &Gpu,
    leases: &[Lease],
    now_ms: i64,
) -> Result<Option<GpuGeometry>, AgentError> {
    let Some(table) = driver.mig_table(&gpu.uuid)? else { return Ok(None) };
    let journal = Journal::read(node, &gpu.uuid)?;
    let processes = driver.processes(&gpu.uuid)?;
    let mut instances = Vec::new();
    for found in driver.gpu_instances(&gpu.uuid)? {
        if found.devices.iter().any(|device| is_leased(leases, device)) {
            continue;
        }
        let profile = table.profiles.iter().position(|profile| profile.id == found.profile_id);
        let profile = profile.ok_or(AgentError::UnknownProfile(gpu.index, found.profile_id))?;
        let in_use = processes.iter().any(|process| process.instance == Some(found.id));
        let given = driver.fixed_devices(&gpu.uuid).is_some();
        let busy = in_use || !(given || journal.is_ours(&found));
        instances.push(Instance { id: found.id, profile, start: found.start, busy });
    }
    let mut geometry = GpuGeometry { table: table.into(), instances };
    for place in journal.avoided(now_ms) {
        if let Some(profile) = geometry.table.profiles.iter().position(|known| known.id == place.profile_id) {
            geometry.occupy(profile, place.start);
        }
    }
    Ok(Some(geometry))
}

/// Does a lease name this MIG device?
fn is_leased(leases: &[Lease], device: &str) -> bool {
    let named = leases.iter().flat_map(|lease| &lease.slices).filter_map(|slice| slice.mig.as_ref());
    named.into_iter().any(|mig| mig.uuid == device)
}

#[cfg(test)]
mod tests;
