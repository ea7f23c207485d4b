//! The driver's own limit of a task: the memory limit of the task's control group, which the driver enforces for every process in it, with any
//! library ([ADR 0079](../../../../docs/adr/0079-the-drivers-own-limit.md)).
//!
//! The order of steps leaves nothing behind at any death: the lease names the group before the group gets a limit, a limit ends with its group, and
//! the sweep of a lease removes its group.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cantle_driver::{Driver, LimitSupport};
use cantle_model::{EnforceMode, Gpu, HostLimit, Lease, LeaseId, LimitBackend, Slice};
use cantle_runtime::{BackendChoice, Cgroup, TaskSpec};

use crate::store::NodeStore;
use crate::watchdog::ALWAYS_TOLERATED_BYTES;
use crate::{NodeError, compute_units};

/// Where the group of a task is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum GroupPlace {
    /// The tasks are processes of this machine, in a group of their own.
    #[default]
    Processes,
    /// The tasks are containers, whose groups an engine makes below one of cantle's.
    AboveContainers,
    /// The engine takes no group of cantle's, for this reason.
    None(String),
}

impl GroupPlace {
    /// The group of a task, which may not have been made yet.
    fn group(&self, name: &str, host: Option<&HostLimit>) -> Result<Cgroup, String> {
        match (self, host) {
            (Self::Processes, Some(host)) => Cgroup::make_limited(name, host),
            (place, _) => place.group_for_driver(name),
        }
    }

    fn group_for_driver(&self, name: &str) -> Result<Cgroup, String> {
        match self {
            Self::Processes => Cgroup::make_unified(name).map_err(str::to_owned),
            Self::AboveContainers => Cgroup::above_container(name).map_err(str::to_owned),
            Self::None(why) => Err(why.clone()),
        }
    }

    /// Whether there can be groups.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::None(why) => Err(why.clone()),
            Self::Processes | Self::AboveContainers => Ok(()),
        }
    }
}

/// The mechanism that limits control groups on these GPUs for this process, the weaker one of several; the reason if nothing can. GPUs in MIG mode do not count: there
/// the hardware enforces.
///
/// # Errors
/// The reason.
pub fn driver_limits(driver: &dyn Driver, gpus: &[Gpu]) -> Result<LimitBackend, String> {
    let mut backend = LimitBackend::Nvml;
    let group = Cgroup::unified_mount();
    let probed = group.as_deref().unwrap_or_else(|| Path::new("/sys/fs/cgroup"));
    for gpu in gpus.iter().filter(|gpu| !gpu.mig) {
        match driver.native_limit().probe(&gpu.uuid, probed) {
            LimitSupport::Supported(LimitBackend::Nvml) => {}
            LimitSupport::Supported(other) => backend = other,
            LimitSupport::Unsupported(why) => return Err(format!("GPU {}: {why}", gpu.index)),
        }
    }
    if group.is_none() {
        return Err("no control groups of version 2 are mounted".to_owned());
    }
    if !nix::unistd::geteuid().is_root() {
        return Err("only root may set the driver's limits".to_owned());
    }
    Ok(backend)
}

/// Gives the task of a lease a control group with the driver's limits, as `mode` wants, before its first process starts. All GPUs of the lease get
/// one, or none does. Without support of the driver nothing changes, and [`EnforceMode::Driver`] is refused.
///
/// # Errors
/// If `mode` requires limits and there are none, or one cannot be set; then nothing of them is left.
pub(crate) fn hold(
    (driver, node): (&dyn Driver, &NodeStore),
    lease: &mut Lease,
    spec: &mut TaskSpec,
    (gpus, mode, place): (&[Gpu], EnforceMode, &GroupPlace),
) -> Result<(), NodeError> {
    let mode =
        if lease.slices.is_empty() { mode } else { confine_directly((driver, node), lease, spec, mode)? };
    let limited: Vec<Slice> = lease.slices.iter().filter(|slice| slice.mig.is_none()).cloned().collect();
    if limited.is_empty() || mode == EnforceMode::Filter {
        return Ok(());
    }
    let on: Vec<Gpu> =
        gpus.iter().filter(|gpu| limited.iter().any(|slice| slice.gpu == gpu.uuid)).cloned().collect();
    let possible =
        driver_limits(driver, &on).and_then(|by| Ok((by, place.group(&lease.id.0, lease.host.as_ref())?)));
    let (backend, group) = match possible {
        Ok(possible) => possible,
        Err(why) if lease.unfiltered => return Err(NodeError::NoLimit(why)),
        Err(why) if mode == EnforceMode::Driver => return Err(NodeError::NoDriverLimit(why)),
        Err(_) => return Ok(()),
    };
    lease.cgroup = Some(group.dir().to_owned());
    let made = node
        .lock()?
        .put(lease)
        .and_then(|()| group.make_directory().map_err(|why| NodeError::file(group.dir(), why)));
    let doors = match made.and_then(|()| set_all(driver, &group, &limited, &on)) {
        Ok(doors) => doors,
        Err(error) => {
            // A limit ends with its group.
            group.remove();
            lease.cgroup = None;
            node.lock()?.put(lease)?;
            return Err(error);
        }
    };
    lease.native_limit = true;
    lease.native_backend = Some(backend).filter(|backend| *backend != LimitBackend::Nvml);
    node.lock()?.put(lease)?;
    spec.cgroup = Some(group.with_doors(doors));
    Ok(())
}

