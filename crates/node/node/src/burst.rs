//! Lends free memory of a GPU to slices whose limit is above their request, and takes it back for tasks that start
//! ([ADR 0091](../../../../docs/adr/0091-memory-beyond-a-request-is-lent.md)).
//!
//! The limits of all slices of a GPU never exceed its memory in sum, lent memory included. So a task that runs always gets what it was
//! allocated, and only one that starts may have to wait for memory that is lent and in use. Lent memory that is not in use is
//! taken back at once. For the rest the borrower gets a [`Recall`] with a time; then its owner suspends it or ends it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::Duration;

use cantle_driver::Driver;
use cantle_ledger::host::Observer;
use cantle_model::{Burst, Bytes, GRANULE_BYTES, Gpu, Lease, LeaseId, Recall, Share, Slice, TaskId};
use serde::Serialize;
use tokio::time::Instant;

use crate::clock::now_ms;
use crate::members::Members;
use crate::store::{Locked, NodeStore};
use crate::suspend::{Alone, in_use_bytes};
use crate::watchdog::end;
use crate::{NodeError, capacity, gpu_uuid_bytes, renew_driver_limits};

/// How often free memory is lent, and a task that was suspended for its loan tries to come back.
const LEND_EVERY: Duration = Duration::from_secs(1);

/// How long a task has to give memory back that was lent to it, in milliseconds.
const GIVE_BACK_MS: i64 = 10_000;

/// Free memory below this is not worth a change of a limit.
const WORTH_LENDING_BYTES: u64 = 64 << 20;

/// A task that has to give back memory that was lent to it, before another one can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Borrower {
    /// Its lease.
    pub lease: LeaseId,
    /// The task.
    pub task: TaskId,
    /// Its name for people.
    pub name: String,
    /// The memory that it has to give back, in bytes.
    pub bytes: u64,
    /// It had time to do so, and it is over.
    pub is_overdue: bool,
}

/// As a waiting reason names it.
impl std::fmt::Display for Borrower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAME_CHARS: usize = 40;
        let Self { task, name, bytes, .. } = self;
        // A command may be a whole program.
        let name: String = name.lines().next().unwrap_or_default().chars().take(NAME_CHARS).collect();
        write!(f, "{} that task {name} ({task}) uses beyond its request", Bytes(*bytes))
    }
}

/// The borrowers that use memory which a task needs to start; none of them while another program changes a task of this node, because it
/// is not known then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awaited(pub Vec<Borrower>);

/// As a waiting reason: which task has to give how much back.
impl std::fmt::Display for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.first() {
            Some(borrower) => write!(f, "waits for {borrower}"),
            None => f.write_str("waits for a task that is being suspended or resumed"),
        }
    }
}

/// The terms of new slices with this memory limit; none if it is not more than they have.
#[must_use]
pub fn burst_of(limit: Option<Bytes>, slices: &[Slice], gpus: &[Gpu]) -> Option<Burst> {
    let [slice @ Slice { mig: None, milli, memory_limit_bytes, .. }] = slices else { return None };
    let gpu = gpus.iter().find(|gpu| gpu.uuid == slice.gpu)?;
    Burst::of(Share { milli: *milli, memory_limit_bytes: *memory_limit_bytes }, limit?, gpu.memory_bytes)
}

/// Takes back what is lent of the GPUs of `slices`, as far as they need it. `None`: nothing of it is in use, and the slices may be given out.
///
/// # Errors
/// If the driver does not answer, or a lease cannot be written.
pub fn take_back(
    driver: &dyn Driver,
    locked: &Locked<'_>,
    gpus: &[Gpu],
    slices: &[Slice],
) -> Result<Option<Awaited>, NodeError> {
    let mut borrowers = Vec::new();
    for slice in slices.iter().filter(|slice| slice.mig.is_none()) {
        let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == slice.gpu) else { continue };
        let leases = locked.leases()?;
        if leases.iter().all(|lease| lease.lent_bytes(&gpu.uuid) == 0) {
            continue;
        }
        let Some(_alone) = Alone::try_on(locked.node())? else { return Ok(Some(Awaited(Vec::new()))) };
        let on = OnGpu { driver, locked, gpu };
        borrowers.extend(on.take_back(leases, slice.memory_limit_bytes)?);
    }
    Ok((!borrowers.is_empty()).then_some(Awaited(borrowers)))
}

/// Lends free memory from time to time.
#[derive(Debug, Default)]
pub struct Lender {
    lent_at: Option<Instant>,
}

