//! Memory limits of control groups by the kernel's own controller of device memory (`dmem`, Linux 6.14), for GPUs whose kernel driver registers
//! their memory with it: `nvidia/PCI/vidmem` of NVIDIA's from 615 on, `drm/PCI/vram0` of others.
//!
//! It ran on directories of plain files only: no kernel of a test machine has the controller.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::native_limit::GroupMemory;
use crate::{DriverError, Result};

/// In the hierarchy's root only: a line for each region, with its size.
const CAPACITY: &str = "dmem.capacity";
/// The hierarchy of the controller's own, where distributions mount those of version 1.
const OWN_HIERARCHY: &str = "/sys/fs/cgroup/dmem";
/// The mount points of version 2: next to hierarchies of version 1, and alone.
const UNIFIED: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
const MAX: &str = "dmem.max";
const CURRENT: &str = "dmem.current";
/// A region without a limit.
const NO_LIMIT: &str = "max";

/// The memory of one GPU, as the controller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dmem {
    /// The root of the hierarchy.
    root: PathBuf,
    region: String,
}

impl Dmem {
    /// The region of the GPU at this address, in the hierarchy of `group`.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn of(pci_bus_id: &str, group: &Path) -> std::result::Result<Self, String> {
        let mut roots = group.ancestors().chain([Path::new(OWN_HIERARCHY)]);
        let root = roots.find(|dir| dir.join(CAPACITY).is_file());
        let root =
            root.ok_or("the kernel does not show a controller of device memory (dmem, Linux 6.14) here")?;
        let known = fs::read_to_string(root.join(CAPACITY)).map_err(|why| format!("{CAPACITY}: {why}"))?;
        let address = short(pci_bus_id);
        let names = known.lines().filter_map(|line| line.split_whitespace().next());
        let regions: Vec<&str> = names.filter(|name| is_of(name, &address)).collect();
        match regions.as_slice() {
            [region] => Ok(Self { root: root.to_owned(), region: (*region).to_owned() }),
            [] => Err(format!("the kernel's controller of device memory (dmem) has no region of {address}")),
            _ => Err(format!(
                "the kernel's controller of device memory (dmem) has several regions of {address}"
            )),
        }
    }

    /// Sets the hard limit of a group in bytes, or clears it. Switches the controller on in the groups above it.
    pub(crate) fn set(&self, group: &Path, hard_bytes: Option<u64>) -> Result<()> {
        let place = self.place(group)?;
        let file = place.join(MAX);
        if place != group {
            fs::create_dir_all(&place).map_err(|why| failed(&place, &why))?;
        } else if !file.exists() {
            self.switch_on(group)?;
        }
        let limit = hard_bytes.map_or_else(|| NO_LIMIT.to_owned(), |bytes| bytes.to_string());
        fs::write(&file, format!("{} {limit}\n", self.region)).map_err(|why| failed(&file, &why))
    }

    /// The limit of a group, and the memory that its processes hold.
    pub(crate) fn used(&self, group: &Path) -> Result<GroupMemory> {
        let place = self.place(group)?;
        // Without the controller, a group has neither file, and no limit.
        let hard_bytes = self.figure(&place.join(MAX))?;
        let used_bytes = self.figure(&place.join(CURRENT))?.unwrap_or(0);
        Ok(GroupMemory { hard_bytes, used_bytes })
    }

    /// The file by which a process enters the group's counterpart; none where the group itself has the controller.
    pub(crate) fn door(&self, group: &Path) -> Result<Option<PathBuf>> {
        let place = self.place(group)?;
        Ok((place != group).then(|| place.join("cgroup.procs")))
    }

    /// The directory with the controller's files: the group's own, or that of the same name in the controller's hierarchy.
    fn place(&self, group: &Path) -> Result<PathBuf> {
        if group.starts_with(&self.root) {
            return Ok(group.to_owned());
        }
        let name = UNIFIED.iter().find_map(|mount| group.strip_prefix(mount).ok());
        let name = name.ok_or_else(|| failed(group, &io::Error::other("it is not below /sys/fs/cgroup")))?;
        Ok(self.root.join(name))
    }

    fn switch_on(&self, group: &Path) -> Result<()> {
        let mut above: Vec<&Path> =
            group.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.root)).collect();
        above.reverse();
        for dir in above {
            let file = dir.join("cgroup.subtree_control");
            fs::write(&file, "+dmem\n").map_err(|why| failed(&file, &why))?;
        }
        Ok(())
    }

    /// The figure of this GPU in a file; `None` without one, or without a limit.
    fn figure(&self, file: &Path) -> Result<Option<u64>> {
        let text = match fs::read_to_string(file) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|why| failed(file, &why))?,
        };
        let line = text.lines().find_map(|line| line.strip_prefix(&self.region)?.strip_prefix(' '));
        Ok(line.and_then(|figure| figure.trim().parse().ok()))
    }
}

