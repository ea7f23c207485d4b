//! Looks at what the tasks of a cluster really hold, and ends those that hold what is not theirs.

use std::sync::PoisonError;

use cantle_model::{Lease, LeaseId};
use tokio::time::Instant;

use super::AllocatableGpus;
use crate::NodeError;
use crate::members::Members;
use crate::watchdog::Finding;

impl AllocatableGpus {
    /// Checks what the tasks really hold. A task that holds memory outside its slice is reported, and killed after a second;
    /// returns the lease and what was found.
    pub fn watch(&self) -> Vec<(Lease, String)> {
        if let Ok(active) = self.active() {
            self.meter.lock().unwrap_or_else(PoisonError::into_inner).look(&self.node, &active);
        }
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        // If they cannot be read, those that were active at the last poll.
        let active = self.active().unwrap_or_else(|_| watchdog.kept());
        let ours = |id: &LeaseId| active.iter().any(|lease| lease.id == *id);
        let findings = watchdog.scan(self.driver.as_ref(), &self.node, &self.gpus, ours, Instant::now());
        let reports = findings.into_iter().filter_map(|(id, finding)| {
            let lease = active.iter().find(|lease| lease.id == id)?.clone();
            let what = match finding {
                Finding::Suspect(why) | Finding::Trouble(why) => why,
                Finding::Guilty(why) => {
                    self.kill(&id, &active);
                    format!("killed: {why} (cantle explain watchdog-kill)")
                }
            };
            Some((lease, what))
        });
        reports.collect()
    }

    /// Kills the task's processes on GPUs; its container's restart policy decides what happens then.
    fn kill(&self, id: &LeaseId, active: &[Lease]) {
        let members = Members::of(&self.node, active);
        for gpu in &self.gpus {
            let processes = self.driver.processes(&gpu.uuid).unwrap_or_else(|error| {
                tracing::warn!(lease = %id, gpu = gpu.index, %error, "its processes on a GPU are not known, and live on");
                Vec::new()
            });
            let theirs =
                processes.iter().filter(|process| members.lease_of(process.pid).as_ref() == Some(id));
            let holders = theirs.filter_map(|process| cantle_runtime::holder_of(process.pid));
            holders.for_each(|holder| cantle_runtime::end_now(&holder));
        }
    }

    /// Ends an allocation that the cluster does not know any more: its processes on GPUs are killed first, because the cluster
    /// gives their memory to others. Without a slice, new ones get no GPU.
    ///
    /// # Errors
    /// Names what could not be read or removed.
    pub fn end(&self, id: &LeaseId) -> Result<(), NodeError> {
        self.kill(id, &self.active()?);
        self.release(id)
    }
}
