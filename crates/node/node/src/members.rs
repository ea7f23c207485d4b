//! Finds the lease that a process belongs to, from what the kernel reports. The claims of a process about itself do not
//! count.
//!
//! A process is part of a task if it is in the task's control group, which it cannot leave. Some tasks have no group (an
//! ordinary user's, where none is delegated), and the group of a cluster's container is not known here. For them there are
//! three hints: the process sees the task's accounting region as its own; another process of its container does; or it
//! descends from the task's first process or from the owner of the lease.
//!
//! The signs are compared. A process that descends from one task and is in the group of another one, or sees the accounting of another one, was
//! put there: by a kernel that lets a process start a child in any group, or by a program of root outside. No task can make another task's
//! process its parent, so the parents decide: no task is ended for the process of another one. It is reported
//! ([`Members::contradictions`]).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cantle_ledger::USAGE_FILE;
use cantle_model::{Enforcement, Holder, Lease, LeaseId};
use cantle_runtime::{Cgroup, alive, parent_of};

use crate::store::NodeStore;

/// Linux has no more pids, so no process has more ancestors.
const DEPTH_MAX: usize = 1 << 22;

/// The path at which a task behind mounts sees its region.
const REGION: &str = "run/cantle/slice";

/// Device and inode: a file independent of its path.
type FileId = (u64, u64);

/// The common properties of the processes of each lease.
#[derive(Debug, Default)]
pub(crate) struct Members {
    in_groups: BTreeMap<u32, LeaseId>,
    containers: BTreeSet<LeaseId>,
    regions: BTreeMap<FileId, LeaseId>,
    roots: Roots,
    /// Those of them that belong to one lease of this store: their descendants were started by its task.
    creators: Roots,
    /// Contradictory signs, by pid.
    contradictions: RefCell<BTreeMap<u32, Signs>>,
    /// The result from the ancestors of a process. Siblings have the same ancestors, and are queried in the same scan.
    descent: RefCell<Descent>,
    created: RefCell<Descent>,
}

/// Leases by process, as far as its ancestors are known.
type Descent = BTreeMap<u32, Option<LeaseId>>;

/// First processes of tasks and owners of leases, by pid.
#[derive(Debug, Default)]
struct Roots(BTreeMap<u32, Vec<(Holder, Option<LeaseId>)>>);

impl Roots {
    /// Those of the leases. For a process that several leases name, `several` says which of them counts.
    fn of(leases: &[Lease], several: impl Fn(LeaseId) -> Option<LeaseId>) -> Self {
        let mut roots = Self::default();
        roots.add(leases, several);
        roots
    }

    fn add(&mut self, leases: &[Lease], several: impl Fn(LeaseId) -> Option<LeaseId>) {
        for lease in leases {
            for holder in [Some(lease.owner), lease.leader].into_iter().flatten() {
                let known = self.0.entry(holder.pid).or_default();
                match known.iter_mut().find(|(known, _)| *known == holder) {
                    Some((_, of)) if of.as_ref() == Some(&lease.id) => {}
                    Some((_, of)) => *of = several(lease.id.clone()),
                    None => known.push((holder, Some(lease.id.clone()))),
                }
            }
        }
    }

    /// The lease of process `pid`, if that very process is one of them. Most are never asked about, so whether one lives is found out here.
    fn lease_of(&self, pid: u32) -> Option<&LeaseId> {
        let known = self.0.get(&pid)?;
        known.iter().find(|(holder, _)| alive(holder)).and_then(|(_, lease)| lease.as_ref())
    }
}

