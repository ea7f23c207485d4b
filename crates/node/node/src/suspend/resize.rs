//! Changes the size of a running task's slice.

use cantle_ledger::host::Observer;
use cantle_model::{Bytes, GpuRequest, Lease, LeaseId, Milli, Slice};

use super::refuse::only_slice;
use super::{Result, SuspendError, Suspender, in_use_bytes};
use crate::capacity;
use crate::store::Locked;
use crate::{NodeError, gpu_uuid_bytes, renew_driver_limits};

impl Suspender<'_> {
    /// Gives a running task a slice of this size, on the GPU where it is: more where there is room, and less down to what it uses. Programs see
    /// it at their next query.
    ///
    /// The order keeps the sum of all limits within the GPU at each instant: a slice that grows is reserved before programs may
    /// use it, and one that shrinks is given back after they may not.
    ///
    /// # Errors
    /// [`SuspendError::Size`] has the reason; the slice is as it was.
    pub fn resize(&mut self, id: &LeaseId, request: &GpuRequest) -> Result<Lease> {
        let _alone = self.alone()?;
        self.recover_alone()?;
        let locked = self.node.lock()?;
        let mut lease = locked.lease(id)?.ok_or_else(|| NodeError::LeaseGone(id.clone()))?;
        let (slice, wanted) = self.resized(&lease, request)?;
        let region = Observer::open(&self.node.slice_dir(&lease.id))?;
        let uuid = gpu_uuid_bytes(slice.device()).ok_or_else(|| NodeError::BadUuid(slice.gpu.0.clone()))?;
        let grows = wanted.memory_limit_bytes > slice.memory_limit_bytes;
        if grows {
            self.refuse_growth(&locked, &lease, &slice, &wanted)?;
        } else {
            // First nothing more can be reserved, and then it is certain what is in use.
            region.set_limit(&uuid, wanted.memory_limit_bytes)?;
            if let Err(error) = self.refuse_below_use(&lease, &region, &wanted) {
                region.set_limit(&uuid, slice.memory_limit_bytes)?;
                return Err(error);
            }
        }
        lease.slices = vec![wanted.clone()];
        lease.changes += 1;
        if let Some(share) = &mut lease.compute {
            share.request_milli = share.request_milli.min(wanted.milli).max(Milli(1));
        }
        locked.put(&lease)?;
        if grows {
            region.set_limit(&uuid, wanted.memory_limit_bytes)?;
        }
        // Under the lock, or the watchdog would take it for a change by another program.
        renew_driver_limits(self.driver, &lease, self.gpus)?;
        Ok(lease)
    }

    /// The slice as it is and as it is to be.
    fn resized(&self, lease: &Lease, request: &GpuRequest) -> Result<(Slice, Slice)> {
        let refused = |why: &str| {
            Err(SuspendError::Refused { task: lease.task.clone(), what: "resized", why: why.to_owned() }
                .into())
        };
        if let Some(suspension) = &lease.suspension {
            return refused(if suspension.is_suspended() {
                "it is suspended"
            } else {
                "it is being suspended or resumed"
            });
        }
        let slice = only_slice(lease, "resized")?;
        if lease.burst.is_some() {
            return refused(
                "it has a limit of GPU memory above its request, and its size follows from what is free",
            );
        }
        if !lease.compute_units.is_empty() {
            return refused("its compute units were selected at its start");
        }
        if slice.milli == Milli::ONE {
            return refused("it has a whole GPU");
        }
        let gpu = self.gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
        let Some(gpu) = gpu else { return refused("its GPU is not there") };
        let Some(share) = request.share_of(gpu.memory_bytes).filter(|share| share.milli < Milli::ONE) else {
            let wanted = match request {
                GpuRequest::Memory(bytes) => *bytes,
                _ => Bytes(gpu.memory_bytes),
            };
            let why =
                format!("a slice is less than GPU {}, which has {}", gpu.index, Bytes(gpu.memory_bytes));
            return Err(SuspendError::Size { task: lease.task.clone(), wanted, why }.into());
        };
        if lease.unfiltered && share.memory_limit_bytes < slice.memory_limit_bytes {
            return refused("no filter keeps its programs from using the memory meanwhile; it can only grow");
        }
        let wanted =
            Slice { milli: share.milli, memory_limit_bytes: share.memory_limit_bytes, ..slice.clone() };
        Ok((slice.clone(), wanted))
    }

    /// Is there room next to all others? The scheduler's view of the GPU counts, without this task.
    fn refuse_growth(&self, locked: &Locked<'_>, lease: &Lease, slice: &Slice, wanted: &Slice) -> Result<()> {
        let others: Vec<Lease> = locked.sweep()?.into_iter().filter(|other| other.id != lease.id).collect();
        let gpus: Vec<_> = self.gpus.iter().filter(|gpu| gpu.uuid == slice.gpu).cloned().collect();
        let Some(gpu) = gpus.first() else { return Ok(()) };
        let neighbors = self.node.neighbors();
        let members = crate::members::Members::of(self.node, &self.node.leases()?).and(&neighbors);
        let foreign = capacity::foreign_bytes(
            self.driver,
            self.node,
            gpu,
            others.iter().chain(&neighbors).chain([lease]),
            &members,
        )?;
        let held = |of: &Lease| of.memory_limit_on(&gpu.uuid);
        let taken: u64 = others.iter().chain(&neighbors).map(held).sum::<u64>() + foreign;
        let milli: u32 = others
            .iter()
            .chain(&neighbors)
            .flat_map(|of| &of.slices)
            .filter(|of| of.gpu == gpu.uuid)
            .map(|of| of.milli.0)
            .sum();
        let free = gpu.memory_bytes.saturating_sub(taken);
        if wanted.memory_limit_bytes > free || milli + wanted.milli.0 > Milli::ONE.0 {
            let why = format!("GPU {} has {} left by its other tasks", gpu.index, Bytes(free));
            let wanted = Bytes(wanted.memory_limit_bytes);
            return Err(SuspendError::Size { task: lease.task.clone(), wanted, why }.into());
        }
        Ok(())
    }

    /// Refuses a slice that is smaller than what its task uses.
    fn refuse_below_use(&self, lease: &Lease, region: &Observer, wanted: &Slice) -> Result<()> {
        let used = in_use_bytes(self.driver, self.node, lease, region)?;
        if used <= wanted.memory_limit_bytes {
            return Ok(());
        }
        let why = format!("it uses {}", Bytes(used));
        Err(SuspendError::Size { task: lease.task.clone(), wanted: Bytes(wanted.memory_limit_bytes), why }
            .into())
    }
}
