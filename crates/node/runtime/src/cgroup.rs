//! The control group of one task: the kernel's own record of which processes belong to the task.
//!
//! A process can change its parent, its root directory and what it has mapped. It cannot leave its control group: that takes
//! the right to write to another group, which tasks do not have (`first.rs` makes the hierarchies read-only for them).
//!
//! Groups can be created in three places:
//!
//! 1. below the group of this process, if systemd delegated it (`Delegate=yes`) or it belongs to this user;
//! 2. as root, in `/cantle` of the unified hierarchy (cgroup v2; `/sys/fs/cgroup/unified` on hybrid machines);
//! 3. as root, in `/cantle` of the `freezer` hierarchy (cgroup v1), which systemd does not manage.
//!
//! Groups above those of an engine's containers are in `/cantle-containers` instead, where the engine switches controllers on for them.
//!
//! No controller is switched on, so a group costs nothing and limits nothing, unless a task has [`limit`]s. Without a group, the task has the process
//! that adopts its orphans: see [`crate::processes::Scope`].

mod end;
mod limit;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

const PARENT: &str = "cantle";
const ENGINE_PARENT: &str = "cantle-containers";
/// The file systems of control groups of both versions, by the numbers that `statfs` gives them.
const CONTROL_GROUPS: [i64; 2] = [0x0027_e0eb, 0x6367_7270];
const NO_UNIFIED: &str = "no control groups of version 2 are mounted";
const NO_RIGHT: &str =
    "this process may make no control group of version 2: run it as root, or let systemd delegate its group";
/// The time after which no process will enter a group without processes any more: a task enters its group right after
/// it was created.
const ABANDONED_AFTER: Duration = Duration::from_mins(1);

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    dir: PathBuf,
    /// The doors of its counterparts in other hierarchies, which its processes enter too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) more_doors: Vec<PathBuf>,
}

impl Cgroup {
    /// A new group called `name`; `None` if this process may make none.
    pub(crate) fn make(name: &str) -> Option<Self> {
        let hierarchies = Hierarchy::all(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        hierarchies.iter().flat_map(Hierarchy::parents).find_map(|parent| make_below(&parent, name))
    }

    /// A new group called `name` of version 2, which a driver can limit.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn make_unified(name: &str) -> Result<Self, &'static str> {
        let found = Hierarchy::unified(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let found = found.ok_or(NO_UNIFIED)?;
        found.parents().iter().find_map(|parent| make_below(parent, name)).ok_or(NO_RIGHT)
    }

    /// The group called `name` of version 2 in which an engine can make that of a container, and which a driver can limit before the
    /// container starts. It is not made yet.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn above_container(name: &str) -> Result<Self, &'static str> {
        let mount = Self::unified_mount().ok_or(NO_UNIFIED)?;
        Ok(Self::at(&mount.join(ENGINE_PARENT).join(name)))
    }

