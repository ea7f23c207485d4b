//! Checkpoints of processes: a resident process of cantle's that has called `cuInit`, and that carries out the driver's checkpoint
//! functions for its parent.
//!
//! It is a process of its own because CUDA's library takes seconds to start and may hang or crash, and because a call to it cannot be
//! interrupted. One line is one call; a helper that does not answer in time is ended, and the state of the process that it was about is
//! not known until it is asked for.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_uint};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use cantle_model::GpuUuid;
use libloading::Library;

use crate::{CHECKPOINT_COMMAND, DriverError, Installation, Result};

/// The oldest driver with these functions, and the oldest that restores a process on another GPU, and one that shares memory with others.
pub const CHECKPOINTS_FROM: u32 = 570;
/// See [`CHECKPOINTS_FROM`].
pub const MOVES_FROM: u32 = 580;
/// See [`CHECKPOINTS_FROM`].
pub const SHARED_FROM: u32 = 610;

/// How long the helper may take to start: `cuInit` takes seconds on machines with many GPUs.
const START: Duration = Duration::from_secs(60);
/// How much longer than its own limit a call may take.
const GRACE: Duration = Duration::from_secs(5);
/// The slowest transfer that is waited for. NVIDIA's figures are around 5 GB/s.
const SLOWEST_BYTES_PER_S: u64 = 200 << 20;

const READY: &str = "ready";

/// The state of a process for the driver's checkpoint functions (`CUprocessState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    /// It runs.
    Running,
    /// Its CUDA calls block.
    Locked,
    /// Its GPU memory is in host memory, and it has nothing on a GPU.
    Checkpointed,
    /// It never runs again.
    Failed,
    /// Something is under way.
    Busy,
}

impl CheckpointState {
    const fn of(number: u32) -> Self {
        match number {
            0 => Self::Running,
            1 => Self::Locked,
            2 => Self::Checkpointed,
            3 => Self::Failed,
            _ => Self::Busy,
        }
    }
}

/// The helper. It ends with its parent.
#[derive(Debug)]
pub struct Checkpoints {
    child: Child,
    calls: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Checkpoints {
    /// Starts the helper, and waits until it is ready.
    ///
    /// # Errors
    /// If it cannot be started, or the driver refuses.
    pub(crate) fn start(installation: &Installation, exe: &Path, libcuda: &Path) -> Result<Self> {
        let mut command = Command::new(exe);
        command.arg(CHECKPOINT_COMMAND).arg(libcuda);
        if let Some(dir) = installation.directory() {
            command.arg(dir);
        }
        // It has to know all GPUs of the machine. A signal for the parent's group is not for it.
        command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("LD_PRELOAD").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|why| failed(format!("cannot start {}: {why}", exe.display())))?;
        let (lines, answers) = mpsc::channel();
        let output = child.stdout.take();
        thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
                let Ok(line) = line else { return };
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut helper = Self { calls: child.stdin.take(), child, answers };
        match helper.answer(START)?.as_str() {
            READY => Ok(helper),
            why => Err(failed(why.to_owned())),
        }
    }

    /// Blocks the CUDA calls of a process, once its work is done. It runs on if that takes longer than `limit`.
    ///
    /// # Errors
    /// [`DriverError::Checkpoint`] with the driver's code, or the helper's failure.
    pub fn lock(&mut self, pid: u32, limit: Duration) -> Result<()> {
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX).max(1);
        self.call("cuCheckpointProcessLock", pid, &format!("lock {pid} {limit_ms}"), limit).map(|_| ())
    }

    /// Brings the memory of a locked process, about this much, to host memory.
    ///
    /// # Errors
    /// As [`Checkpoints::lock`].
    pub fn checkpoint(&mut self, pid: u32, bytes: u64) -> Result<()> {
        self.call("cuCheckpointProcessCheckpoint", pid, &format!("checkpoint {pid}"), transfer(bytes))
            .map(|_| ())
    }

    /// Brings it back; to other GPUs if there are `pairs` of old and new ones.
    ///
    /// # Errors
    /// As [`Checkpoints::lock`].
    pub fn restore(&mut self, pid: u32, bytes: u64, pairs: &[(GpuUuid, GpuUuid)]) -> Result<()> {
        let pairs: String = pairs.iter().map(|(old, new)| format!(" {}={}", old.0, new.0)).collect();
        self.call("cuCheckpointProcessRestore", pid, &format!("restore {pid}{pairs}"), transfer(bytes))
            .map(|_| ())
    }

    /// Lets a locked process run.
    ///
    /// # Errors
    /// As [`Checkpoints::lock`].
    pub fn unlock(&mut self, pid: u32) -> Result<()> {
        self.call("cuCheckpointProcessUnlock", pid, &format!("unlock {pid}"), GRACE).map(|_| ())
    }

    /// The state of a process.
    ///
    /// # Errors
    /// As [`Checkpoints::lock`].
    pub fn state(&mut self, pid: u32) -> Result<CheckpointState> {
        let answer = self.call("cuCheckpointProcessGetState", pid, &format!("state {pid}"), GRACE)?;
        Ok(answer.parse().map_or(CheckpointState::Busy, CheckpointState::of))
    }

    fn call(&mut self, name: &'static str, pid: u32, line: &str, limit: Duration) -> Result<String> {
        let sent = self.calls.as_mut().map(|calls| writeln!(calls, "{line}").and_then(|()| calls.flush()));
        if !matches!(sent, Some(Ok(()))) {
            return Err(failed("it has ended".to_owned()));
        }
        let answer = self.answer(limit + GRACE)?;
        match answer.split_once(' ') {
            Some(("ok", value)) => Ok(value.to_owned()),
            Some(("error", code)) => {
                let code = code.parse().unwrap_or(UNKNOWN);
                Err(DriverError::Checkpoint { call: name, pid, code, text: text_of(code) })
            }
            _ => Err(failed(answer)),
        }
    }

    fn answer(&mut self, limit: Duration) -> Result<String> {
        self.answers.recv_timeout(limit).map_err(|why| match why {
            RecvTimeoutError::Disconnected => failed("it has ended".to_owned()),
            RecvTimeoutError::Timeout => {
                // A late answer would be taken for the next one.
                self.end();
                failed(format!("the driver does not answer within {} s", limit.as_secs()))
            }
        })
    }

    fn end(&mut self) {
        self.calls = None;
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.end();
    }
}

