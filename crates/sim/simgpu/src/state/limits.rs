//! Memory limits of control groups, which drivers from 615 on enforce below their libraries (`nvmlDeviceSetMemoryLimits_v1`).
//!
//! A limit is the group's: it outlives the process that has set it, and is gone with the group. The kernel uses no id of a group twice, so the
//! limit of a removed group concerns no process, and its row is used again.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::file::StateGuard;
use super::groups;
use super::layout::SimState;
use crate::GRANULE_BYTES;

/// Limits that can be set at one time.
pub(super) const MAX_LIMITS: usize = 256;
/// Long enough for the groups of tests and people.
const PATH_LEN: usize = 256;
/// The first branch of the driver that has them.
const FIRST_BRANCH: u32 = 615;
/// No hard limit.
pub const UNLIMITED: u64 = u64::MAX;

/// The limit of one group on one GPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GroupLimit {
    /// The id of the group; 0: the row is free.
    group: u64,
    /// The GPU.
    device: u64,
    soft_bytes: u64,
    hard_bytes: u64,
    /// The group's directory, NUL-terminated.
    path: [u8; PATH_LEN],
}

/// Why a limit cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitRefusal {
    /// No group of version 2 can be opened at this path.
    NoGroup,
    /// There is no row left.
    Full,
}

impl GroupLimit {
    /// A row that is not used.
    pub(super) const FREE: Self =
        Self { group: 0, device: 0, soft_bytes: 0, hard_bytes: UNLIMITED, path: [0; PATH_LEN] };

    /// The group's directory.
    pub fn path(&self) -> &Path {
        let end = self.path.iter().position(|byte| *byte == 0).unwrap_or(PATH_LEN);
        Path::new(OsStr::from_bytes(&self.path[..end]))
    }

    /// The soft and the hard limit, in bytes.
    pub fn bytes(&self) -> (u64, u64) {
        (self.soft_bytes, self.hard_bytes)
    }

    /// Whether the group still exists, as far as this process can see it.
    pub fn exists(&self) -> bool {
        groups::group_of(self.path()) == Some(self.group)
    }
}

impl SimState {
    /// Whether the driver has limits of control groups.
    pub fn has_limits(&self) -> bool {
        self.driver().split('.').next().and_then(|branch| branch.parse::<u32>().ok()) >= Some(FIRST_BRANCH)
    }

    /// The limits on a GPU.
    pub fn limits_on(&self, device: usize) -> impl Iterator<Item = &GroupLimit> {
        self.limits.iter().filter(move |limit| limit.group != 0 && limit.device == device as u64)
    }

    /// The limit of the group in `dir`, if it has one.
    pub fn limit_of(&self, device: usize, dir: &Path) -> Result<Option<GroupLimit>, LimitRefusal> {
        let group = groups::group_of(dir).ok_or(LimitRefusal::NoGroup)?;
        Ok(self.limits_on(device).find(|limit| limit.group == group).copied())
    }

    /// Bytes that the processes in the group and in the groups below it hold on a GPU.
    pub fn used_in(&self, device: usize, dir: &Path) -> Result<u64, LimitRefusal> {
        Ok(self.granules_of(device, groups::group_of(dir).ok_or(LimitRefusal::NoGroup)?) * GRANULE_BYTES)
    }

    /// Sets or, with no soft and no hard limit, clears the limit of the group in `dir`.
    pub fn set_limit(&mut self, device: usize, dir: &Path, bytes: (u64, u64)) -> Result<(), LimitRefusal> {
        let group = groups::group_of(dir).ok_or(LimitRefusal::NoGroup)?;
        let name = dir.as_os_str().as_bytes();
        if name.len() >= PATH_LEN {
            return Err(LimitRefusal::NoGroup);
        }
        let own = |limit: &GroupLimit| limit.group == group && limit.device == device as u64;
        let found = self.limits.iter().position(own);
        if bytes == (0, UNLIMITED) {
            found.into_iter().for_each(|row| self.limits[row] = GroupLimit::FREE);
            return Ok(());
        }
        let row = found.or_else(|| self.free_row()).ok_or(LimitRefusal::Full)?;
        let (soft_bytes, hard_bytes) = bytes;
        self.limits[row] =
            GroupLimit { group, device: device as u64, soft_bytes, hard_bytes, ..GroupLimit::FREE };
        self.limits[row].path[..name.len()].copy_from_slice(name);
        Ok(())
    }

    /// The driver has been loaded again.
    pub fn clear_limits(&mut self) {
        self.limits = [GroupLimit::FREE; MAX_LIMITS];
    }

    fn free_row(&self) -> Option<usize> {
        let is_free = |limit: &GroupLimit| limit.group == 0;
        self.limits.iter().position(is_free).or_else(|| self.limits.iter().position(|limit| !limit.exists()))
    }

    /// The groups of this process. The hierarchy is not mounted in a container on version 1, and the kernel reports the own group only. Then the
    /// limited groups above it are found by their paths. In a cgroup namespace of its own, a process of this simulation has none above it.
    fn own_groups(&self) -> groups::GroupIds {
        let mut own = groups::own_groups();
        let Some(path) = groups::own_path().filter(|_| own[0] != 0 && own[1] == 0) else { return own };
        let is_above = |limit: &&GroupLimit| {
            let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
            limit.group != 0 && above.any(|above| limit.path().ends_with(above))
        };
        let mut found: Vec<u64> = self.limits.iter().filter(is_above).map(|limit| limit.group).collect();
        found.sort_unstable();
        found.dedup();
        own[1..].iter_mut().zip(found).for_each(|(to, group)| *to = group);
        own
    }

    fn granules_of(&self, device: usize, group: u64) -> u64 {
        let members = self.processes().filter(|(_, process)| process.groups.contains(&group));
        members
            .map(|(_, process)| process.held_granules[device].iter().map(|&g| u64::from(g)).sum::<u64>())
            .sum()
    }
}

impl StateGuard {
    /// Would the process in `slot`, which is this one, stay within the limits of its groups with this number of
    /// additional granules?
    pub(super) fn is_within_limits(&mut self, slot: usize, device: usize, granules: u64) -> bool {
        if self.limits_on(device).next().is_none() {
            return true;
        }
        let own = self.own_groups();
        self.slots[slot].groups = own;
        if own[0] == 0 {
            // The kernel does not report it, for example to a process without a free descriptor: it may be any group's.
            return false;
        }
        let granules_of = |group| self.granules_of(device, group);
        self.limits_on(device).filter(|limit| own.contains(&limit.group)).all(|limit| {
            let all = (granules_of(limit.group) + granules).saturating_mul(GRANULE_BYTES);
            all <= limit.hard_bytes
        })
    }

    /// The limit on a GPU that this process is under, and what its group holds, in bytes; the lowest of several.
    pub fn own_limit(&self, device: usize) -> Option<(u64, u64)> {
        self.limits_on(device).next()?;
        let own = self.own_groups();
        let limits = self.limits_on(device).filter(|limit| own.contains(&limit.group));
        let lowest =
            limits.filter(|limit| limit.hard_bytes != UNLIMITED).min_by_key(|limit| limit.hard_bytes)?;
        Some((lowest.hard_bytes, self.granules_of(device, lowest.group) * GRANULE_BYTES))
    }
}