    /// Makes its directory, if it is not there yet.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn make_directory(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)
    }

    /// Its path in the hierarchy, as an engine expects it in `--cgroup-parent`.
    pub(crate) fn path_for_engine(&self) -> Option<String> {
        let path = self.dir.strip_prefix(Self::unified_mount()?).ok()?;
        Some(format!("/{}", path.display()))
    }

    /// The mount point of the control groups of version 2, if there is one.
    #[must_use]
    pub fn unified_mount() -> Option<PathBuf> {
        let found = Hierarchy::unified(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        found.map(|hierarchy| hierarchy.mount)
    }

    /// The group of a container, by its first process: the group that this program is not in itself.
    #[must_use]
    pub fn of_container(pid: u32) -> Option<Self> {
        let (theirs, ours) = (read(&format!("/proc/{pid}/cgroup")), read("/proc/self/cgroup"));
        let hierarchies = Hierarchy::all(&read("/proc/self/mountinfo"), &theirs);
        let mut apart = hierarchies.into_iter().filter(|found| {
            let own = ours.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            found.own != "/" && own.into_iter().all(|own| !below(own, &found.own))
        });
        let found = apart.next()?;
        Some(Self::at(&found.directory(&found.own)))
    }

    /// The group of this directory.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), more_doors: Vec::new() }
    }

    /// The same, with the doors of further counterparts in other hierarchies: a process of the task enters all of them.
    #[must_use]
    pub fn with_doors(mut self, more_doors: Vec<PathBuf>) -> Self {
        self.more_doors.extend(more_doors);
        self
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file to which a process writes `0` to become a member.
    pub(crate) fn door(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The pids of all its processes, those in groups below it too.
    #[must_use]
    pub fn members(&self) -> Vec<u32> {
        let mut found = Vec::new();
        self.each_directory(&mut |dir| {
            let mut procs = String::new();
            // Not as a file whose length is known, which would be asked for. A group that is gone has no processes.
            let read = fs::File::open(dir.join("cgroup.procs"));
            let _ = read.and_then(|file| file.take(u64::MAX).read_to_string(&mut procs));
            found.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
        });
        found
    }

    /// The CPU time of all its processes, also of those that have ended; `None` in a hierarchy that does not count it.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
        let used = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        used.trim().parse().ok().map(Duration::from_micros)
    }

    /// Its own directory and those below, parents first.
    fn each_directory(&self, visit: &mut impl FnMut(&Path)) {
        let mut next = vec![self.dir.clone()];
        while let Some(dir) = next.pop() {
            visit(&dir);
            if has_no_groups(&dir) {
                continue;
            }
            let entries = fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok);
            let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            next.extend(dirs.map(|entry| entry.path()));
        }
    }
}

/// A mount of `/proc/self/mountinfo`.
struct Mount<'a> {
    kind: &'a str,
    /// Of its file system.
    options: &'a str,
    /// The directory of the file system that is mounted.
    root: &'a str,
    mount: &'a str,
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
        Some(Mount { kind: right.next()?, options: right.nth(1)?, root: left.next()?, mount: left.next()? })
    })
}

/// Is the group known to have none below it? The kernel counts a link for each of those and two for the directory itself. A group has
/// dozens of files to read the names of.
fn has_no_groups(dir: &Path) -> bool {
    /// The devices of file systems, and whether they are those of control groups.
    static DEVICES: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());
    let Some(found) = fs::metadata(dir).ok().filter(|found| found.nlink() == 2) else { return false };
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    *devices
        .entry(found.dev())
        .or_insert_with(|| rustix::fs::statfs(dir).is_ok_and(|found| CONTROL_GROUPS.contains(&found.f_type)))
}

/// Is the group `path` the group `ancestor` or one below it?
pub(crate) fn below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A mounted hierarchy that can hold tasks, and where a process is in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) mount: PathBuf,
    /// The mounted group: `/` but in containers.
    root: String,
    /// The group of the process in question.
    pub(crate) own: String,
}

impl Hierarchy {
    /// The unified one, then the freezer's.
    fn all(mountinfo: &str, cgroups: &str) -> Vec<Self> {
        let freezer = Self::find(mountinfo, cgroups, ("cgroup", "freezer"));
        Self::unified(mountinfo, cgroups).into_iter().chain(freezer).collect()
    }

    /// That of version 2.
    fn unified(mountinfo: &str, cgroups: &str) -> Option<Self> {
        Self::find(mountinfo, cgroups, ("cgroup2", ""))
    }