fn transfer(bytes: u64) -> Duration {
    Duration::from_secs(10 + bytes / SLOWEST_BYTES_PER_S)
}

const fn failed(why: String) -> DriverError {
    DriverError::CheckpointHelper(why)
}

const UNKNOWN: i32 = 999;

/// CUDA's names of the codes that these functions return.
const fn text_of(code: i32) -> &'static str {
    match code {
        1 => "CUDA_ERROR_INVALID_VALUE",
        2 => "CUDA_ERROR_OUT_OF_MEMORY",
        3 => "CUDA_ERROR_NOT_INITIALIZED",
        201 => "CUDA_ERROR_INVALID_CONTEXT",
        304 => "CUDA_ERROR_OPERATING_SYSTEM",
        401 => "CUDA_ERROR_ILLEGAL_STATE",
        500 => "CUDA_ERROR_NOT_FOUND",
        600 => "CUDA_ERROR_NOT_READY",
        800 => "CUDA_ERROR_NOT_PERMITTED",
        801 => "CUDA_ERROR_NOT_SUPPORTED",
        _ => "CUDA error",
    }
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
struct LockArguments {
    timeout_ms: c_uint,
    reserved: c_uint,
    more: [u64; 7],
}

/// `CUcheckpointGpuPair`.
#[repr(C)]
struct Pair {
    old: [u8; 16],
    new: [u8; 16],
}

/// `CUcheckpointRestoreArgs`; without pairs all of it is zero, as drivers before 580 want it.
#[repr(C)]
struct RestoreArguments {
    pairs: *const Pair,
    count: c_uint,
    reserved: [u8; 52],
}

const _: () = assert!(size_of::<LockArguments>() == 64 && size_of::<RestoreArguments>() == 64);

type WithArguments<T> = unsafe extern "C" fn(c_int, *const T) -> c_int;

/// The helper's `main`: a call per line of stdin, an answer per line of stdout. `args` are those after [`CHECKPOINT_COMMAND`]: the path of libcuda
/// and, for a driver in a directory, that directory.
#[must_use]
pub fn checkpoint_main(args: &[OsString]) -> ExitCode {
    // It ends with its stdin, which its parent keeps open.
    let library = match args {
        [libcuda] => initialized(libcuda, None),
        [libcuda, dir] => initialized(libcuda, Some(dir)),
        _ => Err("usage: __checkpoint LIBCUDA [SIM_DIR]".to_owned()),
    };
    let mut out = std::io::stdout();
    let mut say = |line: &str| writeln!(out, "{line}").and_then(|()| out.flush());
    let library = match library {
        Ok(library) => library,
        Err(why) => {
            // A caller that is gone reads nothing.
            let _ = say(&why);
            return ExitCode::FAILURE;
        }
    };
    if say(READY).is_err() {
        return ExitCode::FAILURE;
    }
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { break };
        let answer = match carried_out(&library, &line) {
            Ok(value) => format!("ok {value}"),
            Err(code) => format!("error {code}"),
        };
        if say(&answer).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn initialized(libcuda: &OsStr, dir: Option<&OsString>) -> std::result::Result<Library, String> {
    // SAFETY: runs the constructors of the driver's library, which ask nothing of the process that loads it.
    let library = unsafe { Library::new(libcuda) }.map_err(|why| why.to_string())?;
    if let Some(dir) = dir {
        let dir = CString::new(dir.as_bytes()).map_err(|why| why.to_string())?;
        // SAFETY: the simulated driver declares it with this type.
        let select = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> c_int>("cantle_sim_use") };
        // SAFETY: the type is the one that the simulated driver declares; the string is NUL-terminated and outlives the call.
        select.map(|select| unsafe { select(dir.as_ptr()) }).map_err(|why| why.to_string())?;
    }
    // SAFETY: CUDA's header gives this type.
    let init = unsafe { library.get::<unsafe extern "C" fn(c_uint) -> c_int>("cuInit") };
    // SAFETY: the type is that of CUDA's header; 0 is the only value that the flags may have.
    match init.map(|init| unsafe { init(0) }).map_err(|why| why.to_string())? {
        0 => Ok(library),
        code => Err(format!("cuInit failed with CUDA error {code}")),
    }
}

