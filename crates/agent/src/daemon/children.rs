//! Child workers: a task that runs beside others is a worker of its own on the server, as with ClearML's agent. Its web page
//! shows then who has what of which GPU, and stock agents of the same name see those GPUs as taken.

use std::collections::BTreeSet;

use cantle_clearml::workers::{MachineStats, Register, StatusReport, Unregister};
use cantle_clearml::{Error as WireError, accept_refusal};
use cantle_driver::Driver;
use cantle_model::{Gpu, LeaseId, MigInstance, Milli, Slice, TaskId};
use tokio::time::Instant;

use super::entry::Entry;
use super::load::mebibytes;
use super::report::{STATUS_EVERY, is_due};
use super::setup::WORKER_TIMEOUT_S;
use super::{Agent, Gives};
use crate::clock::now_ms;
use crate::view;

impl Agent {
    /// The worker that a task with these slices is; `None` if that is the agent itself, which has one task at a time.
    pub(crate) fn child_worker(&self, slices: &[Slice], task: &TaskId) -> Option<String> {
        match self.config.gives {
            Gives::AllGpus | Gives::NoGpu => None,
            Gives::Slices if !slices.is_empty() => {
                let taken = self.entries.values().filter_map(|entry| entry.job.worker.as_deref()).collect();
                Some(child_id(self.driver.as_ref(), &self.config.name, &self.gpus, slices, &taken))
            }
            Gives::Slices | Gives::Services { .. } => Some(format!("{}:service:{task}", self.worker)),
        }
    }

    /// Tells the server of each child at its start and at intervals.
    pub(crate) async fn report_children(&mut self, now: Instant) -> Result<(), WireError> {
        let due = self.leases_where(|entry| {
            entry.is_running() && entry.job.worker.is_some() && is_due(entry.reported, STATUS_EVERY, now)
        });
        if due.is_empty() {
            return Ok(());
        }
        let gpus = view::gpus(&self.node, &self.gpus);
        for lease in due {
            let Some(entry) = self.entries.get_mut(&lease) else { continue };
            let Some(worker) = entry.job.worker.clone() else { continue };
            let tags = self.config.report_tags.clone();
            if entry.reported.replace(now).is_none() {
                let (timeout, worker, tags) = (Some(WORKER_TIMEOUT_S), worker.clone(), tags.clone());
                self.link.call(&Register { worker, timeout, tags, ..Register::default() }).await?;
            }
            let mut stats = MachineStats::default();
            for slice in gpus.iter().flat_map(|gpu| &gpu.slices).filter(|slice| slice.lease == lease.0) {
                let free = slice.memory_limit_bytes.saturating_sub(slice.memory_used_bytes);
                stats.gpu_memory_used.push(mebibytes(slice.memory_used_bytes));
                stats.gpu_memory_free.push(mebibytes(free));
            }
            let report = StatusReport {
                worker,
                timestamp: now_ms(),
                task: Some(entry.job.task.0.clone()),
                queue: Some(entry.job.queue.0.clone()),
                queues: Vec::new(),
                tags,
                is_daemon: Some(false),
                machine_stats: Some(stats),
            };
            self.link.call(&report).await?;
        }
        Ok(())
    }

    /// The task is over, and so is its worker; also one that a former daemon announced.
    pub(crate) async fn dismiss_child(&self, lease: &LeaseId) -> Result<(), WireError> {
        let worker = self.entries.get(lease).and_then(|entry| entry.job.worker.clone());
        let Some(worker) = worker else { return Ok(()) };
        let gone = self.link.call(&Unregister { worker, queues: Vec::new() }).await;
        accept_refusal(gone.map(|_| ()))
    }

    /// In whose name a task's output is sent.
    pub(crate) fn speaker(&self, entry: &Entry) -> String {
        entry.job.worker.clone().unwrap_or_else(|| self.worker.clone())
    }
}

