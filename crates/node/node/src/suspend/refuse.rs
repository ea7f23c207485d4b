//! Cases that the driver cannot suspend or move, refused before anything is touched.

use cantle_driver::{CHECKPOINTS_FROM, MOVES_FROM, SHARED_FROM};
use cantle_ledger::Uses;
use cantle_ledger::host::Observer;
use cantle_model::{Gpu, Lease, Slice};

use super::{Result, SuspendError, Suspender};

impl Suspender<'_> {
    /// Refuses what the driver cannot do, before anything is touched.
    pub(super) fn refuse(&self, lease: &Lease, what: &'static str) -> Result<()> {
        let refused = |why: String| Err(SuspendError::Refused { task: lease.task.clone(), what, why }.into());
        if lease.suspension.is_some() {
            return Err(SuspendError::Already(lease.task.clone()).into());
        }
        only_slice(lease, what)?;
        if lease.host.is_some() {
            return refused(
                "its main memory is limited (cpu auto), and has no room for its GPU memory".to_owned(),
            );
        }
        let version = self.driver.versions().driver;
        let branch = branch_of(&version);
        if !cfg!(target_arch = "x86_64") {
            return refused("the driver suspends processes on x86-64 only".to_owned());
        }
        if branch < CHECKPOINTS_FROM {
            return refused(format!(
                "driver {version} is older than {CHECKPOINTS_FROM}, the first that suspends"
            ));
        }
        self.refuse_uses(lease, branch).map_or(Ok(()), refused)
    }

    /// A use that the filter has seen in the task and that the driver cannot suspend.
    fn refuse_uses(&self, lease: &Lease, branch: u32) -> Option<String> {
        let region =
            Observer::open(&self.node.slice_dir(&lease.id)).and_then(|region| region.snapshot()).ok()?;
        let alive = |uses: Uses| region.processes.iter().find(|process| process.alive && process.uses(uses));
        if let Some(process) = alive(Uses::Managed) {
            let pid = process.pid;
            return Some(format!(
                "its process {pid} has managed memory (cuMemAllocManaged), which the driver cannot suspend"
            ));
        }
        let shares = alive(Uses::Shared).filter(|_| branch < SHARED_FROM)?;
        Some(format!(
            "its process {} shares GPU memory with another one (CUDA IPC), which drivers before {SHARED_FROM} cannot suspend",
            shares.pid
        ))
    }

    pub(super) fn refuse_move(&self, lease: &Lease, to: &Gpu) -> Result<()> {
        let refused =
            |why: String| Err(SuspendError::Refused { task: lease.task.clone(), what: "moved", why }.into());
        let slices = lease.suspension.as_ref().map_or(&lease.slices, |suspension| &suspension.slices);
        let from = slices.first().and_then(|slice| self.gpus.iter().find(|gpu| gpu.uuid == slice.gpu));
        let Some(from) = from else { return refused("its GPU is not there".to_owned()) };
        if from.uuid == to.uuid {
            return refused(format!("it is on GPU {} already", to.index));
        }
        if to.mig || from.model != to.model {
            let mode = if to.mig { " in MIG mode" } else { "" };
            return refused(format!(
                "GPU {} is a {}{mode}, and the driver restores only on another {}",
                to.index, to.model, from.model
            ));
        }
        let version = self.driver.versions().driver;
        if branch_of(&version) < MOVES_FROM {
            return refused(format!(
                "driver {version} is older than {MOVES_FROM}, the first that restores on another GPU"
            ));
        }
        match super::nodes::of_task(lease) {
            Err(why) => refused(super::nodes::refusal(&why)),
            Ok(_) => Ok(()),
        }
    }
}

/// The slice of a running task that has one, of a GPU that is no MIG instance.
pub(super) fn only_slice<'a>(lease: &'a Lease, what: &'static str) -> Result<&'a Slice> {
    let refused =
        |why: &str| Err(SuspendError::Refused { task: lease.task.clone(), what, why: why.to_owned() }.into());
    match lease.slices.as_slice() {
        [] => refused("it has no slice of a GPU"),
        _ if lease.leader.is_none() => refused("it has not started yet"),
        _ if lease.kept => refused("its slice belongs to a claim of the cluster"),
        [slice] if slice.mig.is_some() => refused("it has a MIG instance"),
        [slice] => Ok(slice),
        _ => refused("it has slices of several GPUs"),
    }
}

/// The branch of a driver's version: 580 of `580.95.05`.
fn branch_of(version: &str) -> u32 {
    version.split('.').next().and_then(|branch| branch.parse().ok()).unwrap_or(0)
}