/// The value of a call, 0 if it has none, or CUDA's code.
fn carried_out(library: &Library, line: &str) -> std::result::Result<u32, i32> {
    const INVALID_VALUE: i32 = 1;
    let mut words = line.split(' ');
    let (call, pid) =
        (words.next().unwrap_or_default(), words.next().and_then(|pid| pid.parse::<c_int>().ok()));
    let pid = pid.ok_or(INVALID_VALUE)?;
    match call {
        "lock" => {
            let timeout_ms = words.next().and_then(|ms| ms.parse().ok()).ok_or(INVALID_VALUE)?;
            let arguments = LockArguments { timeout_ms, reserved: 0, more: [0; 7] };
            with(library, "cuCheckpointProcessLock", pid, &arguments)
        }
        "checkpoint" => with(library, "cuCheckpointProcessCheckpoint", pid, &[0_u64; 8]),
        "unlock" => with(library, "cuCheckpointProcessUnlock", pid, &[0_u64; 8]),
        "restore" => {
            let pairs: Option<Vec<Pair>> = words.map(pair).collect();
            let pairs = pairs.ok_or(INVALID_VALUE)?;
            let first = if pairs.is_empty() { std::ptr::null() } else { pairs.as_ptr() };
            let count = c_uint::try_from(pairs.len()).unwrap_or(0);
            let arguments = RestoreArguments { pairs: first, count, reserved: [0; 52] };
            with(library, "cuCheckpointProcessRestore", pid, &arguments)
        }
        "state" => {
            let mut state: c_uint = 0;
            with(library, "cuCheckpointProcessGetState", pid, (&raw mut state).cast_const())?;
            Ok(state)
        }
        _ => Err(INVALID_VALUE),
    }
}

fn with<T>(library: &Library, name: &str, pid: c_int, arguments: *const T) -> std::result::Result<u32, i32> {
    const NOT_FOUND: i32 = 500;
    // SAFETY: CUDA's header gives the functions that are named here this type: a process, and a pointer to the function's own structure
    // or result.
    let function = unsafe { library.get::<WithArguments<T>>(name) }.map_err(|_| NOT_FOUND)?;
    // SAFETY: the type is that of CUDA's header; `arguments` points to a live value of the function's type, which it reads or, for the state, writes.
    match unsafe { function(pid, arguments) } {
        0 => Ok(0),
        code => Err(code),
    }
}

fn pair(text: &str) -> Option<Pair> {
    let (old, new) = text.split_once('=')?;
    Some(Pair { old: uuid(old)?, new: uuid(new)? })
}

fn uuid(name: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = name
        .strip_prefix("GPU-")?
        .chars()
        .filter(|digit| *digit != '-')
        .map(|digit| digit.to_digit(16))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks_exact(2).filter_map(|pair| u8::try_from(pair[0] << 4 | pair[1]).ok()).collect();
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_names_two_gpus() {
        let name = |digit: char| {
            format!(
                "GPU-{0}-{1}-{1}-{1}-{2}",
                digit.to_string().repeat(8),
                digit.to_string().repeat(4),
                digit.to_string().repeat(12)
            )
        };
        let found = pair(&format!("{}={}", name('1'), name('f'))).unwrap();
        assert_eq!((found.old, found.new), ([0x11; 16], [0xff; 16]));
        for wrong in ["", "GPU-1=GPU-2", &name('1'), &format!("{}=MIG-0", name('1'))] {
            assert!(pair(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_transfer_has_time_by_its_size() {
        assert!(transfer(80 << 30) > Duration::from_secs(300));
        assert!(transfer(0) < Duration::from_secs(30));
    }
}