/// As ClearML's agent names it: whole GPUs `node1:gpu0,1`; a fraction `node1:gpu2.25a`, with the first letter that is free;
/// a MIG instance `node1:gpu0.1`.
fn child_id(
    driver: &dyn Driver,
    name: &str,
    gpus: &[Gpu],
    slices: &[Slice],
    taken: &BTreeSet<&str>,
) -> String {
    let index = |slice: &Slice| gpus.iter().find(|gpu| gpu.uuid == slice.gpu).map_or(0, |gpu| gpu.index);
    let mut is_cut = false;
    let mut part = |slice: &Slice| {
        let index = index(slice);
        match &slice.mig {
            Some(mig) => format!("{index}.{}", unit(driver, slice, mig)),
            None if slice.milli == Milli::ONE => index.to_string(),
            None => {
                is_cut = true;
                format!("{index}.{}", slice.milli.to_string().trim_start_matches("0."))
            }
        }
    };
    let parts = slices.iter().map(&mut part).collect::<Vec<_>>().join(",");
    let id = format!("{name}:gpu{parts}");
    if !is_cut {
        return id;
    }
    let lettered = (0..).map(|n| format!("{id}{}", letters(n)));
    lettered.into_iter().find(|id| !taken.contains(id.as_str())).unwrap_or(id)
}

/// a to z, then aa, ab…
fn letters(n: u32) -> String {
    let letter = char::from(b'a' + u8::try_from(n % 26).unwrap_or(0));
    let before = if n < 26 { String::new() } else { letters(n / 26 - 1) };
    format!("{before}{letter}")
}

/// The number of the instance on its GPU where an administrator has made it; else where it starts.
fn unit(driver: &dyn Driver, slice: &Slice, mig: &MigInstance) -> u32 {
    let given = driver.fixed_devices(&slice.gpu).is_some();
    let devices = if given { driver.mig_devices(&slice.gpu).unwrap_or_default() } else { Vec::new() };
    devices.into_iter().find(|(_, device)| *device == mig.uuid).map_or(mig.start, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(gpu: u32, milli: u32) -> Slice {
        let gpu = format!("GPU-{gpu}").as_str().into();
        Slice { gpu, milli: Milli(milli), memory_limit_bytes: 1 << 30, mig: None }
    }

    #[test]
    fn children_are_named_as_clearmls_agent_names_them() {
        let gpu = |n: u32| {
            let (uuid, model) = (format!("GPU-{n}").as_str().into(), String::new());
            Gpu { uuid, index: n, model, memory_bytes: 40 << 30, mig: false }
        };
        let gpus = [gpu(0), gpu(1), gpu(2)];
        let driver = cantle_driver::no_gpus();
        let id = |slices: &[Slice], taken: &[&str]| {
            child_id(driver.as_ref(), "node1", &gpus, slices, &taken.iter().copied().collect())
        };
        assert_eq!(id(&[slice(0, 1000), slice(1, 1000)], &[]), "node1:gpu0,1");
        assert_eq!(id(&[slice(2, 250)], &[]), "node1:gpu2.25a");
        assert_eq!(id(&[slice(2, 250)], &["node1:gpu2.25a", "node1:gpu2.25c"]), "node1:gpu2.25b");
        assert_eq!(id(&[slice(2, 500)], &["node1:gpu2.25a"]), "node1:gpu2.5a");
        assert_eq!(id(&[slice(1, 50)], &[]), "node1:gpu1.05a");
        assert_eq!(id(&[slice(0, 500), slice(1, 500)], &[]), "node1:gpu0.5,1.5a");
        let instance = MigInstance { profile: "3g.20gb".into(), start: 4, size: 4, uuid: "MIG-x".into() };
        assert_eq!(id(&[Slice { mig: Some(instance), ..slice(0, 500) }], &[]), "node1:gpu0.4");
    }

    #[test]
    fn there_are_letters_enough() {
        assert_eq!([0, 25, 26, 27, 702].map(letters), ["a", "z", "aa", "ab", "aaa"]);
    }
}
