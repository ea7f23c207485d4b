//! Which lease a process belongs to, by what the kernel says about it: a process that descends from a lease's first
//! process, or from the one that answers for it, is part of it. What a process says about itself counts for nothing.

use std::collections::BTreeMap;
use std::fs;

use cantle_model::{Lease, LeaseId};

/// A process tree deeper than this is not one of ours.
const DEPTH_MAX: usize = 64;

/// The roots of all leases.
#[derive(Debug, Default)]
pub(crate) struct Members {
    roots: BTreeMap<u32, LeaseId>,
}

impl Members {
    /// Of these leases. Orphans within a task stay its descendants: whoever answers for a task is its subreaper.
    pub(crate) fn of(leases: &[Lease]) -> Self {
        let holders = leases.iter().flat_map(|lease| {
            let holders = [Some(lease.owner), lease.leader].into_iter().flatten();
            holders.filter(cantle_runtime::alive).map(|holder| (holder.pid, lease.id.clone()))
        });
        Self { roots: holders.collect() }
    }

    /// The lease that process `pid` belongs to, by its nearest ancestor that is one's root.
    pub(crate) fn lease_of(&self, pid: u32) -> Option<&LeaseId> {
        let mut pid = pid;
        for _ in 0..DEPTH_MAX {
            if let Some(lease) = self.roots.get(&pid) {
                return Some(lease);
            }
            pid = parent(pid).filter(|&parent| parent > 1)?;
        }
        None
    }
}

/// Parent of a process: field 4 of its `stat`, which follows the name in brackets (that may hold anything).
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use cantle_model::{Holder, TaskId};

    use super::*;

    fn lease(id: &str, pid: u32) -> Lease {
        let owner = cantle_runtime::holder_of(pid).unwrap_or(Holder { pid, start_ticks: 0 });
        Lease {
            id: LeaseId::from(id),
            task: TaskId::from("t"),
            name: String::new(),
            queue: None,
            slices: Vec::new(),
            owner,
            leader: None,
        }
    }

    #[test]
    fn descendants_belong_to_the_nearest_root() {
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mine = Members::of(&[lease("mine", me)]);
        assert_eq!(mine.lease_of(child.id()), Some(&LeaseId::from("mine")));
        let both = Members::of(&[lease("mine", me), lease("childs", child.id())]);
        assert_eq!(both.lease_of(child.id()), Some(&LeaseId::from("childs")));
        assert_eq!(Members::of(&[lease("childs", child.id())]).lease_of(me), None);
        assert_eq!(Members::of(&[]).lease_of(me), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_reused_pid_is_nobodys_root() {
        let me = std::process::id();
        let mut stale = lease("stale", me);
        stale.owner.start_ticks += 1;
        assert_eq!(Members::of(&[stale]).lease_of(me), None);
    }
}
