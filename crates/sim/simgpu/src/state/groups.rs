//! The control group of this process, as the kernel reports it.
//!
//! `/proc` and the hierarchies can be hidden from a process, and a process in a cgroup namespace sees another path. The kernel's answer about a
//! pidfd depends on neither (`PIDFD_GET_INFO` of Linux 6.14, the release that also has the `dmem` controller).

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Groups of one process: its own and those above it, as far as they are visible.
pub(super) const DEPTH: usize = 8;

/// The ids of those groups, the process's own first; 0 where there is none.
pub(super) type GroupIds = [u64; DEPTH];

/// `_IOWR(0xFF, 11, struct pidfd_info)` with the structure's first 64 bytes.
const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
const INFO_WORDS: usize = 8;
/// `PIDFD_INFO_CGROUPID`
const INFO_CGROUP: u64 = 1 << 2;
/// The number that `statfs` gives for control groups of version 2.
const CGROUP2: u64 = 0x6367_7270;

/// The result of the last search for a group.
static KNOWN: Mutex<GroupIds> = Mutex::new([0; DEPTH]);

/// The id of this process's own group; `None` on a kernel that does not report it.
pub(crate) fn own_group() -> Option<u64> {
    // SAFETY: `pidfd_open` takes two integers and has no preconditions.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor was just opened, and nothing else owns it.
    let pidfd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = [0_u64; INFO_WORDS];
    info[0] = INFO_CGROUP;
    // SAFETY: the request names a structure of 64 bytes, which is the size of `info`; the kernel writes no more than that.
    let rc = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, info.as_mut_ptr()) };
    (rc == 0 && info[0] & INFO_CGROUP != 0 && info[1] != 0).then_some(info[1])
}

/// This process's groups. Those above its own are looked up when the process has changed its group.
pub(super) fn own_groups() -> GroupIds {
    let own = own_group().unwrap_or(0);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if known[0] != own {
        *known = ancestry(own);
    }
    *known
}

/// The id of a group's directory; `None` if it cannot be opened or is no group of version 2.
pub(crate) fn group_of(dir: &Path) -> Option<u64> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: plain integers, for which all zeros are valid.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated path and a structure of the type that the call fills; both outlive the call.
    let rc = unsafe { libc::statfs(path.as_ptr(), &raw mut found) };
    (rc == 0 && found.f_type as u64 == CGROUP2).then(|| fs::metadata(dir).ok().map(|dir| dir.ino())).flatten()
}

/// The path of this process's group, as its cgroup namespace shows it; `None` at the root of the namespace.
pub(super) fn own_path() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!path.is_empty()).then(|| path.into())
}

/// The groups from `own` upwards. In a cgroup namespace the path leads to another group or to none: then only the own one is known.
fn ancestry(own: u64) -> GroupIds {
    let mut groups = [0; DEPTH];
    groups[0] = own;
    let Some(dir) = own_directory().filter(|dir| group_of(dir) == Some(own)) else { return groups };
    let above = dir.ancestors().skip(1).map_while(group_of);
    for (to, group) in groups[1..].iter_mut().zip(above) {
        *to = group;
    }
    groups
}

fn own_directory() -> Option<PathBuf> {
    let path = own_path().unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup2 ").then(|| left.split(' ').nth(4)).flatten()
    })?;
    Some(Path::new(mount).join(path))
}
