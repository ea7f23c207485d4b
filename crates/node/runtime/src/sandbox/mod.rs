//! The wall around every task that is a process: what a task finds, and what does not exist for it. All of it is made here, and
//! docs/security.md lists it.
//!
//! A task of an agent or a `cantle run` of root has namespaces of its own, with GPUs or without:
//!
//! ```text
//! mounts          /run/cantle is a tmpfs of the task's own, with its slice's files only (`slice.rs`). Every directory that holds
//!                 keys, leases or other tasks is empty, every key file is empty, sockets of programs that start others do not answer
//! processes       it sees its own, in a /proc of its own; /sys and the machine's part of /proc are read-only
//! control groups  its own group is the root, and no hierarchy is mounted
//! IPC, host name  its own
//! system calls    those of `cantle_ledger::seccomp` do not exist
//! ```
//!
//! It takes two steps. A thread makes the namespaces and what is mounted from outside of them ([`enter`]); the task's first process,
//! which is inside, does what only a process of the new namespaces can do ([`Inside::close`]).
//!
//! The working directory is entered last, by its path: one that was entered before would lead to what is under the mounts.

mod mounts;
mod slice;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::{Privileges, StartError, TaskSpec, TaskUser, privileges};
pub(crate) use mounts::{SandboxError, plain_mount, read_only};
use mounts::{step, tmpfs, unless_hidden};

pub(crate) const CANTLE_DIR: &str = "/run/cantle";
/// The directory in which the shim looks for the slice's accounting.
pub(crate) const SLICE_DIR: &str = "/run/cantle/slice";
pub(crate) const REAL_DIR: &str = "/run/cantle/real";
/// The workspace of a task that has one.
pub(crate) const WORKSPACE_DIR: &str = "/run/cantle/work";
/// The authorities of a task that has some.
pub(crate) const AUTHORITIES_FILE: &str = "/run/cantle/authorities.crt";
/// An empty file that is put over files.
const EMPTY_FILE: &str = "/run/cantle/empty";
/// All hierarchies, where the distribution has mounted them.
const CGROUPS: &str = "/sys/fs/cgroup";

/// A program that answers here starts programs outside of the task, with all rights of root.
const SOCKETS: [&str; 7] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/systemd/private",
    "/run/systemd/io.systemd.Manager",
];

/// The kernel's file systems, by the numbers that `statfs` gives them: proc, sysfs, and control groups of both versions.
const OF_KERNEL: [i64; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];

type Result<T> = std::result::Result<T, SandboxError>;

/// Moves the calling thread into namespaces of the task's own and puts everything in place; a child that the thread makes
/// afterwards lives there. Use a thread that does nothing else and ends: it cannot leave again.
pub(crate) fn enter(spec: &TaskSpec) -> Result<()> {
    let confinement = &spec.confinement;
    // Only the mount point is made outside of the namespace.
    step("create /run/cantle", || fs::create_dir_all(CANTLE_DIR))?;
    let own = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    step("unshare", || unshare(own).map_err(io::Error::from))?;
    // From here on no mount propagates to the outside or comes from there.
    step("make / private", || {
        plain_mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)
    })?;
    // The sources of binds may be where the tmpfs is about to be mounted: the accounting of root's tasks is.
    let is_filtered = !spec.slices.is_empty() && confinement.direct.is_none();
    let files = if is_filtered { Some(slice::Files::open(confinement)?) } else { None };
    let nodes = confinement.direct.iter().flat_map(|direct| &direct.nodes);
    nodes.into_iter().try_for_each(|(dir, files)| slice::show_only(dir, files))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    step("mount tmpfs on /run/cantle", || tmpfs(Path::new(CANTLE_DIR), flags))?;
    if let Some(files) = files {
        files.put(&confinement.libraries)?;
    }
    if let Some(authorities) = &spec.authorities {
        slice::put_file(authorities, Path::new(AUTHORITIES_FILE))?;
    }
    if let Some(workspace) = spec.workspace.as_ref().filter(|workspace| workspace.is_mounted) {
        let from = &workspace.directory;
        step(&format!("mount {} on {WORKSPACE_DIR}", from.display()), || {
            put_workspace(from, spec.user.as_ref().map(TaskUser::uid))
        })?;
    }
    step("make an empty file in /run/cantle", || File::create(EMPTY_FILE).map(drop))?;
    confinement.hidden.iter().try_for_each(|path| hide(path))?;
    if confinement.privileges != Privileges::Machine {
        SOCKETS.iter().try_for_each(|path| hide(Path::new(path)))?;
    }
    // Last: nothing more can be put into it.
    step("make /run/cantle read-only", || {
        plain_mount(None, Path::new(CANTLE_DIR), None, flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY)
    })?;
    if confinement.privileges != Privileges::Machine {
        // For the children of this thread.
        step("unshare the pid namespace", || unshare(CloneFlags::CLONE_NEWPID).map_err(io::Error::from))?;
    }
    Ok(())
}

