//! The device nodes of a running container. No engine can change them, so they are changed from outside: the node in its `/dev`, and the rule of its
//! control group about the device.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, mknodat, openat2, statat, unlinkat,
};

use crate::cgroup::{Hierarchy, below};

/// The control groups that decide which devices the processes of a container may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceGroups {
    /// The group of the controller `devices` (version 1).
    Files(PathBuf),
    /// Groups of version 2, where programs decide: that of the container's first process and those above it that are the container's too.
    Programs(Vec<PathBuf>),
}

/// The device nodes of a running container.
#[derive(Debug)]
pub struct ContainerDevices {
    root: OwnedFd,
    groups: DeviceGroups,
}

impl ContainerDevices {
    /// Those of the container with this first process.
    ///
    /// # Errors
    /// Why they cannot be changed.
    pub fn of(pid: u32) -> Result<Self, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("only root may change them".to_owned());
        }
        let user = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
        if user("self") != user(&pid.to_string()) {
            // The kernel opens no node that was made there.
            return Err("its users are mapped to other ones (rootless engine, userns-remap)".to_owned());
        }
        let root = File::open(format!("/proc/{pid}/root")).map_err(|why| why.to_string())?;
        let groups = groups_of(pid).ok_or("it is in no control group of its own")?;
        Ok(Self { root: root.into(), groups })
    }

    /// The control groups that decide about its devices.
    #[must_use]
    pub const fn groups(&self) -> &DeviceGroups {
        &self.groups
    }

    /// Has it the same node as this machine, at this path?
    #[must_use]
    pub fn has(&self, node: &Path) -> bool {
        let own = || -> io::Result<bool> {
            let (dev, name) = self.place(node)?;
            Ok(is_same(&statat(&dev, name, AtFlags::SYMLINK_NOFOLLOW)?, &fs::metadata(node)?))
        };
        own().unwrap_or(false)
    }

    /// Gives it the node that this machine has at this path.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn add(&self, node: &Path) -> io::Result<()> {
        if self.has(node) {
            return Ok(());
        }
        self.remove(node)?;
        let of = fs::metadata(node)?;
        let (dev, name) = self.place(node)?;
        mknodat(&dev, name, FileType::from_raw_mode(of.mode()), Mode::empty(), of.rdev())?;
        // The task may have put something else there: the changes are those of the node that is open now.
        let made =
            rustix::fs::openat(&dev, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if !is_same(&rustix::fs::fstat(&made)?, &of) {
            return Err(io::Error::other(format!("the task has replaced {}", node.display())));
        }
        let open = format!("/proc/self/fd/{}", made.as_raw_fd());
        let owner = (Uid::from_raw(of.uid()), Gid::from_raw(of.gid()));
        rustix::fs::chown(&open, Some(owner.0), Some(owner.1))?;
        Ok(rustix::fs::chmod(&open, Mode::from_raw_mode(of.mode() & 0o777))?)
    }

    /// Takes the node at this path from it, if it is there.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(&self, node: &Path) -> io::Result<()> {
        let (dev, name) = self.place(node)?;
        match unlinkat(&dev, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            done => Ok(done?),
        }
    }

    /// The directory of a node in the container, and its name there. Links are not followed: they would lead out of the container.
    fn place<'a>(&self, node: &'a Path) -> io::Result<(OwnedFd, &'a Path)> {
        let inside = node.strip_prefix("/").map_err(io::Error::other)?;
        let (Some(directory), Some(name)) = (inside.parent(), inside.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        Ok((openat2(&self.root, directory, flags, Mode::empty(), resolve)?, Path::new(name)))
    }
}

fn is_same(found: &Stat, node: &fs::Metadata) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::from_raw_mode(node.mode())
        && found.st_rdev == node.rdev()
}

fn groups_of(pid: u32) -> Option<DeviceGroups> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (mounts, theirs) = (read("/proc/self/mountinfo"), read(&format!("/proc/{pid}/cgroup")));
    let ours = read("/proc/self/cgroup");
    let is_ours =
        |group: &str| ours.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|own| below(own, group));
    let find = |kind: (&str, &str)| {
        Hierarchy::find(&mounts, &theirs, kind).filter(|found| found.own != "/" && !is_ours(&found.own))
    };
    if let Some(found) = find(("cgroup", "devices")) {
        return Some(DeviceGroups::Files(found.directory(&found.own)));
    }
    let found = find(("cgroup2", ""))?;
    let above = Path::new(&found.own).ancestors().filter_map(Path::to_str);
    let apart = above.take_while(|group| *group != "/" && !is_ours(group));
    Some(DeviceGroups::Programs(apart.map(|group| found.directory(group)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(root: &Path) -> ContainerDevices {
        ContainerDevices {
            root: File::open(root).unwrap().into(),
            groups: DeviceGroups::Programs(Vec::new()),
        }
    }

    #[test]
    fn a_node_is_as_on_the_machine() {
        let root = tempfile::tempdir().unwrap();
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        fs::create_dir(root.path().join("dev")).unwrap();
        let (container, zero) = (at(root.path()), Path::new("/dev/zero"));
        assert!(!container.has(zero));
        fs::write(root.path().join("dev/zero"), "the task's own").unwrap();
        assert!(!container.has(zero));
        for _ in 0..2 {
            container.add(zero).unwrap();
        }
        let (made, of) = (fs::metadata(root.path().join("dev/zero")).unwrap(), fs::metadata(zero).unwrap());
        assert_eq!((made.rdev(), made.mode(), made.uid()), (of.rdev(), of.mode(), of.uid()));
        for _ in 0..2 {
            container.remove(zero).unwrap();
        }
        assert!(!container.has(zero) && zero.exists());
    }

    #[test]
    fn links_of_the_task_lead_nowhere() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), root.path().join("dev")).unwrap();
        fs::write(outside.path().join("zero"), "").unwrap();
        let container = at(root.path());
        assert!(container.add(Path::new("/dev/zero")).is_err());
        assert!(container.remove(Path::new("/dev/zero")).is_err());
        assert!(outside.path().join("zero").exists());
    }

    #[test]
    fn a_process_of_this_group_is_no_container() {
        assert!(ContainerDevices::of(std::process::id()).is_err());
    }
}
