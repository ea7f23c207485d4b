//! Measures the memory of a CUDA context, because no API reports it: a child process creates a context, and NVML is asked
//! about the child and about the GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use cantle_model::{GRANULE_BYTES, Gpu, GpuUuid, MigInstance};
use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::{Driver, DriverError, Installation, PROBE_CONTEXT_COMMAND, ProcessMemory, Result};

/// The child prints this when its context exists; it keeps the context until its stdin closes.
const READY: &str = "ready";

/// The memory of a context beyond its process's figure is less than this. A larger difference comes from other
/// processes.
const UNATTRIBUTED_MAX_BYTES: u64 = 64 << 20;

/// The first context on a GPU takes more than the later ones: 3.3 MiB on an H100.
const FIRST_MORE_BYTES: u64 = 4 << 20;

/// The amount that is charged in addition while no measurement was undisturbed: all that an H100 takes for its first
/// context, 5.6 and 3.3 MiB.
const UNCERTAIN_BYTES: u64 = 10 << 20;

/// Measurements before a disturbed one has to do. One takes less than a second.
const ATTEMPTS: u32 = 5;

/// Times that the GPU is read again, because the driver frees a context's memory shortly after its process has ended.
const READS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// The memory of a CUDA context on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextMemory {
    /// By the driver's figure for the process.
    pub own_bytes: u64,
    /// Taken on the GPU in addition: the driver's kernel module holds it for the context, and no process has it in NVML's list. An H100
    /// under driver 580.159.04 has 5.6 MiB of it per context, and 3.3 MiB for the first.
    pub unattributed_bytes: u64,
    /// Other processes came and went during each measurement, so the unattributed part is an upper estimate.
    #[serde(skip)]
    pub uncertain: bool,
    /// NVML had no figure of any process while the context existed, so the memory of a process beyond its context is
    /// unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_figure: bool,
}

impl ContextMemory {
    /// All that a context takes, rounded up to 2 MiB.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.own_bytes.saturating_add(self.unattributed_bytes).next_multiple_of(GRANULE_BYTES)
    }
}

/// Measures until no other process has disturbed it, at most [`ATTEMPTS`] times. Too little would let every slice of
/// the GPU exceed its limit, so a disturbed figure counts at least [`UNCERTAIN_BYTES`].
pub(crate) fn measure(
    driver: &dyn Driver,
    installation: &Installation,
    probe_exe: &Path,
    libcuda: &Path,
    gpu: &GpuUuid,
    device: &str,
) -> Result<ContextMemory> {
    let mut most =
        ContextMemory { unattributed_bytes: UNCERTAIN_BYTES, uncertain: true, ..Default::default() };
    for _ in 0..ATTEMPTS {
        let before = MemoryInUse::now(driver, gpu)?;
        let mut child = spawn(installation, probe_exe, libcuda, gpu, device)?;
        let ready = wait_ready(&mut child, gpu);
        let with = ready.and_then(|()| MemoryInUse::now(driver, gpu));
        let pid = child.id();
        drop(child.stdin.take());
        // Its exit status adds nothing to the line that it wrote, or did not write.
        let _ = child.wait();
        let with = with?;
        let measured = difference(&before, &with, pid);
        if with.is_of(&before, 1) && is_as_before(driver, gpu, &before)? {
            return Ok(measured);
        }
        most.own_bytes = most.own_bytes.max(measured.own_bytes);
        most.without_figure = measured.without_figure;
        most.unattributed_bytes = most.unattributed_bytes.max(measured.unattributed_bytes);
    }
    Ok(most)
}

