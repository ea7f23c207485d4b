//! Where a task may come back, and how much host memory may be parked.

use cantle_model::{
    Bytes, ComputeRequest, Gpu, GpuRequest, Isolation, Lease, QueueSpec, QueueWant, Slice, Suspension, TaskId,
};
use cantle_runtime::files;
use cantle_sched::{Policy, Waiting};

use super::{Result, SuspendError, Suspender};
use crate::NodeError;
use crate::capacity::{self, Lent};
use crate::clock::now_ms;
use crate::host::main_memory;
use crate::store::{Locked, NodeStore};

/// The file with the budget that the node's agent was given.
const BUDGET: &str = "parked-memory";

/// The budget of host memory for suspended tasks that the node's agent was given, in bytes; none if it was given none.
///
/// # Errors
/// If it cannot be read.
pub fn budget(node: &NodeStore) -> Result<Option<u64>> {
    Ok(files::read_json(&node.dir().join(BUDGET))?)
}

impl NodeStore {
    /// Notes the budget of host memory for suspended tasks, in bytes; none: what the kernel calls available.
    ///
    /// # Errors
    /// Names the file that cannot be written.
    pub fn set_parked_memory(&self, bytes: Option<u64>) -> Result<()> {
        let path = self.dir().join(BUDGET);
        match bytes {
            Some(bytes) => Ok(files::write_json(&path, &bytes, files::Durability::Crash)?),
            None => Ok(files::remove(&path)?),
        }
    }
}

/// The leases of suspended tasks, and since when each one is out with how much host memory.
pub fn suspended(leases: &[Lease]) -> impl Iterator<Item = (&Lease, &Suspension)> {
    // The lease of a task that has ended goes with the next decision.
    let lives =
        |lease: &&Lease| [Some(lease.owner), lease.leader].iter().flatten().any(cantle_runtime::alive);
    leases.iter().filter(lives).filter_map(|lease| {
        let suspension = lease.suspension.as_ref().filter(|suspension| suspension.is_suspended())?;
        Some((lease, suspension))
    })
}

/// Is there host memory for this much more?
pub(super) fn check_room(locked: &Locked<'_>, lease: &Lease, needed: u64, budget: Option<u64>) -> Result<()> {
    let parked = locked.leases()?.into_iter().filter_map(|lease| lease.suspension);
    let parked: u64 = parked.map(|suspension| suspension.parked_bytes).sum();
    let task = lease.task.clone();
    if let Some(budget) = budget {
        let free = budget.saturating_sub(parked);
        if needed > free || budget == 0 {
            let (needed, free, budget) = (Bytes(needed), Bytes(free), Bytes(budget));
            return Err(SuspendError::Budget { task, needed, free, budget }.into());
        }
    }
    // The kernel knows already of what is parked.
    match main_memory("MemAvailable") {
        Some(free) if needed > free => {
            Err(SuspendError::HostMemory { task, needed: Bytes(needed), free: Bytes(free) }.into())
        }
        _ => Ok(()),
    }
}

/// A suspended task as the scheduler sees it: it waits for slices like those that it had.
#[must_use]
pub fn waits_again(lease: &Lease, like: &[Slice]) -> Waiting {
    let bytes = like.first().map_or(0, |slice| slice.memory_limit_bytes);
    let mut waiting =
        Waiting::new(lease.task.clone(), lease.placed_ms).wanting(GpuRequest::Memory(Bytes(bytes)));
    waiting.isolation = Isolation::Shared;
    if let Some(share) = lease.compute {
        waiting.compute = ComputeRequest {
            mode: share.mode,
            request: Some(share.request_milli),
            limit: share.limit_milli.filter(|_| share.mode != cantle_model::ComputeMode::Strict),
        };
    }
    waiting
}

