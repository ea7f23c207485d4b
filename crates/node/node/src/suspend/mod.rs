//! Suspends a running task, resumes it, on another GPU too, and changes the size of its slice
//! ([ADR 0085](../../../../../docs/adr/0085-memory-is-free-when-the-driver-says-so.md)).
//!
//! ```text
//! running ─► suspending ─► suspended ─► resuming ─► running
//!             slices kept    no slices    slices reserved first
//! ```
//!
//! The lease on disk names each step before it begins. Its slices are given back only when the driver reports that every process of the task
//! is checkpointed, and are reserved again before the first one is restored. One program at a time does this on a node, under a kernel lock. If it
//! dies, the lock is free, and the next one brings each step that it finds to its end ([`Suspender::recover`]).

mod alone;
mod error;
mod in_use;
mod nodes;
mod place;
mod process;
mod recovery;
mod refuse;
mod resize;

use std::thread;
use std::time::Duration;

use cantle_driver::Driver;
use cantle_ledger::host::Observer;
use cantle_model::{Gpu, GpuUuid, Lease, LeaseId, Slice, Suspension, SuspensionStep};
use cantle_runtime::{Cgroup, end_now};
use tokio::time::Instant;

use crate::burst;
use crate::clock::now_ms;
use crate::launch::new_lease;
use crate::store::{Locked, NodeStore};
use crate::{NodeError, gpu_uuid_bytes, renew_driver_limits};

pub(crate) use alone::Alone;
pub use error::SuspendError;
pub(crate) use in_use::in_use_bytes;
pub use place::{budget, suspended, waits_again};
pub use process::CheckpointHelper;
pub(crate) use recovery::bring_back;
pub use recovery::{Recovery, make_room};

use in_use::holders;
use process::Thawed;

/// How long the work in flight may take until a lock gives up, unless the user says otherwise.
pub const LOCK_LIMIT: Duration = Duration::from_secs(10);

type Result<T, E = NodeError> = std::result::Result<T, E>;

/// Suspends and resumes the tasks of a node.
pub struct Suspender<'a> {
    /// The GPUs' driver.
    pub driver: &'a dyn Driver,
    /// The node's leases.
    pub node: &'a NodeStore,
    /// All GPUs of the machine.
    pub gpus: &'a [Gpu],
    /// The process that calls the driver's checkpoint functions.
    pub helper: &'a mut CheckpointHelper,
    /// The host memory that suspended tasks may take in sum, in bytes; none: what the kernel calls available.
    pub parked_memory: Option<u64>,
    /// How long the work in flight may take until a lock gives up.
    pub lock_limit: Duration,
}

/// The actor that lets a suspended task go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    /// A person.
    UntilResumed,
    /// The agent, when there is room.
    ForAnother,
}

