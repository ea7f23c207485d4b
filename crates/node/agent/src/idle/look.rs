//! Finds out what a task did: on its GPUs, with the CPU, at its terminals and in its notebook.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use cantle_ledger::host::Observer;
use cantle_model::{GpuUuid, LeaseId, Slice};
use cantle_node::clock::now_ms;
use cantle_runtime::Stopper;
use nix::sys::stat::major;
use tokio::runtime::Runtime;

use super::decide::Activity;
use super::notebook::Notebook;
use crate::environment::Environment;

/// The part of one core that a task may use and be idle, in percent: an open notebook takes one or two.
const CPU_PERCENT: u32 = 5;
/// Between two looks at a GPU, so that no sample of the driver falls between them.
const OVERLAP_MS: i64 = 1000;
/// After a longer pause, the driver may have forgotten who was busy.
const LONGEST_PAUSE_MS: i64 = 15_000;
/// The beginning of the name of the process that computes for the clients of MPS.
const MPS_SERVER: &str = "nvidia-cuda-mps";
/// The kernel notes the use of a terminal with this precision.
const TERMINAL_MS: i64 = 8000;
/// The device numbers of terminals (`/dev/pts/N`).
const TERMINAL_MAJORS: std::ops::RangeInclusive<u64> = 136..=143;

/// The processes that were busy on each GPU since the last look.
#[derive(Default)]
pub(super) struct BusyGpus {
    looked_ms: Option<i64>,
    /// Without the GPUs of which it is not known: on these, every task counts as active.
    found: BTreeMap<GpuUuid, Result<BTreeSet<u32>, String>>,
}

impl BusyGpus {
    /// Asks for the GPUs of these slices.
    pub(super) fn look<'a>(&mut self, env: &Environment, slices: impl Iterator<Item = &'a Slice>) {
        let (now_ms, gpus) = (now_ms(), slices.map(|slice| &slice.gpu).collect::<BTreeSet<_>>());
        let looked_ms = self.looked_ms.replace(now_ms).unwrap_or(now_ms);
        let since_us = u64::try_from(looked_ms - OVERLAP_MS).unwrap_or(0) * 1000;
        let is_known = (0..=LONGEST_PAUSE_MS).contains(&(now_ms - looked_ms));
        let ask = |gpu: &GpuUuid| {
            let busy = env.driver.busy_processes(gpu, since_us);
            busy.map(BTreeSet::from_iter).map_err(|error| error.to_string())
        };
        self.found = gpus.into_iter().filter(|_| is_known).map(|gpu| (gpu.clone(), ask(gpu))).collect();
    }
}

/// The findings about a task since the present window began.
pub(super) struct Looker {
    is_active: bool,
    unknown: Option<String>,
    began_ms: i64,
    /// Its CPU time when the window began.
    cpu: Option<Duration>,
    notebook: Notebook,
}

impl Looker {
    /// The first window begins.
    pub(super) fn new(task: &Stopper) -> Self {
        Self {
            is_active: false,
            unknown: None,
            began_ms: now_ms(),
            cpu: task.cpu_time(),
            notebook: Notebook::default(),
        }
    }

    /// Something else counts as activity.
    pub(super) const fn note_active(&mut self) {
        self.is_active = true;
    }

    /// Takes the result of the last look at the GPUs.
    pub(super) fn note_gpus(
        &mut self,
        env: &Environment,
        busy: &BusyGpus,
        lease: &LeaseId,
        task: &Stopper,
        slices: &[Slice],
    ) {
        for slice in slices {
            match busy.found.get(&slice.gpu) {
                None => self.is_active = true,
                Some(Ok(pids)) if pids.is_empty() => {}
                Some(Ok(pids)) => {
                    let own: BTreeSet<u32> = task.pids().into_iter().collect();
                    self.is_active |= pids.iter().any(|pid| own.contains(pid) || is_anybodys(*pid));
                }
                Some(Err(why)) if uses_gpu(env, lease) => {
                    self.unknown = Some(format!("the driver does not report its work on the GPU: {why}"));
                }
                Some(Err(_)) => {}
            }
        }
    }

    /// The window is over, and the next one begins.
    pub(super) fn close(&mut self, window: Duration, task: &Stopper, runtime: &Runtime) -> Activity {
        let (cpu, pids) = (task.cpu_time(), task.pids());
        let is_computing = uses_cpu(self.cpu, cpu, window);
        let began_ms = std::mem::replace(&mut self.began_ms, now_ms());
        // A fresh notebook is looked at also while its task works, so that the next look can compare.
        let notebook = self.notebook.look(runtime, task, &pids);
        let is_used =
            || pids.iter().filter_map(|&pid| terminal_used_ms(pid)).any(|at| at + TERMINAL_MS >= began_ms);
        let is_active = std::mem::take(&mut self.is_active) || is_computing == Some(true) || is_used();
        self.cpu = cpu;
        let unknown = self.unknown.take();
        match (is_active, notebook) {
            (true, _) | (_, Ok(true)) => Activity::Active,
            (_, Err(why)) => Activity::Unknown(why),
            _ => match (unknown, is_computing) {
                (Some(why), _) => Activity::Unknown(why),
                (None, None) => Activity::Unknown("its CPU time cannot be read".to_owned()),
                (None, Some(_)) => Activity::Quiet,
            },
        }
    }
}

/// May the work of this process be that of any task? One that is not here has ended, or this agent does not see whose it is.
fn is_anybodys(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).map_or(true, |name| name.starts_with(MPS_SERVER))
}

/// Has the task a process that has opened the GPU? Asked where the driver does not report who is busy.
fn uses_gpu(env: &Environment, lease: &LeaseId) -> bool {
    let region = Observer::open(&env.node.slice_dir(lease)).and_then(|region| region.snapshot());
    region.map_or(true, |now| now.processes.iter().any(|process| process.alive))
}

/// Did it use more than [`CPU_PERCENT`] of a core in this time? `None` if that is not known.
fn uses_cpu(before: Option<Duration>, now: Option<Duration>, window: Duration) -> Option<bool> {
    // The sum decreases when a process ends, which is activity, too.
    Some(now?.checked_sub(before?).is_none_or(|used| used * 100 > window * CPU_PERCENT))
}

/// When the terminal of a process was last read or written, in milliseconds since 1970; `None` if it has none. The kernel notes it for
/// `w`, for each program that has opened the terminal.
fn terminal_used_ms(pid: u32) -> Option<i64> {
    let used = |fd: u32| {
        let found = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
        let is_terminal =
            found.file_type().is_char_device() && TERMINAL_MAJORS.contains(&major(found.rdev()));
        is_terminal.then(|| found.atime().max(found.mtime()).saturating_mul(1000))
    };
    (0..3).filter_map(used).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_of_a_core_counts() {
        let (minute, seconds) = (Duration::from_mins(1), Duration::from_secs);
        let used = |before, now| uses_cpu(Some(seconds(before)), Some(seconds(now)), minute);
        assert_eq!(used(100, 103), Some(false), "exactly 5 %");
        assert_eq!(used(100, 104), Some(true));
        assert_eq!(used(100, 99), Some(true), "a process ended");
        assert_eq!(uses_cpu(None, Some(minute), minute), None);
        assert_eq!(uses_cpu(Some(minute), None, minute), None);
    }

    #[test]
    fn a_process_without_a_terminal_uses_none() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        assert_eq!(terminal_used_ms(child.id()), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