/// The directory lies where the task's user may move and link what it likes, and is mounted by root: what is mounted is the very
/// directory that was looked at, and there is nothing in it.
fn put_workspace(from: &Path, uid: Option<u32>) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = File::from(rustix::fs::open(from, flags, Mode::empty())?);
    let opened = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let is_own = directory.metadata()?.uid() == uid.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
    if !is_own || fs::read_dir(&opened)?.next().is_some() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is no empty directory of the task's user",
        ));
    }
    let to = Path::new(WORKSPACE_DIR);
    fs::create_dir(to)?;
    plain_mount(Some(&opened), to, None, MsFlags::MS_BIND)
}

/// Puts nothing where something is that a task of root could read or write although it is not the task's: an empty directory or an
/// empty file.
fn hide(path: &Path) -> Result<()> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        // The task cannot reach a path that this process cannot reach. Any other error may pass while the task runs.
        Err(why)
            if matches!(
                why.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(());
        }
        Err(why) => return step(&format!("hide {}", path.display()), || Err(why)),
    };
    if path.starts_with(CANTLE_DIR) {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    step(&format!("hide {}", path.display()), || {
        if found.is_dir() {
            return tmpfs(path, flags | MsFlags::MS_RDONLY);
        }
        plain_mount(Some(Path::new(EMPTY_FILE)), path, None, MsFlags::MS_BIND)?;
        read_only(path, flags)
    })
}

/// The second step, which the task's first process takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Inside {
    pub(crate) privileges: Privileges,
}

impl Inside {
    /// Closes the paths by which a task of root could reach more than its own files and processes. The caller is in the task's control
    /// group already.
    pub(crate) fn close(&self) -> Result<()> {
        step("unshare the control groups", || unshare(CloneFlags::CLONE_NEWCGROUP).map_err(io::Error::from))?;
        let mounts = step("read the mounts", || fs::read_to_string("/proc/self/mountinfo"))?;
        let mounts: Vec<_> = mounts.lines().filter_map(kind_and_place).collect();
        if self.privileges != Privileges::Machine {
            own_proc(&mounts)?;
        }
        self.close_sys(&mounts)?;
        self.restrict()
    }

    /// Gives up the rights that a process inside must not have. Another one that enters later finds all else in place.
    pub(crate) fn restrict(&self) -> Result<()> {
        step("refuse system calls", || {
            cantle_ledger::seccomp::refuse_calls().map_err(io::Error::from_raw_os_error)
        })?;
        step("withhold capabilities", || privileges::withhold(self.privileges))
    }

    /// Nothing of the control groups is left, and the rest can only be read.
    fn close_sys(&self, mounts: &[(&str, PathBuf)]) -> Result<()> {
        let mut covered: Vec<&Path> = Vec::new();
        for (kind, at) in mounts {
            if matches!(*kind, "cgroup" | "cgroup2") {
                // One mount covers them all where they usually are.
                let at = if at.starts_with(CGROUPS) { Path::new(CGROUPS) } else { at };
                if !covered.contains(&at) {
                    covered.push(at);
                    step(&format!("cover {}", at.display()), || {
                        unless_hidden(tmpfs(at, KERNELS | MsFlags::MS_RDONLY))
                    })?;
                }
            } else if at.starts_with("/sys")
                && !at.starts_with(CGROUPS)
                && self.privileges != Privileges::Machine
            {
                step(&format!("make {} read-only", at.display()), || unless_hidden(read_only(at, KERNELS)))?;
            }
        }
        Ok(())
    }
}

