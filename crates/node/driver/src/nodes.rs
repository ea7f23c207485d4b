//! The device nodes that open a MIG instance: the driver admits every process that can open them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::{DriverError, Result};

/// The file in which the driver lists the minor number of each capability.
const MINORS: &str = "proc/driver/nvidia-caps/mig-minors";
const NODES: &str = "dev/nvidia-caps";
/// As the driver's own helper makes them: a process that has the node may use the instance.
const MODE: u32 = 0o444;

/// The nodes of a GPU instance and of one compute instance in it on the GPU with this minor number. They exist when this returns.
pub(crate) fn of_instance(root: &Path, gpu_minor: u32, instance: (u32, u32)) -> Result<Vec<PathBuf>> {
    let minors = fs::read_to_string(root.join(MINORS)).unwrap_or_default();
    let found = capabilities(&minors, gpu_minor, instance);
    if found.len() < 2 {
        // A container without them could use nothing, and would not report why.
        let name = format!("gpu{gpu_minor}/gi{}/ci{}", instance.0, instance.1);
        return Err(DriverError::NoCapability { file: root.join(MINORS), name });
    }
    let named = found.into_iter().map(|(capability, minor)| {
        let node = root.join(NODES).join(format!("nvidia-cap{minor}"));
        match make(root, &node, minor) {
            Ok(()) => Ok(node),
            Err(why) => {
                let capability = capability.replacen('/', "/mig/", 1);
                Err(DriverError::NoNode { node, capability, why: why.to_string() })
            }
        }
    });
    named.collect()
}

/// Processes of this machine that have a node of the GPU instance open, or of a compute instance in it: the driver calls it in use
/// as long as they do, whether they hold memory or not.
pub(crate) fn holders(root: &Path, gpu_minor: u32, instance: u32) -> Vec<u32> {
    let minors = fs::read_to_string(root.join(MINORS)).unwrap_or_default();
    let prefix = format!("gpu{gpu_minor}/gi{instance}/");
    let number = |line: &str| line.strip_prefix(&prefix)?.split_once(' ')?.1.trim().parse::<u64>().ok();
    let nodes: Vec<PathBuf> = minors
        .lines()
        .filter_map(number)
        .map(|minor| root.join(NODES).join(format!("nvidia-cap{minor}")))
        .collect();
    let holds = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| nodes.contains(&file))
    };
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id() && holds(*pid)).collect()
}

/// Names and minor numbers. Lines are `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`.
fn capabilities(minors: &str, gpu_minor: u32, (instance, compute): (u32, u32)) -> Vec<(String, u64)> {
    let wanted = ["access".to_owned(), format!("ci{compute}/access")];
    let wanted = wanted.map(|name| format!("gpu{gpu_minor}/gi{instance}/{name}"));
    let capability = |line: &str| {
        let (name, minor) = line.split_once(' ')?;
        let wanted = wanted.iter().find(|wanted| *wanted == name)?;
        Some((wanted.clone(), minor.trim().parse().ok()?))
    };
    minors.lines().filter_map(capability).collect()
}

/// The kernel makes no nodes for new instances. `nvidia-modprobe` does, but nothing runs it for an instance made through NVML.
fn make(root: &Path, node: &Path, minor: u64) -> io::Result<()> {
    if node.exists() {
        return Ok(());
    }
    let devices = fs::read_to_string(root.join("proc/devices"))?;
    let major = devices.lines().find_map(|line| line.trim().strip_suffix(" nvidia-caps")?.parse().ok());
    let major = major.ok_or_else(|| io::Error::other("/proc/devices has no nvidia-caps"))?;
    fs::create_dir_all(root.join(NODES))?;
    match mknod(node, SFlag::S_IFCHR, Mode::from_bits_truncate(MODE), makedev(major, minor)) {
        // Another process was quicker.
        Err(Errno::EEXIST) => Ok(()),
        // The umask has changed the mode.
        made => made
            .map_err(io::Error::from)
            .and_then(|()| fs::set_permissions(node, Permissions::from_mode(MODE))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const TEXT: &str = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\n\
                        gpu0/gi11/access 102\ngpu1/gi1/access 147\n";

    #[test]
    fn an_instance_has_two_nodes_and_no_other() {
        let of = |gpu, instance| capabilities(TEXT, gpu, (instance, 0));
        assert_eq!(of(0, 1), [("gpu0/gi1/access".to_owned(), 12), ("gpu0/gi1/ci0/access".to_owned(), 13)]);
        assert_eq!(of(1, 1), [("gpu1/gi1/access".to_owned(), 147)]);
        assert!(of(2, 1).is_empty());
        let second = capabilities(TEXT, 0, (1, 1));
        assert_eq!(second, [("gpu0/gi1/access".to_owned(), 12), ("gpu0/gi1/ci1/access".to_owned(), 14)]);
    }

    #[test]
    fn who_has_a_node_open_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(root.join("proc/driver/nvidia-caps")).unwrap();
        fs::create_dir_all(root.join(NODES)).unwrap();
        fs::write(root.join(MINORS), TEXT).unwrap();
        let node = fs::File::create(root.join(NODES).join("nvidia-cap14")).unwrap();
        let mut holder = std::process::Command::new("sleep").arg("60").stdin(node).spawn().unwrap();
        let found = [holders(&root, 0, 1), holders(&root, 0, 11)];
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert_eq!(found, [vec![holder.id()], vec![]]);
    }

    #[test]
    fn an_instance_without_numbers_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let refused = of_instance(root.path(), 0, (1, 0)).unwrap_err().to_string();
        assert!(refused.contains("mig-minors does not list gpu0/gi1/ci0"), "{refused}");
    }

    /// A machine whose driver has numbers and no nodes yet.
    #[test]
    fn nodes_that_are_missing_are_made_or_named() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/driver/nvidia-caps")).unwrap();
        fs::write(root.path().join(MINORS), TEXT).unwrap();
        let unknown = of_instance(root.path(), 0, (1, 0)).unwrap_err().to_string();
        assert!(unknown.contains("/dev/nvidia-caps/nvidia-cap12"), "{unknown}");
        fs::write(root.path().join("proc/devices"), "Character devices:\n  1 mem\n508 nvidia-caps\n")
            .unwrap();
        match of_instance(root.path(), 0, (1, 0)) {
            Ok(nodes) => {
                let made: Vec<_> = nodes.iter().map(|node| fs::metadata(node).unwrap()).collect();
                assert_eq!([made[0].rdev(), made[1].rdev()], [makedev(508, 12), makedev(508, 13)]);
                assert!(made.iter().all(|node| node.mode() & 0o7777 == MODE));
                assert_eq!(of_instance(root.path(), 0, (1, 0)).unwrap(), nodes, "they are there");
            }
            // Without the right to make nodes.
            Err(refused) => {
                let said = refused.to_string();
                assert!(
                    said.contains("Operation not permitted") && said.contains("nvidia-modprobe -f"),
                    "{said}"
                );
            }
        }
    }
}
