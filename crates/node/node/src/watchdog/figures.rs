//! GPUs of which the driver does not report the memory of each process: under WSL (NVML's header says so of WDDM), and perhaps in a
//! virtual GPU and with confidential computing.
//!
//! The filter enforces the limits there as everywhere, but nothing shows what a task holds past it. The log of each task reports that
//! once. The device's own count judges instead: what is in use and in no slice's accounting is reported. No task is
//! ended for it, because it may belong to any process, also to a desktop outside of the virtual machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cantle_driver::{Driver, ProcessMemory};
use cantle_model::{Bytes, Gpu, GpuUuid, Lease, LeaseId};
use tokio::time::Instant;

use super::region::Region;
use crate::gpu_uuid_bytes;
use crate::launch::context_cache;
use crate::store::NodeStore;

/// Tolerated for each process: its modules, which no hook sees.
pub(crate) const BORNE_BYTES: u64 = 1 << 30;

/// Tolerated for each process where not every task could have all of its slice.
const BORNE_IN_A_CROWD_BYTES: u64 = 64 << 20;

/// Processes beyond this number add nothing to the tolerance.
const PROCESSES_MAX: u64 = 8;

/// How long a report counts: memory in bursts is reported once.
const MEMORY: Duration = Duration::from_secs(60);

/// Does the driver have no figure of the processes on this GPU? If it lists none, the measurement of a context decides, in which there was
/// one. An instance is isolated by the hardware.
pub(crate) fn are_missing(
    driver: &dyn Driver,
    node: &NodeStore,
    gpu: &Gpu,
    processes: &[ProcessMemory],
) -> bool {
    if gpu.mig {
        return false;
    }
    if !processes.is_empty() {
        return processes.iter().any(|process| process.used_bytes.is_none());
    }
    context_cache(node).known(driver, gpu, None).is_some_and(|context| context.without_figure)
}

/// The last report about such GPUs.
#[derive(Debug, Default)]
pub(super) struct Unaccounted {
    informed: BTreeSet<(LeaseId, GpuUuid)>,
    reported: BTreeMap<GpuUuid, (u64, Instant)>,
}

impl Unaccounted {
    /// One GPU without figures, with the leases of this node and those of other users: what is to be reported to each of the first.
    pub(super) fn look(
        &mut self,
        driver: &dyn Driver,
        node: &NodeStore,
        gpu: &Gpu,
        (own, neighbors): (&[Lease], &[Lease]),
        now: Instant,
    ) -> Vec<(LeaseId, String)> {
        let is_on = |lease: &&Lease| lease.slices.iter().any(|slice| slice.gpu == gpu.uuid);
        let own: Vec<&Lease> = own.iter().filter(is_on).collect();
        self.informed.retain(|(id, on)| *on != gpu.uuid || own.iter().any(|lease| lease.id == *id));
        let mut texts = Vec::new();
        for lease in &own {
            if self.informed.insert((lease.id.clone(), gpu.uuid.clone())) {
                texts.push((lease.id.clone(), no_figures(gpu)));
            }
        }
        let slices = Counted::by(node, gpu, &own);
        // A GPU that does not answer is reported where its processes are asked for.
        let Ok(memory) = driver.memory(&gpu.uuid) else { return texts };
        let slices = slices.and(&Counted::by(node, gpu, &own));
        let of_neighbors = neighbors.iter().map(|lease| lease.memory_limit_on(&gpu.uuid)).sum::<u64>();
        let limits = of_neighbors + own.iter().map(|lease| lease.memory_limit_on(&gpu.uuid)).sum::<u64>();
        let rest = memory.used_bytes.saturating_sub(slices.bytes + of_neighbors);
        let is_crowded = limits + rest > gpu.memory_bytes;
        let each = if is_crowded { BORNE_IN_A_CROWD_BYTES } else { BORNE_BYTES };
        if rest > each * slices.processes.clamp(1, PROCESSES_MAX) && self.is_news(gpu, rest, now) {
            let text = unaccounted(gpu, rest, memory.used_bytes);
            texts.extend(own.iter().map(|lease| (lease.id.clone(), text.clone())));
        }
        texts
    }

    /// An amount that has doubled since it was reported is reported again.
    fn is_news(&mut self, gpu: &Gpu, bytes: u64, now: Instant) -> bool {
        self.reported.retain(|_, (_, at)| now.duration_since(*at) < MEMORY);
        match self.reported.get_mut(&gpu.uuid) {
            Some((known, at)) if bytes / 2 < *known => {
                *at = now;
                false
            }
            _ => {
                self.reported.insert(gpu.uuid.clone(), (bytes, now));
                true
            }
        }
    }
}

fn no_figures(gpu: &Gpu) -> String {
    format!(
        "the driver does not report the memory of each process on GPU {}: the filter enforces the limit, and the watchdog cannot \
         detect memory that this task takes past the filter (cantle explain no-process-figures)",
        gpu.index
    )
}

fn unaccounted(gpu: &Gpu, rest: u64, used: u64) -> String {
    format!(
        "{} of GPU {} are in use and no slice accounts for them ({} in use in total); without figures of processes nobody is \
         killed for that (cantle explain no-process-figures)",
        Bytes(rest),
        gpu.index,
        Bytes(used)
    )
}

/// The filter's count of all slices of a GPU.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    by_lease: Vec<u64>,
    bytes: u64,
    processes: u64,
}

impl Counted {
    fn by(node: &NodeStore, gpu: &Gpu, leases: &[&Lease]) -> Self {
        let mut all = Self::default();
        for lease in leases {
            let limit = lease.memory_limit_on(&gpu.uuid);
            let region = Region::open(&node.slice_dir(&lease.id));
            let now = region.observer.as_ref().and_then(|region| region.snapshot().ok());
            // A region that cannot be read explains all that its slice may hold.
            let counted = now.as_ref().map_or(limit, |now| {
                let of_gpu = now.gpus.iter().filter(|of| Some(of.uuid) == gpu_uuid_bytes(&gpu.uuid.0));
                of_gpu.map(|of| of.counted_bytes).sum()
            });
            // The task can write what it likes there, but explain no more than its slice.
            all.by_lease.push(counted.min(limit));
            let alive = now.iter().flat_map(|now| &now.processes).filter(|process| process.alive);
            all.processes += alive.count() as u64;
        }
        all.bytes = all.by_lease.iter().sum();
        all
    }

    /// The larger count of each lease before and after the driver was asked, as memory may have come and gone meanwhile.
    fn and(&self, later: &Self) -> Self {
        let larger = self.by_lease.iter().zip(&later.by_lease).map(|(a, b)| *a.max(b));
        let by_lease: Vec<u64> = larger.collect();
        Self { bytes: by_lease.iter().sum(), by_lease, processes: self.processes.max(later.processes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_reported_once_and_again_when_it_has_doubled() {
        let gpu = Gpu { uuid: "GPU-a".into(), index: 0, model: String::new(), memory_bytes: 0, mig: false };
        let (began, mut unaccounted) = (Instant::now(), Unaccounted::default());
        let mut is_news = |bytes, after| unaccounted.is_news(&gpu, bytes, began + Duration::from_secs(after));
        assert!(is_news(10, 0));
        assert!(!is_news(19, 1) && !is_news(5, 2), "bursts");
        assert!(is_news(20, 3) && !is_news(39, 4));
        assert!(!is_news(30, 63) && is_news(30, 124), "after a minute without");
    }
}