const KERNELS: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV).union(MsFlags::MS_NOEXEC);

/// A `/proc` with the task's own processes, in which the machine's settings can only be read.
fn own_proc(mounts: &[(&str, PathBuf)]) -> Result<()> {
    // Wherever there is one: a service's or a chroot's shows the same processes.
    let others = mounts.iter().filter(|(kind, at)| *kind == "proc" && !at.starts_with("/proc"));
    for at in std::iter::once(Path::new("/proc")).chain(others.map(|(_, at)| at.as_path())) {
        let own = || plain_mount(Some(Path::new("proc")), at, Some("proc"), KERNELS);
        step(&format!("mount the task's own {}", at.display()), || unless_hidden(own()))?;
    }
    for part in ["sys", "sysrq-trigger", "irq", "bus", "fs"].map(|part| Path::new("/proc").join(part)) {
        if part.exists() {
            step(&format!("make {} read-only", part.display()), || {
                plain_mount(Some(&part), &part, None, MsFlags::MS_BIND | MsFlags::MS_REC)?;
                read_only(&part, KERNELS)
            })?;
        }
    }
    Ok(())
}

/// Of a line of `/proc/self/mountinfo`. The kernel writes blanks in a path as `\040`; such a path is not one of the
/// kernel's own.
fn kind_and_place(line: &str) -> Option<(&str, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    Some((right.split(' ').next()?, left.split(' ').nth(4)?.into()))
}

/// The working directory of a task: the given one, the home directory of its user, or this process's by its path.
///
/// # Errors
/// If it is not there, or is not for programs.
pub(crate) fn working_directory(spec: &TaskSpec) -> std::result::Result<PathBuf, StartError> {
    let home = spec.user.as_ref().map(TaskUser::home);
    let directory = existing(spec.cwd.as_deref().or(home));
    match directory {
        // Root of a file server may see less than the user, who enters it later.
        Err(StartError::NoWorkingDirectory(directory))
            if spec.user.is_some() && fs::metadata(&directory).is_err_and(|why| is_hidden(&why)) =>
        {
            Ok(directory)
        }
        directory => directory,
    }
}

fn is_hidden(why: &io::Error) -> bool {
    why.kind() == io::ErrorKind::PermissionDenied
}

fn existing(given: Option<&Path>) -> std::result::Result<PathBuf, StartError> {
    let missing = |_| StartError::NoWorkingDirectory(given.unwrap_or_else(|| Path::new(".")).to_owned());
    let directory = match given {
        Some(given) => std::path::absolute(given).map_err(missing)?,
        None => std::env::current_dir().map_err(missing)?,
    };
    // Checked separately, because the kernel reports a missing directory as if the program were missing.
    if !directory.is_dir() {
        return Err(StartError::NoWorkingDirectory(directory));
    }
    let kind = rustix::fs::statfs(&directory).map_or(0, |found| found.f_type);
    if OF_KERNEL.contains(&kind) {
        return Err(StartError::KernelsDirectory(directory));
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_task_works_in_the_kernels_own_file_systems() {
        for directory in ["/proc", "/proc/self", "/proc/sys/kernel", "/sys", "/sys/kernel"] {
            let refused = existing(Some(Path::new(directory))).unwrap_err();
            assert!(
                matches!(&refused, StartError::KernelsDirectory(at) if at == Path::new(directory)),
                "{refused}"
            );
        }
        let link = tempfile::tempdir().unwrap();
        let link = link.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(existing(Some(&link)).is_err());
        assert_eq!(existing(None).unwrap(), std::env::current_dir().unwrap());
        assert_eq!(existing(Some(Path::new("/"))).unwrap(), Path::new("/"));
        let missing = existing(Some(Path::new("/no/such"))).unwrap_err();
        assert_eq!(missing.to_string(), "working directory /no/such does not exist");
    }
}
