//! Measures the memory of a CUDA context, because no API reports it: a child process creates a context, and NVML is asked
//! about the child and about the GPU.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_uint, c_void};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use cantle_model::{GRANULE_BYTES, Gpu, GpuUuid, MigInstance};
use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::{Driver, DriverError, Installation, PROBE_CONTEXT_COMMAND, ProcessMemory, Result};

/// The child prints this when its context exists; it keeps the context until its stdin closes.
const READY: &str = "ready";

/// What a context takes beyond its process's figure is less than this. More is the doing of others meanwhile.
const UNATTRIBUTED_MAX_BYTES: u64 = 64 << 20;

/// The first context on a GPU takes more than the later ones: 3.3 MiB on an H100.
const FIRST_MORE_BYTES: u64 = 4 << 20;

/// The memory of a CUDA context on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextMemory {
    /// By the driver's figure for the process.
    pub own_bytes: u64,
    /// Taken on the GPU in addition: the driver's kernel module holds it for the context, and no process has it in NVML's list. An H100
    /// under driver 580.159.04 has 5.6 MiB of it per context, and 3.3 MiB for the first.
    pub unattributed_bytes: u64,
}

impl ContextMemory {
    /// All that a context takes, rounded up to 2 MiB.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.own_bytes.saturating_add(self.unattributed_bytes).next_multiple_of(GRANULE_BYTES)
    }
}

pub(crate) fn measure(
    driver: &dyn Driver,
    installation: &Installation,
    probe_exe: &Path,
    libcuda: &Path,
    gpu: &GpuUuid,
    device: &str,
) -> Result<ContextMemory> {
    let before = Seen::now(driver, gpu)?;
    let mut child = spawn(installation, probe_exe, libcuda, gpu, device)?;
    let ready = wait_ready(&mut child, gpu);
    let measured = ready.and_then(|()| read_back(driver, gpu, child.id(), before));
    drop(child.stdin.take());
    // Its exit status adds nothing to the line that it wrote, or did not write.
    let _ = child.wait();
    measured
}

/// The memory in use on a GPU.
struct Seen {
    used_bytes: u64,
    processes: Vec<ProcessMemory>,
}

impl Seen {
    fn now(driver: &dyn Driver, gpu: &GpuUuid) -> Result<Self> {
        Ok(Self { used_bytes: driver.memory(gpu)?.used_bytes, processes: driver.processes(gpu)? })
    }

    /// In use, and of no process.
    fn unattributed_bytes(&self) -> u64 {
        let of_processes = self.processes.iter().filter_map(|process| process.used_bytes).sum();
        self.used_bytes.saturating_sub(of_processes)
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
fn read_back(driver: &dyn Driver, gpu: &GpuUuid, pid: u32, before: Seen) -> Result<ContextMemory> {
    let after = Seen::now(driver, gpu)?;
    let own =
        after.processes.iter().find(|process| process.pid == pid).and_then(|process| process.used_bytes);
    let grown_bytes = after.used_bytes.saturating_sub(before.used_bytes);
    let Some(own_bytes) = own else {
        return Ok(ContextMemory { own_bytes: grown_bytes, unattributed_bytes: 0 });
    };
    // Other probes and tasks may have made contexts meanwhile.
    let contexts = after.processes.len().saturating_sub(before.processes.len()).max(1) as u64;
    let more = after.unattributed_bytes().saturating_sub(before.unattributed_bytes()) / contexts;
    let unattributed_bytes = match more {
        0 => 0,
        _ if more > UNATTRIBUTED_MAX_BYTES => 0,
        _ if before.processes.is_empty() => more,
        // The first context of all may become one of ours, and takes more.
        _ => more + FIRST_MORE_BYTES,
    };
    Ok(ContextMemory { own_bytes, unattributed_bytes })
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

    /// [`Driver::context_memory`] of a GPU or of an instance on it, from the file if it is known there. A file that can't
    /// be read or written costs a measurement, nothing else.
    ///
    /// # Errors
    /// If it must be measured and can't be.
    pub fn context_memory(
        &self,
        driver: &dyn Driver,
        gpu: &Gpu,
        instance: Option<&MigInstance>,
    ) -> Result<ContextMemory> {
        if let Some(known) = self.known(driver, gpu, instance) {
            return Ok(known);
        }
        let device = instance.map_or(gpu.uuid.0.as_str(), |instance| &instance.uuid);
        let memory = driver.context_memory(&gpu.uuid, device)?;
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

    fn load(&self) -> BTreeMap<String, ContextMemory> {
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