impl Lender {
    /// Lends what is free of each GPU, if it is time for that. Returns whether it was.
    pub fn look(&mut self, driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu]) -> bool {
        let is_due = self.lent_at.is_none_or(|at| at.elapsed() >= LEND_EVERY);
        if is_due {
            self.lent_at = Some(Instant::now());
            if let Err(error) = lend(driver, node, gpus) {
                tracing::warn!(%error, "free GPU memory cannot be lent now");
            }
        }
        is_due
    }
}

/// Lends what is free of each GPU to the slices of running tasks that may have more than their request, in equal parts.
fn lend(driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu]) -> Result<(), NodeError> {
    let locked = node.lock()?;
    let Some(_alone) = Alone::try_on(node)? else { return Ok(()) };
    // A borrower has one GPU, so what changes on one changes nothing on the others.
    let leases = locked.leases()?;
    for gpu in gpus.iter().filter(|gpu| !gpu.mig) {
        if leases.iter().any(|lease| may_borrow(lease, gpu)) {
            OnGpu { driver, locked: &locked, gpu }.lend(leases.clone())?;
        }
    }
    Ok(())
}

/// May memory be lent to this task now?
fn may_borrow(lease: &Lease, gpu: &Gpu) -> bool {
    lease.burst.is_some()
        && lease.leader.is_some()
        && lease.suspension.is_none()
        && lease.slices.iter().any(|slice| slice.gpu == gpu.uuid)
}

/// One GPU, under the lock of the leases and the right to change running tasks.
struct OnGpu<'a> {
    driver: &'a dyn Driver,
    locked: &'a Locked<'a>,
    gpu: &'a Gpu,
}