/// For GPUs without a filter: the task gets the device nodes of its own GPUs only, and must get the driver's limit. A request that only a
/// filter could enforce is refused.
fn confine_directly(
    (driver, node): (&dyn Driver, &NodeStore),
    lease: &mut Lease,
    spec: &mut TaskSpec,
    mode: EnforceMode,
) -> Result<EnforceMode, NodeError> {
    if driver.has_filter() {
        return Ok(mode);
    }
    if mode == EnforceMode::Filter {
        return Err(NodeError::NoFilter("--enforce filter".to_owned()));
    }
    if lease.burst.is_some() {
        return Err(NodeError::NoFilter("a memory limit above the request".to_owned()));
    }
    if lease.module_reserve_bytes > 0 {
        return Err(NodeError::NoFilter("a reserve for modules".to_owned()));
    }
    if let Some(share) = lease.compute {
        compute_units::select((driver, node), lease, share)?;
    }
    lease.unfiltered = true;
    spec.confinement.direct = driver.direct_access(&lease.slices, &lease.compute_units)?;
    // A weaker one would show all GPUs.
    spec.confinement.backend = BackendChoice::MountNamespace;
    Ok(EnforceMode::Driver)
}

/// Notes the group in which a task has been started. A container that its engine has started in another group than the one with the limits has
/// none; then this is true, and the unused group is removed.
pub fn note_group(lease: &mut Lease, cgroup: Option<PathBuf>) -> bool {
    let made = std::mem::replace(&mut lease.cgroup, cgroup);
    let has_left = lease.native_limit && made != lease.cgroup;
    if has_left {
        lease.native_limit = false;
        // A limit ends with its group.
        made.iter().for_each(|dir| Cgroup::at(dir).remove());
    }
    has_left
}

/// Sets the limits of a running task again if they are not what they were: of a task that a former agent started. True if one had to be set.
///
/// # Errors
/// If the driver refuses.
pub fn renew(driver: &dyn Driver, lease: &Lease, gpus: &[Gpu]) -> Result<bool, NodeError> {
    let Some(dir) = lease.cgroup.as_ref().filter(|_| lease.native_limit) else { return Ok(false) };
    let mut changed = false;
    for slice in lease.slices.iter().filter(|slice| slice.mig.is_none()) {
        if differs(driver, dir, slice, gpus)? {
            driver.native_limit().set(&slice.gpu, dir, hard_bytes(driver, slice, gpus))?;
            changed = true;
        }
    }
    Ok(changed)
}

/// Sets the limit of a running task again if another program has changed it; a line about it. A task that is being suspended or resumed has the
/// limits that its next step needs.
pub(crate) fn set_again(driver: &dyn Driver, node: &NodeStore, id: &LeaseId, gpus: &[Gpu]) -> Option<String> {
    // A change of cantle's own sets it under the same lock.
    let locked = node.lock().ok()?;
    let lease = locked.lease(id).ok().flatten().filter(|lease| lease.suspension.is_none())?;
    match renew(driver, &lease, gpus) {
        Ok(true) => {
            Some("another program has changed the driver's limit of the task; it is set again".to_owned())
        }
        // The group of a task that ends is gone.
        Ok(false) | Err(_) => None,
    }
}