impl Members {
    /// Of these leases. Orphans within a task stay its descendants: the owner of the lease is their subreaper.
    pub(crate) fn of(node: &NodeStore, leases: &[Lease]) -> Self {
        let region = |lease: &Lease| Some((file_id(&node.slice_dir(&lease.id))?, lease.id.clone()));
        let in_group = |lease: &Lease| {
            let group = lease.cgroup.as_ref().map(|dir| Cgroup::at(dir).members()).unwrap_or_default();
            group.into_iter().map(|pid| (pid, lease.id.clone())).collect::<Vec<_>>()
        };
        let is_container = |lease: &&Lease| lease.enforcement == Some(Enforcement::Container);
        Self {
            in_groups: leases.iter().flat_map(in_group).collect(),
            containers: leases.iter().filter(is_container).map(|lease| lease.id.clone()).collect(),
            regions: leases.iter().filter_map(region).collect(),
            roots: Roots::of(leases, Some),
            creators: Roots::of(leases, |_| None),
            ..Self::default()
        }
    }

    /// Also of leases of other users, whose regions only they can see. Their groups are not queried: a lease could name
    /// another one's.
    pub(crate) fn and(mut self, leases: &[Lease]) -> Self {
        self.roots.add(leases, Some);
        self
    }

    /// The lease that process `pid` belongs to.
    pub(crate) fn lease_of(&self, pid: u32) -> Option<LeaseId> {
        let signs = Signs {
            creator: by_ancestor(pid, &self.creators, &mut self.created.borrow_mut()),
            group: self.in_groups.get(&pid).cloned(),
            region: self.by_region(pid).cloned(),
        };
        let known = signs.decide().cloned();
        if signs.named().len() > 1 {
            self.contradictions.borrow_mut().insert(pid, signs);
        }
        let known = known.or_else(|| self.by_container(pid).cloned());
        known.or_else(|| by_ancestor(pid, &self.roots, &mut self.descent.borrow_mut()))
    }

    /// Of the processes that were asked about.
    pub(crate) fn contradictions(&self) -> BTreeMap<u32, Signs> {
        self.contradictions.borrow().clone()
    }

    fn by_region(&self, pid: u32) -> Option<&LeaseId> {
        let seen = file_id(&Path::new("/proc").join(pid.to_string()).join("root").join(REGION));
        seen.and_then(|region| self.regions.get(&region))
    }

    /// A process of a container may have another root directory; the container's first process has not.
    fn by_container(&self, pid: u32) -> Option<&LeaseId> {
        if self.containers.is_empty() {
            return None;
        }
        let peers = Cgroup::of_container(pid)?.members();
        let lease = peers.into_iter().find_map(|peer| self.by_region(peer))?;
        self.containers.contains(lease).then_some(lease)
    }
}

/// By the nearest ancestor that is one of these roots.
fn by_ancestor(pid: u32, roots: &Roots, descent: &mut Descent) -> Option<LeaseId> {
    let (mut asked, mut next) = (Vec::new(), Some(pid));
    let found = loop {
        let Some(pid) = next.filter(|&pid| pid > 1 && asked.len() < DEPTH_MAX) else { break None };
        if let Some(lease) = roots.lease_of(pid) {
            break Some(lease.clone());
        }
        if let Some(known) = descent.get(&pid) {
            break known.clone();
        }
        asked.push(pid);
        next = parent_of(pid);
    };
    descent.extend(asked.into_iter().map(|pid| (pid, found.clone())));
    found
}

/// Whose a process is by each of the kernel's signs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// The task from which it descends.
    creator: Option<LeaseId>,
    /// The task in whose control group it is.
    group: Option<LeaseId>,
    /// The task whose accounting it sees.
    region: Option<LeaseId>,
}

impl Signs {
    fn decide(&self) -> Option<&LeaseId> {
        self.creator.as_ref().or(self.group.as_ref()).or(self.region.as_ref())
    }

    /// The leases that they name.
    pub(crate) fn named(&self) -> BTreeSet<&LeaseId> {
        [&self.creator, &self.group, &self.region].into_iter().flatten().collect()
    }

