//! Allocations that the shim refused: the process, the size of its request, and the memory in use.

use std::path::Path;
use std::time::Duration;

use cantle_ledger::Refusal;
use cantle_ledger::host::Observer;
use cantle_model::{Bytes, Gpu, Slice};
use tokio::time::Instant;

use crate::members;

/// Interval of reports about a program that keeps trying; each report has a count.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Reads the refusals in one task's accounting region.
#[derive(Debug)]
pub struct Refusals {
    region: Observer,
    reported: Option<Instant>,
    /// Refused since then: the latest, and how many before it.
    held_back: Option<(Refusal, u64)>,
    /// The number of refusals of each slice since [`Refusals::take_counts`].
    counts: Vec<u64>,
}

impl Refusals {
    /// `None` if the region cannot be opened: then no process can allocate through it either.
    pub fn of(slice_dir: &Path) -> Option<Self> {
        Some(Self {
            region: Observer::open(slice_dir).ok()?,
            reported: None,
            held_back: None,
            counts: Vec::new(),
        })
    }

    /// Leaves out what happened before now: a former agent has reported it.
    pub fn without_old(mut self) -> Self {
        self.region.new_refusals();
        self
    }

    /// One line if there is something to report. `pids` gives the task's processes as this machine knows them.
    pub fn report(
        &mut self,
        slices: &[Slice],
        gpus: &[Gpu],
        pids: impl FnOnce() -> Vec<u32>,
        now: Instant,
    ) -> Option<String> {
        self.collect(slices);
        if self.reported.is_some_and(|reported| now.duration_since(reported) < REPORT_INTERVAL) {
            return None;
        }
        let line = self.final_report(slices, gpus, pids)?;
        self.reported = Some(now);
        Some(line)
    }

    /// As [`Refusals::report`], at the end of the task: nothing is held back any more.
    pub fn final_report(
        &mut self,
        slices: &[Slice],
        gpus: &[Gpu],
        pids: impl FnOnce() -> Vec<u32>,
    ) -> Option<String> {
        self.collect(slices);
        let (refusal, before) = self.held_back.take()?;
        let host_pid = pids().into_iter().find(|&pid| members::own_view(pid) == Some(refusal.pid));
        Some(line(&refusal, before, host_pid, slices, gpus))
    }

    /// The number of refusals of each of the task's slices since the last call. Refusals that the region dropped
    /// between two polls are missing.
    pub fn take_counts(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.counts)
    }

    /// As [`Refusals::take_counts`], of what is new since the last call, for callers that report nothing.
    pub fn count(&mut self, slices: &[Slice]) -> Vec<u64> {
        self.collect(slices);
        self.held_back = None;
        self.take_counts()
    }

    fn collect(&mut self, slices: &[Slice]) {
        self.counts.resize(slices.len(), 0);
        for refusal in self.region.new_refusals() {
            // Tenants write this field.
            if let Some(count) = usize::try_from(refusal.gpu).ok().and_then(|at| self.counts.get_mut(at)) {
                *count += 1;
            }
            let before = self.held_back.take().map_or(0, |(_, before)| before + 1);
            self.held_back = Some((refusal, before));
        }
    }
}

/// The pid is the one in the process's own pid namespace; the line also has that on the host if it differs.
fn line(refusal: &Refusal, before: u64, host_pid: Option<u32>, slices: &[Slice], gpus: &[Gpu]) -> String {
    let slice = usize::try_from(refusal.gpu).ok().and_then(|at| slices.get(at));
    let gpu = slice.and_then(|slice| gpus.iter().find(|gpu| gpu.uuid == slice.gpu));
    let on = gpu.map_or_else(String::new, |gpu| format!(" of GPU {}", gpu.index));
    let host_pid = host_pid.filter(|pid| *pid != refusal.pid);
    let here = host_pid.map_or_else(String::new, |pid| format!(" ({pid} on the host)"));
    let more = if before == 0 { String::new() } else { format!("; {before} more before it") };
    format!(
        "process {}{here} asked for {}{on} and was refused: {} of its limit of {} are in use{more} \
         (cantle explain allocation-refused)",
        refusal.pid,
        Bytes(refusal.asked_bytes),
        Bytes(refusal.used_bytes),
        Bytes(refusal.limit_bytes),
    )
}

#[cfg(test)]
mod tests {
    use cantle_model::Milli;

    use super::*;

    #[test]
    fn a_refusal_in_one_line() {
        let gpu =
            Gpu { uuid: "GPU-a".into(), index: 2, model: "X".into(), memory_bytes: 1 << 35, mig: false };
        let slice = Slice { gpu: "GPU-a".into(), milli: Milli(500), memory_limit_bytes: 20 << 30, mig: None };
        let mib = 1 << 20;
        let refusal = Refusal {
            number: 1,
            pid: 7,
            gpu: 0,
            asked_bytes: 2 * mib,
            used_bytes: 20 << 30,
            limit_bytes: 20 << 30,
        };
        let one = line(&refusal, 0, Some(7), std::slice::from_ref(&slice), std::slice::from_ref(&gpu));
        assert_eq!(
            one,
            "process 7 asked for 2 MiB of GPU 2 and was refused: 20 GiB of its limit of 20 GiB are in use \
             (cantle explain allocation-refused)"
        );
        let contained = line(&refusal, 3, Some(4711), &[slice], &[gpu]);
        assert!(contained.starts_with("process 7 (4711 on the host) asked for "), "{contained}");
        assert!(contained.contains("; 3 more before it"), "{contained}");
        let beyond = Refusal { gpu: u32::MAX, ..refusal };
        assert!(
            line(&beyond, 0, None, &[], &[]).contains("asked for 2 MiB and was refused"),
            "tenants write this field"
        );
    }
}