/// Does the driver enforce another limit than the lease has?
pub(crate) fn is_changed(driver: &dyn Driver, lease: &Lease, gpus: &[Gpu]) -> bool {
    let Some(dir) = lease.cgroup.as_ref().filter(|_| lease.native_limit && lease.suspension.is_none()) else {
        return false;
    };
    let mut limited = lease.slices.iter().filter(|slice| slice.mig.is_none());
    limited.any(|slice| differs(driver, dir, slice, gpus).is_ok_and(|differs| differs))
}

/// Has the group another limit than this slice?
fn differs(driver: &dyn Driver, group: &Path, slice: &Slice, gpus: &[Gpu]) -> Result<bool, NodeError> {
    let known = driver.native_limit().used(&slice.gpu, group)?;
    Ok(known.hard_bytes != Some(hard_bytes(driver, slice, gpus)))
}

/// The doors that the task's processes have to enter in addition to that of the group.
fn set_all(
    driver: &dyn Driver,
    group: &Cgroup,
    slices: &[Slice],
    gpus: &[Gpu],
) -> Result<Vec<PathBuf>, NodeError> {
    let limits = driver.native_limit();
    let mut doors = BTreeSet::new();
    for (index, slice) in slices.iter().enumerate() {
        let set = limits.set(&slice.gpu, group.dir(), hard_bytes(driver, slice, gpus));
        match set.and_then(|()| limits.doors(&slice.gpu, group.dir())) {
            Ok(more) => doors.extend(more),
            Err(error) => {
                for set in &slices[..index] {
                    // Its group is about to be removed, which clears it as well.
                    let _ = limits.clear(&set.gpu, group.dir());
                }
                return Err(error.into());
            }
        }
    }
    Ok(doors.into_iter().collect())
}

/// The slice and what the watchdog always tolerates: memory that the driver takes unasked must not fail where it is tolerated. NVML refuses more
/// than the GPU has. Without a filter it is the slice: nothing else would keep a neighbor's memory for it.
fn hard_bytes(driver: &dyn Driver, slice: &Slice, gpus: &[Gpu]) -> u64 {
    let tolerated = if driver.has_filter() { ALWAYS_TOLERATED_BYTES } else { 0 };
    let with_tolerance = slice.memory_limit_bytes.saturating_add(tolerated);
    let gpu = gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
    gpu.map_or(with_tolerance, |gpu| with_tolerance.min(gpu.memory_bytes))
}

#[cfg(test)]
mod tests {
    use cantle_model::{GpuUuid, Milli};

    use super::*;

    #[test]
    fn a_container_in_another_group_has_no_limit() {
        let root = tempfile::tempdir().unwrap();
        let (made, engines) = (root.path().join("made"), root.path().join("engines"));
        std::fs::create_dir(&made).unwrap();
        let mut lease = crate::members::tests::lease_of("l", std::process::id(), Vec::new());
        assert!(!note_group(&mut lease, Some(engines.clone())), "nothing was made for it");
        lease.native_limit = true;
        lease.cgroup = Some(made.clone());
        assert!(!note_group(&mut lease, Some(made.clone())) && lease.native_limit && made.exists());
        assert!(note_group(&mut lease, Some(engines.clone())));
        assert!(!lease.native_limit && lease.cgroup == Some(engines) && !made.exists());
    }

    #[test]
    fn a_limit_has_the_tolerance_and_is_no_more_than_the_gpu() {
        let driver = cantle_driver::no_gpus();
        let (uuid, memory_bytes) = (GpuUuid("GPU-0".to_owned()), 40 << 30);
        let gpu = Gpu { uuid: uuid.clone(), index: 0, model: "X".to_owned(), memory_bytes, mig: false };
        let slice = |memory_limit_bytes| Slice {
            gpu: uuid.clone(),
            milli: Milli(500),
            memory_limit_bytes,
            mig: None,
        };
        assert_eq!(
            hard_bytes(driver.as_ref(), &slice(20 << 30), std::slice::from_ref(&gpu)),
            (20 << 30) + (512 << 20)
        );
        assert_eq!(hard_bytes(driver.as_ref(), &slice(40 << 30), std::slice::from_ref(&gpu)), 40 << 30);
    }
}