impl Suspender<'_> {
    /// Suspends a task. Returns its lease, which has no slices then.
    ///
    /// # Errors
    /// [`SuspendError`] says why not, and what has become of the task.
    pub fn suspend(&mut self, id: &LeaseId) -> Result<Lease> {
        self.suspend_as(id, Out::UntilResumed)
    }

    fn suspend_as(&mut self, id: &LeaseId, out: Out) -> Result<Lease> {
        let _alone = self.alone()?;
        self.recover_alone()?;
        let lease = self.lease(id)?;
        self.refuse(&lease, "suspended")?;
        let lease = self.stop(lease, out)?;
        self.park(lease)
    }

    /// Resumes a suspended task, where it was or where there is room, or on the GPU `to`.
    ///
    /// # Errors
    /// As [`Suspender::suspend`].
    pub fn resume(&mut self, id: &LeaseId, to: Option<&Gpu>) -> Result<Lease> {
        let _alone = self.alone()?;
        self.recover_alone()?;
        let lease = self.lease(id)?;
        match suspension_of(&lease) {
            Some(suspension) => self.resume_alone(lease, &suspension, to),
            None => Err(SuspendError::NotSuspended(lease.task).into()),
        }
    }

    fn resume_alone(&mut self, lease: Lease, suspension: &Suspension, to: Option<&Gpu>) -> Result<Lease> {
        let lease = self.return_to(lease, suspension, to)?;
        self.bring_back(lease)
    }

    /// Moves a task, running or suspended, to the GPU `to`.
    ///
    /// # Errors
    /// As [`Suspender::suspend`].
    pub fn move_to(&mut self, id: &LeaseId, to: &Gpu) -> Result<Lease> {
        let _alone = self.alone()?;
        self.recover_alone()?;
        let lease = self.lease(id)?;
        if let Some(suspension) = suspension_of(&lease) {
            return self.resume_alone(lease, &suspension, Some(to));
        }
        self.refuse(&lease, "moved")?;
        self.refuse_move(&lease, to)?;
        let target = self.hold_target(&lease, to)?;
        let moved = self.stop(lease, Out::UntilResumed).and_then(|lease| {
            let locked = self.node.lock()?;
            let lease = reserve(&locked, lease, target.slices.clone())?;
            locked.retire(&target)?;
            drop(locked);
            self.bring_back(lease)
        });
        if moved.is_err() {
            // Nothing if it is gone already.
            self.node.lock()?.retire(&target)?;
        }
        moved
    }

    /// Brings every step that a dead program has left unfinished to an end, if no living one is at work.
    ///
    /// # Errors
    /// If the leases cannot be read, or the driver does not answer.
    pub fn recover(&mut self) -> Result<()> {
        match self.try_alone()? {
            Some(_alone) => self.recover_alone(),
            None => Ok(()),
        }
    }

    fn recover_alone(&mut self) -> Result<()> {
        // The lock ends with its line: each step takes it separately.
        let leases = self.node.lock()?.sweep()?;
        for lease in leases.into_iter().filter(is_unfinished) {
            self.helper.is_unsure = true;
            let step = lease.suspension.as_ref().map(|suspension| suspension.step);
            let done = match step {
                Some(SuspensionStep::Suspending) => {
                    self.undo(lease, "the program that suspended it has ended".to_owned())
                }
                _ => self
                    .bring_back(lease)
                    .map_or_else(|error| error, |lease| SuspendError::NotSuspended(lease.task).into()),
            };
            if let NodeError::Suspend(SuspendError::Unfinished { .. }) = done {
                return Err(done);
            }
        }
        Ok(())
    }

    fn lease(&self, id: &LeaseId) -> Result<Lease> {
        self.node.lease(id)?.ok_or_else(|| NodeError::LeaseGone(id.clone()))
    }

    fn alone(&self) -> Result<Alone> {
        Alone::on(self.node)
    }

    fn try_alone(&self) -> Result<Option<Alone>> {
        Alone::try_on(self.node)
    }

    /// Stops all processes of a task and brings their memory to the host. The lease keeps its slices.
    fn stop(&mut self, lease: Lease, out: Out) -> Result<Lease> {
        let holds = self.holders(&lease)?;
        let needed: u64 = holds.iter().map(|held| held.bytes).sum();
        let mut lease = self.book(lease, needed, out)?;
        let region = Observer::open(&self.node.slice_dir(&lease.id));
        let stopped = region.map_err(NodeError::from).and_then(|region| {
            region.close()?;
            self.freeze(&mut lease)
        });
        match stopped {
            Ok(()) => Ok(lease),
            Err(error) => Err(self.undo(lease, error.to_string())),
        }
    }

    /// Locks and checkpoints, until no process of the task has memory on a GPU. All locks have one deadline.
    fn freeze(&mut self, lease: &mut Lease) -> Result<()> {
        let end = Instant::now() + self.lock_limit;
        loop {
            let known = processes_of(lease);
            let fresh: Vec<_> =
                self.holders(lease)?.into_iter().filter(|held| !known.contains(&held.process)).collect();
            if fresh.is_empty() {
                return Ok(());
            }
            let Some(suspension) = &mut lease.suspension else { return Ok(()) };
            let left_ms = end.saturating_duration_since(Instant::now()).as_millis();
            suspension.locks_until_ms = now_ms() + i64::try_from(left_ms).unwrap_or(0);
            suspension.processes.extend(fresh.iter().map(|held| held.process));
            let sum = fresh.iter().map(|held| held.bytes).sum();
            suspension.parked_bytes = suspension.parked_bytes.max(sum);
            self.node.lock()?.put(lease)?;
            for held in &fresh {
                let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                self.helper.lock(self.driver, held, left)?;
            }
            for held in &fresh {
                self.helper.checkpoint(self.driver, held)?;
            }
        }
    }

    /// The task is out: its slices are free.
    fn park(&self, mut lease: Lease) -> Result<Lease> {
        let locked = self.node.lock()?;
        lease.slices.clear();
        lease.changes += 1;
        if let Some(suspension) = &mut lease.suspension {
            suspension.step = SuspensionStep::Suspended;
        }
        locked.put(&lease)?;
        Ok(lease)
    }

    /// Lets a task run on that could not be stopped; returns the error that reports this.
    fn undo(&mut self, mut lease: Lease, why: String) -> NodeError {
        let task = lease.task.clone();
        let mut thawed = self.thaw_all(&lease).and_then(|thawed| self.reopen(&lease).map(|()| thawed));
        if self.helper.is_unsure && matches!(thawed, Ok(Thawed::Runs)) {
            // A lock whose caller has died takes effect up to its deadline.
            thread::sleep(locks_left(&lease));
            thawed = self.thaw_all(&lease);
        }
        match thawed {
            Ok(Thawed::Runs) => {}
            Ok(Thawed::Failed) => return self.lose(lease, &why),
            Err(error) => return SuspendError::Unfinished { task, why: format!("{why}; {error}") }.into(),
        }
        lease.suspension = None;
        let put = self.node.lock().and_then(|locked| locked.put(&lease));
        put.map_or_else(|error| error, |()| SuspendError::Undone { task, why }.into())
    }

    fn thaw_all(&mut self, lease: &Lease) -> Result<Thawed> {
        for process in &processes_of(lease) {
            if self.helper.thaw(self.driver, process, parked_bytes(lease))? == Thawed::Failed {
                return Ok(Thawed::Failed);
            }
        }
        Ok(Thawed::Runs)
    }

    /// The driver has lost the task's memory: it is ended, and its slices stay reserved until it is gone.
    fn lose(&self, mut lease: Lease, why: &str) -> NodeError {
        let why = format!("the driver lost its GPU memory: {why}");
        if let Some(suspension) = &mut lease.suspension {
            suspension.step = SuspensionStep::Failed;
            suspension.reason = Some(why.clone());
        }
        if let Err(error) = self.node.lock().and_then(|locked| locked.put(&lease)) {
            tracing::error!(lease = %lease.id, %error, "the reason of a task's end cannot be noted");
        }
        if let Some(cgroup) = &lease.cgroup {
            Cgroup::at(cgroup).kill();
        }
        lease.leader.iter().chain(&processes_of(&lease)).for_each(end_now);
        SuspendError::Lost { task: lease.task, why }.into()
    }

    /// Restores all processes of a task in its reserved slices, and lets them run.
    fn bring_back(&mut self, mut lease: Lease) -> Result<Lease> {
        let Some(suspension) = lease.suspension.clone() else { return Ok(lease) };
        let moves: Vec<(GpuUuid, GpuUuid)> = suspension
            .slices
            .iter()
            .zip(&lease.slices)
            .filter(|(old, new)| old.gpu != new.gpu)
            .map(|(old, new)| (old.gpu.clone(), new.gpu.clone()))
            .collect();
        if lease.native_limit
            && let Err(error) = renew_driver_limits(self.driver, &lease, self.gpus)
        {
            return Err(self.back_out(lease, &error.to_string()));
        }
        if let Err(error) = self.add_nodes(&lease, &moves) {
            return Err(self.back_out(lease, &error.to_string()));
        }
        for process in &suspension.processes {
            match self.helper.restore(self.driver, process, suspension.parked_bytes, &moves) {
                Ok(Thawed::Runs) => {}
                Ok(Thawed::Failed) => return Err(self.lose(lease, "its restore failed")),
                Err(error) => return Err(self.back_out(lease, &error.to_string())),
            }
        }
        if let Err(error) = self.remove_nodes(&lease, &moves) {
            return Err(self.back_out(lease, &error.to_string()));
        }
        self.follow(&lease, &moves)?;
        self.reopen(&lease)?;
        match self.thaw_all(&lease) {
            Ok(Thawed::Runs) => {}
            Ok(Thawed::Failed) => return Err(self.lose(lease, "it did not run again")),
            Err(error) => {
                return Err(SuspendError::Unfinished { task: lease.task, why: error.to_string() }.into());
            }
        }
        lease.suspension = None;
        self.node.lock()?.put(&lease)?;
        Ok(lease)
    }

    /// A task that could not come back, and is not lost, stays out.
    fn back_out(&mut self, mut lease: Lease, why: &str) -> NodeError {
        let task = lease.task.clone();
        for process in &processes_of(&lease) {
            if let Err(error) = self.helper.checkpoint_again(self.driver, process, parked_bytes(&lease)) {
                return SuspendError::Unfinished { task, why: format!("{why}; {error}") }.into();
            }
        }
        if let Some(suspension) = &mut lease.suspension {
            lease.slices.clear();
            suspension.step = SuspensionStep::Suspended;
        }
        lease.changes += 1;
        match self.node.lock().and_then(|locked| locked.put(&lease)) {
            Ok(()) => SuspendError::NoRoom { task, why: why.to_owned() }.into(),
            Err(error) => error,
        }
    }

    /// The accounting follows to the new GPU.
    fn follow(&self, lease: &Lease, moves: &[(GpuUuid, GpuUuid)]) -> Result<()> {
        let region = Observer::open(&self.node.slice_dir(&lease.id))?;
        for (old, new) in moves {
            let bytes =
                |gpu: &GpuUuid| gpu_uuid_bytes(&gpu.0).ok_or_else(|| NodeError::BadUuid(gpu.0.clone()));
            let (old, new) = (bytes(old)?, bytes(new)?);
            // Done already by a program that died then.
            if region.snapshot()?.gpus.iter().all(|gpu| gpu.uuid != new) {
                region.replace_gpu(&old, &new)?;
            }
        }
        Ok(())
    }

    fn reopen(&self, lease: &Lease) -> Result<()> {
        let region = Observer::open(&self.node.slice_dir(&lease.id))?;
        // Nothing is lent to it now.
        for slice in lease.slices.iter().filter(|_| lease.burst.is_some()) {
            let uuid =
                gpu_uuid_bytes(slice.device()).ok_or_else(|| NodeError::BadUuid(slice.gpu.0.clone()))?;
            region.set_limit(&uuid, slice.memory_limit_bytes)?;
        }
        burst::note(self.node, lease)?;
        Ok(region.reopen()?)
    }

    fn holders(&self, lease: &Lease) -> Result<Vec<process::Holding>> {
        holders(self.driver, self.node, lease)
    }

    /// A second lease that holds the room on the GPU to which a task moves. It ends with this process.
    fn hold_target(&self, lease: &Lease, to: &Gpu) -> Result<Lease> {
        let locked = self.node.lock()?;
        let slices = self.place(&locked, lease, &lease.slices, std::slice::from_ref(to))?;
        let slices = slices.map_err(|why| SuspendError::NoRoom { task: lease.task.clone(), why })?;
        let target = new_lease(lease.task.clone(), lease.name.clone(), lease.queue.clone(), slices);
        locked.put(&target)?;
        Ok(target)
    }

    /// Notes that a task is about to be suspended, if its memory has room on the host.
    fn book(&self, mut lease: Lease, needed: u64, out: Out) -> Result<Lease> {
        let locked = self.node.lock()?;
        place::check_room(&locked, &lease, needed, self.parked_memory)?;
        let mut slices = lease.slices.clone();
        if let Some(burst) = &mut lease.burst {
            // It comes back with what it uses: no more is lent to it then.
            slices.iter_mut().for_each(|slice| slice.memory_limit_bytes = burst.needed_bytes(needed));
            burst.recall = None;
        }
        lease.suspension = Some(Suspension {
            step: SuspensionStep::Suspending,
            slices,
            parked_bytes: needed,
            since_ms: now_ms(),
            locks_until_ms: 0,
            processes: Vec::new(),
            yields: out == Out::ForAnother,
            reason: None,
        });
        locked.put(&lease)?;
        Ok(lease)
    }
}