impl OnGpu<'_> {
    fn take_back(&self, mut leases: Vec<Lease>, needed: u64) -> Result<Vec<Borrower>, NodeError> {
        let mut lack = needed.saturating_sub(self.free_and_lendable(&leases)?.0);
        leases.retain(|lease| may_borrow(lease, self.gpu));
        leases.sort_by_key(|lease| std::cmp::Reverse(lease.lent_bytes(&self.gpu.uuid)));
        for lease in &mut leases {
            let had = lease.memory_limit_on(&self.gpu.uuid);
            let lent = lease.lent_bytes(&self.gpu.uuid);
            if lack > 0 && lent > 0 {
                self.shrink(lease, had - lent.min(lack.next_multiple_of(GRANULE_BYTES)))?;
                lack = lack.saturating_sub(had - lease.memory_limit_on(&self.gpu.uuid));
            }
        }
        // Those that have been asked already go on, so that not everybody is asked in the end.
        leases.sort_by_key(|lease| {
            (recall_of(lease).is_none(), std::cmp::Reverse(lease.lent_bytes(&self.gpu.uuid)))
        });
        let mut awaited = Vec::new();
        for mut lease in leases {
            let bytes = lease.lent_bytes(&self.gpu.uuid).min(lack);
            lack -= bytes;
            let keep_bytes = lease.memory_limit_on(&self.gpu.uuid) - bytes;
            if let Some(recall) = self.recall(&mut lease, (bytes > 0).then_some(keep_bytes))? {
                let is_overdue = recall.is_overdue(now_ms());
                if is_overdue && is_abandoned(&lease) {
                    let (task, name) = (&lease.task, &lease.name);
                    tracing::error!(%task, name, "a task without its cantle run is ended: it did not give GPU memory back");
                    end(&lease);
                }
                awaited.push(Borrower {
                    lease: lease.id,
                    task: lease.task,
                    name: lease.name,
                    bytes,
                    is_overdue,
                });
            }
        }
        Ok(awaited)
    }

    fn lend(&self, mut leases: Vec<Lease>) -> Result<(), NodeError> {
        let (mut free, lendable) = self.free_and_lendable(&leases)?;
        leases.retain(|lease| may_borrow(lease, self.gpu));
        let now = now_ms();
        let stands = |lease: &Lease| recall_of(lease).is_some_and(|recall| recall.stands(now));
        if leases.iter().any(stands) {
            return Ok(());
        }
        for lease in leases.iter_mut().filter(|lease| recall_of(lease).is_some()) {
            self.recall(lease, None)?;
        }
        leases.iter().try_for_each(|lease| self.follow_lease(lease))?;
        let wants: Vec<u64> = leases
            .iter()
            .map(|lease| lease.burst.as_ref().map_or(0, |burst| burst.limit_bytes - burst.request_bytes))
            .collect();
        let parts = equal_parts(lendable, &wants);
        // First those that have more than their part: the others get what they give back.
        for (lease, part) in leases.iter_mut().zip(&parts) {
            let had = lease.lent_bytes(&self.gpu.uuid);
            if had >= part + WORTH_LENDING_BYTES {
                self.shrink(lease, lease.memory_limit_on(&self.gpu.uuid) - (had - part))?;
                free += had - lease.lent_bytes(&self.gpu.uuid);
            }
        }
        for ((lease, part), want) in leases.iter_mut().zip(&parts).zip(&wants) {
            let had = lease.lent_bytes(&self.gpu.uuid);
            let more = part.saturating_sub(had).min(free);
            let more = more - more % GRANULE_BYTES;
            if more >= WORTH_LENDING_BYTES || (more > 0 && had + more == *want) {
                self.grow(lease, lease.memory_limit_on(&self.gpu.uuid) + more)?;
                free -= more;
            }
        }
        Ok(())
    }

    /// The memory that no slice and nobody else has, and the same with what is lent now, in bytes.
    fn free_and_lendable(&self, leases: &[Lease]) -> Result<(u64, u64), NodeError> {
        let node = self.locked.node();
        let neighbors = node.neighbors();
        let members = Members::of(node, leases).and(&neighbors);
        let all = || leases.iter().chain(&neighbors);
        let foreign = capacity::foreign_bytes(self.driver, node, self.gpu, all(), &members)?;
        let limits: u64 = all().map(|lease| lease.memory_limit_on(&self.gpu.uuid)).sum();
        let lent: u64 = leases.iter().map(|lease| lease.lent_bytes(&self.gpu.uuid)).sum();
        let taken = limits + foreign;
        Ok((self.gpu.memory_bytes.saturating_sub(taken), self.gpu.memory_bytes.saturating_sub(taken - lent)))
    }

    /// Gives a slice this limit, or the smallest one above it that holds what its task uses.
    fn shrink(&self, lease: &mut Lease, wanted: u64) -> Result<(), NodeError> {
        let (uuid, had) = (self.uuid()?, lease.memory_limit_on(&self.gpu.uuid));
        let region = Observer::open(&self.locked.node().slice_dir(&lease.id))?;
        // First nothing more can be reserved, and then it is certain what is in use.
        region.set_limit(&uuid, wanted)?;
        let used = in_use_bytes(self.driver, self.locked.node(), lease, &region);
        let kept = match used {
            Ok(used) => wanted.max(used.next_multiple_of(GRANULE_BYTES)).min(had),
            Err(_) => had,
        };
        if kept != wanted {
            region.set_limit(&uuid, kept)?;
        }
        used?;
        if kept < had { self.put(lease, kept) } else { Ok(()) }
    }

    /// A slice that grows is in its lease before programs may use it.
    fn grow(&self, lease: &mut Lease, wanted: u64) -> Result<(), NodeError> {
        let uuid = self.uuid()?;
        let region = Observer::open(&self.locked.node().slice_dir(&lease.id))?;
        self.put(lease, wanted)?;
        Ok(region.set_limit(&uuid, wanted)?)
    }

    fn put(&self, lease: &mut Lease, limit_bytes: u64) -> Result<(), NodeError> {
        for slice in lease.slices.iter_mut().filter(|slice| slice.gpu == self.gpu.uuid) {
            slice.memory_limit_bytes = limit_bytes;
        }
        lease.changes += 1;
        self.locked.put(lease)?;
        note(self.locked.node(), lease)?;
        renew_driver_limits(self.driver, lease, std::slice::from_ref(self.gpu))?;
        Ok(())
    }

    /// A program that died between two steps has left a smaller limit in the accounting region than in the lease.
    fn follow_lease(&self, lease: &Lease) -> Result<(), NodeError> {
        let (uuid, limit) = (self.uuid()?, lease.memory_limit_on(&self.gpu.uuid));
        let region = Observer::open(&self.locked.node().slice_dir(&lease.id))?;
        let set = region.snapshot()?.gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.limit_bytes);
        if set.is_some_and(|set| set != limit) {
            region.set_limit(&uuid, limit)?;
        }
        Ok(())
    }

    /// Asks a task to keep no more than this, or no longer.
    fn recall(&self, lease: &mut Lease, keep_bytes: Option<u64>) -> Result<Option<Recall>, NodeError> {
        let asked_ms = now_ms();
        let former = recall_of(lease).filter(|recall| recall.stands(asked_ms));
        let until_ms = former.map_or(asked_ms + GIVE_BACK_MS, |recall| recall.until_ms);
        let recall = keep_bytes.map(|keep_bytes| Recall { keep_bytes, until_ms, asked_ms });
        if recall != recall_of(lease)
            && let Some(burst) = &mut lease.burst
        {
            burst.recall = recall;
            self.locked.put(lease)?;
            note(self.locked.node(), lease)?;
        }
        Ok(recall)
    }

    fn uuid(&self) -> Result<[u8; 16], NodeError> {
        gpu_uuid_bytes(&self.gpu.uuid.0).ok_or_else(|| NodeError::BadUuid(self.gpu.uuid.0.clone()))
    }
}

