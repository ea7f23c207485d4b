//! The watchdog's copies of the leases. A copy never changes: a lease file that is changed, damaged or removed later
//! changes no limit and hides no task.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{GpuUuid, Lease, LeaseId, Slice};

use crate::store::NodeStore;

#[derive(Debug, Default)]
pub(super) struct Remembered {
    leases: BTreeMap<LeaseId, Lease>,
    reported: BTreeSet<LeaseId>,
}

impl Remembered {
    /// The node's leases. A lease of `ours` stays as long as its task, independent of the disk; if nothing can be read, all
    /// leases stay.
    pub(super) fn read(&mut self, node: &NodeStore, ours: impl Fn(&LeaseId) -> bool) -> Vec<Lease> {
        match node.leases() {
            Ok(found) => {
                self.leases.retain(|id, _| ours(id) || found.iter().any(|lease| lease.id == *id));
                found.into_iter().for_each(|lease| self.take(lease));
                self.reported.retain(|id| self.leases.contains_key(id));
            }
            Err(error) => {
                tracing::error!(%error, "the watchdog cannot read the leases and uses those that it knows");
            }
        }
        self.all().cloned().collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    /// A program that suspends a task, resumes it or changes its size counts that in the lease.
    fn take(&mut self, found: Lease) {
        let id = found.id.clone();
        let known = self.leases.get(&id).filter(|known| has_started(known));
        let is_changed = |known: &&Lease| bounds(known) != bounds(&found) && known.changes >= found.changes;
        let Some(known) = known.filter(is_changed) else {
            self.leases.insert(id, found);
            return;
        };
        if self.reported.insert(id.clone()) {
            let (then, now) = (format!("{:?}", bounds(known)), format!("{:?}", bounds(&found)));
            tracing::error!(lease = %id, then, now, "a lease was changed while its task runs; the first version applies");
        }
    }
}

/// Before, the slices may still change: an instance gets its name when it is made.
const fn has_started(lease: &Lease) -> bool {
    lease.leader.is_some() || lease.kept
}

/// The limits of a task from its lease. Of an instance the hardware does.
fn bounds(lease: &Lease) -> BTreeMap<&GpuUuid, u64> {
    let slices = lease.slices.iter().filter(|slice| slice.mig.is_none());
    slices.map(|Slice { gpu, memory_limit_bytes, .. }| (gpu, *memory_limit_bytes)).collect()
}

#[cfg(test)]
mod tests {
    use cantle_model::Milli;

    use super::*;
    use crate::members::tests::lease_of;

    fn lease(limit_bytes: u64) -> Lease {
        let slice =
            Slice { gpu: "GPU-a".into(), milli: Milli(250), memory_limit_bytes: limit_bytes, mig: None };
        let leader = cantle_runtime::holder_of(std::process::id());
        Lease { leader, ..lease_of("a", 1, vec![slice]) }
    }

    fn limit(leases: &[Lease]) -> Option<u64> {
        leases.first().map(|lease| lease.slices[0].memory_limit_bytes)
    }

    #[test]
    fn what_a_lease_said_first_holds() {
        let root = tempfile::tempdir().unwrap();
        let node = NodeStore::open(root.path()).unwrap();
        let mut remembered = Remembered::default();
        node.lock().unwrap().put(&lease(10)).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(10));
        node.lock().unwrap().put(&lease(1000)).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(10), "raised");
        node.lock().unwrap().put(&Lease { changes: 1, ..lease(20) }).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(20), "resized");
        node.lock().unwrap().put(&lease(10)).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(20), "the former lease, put back");
        node.lock().unwrap().put(&Lease { changes: 2, ..lease(10) }).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(10), "resized again");
        let path = root.path().join("leases/a.json");
        std::fs::write(&path, "{").unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(10), "spoiled");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(10), "removed, and its task runs");
        std::fs::rename(root.path().join("leases"), root.path().join("elsewhere")).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| true)), Some(10), "nothing can be read");
        std::fs::rename(root.path().join("elsewhere"), root.path().join("leases")).unwrap();
        assert_eq!(limit(&remembered.read(&node, |_| false)), None, "its task has ended");
    }
}