/// True if the GPU is again as it was before the child. Then nothing but the child has changed meanwhile.
fn is_as_before(driver: &dyn Driver, gpu: &GpuUuid, before: &MemoryInUse) -> Result<bool> {
    for read in 0..READS {
        if read > 0 {
            thread::sleep(PAUSE);
        }
        let after = MemoryInUse::now(driver, gpu)?;
        if after.is_of(before, 0) && after.unattributed_bytes() == before.unattributed_bytes() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The memory in use on a GPU.
struct MemoryInUse {
    used_bytes: u64,
    processes: Vec<ProcessMemory>,
}

impl MemoryInUse {
    /// The driver answers two questions, and a process may allocate between them: what was in use before the second has to be in use after it.
    fn now(driver: &dyn Driver, gpu: &GpuUuid) -> Result<Self> {
        let mut used_bytes = driver.memory(gpu)?.used_bytes;
        let mut processes = driver.processes(gpu)?;
        for _ in 0..READS {
            let used_now = driver.memory(gpu)?.used_bytes;
            if used_now == used_bytes {
                break;
            }
            (used_bytes, processes) = (used_now, driver.processes(gpu)?);
        }
        Ok(Self { used_bytes, processes })
    }

    /// In use, and of no process.
    fn unattributed_bytes(&self) -> u64 {
        let of_processes = self.processes.iter().filter_map(|process| process.used_bytes).sum();
        self.used_bytes.saturating_sub(of_processes)
    }

    /// True if the processes are those of `before`, and at most this number of `others`. The child may have another pid here than in NVML's list.
    fn is_of(&self, before: &Self, others: usize) -> bool {
        let pids =
            |seen: &Self| -> BTreeSet<u32> { seen.processes.iter().map(|process| process.pid).collect() };
        let (was, now) = (pids(before), pids(self));
        was.is_subset(&now) && now.len() <= was.len() + others
    }
}

fn spawn(
    installation: &Installation,
    exe: &Path,
    libcuda: &Path,
    gpu: &GpuUuid,
    device: &str,
) -> Result<Child> {
    let mut command = Command::new(exe);
    command.arg(PROBE_CONTEXT_COMMAND).arg(libcuda);
    if let Some(dir) = installation.directory() {
        command.arg(dir);
    }
    command
        .env("CUDA_VISIBLE_DEVICES", device)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().map_err(|why| probe_error(gpu, format!("cannot start {}: {why}", exe.display())))
}

fn probe_error(gpu: &GpuUuid, why: impl Into<String>) -> DriverError {
    DriverError::Probe { gpu: gpu.clone(), why: why.into() }
}

fn wait_ready(child: &mut Child, gpu: &GpuUuid) -> Result<()> {
    let mut line = String::new();
    let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    if line.trim() == READY {
        return Ok(());
    }
    let mut printed = String::new();
    if let Some(err) = child.stderr.take() {
        // After an error there is what was read so far, which is all that can be reported.
        let _ = BufReader::new(err).read_line(&mut printed);
    }
    let why = match (printed.trim(), read) {
        ("", Some(Err(why))) => why.to_string(),
        ("", _) => "the probe ended without a message".to_owned(),
        (message, _) => message.to_owned(),
    };
    Err(probe_error(gpu, why))
}

/// The child's own figure, and the growth of what no process has, where NVML reports memory per process. Else the growth of what is in
/// use on the GPU.
fn difference(before: &MemoryInUse, with: &MemoryInUse, pid: u32) -> ContextMemory {
    let own = with.processes.iter().find(|process| process.pid == pid).and_then(|process| process.used_bytes);
    let Some(own_bytes) = own else {
        let own_bytes = with.used_bytes.saturating_sub(before.used_bytes);
        let without_figure = with.processes.iter().all(|process| process.used_bytes.is_none());
        return ContextMemory { own_bytes, without_figure, ..Default::default() };
    };
    let unattributed_bytes = match with.unattributed_bytes().saturating_sub(before.unattributed_bytes()) {
        0 => 0,
        more if more > UNATTRIBUTED_MAX_BYTES => 0,
        more if before.processes.is_empty() => more,
        // The first context of all may be one of these, and takes more.
        more => more + FIRST_MORE_BYTES,
    };
    ContextMemory { own_bytes, unattributed_bytes, ..Default::default() }
}

/// The child's `main`: makes a context on the one visible GPU, prints that it is ready, and keeps the context until stdin closes.
/// `args` are those after [`PROBE_CONTEXT_COMMAND`]: the path of libcuda and, for a driver in a directory, that directory.
#[must_use]
pub fn probe_context_main(args: &[OsString]) -> ExitCode {
    let outcome = match args {
        [libcuda] => make_context(libcuda, None),
        [libcuda, sim_dir] => make_context(libcuda, Some(sim_dir)),
        _ => Err("usage: __probe-context LIBCUDA [SIM_DIR]".to_owned()),
    };
    match outcome {
        Ok(_library) => {
            let mut out = std::io::stdout();
            if writeln!(out, "{READY}").and_then(|()| out.flush()).is_ok() {
                // Ends when the parent closes the pipe, or dies.
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            // A caller that is gone reads nothing.
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::FAILURE
        }
    }
}

fn make_context(libcuda: &OsStr, sim_dir: Option<&OsString>) -> std::result::Result<Library, String> {
    // SAFETY: runs the constructors of the driver's library, which ask nothing of the process that loads it.
    let lib = unsafe { Library::new(libcuda) }.map_err(|why| why.to_string())?;
    if let Some(dir) = sim_dir {
        let dir = CString::new(dir.as_bytes()).map_err(|why| why.to_string())?;
        call::<unsafe extern "C" fn(*const c_char) -> c_int>(&lib, "cantle_sim_use", |select| {
            // SAFETY: the simulated driver declares it with this type; the string is NUL-terminated and outlives the call.
            unsafe { select(dir.as_ptr()) }
        })?;
    }
    call::<unsafe extern "C" fn(c_uint) -> c_int>(&lib, "cuInit", |init| {
        // SAFETY: CUDA's header gives this type; there are no pointers, and 0 is the only value that the flags may have.
        unsafe { init(0) }
    })?;
    let mut context: *mut c_void = std::ptr::null_mut();
    // The primary context is what CUDA's runtime makes; device 0 is the only visible one.
    call::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(
        &lib,
        "cuDevicePrimaryCtxRetain",
        |retain| {
            // SAFETY: CUDA's header gives this type; `context` is a live local to which one handle is written.
            unsafe { retain(&raw mut context, 0) }
        },
    )?;
    Ok(lib)
}

/// Calls the function `name` of the library. `F` must be its type, as CUDA's header or the simulated driver declares it.
fn call<F>(
    lib: &Library,
    name: &'static str,
    f: impl FnOnce(&F) -> c_int,
) -> std::result::Result<(), String> {
    // SAFETY: `F` is the function's type: the three callers, all in `make_context`, take it from CUDA's header and from the
    // simulated driver's declaration.
    let function = unsafe { lib.get::<F>(name) }.map_err(|why| why.to_string())?;
    match f(&function) {
        0 => Ok(()),
        code => Err(format!("{name} failed with CUDA error {code}")),
    }
}

/// Remembers measured context sizes in a file, by what they depend on: driver version, GPU model and MIG profile.
#[derive(Debug)]
pub struct ContextCache {
    file: PathBuf,
}

impl ContextCache {
    /// Keeps its figures in `file`, which is made at the first measurement.
    #[must_use]
    pub const fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// [`Driver::context_memory`] of a GPU or of an instance on it, from the file if it is known there. A file that
    /// cannot be read or written costs a measurement, nothing else. Of processes that ask at the same time one
    /// measures, and the others wait; an uncertain figure is not remembered.
    ///
    /// # Errors
    /// If it must be measured and cannot be.
    pub fn context_memory(
        &self,
        driver: &dyn Driver,
        gpu: &Gpu,
        instance: Option<&MigInstance>,
    ) -> Result<ContextMemory> {
        if let Some(known) = self.known(driver, gpu, instance) {
            return Ok(known);
        }
        let _alone = self.alone(gpu);
        if let Some(known) = self.known(driver, gpu, instance) {
            return Ok(known);
        }
        let device = instance.map_or(gpu.uuid.0.as_str(), |instance| &instance.uuid);
        let memory = driver.context_memory(&gpu.uuid, device)?;
        if memory.uncertain {
            return Ok(memory);
        }
        let mut known = self.load();
        known.insert(key(driver, gpu, instance), memory);
        self.store(&known);
        Ok(memory)
    }

    /// The figure in the file, if it is there.
    #[must_use]
    pub fn known(
        &self,
        driver: &dyn Driver,
        gpu: &Gpu,
        instance: Option<&MigInstance>,
    ) -> Option<ContextMemory> {
        self.load().get(&key(driver, gpu, instance)).copied()
    }

    /// Waits until no other process measures on this GPU. A GPU that does not answer delays only the processes that ask
    /// for it.
    fn alone(&self, gpu: &Gpu) -> Option<File> {
        // Without the lock the measurements disturb one another, which they notice.
        let file = File::create(self.file.with_extension(format!("{}.lock", gpu.uuid))).ok()?;
        file.lock().ok().map(|()| file)
    }

    fn load(&self) -> BTreeMap<String, ContextMemory> {
        // A file that cannot be read costs a measurement, nothing else.
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn store(&self, known: &BTreeMap<String, ContextMemory>) {
        let Ok(text) = serde_json::to_string_pretty(known) else { return };
        let fresh = self.file.with_extension(format!("{}.tmp", std::process::id()));
        // Renamed into place so that a reader never finds half a file. A failure costs a measurement, nothing else.
        let _ = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &self.file));
    }
}

fn key(driver: &dyn Driver, gpu: &Gpu, instance: Option<&MigInstance>) -> String {
    let of_instance = instance.map_or_else(String::new, |instance| format!(" | {}", instance.profile));
    format!("{} | {}{of_instance}", driver.versions().driver, gpu.model)
}