/// Reserves slices for a task that comes back.
fn reserve(locked: &Locked<'_>, mut lease: Lease, slices: Vec<Slice>) -> Result<Lease> {
    lease.slices = slices;
    lease.changes += 1;
    if let Some(suspension) = &mut lease.suspension {
        suspension.step = SuspensionStep::Resuming;
    }
    locked.put(&lease)?;
    Ok(lease)
}

fn suspension_of(lease: &Lease) -> Option<Suspension> {
    lease.suspension.clone().filter(Suspension::is_suspended)
}

fn is_unfinished(lease: &Lease) -> bool {
    lease.suspension.as_ref().is_some_and(|suspension| {
        matches!(suspension.step, SuspensionStep::Suspending | SuspensionStep::Resuming)
    })
}

/// How long a lock that was begun may still take effect. A clock that was set changes little: no lock takes longer than an hour.
fn locks_left(lease: &Lease) -> Duration {
    const MARGIN_MS: i64 = 300;
    let until_ms = lease.suspension.as_ref().map_or(0, |suspension| suspension.locks_until_ms);
    let left_ms = (until_ms + MARGIN_MS).saturating_sub(now_ms()).clamp(0, 3_600_000);
    Duration::from_millis(left_ms.unsigned_abs())
}

fn processes_of(lease: &Lease) -> Vec<cantle_model::Holder> {
    lease.suspension.iter().flat_map(|suspension| suspension.processes.iter().copied()).collect()
}

fn parked_bytes(lease: &Lease) -> u64 {
    lease.suspension.as_ref().map_or(0, |suspension| suspension.parked_bytes)
}