    pub(crate) fn find(mountinfo: &str, cgroups: &str, (kind, controller): (&str, &str)) -> Option<Self> {
        let found = mounts(mountinfo).find(|found| {
            found.kind == kind
                && (controller.is_empty() || found.options.split(',').any(|option| option == controller))
        })?;
        let own = cgroups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            controllers.split(',').any(|name| name == controller).then(|| fields.next())?
        });
        Some(Self { mount: found.mount.into(), root: found.root.to_owned(), own: own?.to_owned() })
    }

    pub(crate) fn directory(&self, path: &str) -> PathBuf {
        let inside = path.strip_prefix(self.root.trim_end_matches('/')).unwrap_or(path);
        self.mount.join(inside.trim_start_matches('/'))
    }

    /// The places where a group may be created, the best one first.
    fn parents(&self) -> Vec<PathBuf> {
        let (own, is_root) = (self.directory(&self.own), own_uid() == 0);
        let is_own = fs::metadata(&own).is_ok_and(|meta| meta.uid() == own_uid());
        let below_own = (is_delegated(&own) || !is_root && is_own).then_some(own);
        below_own.into_iter().chain(is_root.then(|| self.mount.join(PARENT))).collect()
    }
}

fn make_below(parent: &Path, name: &str) -> Option<Cgroup> {
    let dir = parent.join(name);
    remove_abandoned(parent);
    let made = fs::create_dir(parent).or_else(exists).and_then(|()| fs::create_dir(&dir));
    let group = Cgroup::at(&dir);
    let is_ours = made.is_ok() && fs::OpenOptions::new().write(true).open(group.door()).is_ok();
    is_ours.then_some(group)
}

/// Removes the groups in which nothing runs any more: the process that should have removed them was killed, and the
/// directory that names them may be gone too.
fn remove_abandoned(parent: &Path) {
    if parent.file_name() != Some(OsStr::new(PARENT)) {
        return;
    }
    for group in fs::read_dir(parent).into_iter().flatten().filter_map(Result::ok) {
        let age = group
            .metadata()
            .and_then(|meta| meta.modified())
            .map(|since| since.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age >= ABANDONED_AFTER) {
            // The kernel refuses it for a group with processes, and for the files of the parent itself.
            let _ = fs::remove_dir(group.path());
        }
    }
}

fn exists(why: io::Error) -> io::Result<()> {
    if why.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(why) }
}