fn failed(file: &Path, why: &io::Error) -> DriverError {
    DriverError::KernelFile { file: file.to_owned(), why: why.to_string() }
}

/// The address as the kernel writes it: NVML's has a domain of eight digits.
fn short(pci_bus_id: &str) -> String {
    let lower = pci_bus_id.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            format!("{}:{rest}", &domain[domain.len() - 4..])
        }
        _ => lower,
    }
}

/// Is it the memory of the GPU itself, and not what it reserves of the machine's?
fn is_of(region: &str, address: &str) -> bool {
    let mut parts = region.split('/').skip(1);
    let (at, name) = (parts.next(), parts.next().unwrap_or_default());
    at == Some(address) && (name.starts_with("vram") || name.starts_with("vidmem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "00000000:01:00.0";

    /// A hierarchy as the kernel shows it, of plain files.
    fn tree(capacity: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("cantle/lease");
        fs::create_dir_all(&group).unwrap();
        fs::write(root.path().join(CAPACITY), capacity).unwrap();
        (root, group)
    }

    #[test]
    fn a_gpu_is_found_by_its_address() {
        let region = |capacity: &str| {
            let (_root, group) = tree(capacity);
            Dmem::of(AT, &group).map(|found| found.region)
        };
        let nvidia = "nvidia/0000:02:00.0/vidmem 85899345920\nnvidia/0000:01:00.0/vidmem 42949672960\n";
        assert_eq!(region(nvidia), Ok("nvidia/0000:01:00.0/vidmem".to_owned()));
        assert_eq!(region("drm/0000:01:00.0/vram 1\n"), Ok("drm/0000:01:00.0/vram".to_owned()));
        assert_eq!(
            region("drm/0000:01:00.0/vram0 1\ndrm/0000:01:00.0/stolen 1\n"),
            Ok("drm/0000:01:00.0/vram0".to_owned())
        );
        let two = region("drm/0000:01:00.0/vram0 1\ndrm/0000:01:00.0/vram1 1\n").unwrap_err();
        assert!(two.ends_with("has several regions of 0000:01:00.0"), "{two}");
        assert!(region("").unwrap_err().ends_with("has no region of 0000:01:00.0"));
        let (root, group) = tree("");
        fs::remove_file(root.path().join(CAPACITY)).unwrap();
        assert!(Dmem::of(AT, &group).unwrap_err().contains("does not show a controller"));
    }

    #[test]
    fn a_limit_is_set_read_and_cleared() {
        let (root, group) = tree("nvidia/0000:01:00.0/vidmem 42949672960\n");
        let gpu = Dmem::of(AT, &group).unwrap();
        assert_eq!(gpu.used(&group).unwrap(), GroupMemory { hard_bytes: None, used_bytes: 0 });
        gpu.set(&group, Some(4 << 30)).unwrap();
        // From the root down to the group's parent, not in the group itself.
        for dir in [root.path(), &root.path().join("cantle")] {
            assert_eq!(fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap(), "+dmem\n");
        }
        assert!(!group.join("cgroup.subtree_control").exists());
        assert_eq!(fs::read_to_string(group.join(MAX)).unwrap(), "nvidia/0000:01:00.0/vidmem 4294967296\n");
        fs::write(group.join(CURRENT), "nvidia/0000:01:00.0/vidmem-x 9\nnvidia/0000:01:00.0/vidmem 7\n")
            .unwrap();
        assert_eq!(gpu.used(&group).unwrap(), GroupMemory { hard_bytes: Some(4 << 30), used_bytes: 7 });
        gpu.set(&group, None).unwrap();
        assert_eq!(gpu.used(&group).unwrap().hard_bytes, None);
    }

    #[test]
    fn a_controller_that_cannot_be_switched_on_is_an_error() {
        let (root, group) = tree("nvidia/0000:01:00.0/vidmem 42949672960\n");
        fs::create_dir(root.path().join("cgroup.subtree_control")).unwrap();
        let said = Dmem::of(AT, &group).unwrap().set(&group, Some(1)).unwrap_err().to_string();
        assert!(said.contains("cgroup.subtree_control"), "{said}");
    }
}