/// Was its `cantle run` killed? Nobody else would suspend it or bring it back. A task of an agent gets another agent.
fn is_abandoned(lease: &Lease) -> bool {
    lease.queue.is_none() && !lease.kept && !cantle_runtime::alive(&lease.owner)
}

fn recall_of(lease: &Lease) -> Option<Recall> {
    lease.burst.as_ref().and_then(|burst| burst.recall)
}

/// Divides `sum` so that nobody gets more than it wants, and nobody less than another one that gets all it wants. In bytes.
fn equal_parts(sum: u64, wants: &[u64]) -> Vec<u64> {
    let mut parts = vec![0; wants.len()];
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&at| wants[at]);
    let mut left = sum;
    for (done, at) in order.into_iter().enumerate() {
        let equal = left / (wants.len() - done) as u64;
        parts[at] = wants[at].min(equal - equal % GRANULE_BYTES);
        left -= parts[at];
    }
    parts
}

/// The sizes of a slice, for programs in it that can give memory back.
#[derive(Serialize)]
struct MemoryNote {
    /// Memory that the task can always have, in bytes.
    request_bytes: u64,
    /// Memory that it may have at most, in bytes.
    limit_bytes: u64,
    /// Memory that it may have now, in bytes.
    current_bytes: u64,
    /// Memory that it has to keep within, in bytes; absent if nobody asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_bytes: Option<u64>,
    /// Until when, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_until_ms: Option<i64>,
}

/// The length of the file with the sizes of a slice, in bytes.
const NOTE_BYTES: usize = 256;

/// Writes the sizes of a slice that may borrow into its directory. The task has this very file mounted, so it is written in place.
///
/// # Errors
/// Names the file that cannot be written.
pub(crate) fn note(node: &NodeStore, lease: &Lease) -> Result<(), NodeError> {
    let (Some(burst), Some(slice)) = (&lease.burst, lease.slices.first()) else { return Ok(()) };
    let note = MemoryNote {
        request_bytes: burst.request_bytes,
        limit_bytes: burst.limit_bytes,
        current_bytes: slice.memory_limit_bytes,
        keep_bytes: burst.recall.map(|recall| recall.keep_bytes),
        keep_until_ms: burst.recall.map(|recall| recall.until_ms),
    };
    let path = node.slice_dir(&lease.id).join(cantle_ledger::MEMORY_FILE);
    let text = serde_json::to_string(&note).map_err(io::Error::from);
    let written = text.and_then(|text| {
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(&path)?;
        // Always the same length, in one write: a reader finds the former text or the new one.
        open.write_all_at(format!("{text:<width$}\n", width = NOTE_BYTES - 1).as_bytes(), 0)
    });
    written.map_err(|error| NodeError::file(&path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_free_is_lent_in_equal_parts() {
        assert_eq!(equal_parts(12 * GIB, &[20 * GIB, 20 * GIB]), [6 * GIB, 6 * GIB]);
        assert_eq!(
            equal_parts(12 * GIB, &[20 * GIB, 2 * GIB]),
            [10 * GIB, 2 * GIB],
            "what one does not want"
        );
        assert_eq!(equal_parts(12 * GIB, &[GIB, GIB]), [GIB, GIB]);
        assert_eq!(equal_parts(0, &[GIB]), [0]);
        let thirds = equal_parts(10 * GIB, &[GIB * 9; 3]);
        assert!(thirds.iter().sum::<u64>() <= 10 * GIB, "{thirds:?}");
        assert!(thirds.iter().all(|part| part % GRANULE_BYTES == 0), "{thirds:?}");
    }
}