/// systemd marks the groups below which others may make their own.
fn is_delegated(dir: &Path) -> bool {
    let mut value = [0; 8];
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        rustix::fs::getxattr(dir, *name, &mut value[..]).is_ok_and(|length| value[..length] == *b"1")
    })
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    const HYBRID: &str = "\
30 29 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw
31 29 0:27 / /sys/fs/cgroup/freezer rw,nosuid shared:5 - cgroup cgroup rw,freezer
32 29 0:28 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory";
    const CGROUPS: &str = "4:memory:/a\n3:freezer:/b\n0::/system.slice/c.service";

    #[test]
    fn hierarchies_are_read_from_proc() {
        let found = Hierarchy::all(HYBRID, CGROUPS);
        let of = |hierarchy: &Hierarchy| (hierarchy.mount.clone(), hierarchy.own.clone());
        assert_eq!(
            found.iter().map(of).collect::<Vec<_>>(),
            [
                ("/sys/fs/cgroup/unified".into(), "/system.slice/c.service".to_owned()),
                ("/sys/fs/cgroup/freezer".into(), "/b".to_owned())
            ]
        );
        assert_eq!(found[0].directory("/x/y"), Path::new("/sys/fs/cgroup/unified/x/y"));
        let in_container =
            Hierarchy { root: "/docker/1".to_owned(), ..Hierarchy::all(HYBRID, CGROUPS).remove(0) };
        assert_eq!(in_container.directory("/docker/1/x"), Path::new("/sys/fs/cgroup/unified/x"));
        assert_eq!(Hierarchy::all("", CGROUPS), []);
    }

    #[test]
    fn a_group_below_is_a_whole_name_below() {
        assert!(below("/cantle/a", "/cantle/a") && below("/cantle/a/b", "/cantle/a"));
        assert!(!below("/cantle/ab", "/cantle/a") && !below("/cantle", "/cantle/a"));
    }

    #[test]
    fn a_group_whose_processes_are_dying_is_removed() {
        for round in 0..50 {
            let Some(group) = Cgroup::make(&format!("test-dying-{}-{round}", std::process::id())) else {
                return;
            };
            let mut child = sleeper(&group);
            group.kill();
            group.remove();
            child.wait().unwrap();
            assert!(!group.dir.exists(), "{group:?}");
        }
    }

    #[test]
    fn the_processes_of_groups_below_are_members() {
        let Some(group) = Cgroup::make(&format!("test-below-{}", std::process::id())) else { return };
        assert!(has_no_groups(&group.dir));
        let below = Cgroup::at(&group.dir.join("a/b"));
        fs::create_dir_all(&below.dir).unwrap();
        assert!(!has_no_groups(&group.dir) && has_no_groups(&below.dir));
        let mut child = sleeper(&below);
        assert!(group.members().contains(&child.id()));
        group.kill();
        below.kill();
        child.wait().unwrap();
        group.remove();
        assert!(!group.dir.exists());
    }

    #[test]
    fn a_directory_of_another_file_system_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_no_groups(dir.path()), "what its links count is not known");
    }

    fn sleeper(group: &Cgroup) -> Child {
        let script = format!("echo $$ >{}; sleep 600 & exec sleep 600", group.door().display());
        let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        while group.members().len() < 2 {
            std::thread::sleep(Duration::from_millis(2));
        }
        child
    }

    /// As an engine on version 1 does, which makes a group of this name in each hierarchy.
    #[test]
    fn a_group_above_a_container_is_removed_everywhere() {
        let Ok(group) = Cgroup::above_container(&format!("test-{}", std::process::id())) else { return };
        if own_uid() != 0 {
            return;
        }
        group.make_directory().unwrap();
        let path = group.path_for_engine().unwrap();
        assert!(path.starts_with("/cantle-containers/test-"), "{path}");
        let mountinfo = read("/proc/self/mountinfo");
        let others = mounts(&mountinfo).filter(|found| found.kind == "cgroup");
        let others: Vec<PathBuf> = others.map(|found| Path::new(found.mount).join(&path[1..])).collect();
        others.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        fs::create_dir(group.dir().join("container")).unwrap();
        group.remove();
        assert!(!group.dir().exists() && others.iter().all(|dir| !dir.exists()));
    }

    fn age(dir: &Path) {
        let long_ago = fs::metadata(dir).unwrap().modified().unwrap() - 2 * ABANDONED_AFTER;
        fs::File::open(dir).unwrap().set_modified(long_ago).unwrap();
    }

    #[test]
    fn a_new_group_removes_abandoned_ones() {
        if own_uid() != 0 {
            return;
        }
        let hierarchies = Hierarchy::all(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        for mount in hierarchies.iter().map(|hierarchy| &hierarchy.mount) {
            let make = |name: &str| {
                make_below(&mount.join(PARENT), &format!("test-{name}-{}", std::process::id())).unwrap()
            };
            let (abandoned, in_use, new) = (make("abandoned"), make("in-use"), make("new"));
            let mut child = sleeper(&in_use);
            age(abandoned.dir());
            age(in_use.dir());
            let next = make("next");
            assert!(!abandoned.dir().exists());
            assert!(in_use.dir().exists() && new.dir().exists());
            in_use.kill();
            child.wait().unwrap();
            for group in [in_use, new, next] {
                group.remove();
            }
        }
    }

    /// On each hierarchy that this machine has: version 2 kills with one write, version 1 needs a freeze first.
    #[test]
    fn all_of_a_group_are_killed_and_it_is_removed() {
        let hierarchies = Hierarchy::all(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        for parent in hierarchies.iter().flat_map(Hierarchy::parents) {
            let Some(group) = make_below(&parent, &format!("test-{}", std::process::id())) else { continue };
            let mut child = sleeper(&group);
            assert!(group.members().contains(&child.id()));
            group.kill();
            child.wait().unwrap();
            while !group.members().is_empty() {
                std::thread::sleep(Duration::from_millis(2));
            }
            group.remove();
            assert!(!group.dir.exists(), "{group:?}");
        }
    }
}
