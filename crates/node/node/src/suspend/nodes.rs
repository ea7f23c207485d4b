//! The device nodes of a container whose task goes on with another GPU. They are compared with its slices, so an interrupted change is repeated.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cantle_driver::{DeviceNumber, set_device_rule};
use cantle_model::{Enforcement, GpuUuid, Lease, Milli, Slice};
use cantle_runtime::{ContainerDevices, DeviceGroups};
use nix::sys::stat::{major, minor};

use super::{Result, Suspender};
use crate::NodeError;

/// The device nodes of this task's container; none if it is a process of the machine.
///
/// # Errors
/// Why they cannot be changed.
pub(super) fn of_task(lease: &Lease) -> Result<Option<ContainerDevices>, String> {
    match lease.leader {
        Some(leader) if lease.enforcement == Some(Enforcement::Container) => {
            ContainerDevices::of(leader.pid).map(Some)
        }
        _ => Ok(None),
    }
}

impl Suspender<'_> {
    /// Gives the container of a task the nodes of its slices' GPUs. The rule about a device changes first: a node that is there is done.
    pub(super) fn add_nodes(&self, lease: &Lease, moves: &[(GpuUuid, GpuUuid)]) -> Result<()> {
        let Some(devices) = changeable(lease, moves)? else { return Ok(()) };
        for node in self.nodes_of(lease.slices.iter().map(|slice| &slice.gpu))? {
            if moves.is_empty() && devices.has(&node) {
                continue;
            }
            set_rule(&devices, &node, true)?;
            devices.add(&node).map_err(|why| NodeError::file(&node, why))?;
        }
        Ok(())
    }

    /// Takes the nodes of all other GPUs from it.
    pub(super) fn remove_nodes(&self, lease: &Lease, moves: &[(GpuUuid, GpuUuid)]) -> Result<()> {
        let Some(devices) = changeable(lease, moves)? else { return Ok(()) };
        let kept = self.nodes_of(lease.slices.iter().map(|slice| &slice.gpu))?;
        // Simulated GPUs have one device with several nodes.
        let numbers: BTreeSet<u64> = kept.iter().filter_map(|node| number_of(node).ok()).collect();
        let others = self
            .gpus
            .iter()
            .map(|gpu| &gpu.uuid)
            .filter(|gpu| lease.slices.iter().all(|slice| slice.gpu != **gpu));
        for node in self.nodes_of(others)?.difference(&kept) {
            let is_left =
                moves.iter().any(|(old, _)| self.nodes_of([old]).is_ok_and(|nodes| nodes.contains(node)));
            if !is_left && !devices.has(node) {
                continue;
            }
            if number_of(node).is_ok_and(|number| !numbers.contains(&number)) {
                set_rule(&devices, node, false)?;
            }
            devices.remove(node).map_err(|why| NodeError::file(node, why))?;
        }
        Ok(())
    }

    /// The nodes of these GPUs, and those that all tasks have.
    fn nodes_of<'a>(&self, gpus: impl IntoIterator<Item = &'a GpuUuid>) -> Result<BTreeSet<PathBuf>> {
        let whole =
            |gpu: &GpuUuid| Slice { gpu: gpu.clone(), milli: Milli(1000), memory_limit_bytes: 0, mig: None };
        let slices: Vec<Slice> = gpus.into_iter().map(whole).collect();
        Ok(self.driver.container_parts(&slices)?.devices.into_iter().collect())
    }
}

/// The nodes of a container that can be changed. A container that stays on its GPU needs no change.
fn changeable(lease: &Lease, moves: &[(GpuUuid, GpuUuid)]) -> Result<Option<ContainerDevices>> {
    match of_task(lease) {
        Err(_) if moves.is_empty() => Ok(None),
        found => found.map_err(|why| {
            let why = refusal(&why);
            super::SuspendError::Refused { task: lease.task.clone(), what: "moved", why }.into()
        }),
    }
}

/// Why a container cannot go to another GPU.
pub(super) fn refusal(why: &str) -> String {
    format!("it runs in a container whose device nodes cannot be changed: {why}")
}

fn number_of(node: &Path) -> io::Result<u64> {
    fs::metadata(node).map(|found| found.rdev())
}

/// Allows or denies the container's processes the device of this node.
fn set_rule(devices: &ContainerDevices, node: &Path, is_allowed: bool) -> Result<()> {
    let found = fs::metadata(node).map_err(|why| NodeError::file(node, why))?;
    let is_block = found.file_type().is_block_device();
    let (major, minor) = (major(found.rdev()), minor(found.rdev()));
    match devices.groups() {
        DeviceGroups::Files(dir) => {
            let (file, access) = if is_allowed { ("devices.allow", "rw") } else { ("devices.deny", "rwm") };
            let path = dir.join(file);
            let kind = if is_block { 'b' } else { 'c' };
            fs::write(&path, format!("{kind} {major}:{minor} {access}"))
                .map_err(|why| NodeError::file(&path, why))
        }
        DeviceGroups::Programs(dirs) => dirs.iter().try_for_each(|dir| {
            let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            let device = DeviceNumber { is_block, major: number(major), minor: number(minor) };
            set_device_rule(dir, device, is_allowed).map_err(|why| NodeError::file(dir, why))
        }),
    }
}
