//! The differences between drivers and between machines: one table, each row with its source.
//!
//! Without a file, a machine has a current driver. A text file `model` next to `faults` changes rows, one `name=value` per
//! line; it is read when a process initializes the library. A name or value that is not in the table makes `nvmlInit` fail.
//!
//! "Library" in a source means NVIDIA's own libnvidia-ml as Debian ships it (470.256, 525.147, 535.261, 550.163), read in its
//! machine code; "header" is NVIDIA's `nvml.h`; "kernel modules" are NVIDIA's open ones (595.45). Nothing here has been
//! measured on real hardware by us: `tests/gpu/mig_verify.py` does that.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// A row of the table.
pub(super) struct Switch {
    /// Its name in the file.
    pub(super) name: &'static str,
    /// Its value on a current driver.
    pub(super) default: u64,
    /// The largest value.
    pub(super) most: u64,
    /// Its meaning.
    pub(super) what: &'static str,
    /// Its source.
    pub(super) source: &'static str,
}

macro_rules! switches {
    ($($id:ident $name:literal $default:literal..=$most:literal $what:literal $source:literal;)*) => {
        /// Names of the rows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(dead_code, reason = "the CUDA library reads its rows itself")]
        pub(super) enum Setting { $(#[doc = $what] $id),* }

        pub(super) const SWITCHES: &[Switch] = &[
            $(Switch { name: $name, default: $default, most: $most, what: $what, source: $source }),*
        ];
    };
}

switches! {
    MigLock "mig_lock" 1..=1
        "one lock for all MIG calls of a process, held over each call; waiters spin"
        "library, all four versions: a `lock cmpxchg` loop on one word around every MIG function but GetMigMode and SetMigMode";
    RememberedInstances "remembered_instances" 1..=1
        "a process keeps profile and placement of a GPU instance id from when it first saw it until it destroys it itself or shuts NVML down"
        "library 535 and 550: nvmlGpuInstanceGetInfo copies from a list without asking the kernel; that shutdown clears it is inferred";
    MigLatencyMs "mig_latency_ms" 0..=600000
        "how long each MIG call takes, milliseconds"
        "0 is no driver's figure but keeps tests short; seen: 146 ms for all lists of one idle H100 (DRA driver PR 1018), seconds under load";
    Unprivileged "unprivileged" 0..=1
        "processes have no rights: memory and processes of a GPU in MIG mode, placements, and every change answer NO_PERMISSION"
        "header at nvmlDeviceGetMemoryInfo and the placements; seen in containers: nvidia-container-toolkit 842, k8s-device-plugin 1683";
    IdsByGpu "ids_by_gpu" 1..=1
        "GPUs number their instances differently: those with odd numbers count each size from the last placement"
        "DCGM issue 138: 3g at 4:4 is id 2 on one GPU and id 1 on another of the same node; which GPUs do so is invented";
    UuidByPipe "uuid_by_pipe" 1..=1
        "the UUID of a MIG device depends on the pipe that its instance got, the first free one: neighbors change it"
        "kernel modules: nvGenerateSmcUuid hashes chip, board, instance id and pipe; that the first free one is taken is inferred";
    OpenCapability "open_capability" 1..=1
        "an instance whose device node another process has open cannot be destroyed: IN_USE"
        "kernel modules: a subscription keeps a reference (kernel_mig_manager.c) and a duplicate of the node's descriptor; DCGM issue 276";
    AmpereReset "ampere_reset" 1..=1
        "before Hopper a change of MIG mode resets the GPU, and stays pending, IN_USE, while another process has NVML open"
        "header at nvmlDeviceSetMigMode; DRA driver nvlib.go: its open session keeps an A100 from entering MIG mode";
    NoReset "no_reset" 0..=1
        "the GPU cannot be reset from here, so before Hopper a change of MIG mode stays pending, RESET_REQUIRED"
        "header at nvmlDeviceSetMigMode: pass-through virtualisation";
    Mps "mps" 0..=1
        "all programs are clients of MPS: NVML lists them as such and not among the compute processes"
        "header at nvmlDeviceGetMPSComputeRunningProcesses; that they are missing in the other list is inferred";
    FiguresLagMs "figures_lag_ms" 0..=60000
        "how old the figures of processes may be, milliseconds"
        "the kernel's resource manager gathers them when asked, and no document bounds their age: an unkind assumption";
    NoFigures "no_figures" 0..=2
        "the memory of a process is NVML_VALUE_NOT_AVAILABLE (1), or no process is listed at all (2)"
        "header at nvmlProcessInfo_t: always so under WDDM; NVIDIA's guide to CUDA on WSL: no list of processes; vGPU and confidential computing are inferred";
    CheckpointMibPerS "checkpoint_mib_per_s" 0..=4000000
        "the bandwidth between GPUs and host memory at checkpoints, MiB per second; 0 is unlimited"
        "0 is no driver's figure but keeps tests short; cuda-checkpoint issue 29: about 5 GB/s on an H100 with PCIe 5";
    CheckpointHostMib "checkpoint_host_mib" 0..=4000000
        "the host memory that checkpointed processes may take in sum, MiB; 0 is unlimited"
        "the kernel's limit on real machines; that a checkpoint without room fails the process is an unkind assumption";
    Rev1Compute "rev1_compute" 0..=1
        "a GPU instance of one slice with an odd id has the compute profile REV1 and not the usual one, or the other way round"
        "NVIDIA's DRA driver 4c1a872: which one of two profiles of a GPU instance profile is valid is known once the instance exists; which has which is invented";
    MigTrace "mig_trace" 0..=1
        "each MIG call is written to `mig-calls` next to this file: process and function"
        "no driver has it: a witness for tests";
}

/// Rows as this process has read them.
static VALUES: Mutex<Option<[u64; SWITCHES.len()]>> = Mutex::new(None);

/// The value of a row.
pub(super) fn get(setting: Setting) -> u64 {
    let values = VALUES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    values.map_or_else(|| SWITCHES[setting as usize].default, |values| values[setting as usize])
}

/// Is the row switched on?
pub(super) fn is_on(setting: Setting) -> bool {
    get(setting) != 0
}

/// Reads the file of the machine whose home this is.
pub(super) fn read(home: &Path) -> Result<(), String> {
    let text = fs::read_to_string(home.join("model")).unwrap_or_default();
    let values = parse(&text)?;
    *VALUES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(values);
    Ok(())
}

fn parse(text: &str) -> Result<[u64; SWITCHES.len()], String> {
    let mut values = std::array::from_fn(|row| SWITCHES[row].default);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let row = line.split_once('=').and_then(|(name, value)| {
            let row = SWITCHES.iter().position(|switch| switch.name == name.trim())?;
            Some((row, value.trim().parse().ok().filter(|value| *value <= SWITCHES[row].most)?))
        });
        let (row, value) =
            row.ok_or_else(|| format!("no such line in a driver's model: `{line}`; {}", known()))?;
        values[row] = value;
    }
    Ok(values)
}

/// All rows with their sources.
fn known() -> String {
    let row = |switch: &Switch| {
        let Switch { name, default, most, what, source } = switch;
        format!("\n  {name} (0 to {most}, here {default}): {what}; source: {source}")
    };
    format!("known are:{}", SWITCHES.iter().map(row).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_what_is_unknown_is_refused() {
        let values = parse("# a slow driver\nmig_lock = 0\nmig_latency_ms=146\n").unwrap();
        assert_eq!((values[Setting::MigLock as usize], values[Setting::MigLatencyMs as usize]), (0, 146));
        assert_eq!(values[Setting::RememberedInstances as usize], 1);
        for wrong in ["mig_lok=0", "mig_lock", "mig_lock=2", "mig_lock=on"] {
            assert!(parse(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn each_row_says_what_it_is_and_how_that_is_known() {
        let readme = include_str!("../../README.md");
        for switch in SWITCHES {
            assert!(switch.what.len() > 10 && switch.source.len() > 10, "{}", switch.name);
            assert!(readme.contains(&format!("`{}`", switch.name)), "{} is not in the README", switch.name);
        }
    }
}