impl Suspender<'_> {
    /// Reserves slices for a suspended task: where it was, else on another GPU of the same kind, or only on `to`.
    pub(super) fn return_to(&self, lease: Lease, suspension: &Suspension, to: Option<&Gpu>) -> Result<Lease> {
        let was_on = |gpu: &&Gpu| suspension.slices.iter().any(|slice| slice.gpu == gpu.uuid);
        if let Some(to) = to.filter(|to| !was_on(to)) {
            self.refuse_move(&lease, to)?;
        }
        let candidates = to.map_or_else(|| self.places(&lease, suspension), |to| vec![to]);
        let mut why = "its GPU is not there".to_owned();
        for gpu in candidates {
            let locked = self.node.lock()?;
            match self.place(&locked, &lease, &suspension.slices, std::slice::from_ref(gpu))? {
                Ok(slices) => match self.is_free(gpu, suspension.parked_bytes)? {
                    None => return super::reserve(&locked, lease, slices),
                    Some(lack) => why = lack,
                },
                Err(lack) => why = lack,
            }
        }
        Err(SuspendError::NoRoom { task: lease.task, why }.into())
    }

    /// The GPUs where a suspended task may go on: where it was first, then others of the same kind.
    #[must_use]
    pub fn places(&self, lease: &Lease, suspension: &Suspension) -> Vec<&Gpu> {
        let was_on = |gpu: &&Gpu| suspension.slices.iter().any(|slice| slice.gpu == gpu.uuid);
        let may = |gpu: &&Gpu| !was_on(gpu) && self.refuse_move(lease, gpu).is_ok();
        self.gpus.iter().filter(was_on).chain(self.gpus.iter().filter(may)).collect()
    }

    /// Reserves slices that the caller has planned for a suspended task; [`super::Recovery`] brings it back into them. `false`: not now, because
    /// another program changes a task of this node, or the driver has less memory free than comes back.
    ///
    /// # Errors
    /// If the driver does not answer, or the lease cannot be written.
    pub fn begin_return(&self, locked: &Locked<'_>, lease: Lease, slices: Vec<Slice>) -> Result<bool> {
        let Some(_alone) = self.try_alone()? else { return Ok(false) };
        let parked_bytes = super::parked_bytes(&lease);
        for slice in &slices {
            let Some(gpu) = self.gpus.iter().find(|gpu| gpu.uuid == slice.gpu) else { return Ok(false) };
            if self.is_free(gpu, parked_bytes)?.is_some() {
                return Ok(false);
            }
        }
        super::reserve(locked, lease, slices).map(|_| true)
    }

    /// A restore that meets a full GPU is final. So the driver is asked first; what it lacks.
    fn is_free(&self, gpu: &Gpu, bytes: u64) -> Result<Option<String>> {
        let free = self.driver.memory(&gpu.uuid)?.free_bytes;
        let lacks = free < bytes;
        Ok(lacks
            .then(|| format!("GPU {} has {} free, and {} come back", gpu.index, Bytes(free), Bytes(bytes))))
    }

    /// Asks the scheduler for slices like these on one of `gpus`; the reason if there is no room.
    pub(super) fn place(
        &self,
        locked: &Locked<'_>,
        lease: &Lease,
        like: &[Slice],
        gpus: &[Gpu],
    ) -> Result<Result<Vec<Slice>, String>> {
        let now = now_ms();
        // For the scheduler it is another task: the one of that name has a lease already.
        let mut waiting = waits_again(lease, like);
        waiting.task = TaskId(format!("{}-resumed", lease.task));
        let spec = QueueSpec { name: "resume".to_owned(), want: QueueWant::Task };
        let leases = locked.sweep()?;
        let world = capacity::describe(self.driver, locked.node(), "here", (gpus, Lent::Taken), &leases);
        let world = world.queue(spec, vec![waiting]).build();
        let decided = cantle_decide::decide(&world, &Policy::default(), now).map_err(NodeError::from)?;
        if let Some(wait) = decided.waits.into_iter().next() {
            return Ok(Err(wait.reason.to_string()));
        }
        Ok(Ok(decided.starts.into_iter().next().map(|start| start.slices).unwrap_or_default()))
    }
}