    /// A line about process `pid`; `name` is the name of a lease's task.
    pub(crate) fn report(&self, pid: u32, name: impl Fn(&LeaseId) -> String) -> String {
        let signs = [
            ("descends from", &self.creator),
            ("is in the control group of", &self.group),
            ("sees the accounting of", &self.region),
        ];
        let said =
            signs.into_iter().filter_map(|(sign, lease)| Some(format!("{sign} {}", name(lease.as_ref()?))));
        let (said, counts_for) =
            (said.collect::<Vec<_>>().join(" and "), self.decide().map(name).unwrap_or_default());
        format!("process {pid} {said}: it counts for {counts_for}")
    }
}

fn file_id(region: &Path) -> Option<FileId> {
    fs::metadata(region.join(USAGE_FILE)).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The pid that a process has in its own pid namespace: the last number of `NSpid`; `None` if the process has ended.
pub(crate) fn own_view(pid: u32) -> Option<u32> {
    // Its name is in it, which may be no text.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use cantle_model::{Slice, TaskId};

    use super::*;

    pub(crate) fn lease_of(id: &str, pid: u32, slices: Vec<Slice>) -> Lease {
        let owner = cantle_runtime::holder_of(pid).unwrap_or(Holder { pid, start_ticks: 0 });
        Lease::new(LeaseId::from(id), TaskId::from("t"), slices, owner)
    }

    fn lease(id: &str, pid: u32) -> Lease {
        lease_of(id, pid, Vec::new())
    }

    fn node() -> (tempfile::TempDir, NodeStore) {
        let root = tempfile::tempdir().unwrap();
        let node = NodeStore::open(root.path()).unwrap();
        (root, node)
    }

    #[test]
    fn descendants_belong_to_the_nearest_root() {
        let (_root, node) = node();
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mine = Members::of(&node, &[lease("mine", me)]);
        assert_eq!(mine.lease_of(child.id()), Some(LeaseId::from("mine")));
        let both = Members::of(&node, &[lease("mine", me), lease("childs", child.id())]);
        assert_eq!(both.lease_of(child.id()), Some(LeaseId::from("childs")));
        assert_eq!(Members::of(&node, &[lease("childs", child.id())]).lease_of(me), None);
        assert_eq!(Members::of(&node, &[]).lease_of(me), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_is_in_the_group_is_the_task() {
        let (root, node) = node();
        let me = std::process::id();
        std::fs::write(root.path().join("cgroup.procs"), format!("{me}\n")).unwrap();
        let in_group = Lease { cgroup: Some(root.path().to_owned()), ..lease("group", 1) };
        let by_descent = lease("descent", me);
        let members = Members::of(&node, &[lease("stranger", 1), in_group.clone()]);
        assert_eq!(members.lease_of(me), Some(LeaseId::from("group")), "whatever else it looks like");
        assert!(members.contradictions().is_empty());
        let members = Members::of(&node, &[by_descent, in_group.clone()]);
        assert_eq!(members.lease_of(me), Some(LeaseId::from("descent")), "it was put into the group");
        let said = members.contradictions().remove(&me).unwrap();
        assert_eq!(
            said.report(7, |lease| format!("task {lease}")),
            "process 7 descends from task descent and is in the control group of task group: it counts for task descent"
        );
        // An agent owns both: that says nothing about which of its tasks it is.
        let group = Lease { owner: cantle_runtime::holder_of(me).unwrap(), ..in_group.clone() };
        let members = Members::of(&node, &[lease("another", me), group]);
        assert_eq!(members.lease_of(me), Some(LeaseId::from("group")));
        assert!(members.contradictions().is_empty());
        assert_eq!(Members::default().and(&[in_group]).lease_of(me), None, "of another user");
    }

    #[test]
    fn a_reused_pid_is_nobodys_root() {
        let (_root, node) = node();
        let me = std::process::id();
        let mut stale = lease("stale", me);
        stale.owner.start_ticks += 1;
        assert_eq!(Members::of(&node, &[stale]).lease_of(me), None);
    }

    #[test]
    fn a_process_sees_its_own_pid_here() {
        let me = std::process::id();
        assert_eq!(own_view(me), Some(me));
    }
}
