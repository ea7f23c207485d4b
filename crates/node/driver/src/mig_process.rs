//! MIG calls in a process of their own, which ends with the call.
//!
//! NVIDIA's library holds one lock per process during each MIG call, for all GPUs, and a thread that waits for the lock
//! spins on a core: a creation that takes seconds on one GPU would block all calls about the others. It also remembers
//! for the life of a process which profile a GPU instance id had. A process per call has a lock of its own and remembers
//! nothing.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::nvml::Session;
use crate::{DriverError, GpuInstance, Installation, MIG_COMMAND, Mig, Result};

/// A call about one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum MigCall {
    Table,
    Instances,
    Devices,
    Named { name: String },
    CreateGpuInstance { profile: u32, start: u32, size: u32 },
    CreateComputeInstance { instance: u32 },
    DestroyComputeInstances { instance: u32 },
    DestroyGpuInstance { instance: u32 },
}

/// Why it failed, as far as the caller acts on it.
#[derive(Debug, Serialize, Deserialize)]
enum Failure {
    Nvml { function: String, code: u32, text: String },
    TooOld { function: String },
    Contradiction { instance: u32 },
    Other(String),
}

impl Failure {
    fn of(error: DriverError) -> Self {
        match error {
            DriverError::Nvml { function, code, text, .. } => {
                Self::Nvml { function: function.into_owned(), code, text }
            }
            DriverError::TooOld { function } => Self::TooOld { function: function.into_owned() },
            DriverError::Contradiction { instance, .. } => Self::Contradiction { instance },
            other => Self::Other(other.to_string()),
        }
    }

    fn on(self, gpu: &GpuUuid) -> DriverError {
        let gpu = gpu.clone();
        match self {
            Self::Nvml { function, code, text } => {
                DriverError::Nvml { function: function.into(), gpu: Some(gpu), code, text }
            }
            Self::TooOld { function } => DriverError::TooOld { function: function.into() },
            Self::Contradiction { instance } => DriverError::Contradiction { gpu, instance },
            Self::Other(why) => DriverError::MigProcess { gpu, why },
        }
    }
}

/// The command that starts the process.
#[derive(Clone, Debug)]
pub(crate) struct MigProcess {
    exe: PathBuf,
    installation: Installation,
}

impl MigProcess {
    pub(crate) const fn new(exe: PathBuf, installation: Installation) -> Self {
        Self { exe, installation }
    }

    /// Asks, and waits as long as it takes. `table` spares the process the reading of the GPU's profiles.
    pub(crate) fn ask<T: DeserializeOwned>(
        &self,
        gpu: &Gpu,
        table: Option<&Table>,
        call: &MigCall,
    ) -> Result<T> {
        match self.ask_once(gpu, table, call) {
            // It was replaced between two calls: another process sees the present instance.
            Err(DriverError::Contradiction { .. }) => self.ask_once(gpu, table, call),
            answer => answer,
        }
    }

    fn ask_once<T: DeserializeOwned>(&self, gpu: &Gpu, table: Option<&Table>, call: &MigCall) -> Result<T> {
        let failed = |why: String| DriverError::MigProcess { gpu: gpu.uuid.clone(), why };
        let words = serde_json::to_string(&(call, table)).map_err(|why| failed(why.to_string()))?;
        let mut command = Command::new(&self.exe);
        command.arg(MIG_COMMAND).arg(std::process::id().to_string());
        command.arg(gpu.index.to_string()).arg(&gpu.uuid.0).arg(words);
        command.args(self.installation.words());
        command.env_remove("LD_PRELOAD").stdin(Stdio::null());
        let output = command.output().map_err(|why| failed(why.to_string()))?;
        match serde_json::from_slice::<std::result::Result<T, Failure>>(&output.stdout) {
            Ok(answer) => answer.map_err(|failure| failure.on(&gpu.uuid)),
            Err(why) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let ended = output.status.signal().map(|signal| format!("ended by signal {signal}"));
                let why = ended.unwrap_or_else(|| why.to_string());
                Err(failed(said.lines().next().map_or(why, ToOwned::to_owned)))
            }
        }
    }
}

/// The `main` of that process. `args` are those after [`MIG_COMMAND`].
#[must_use]
pub fn mig_main(args: &[OsString]) -> ExitCode {
    // When the caller is gone, no program knows what this process does to the GPU.
    let _ = set_pdeathsig(Signal::SIGKILL);
    let answer = match args {
        // It ended before that line.
        [caller, ..] if caller != getppid().to_string().as_str() => return ExitCode::FAILURE,
        [_, index, gpu, call, rest @ ..] => carry_out(index, gpu, call, rest),
        _ => "\"usage\"".to_owned(),
    };
    match std::io::stdout().write_all(answer.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn carry_out(index: &OsStr, gpu: &OsStr, call: &OsStr, rest: &[OsString]) -> String {
    let other = |why: &str| DriverError::Sim(why.to_owned());
    let text = |word: &OsStr| word.to_str().map(ToOwned::to_owned);
    let asked = || -> Result<serde_json::Value> {
        let index =
            text(index).and_then(|index| index.parse().ok()).ok_or_else(|| other("no number of a GPU"))?;
        let gpu = GpuUuid(text(gpu).ok_or_else(|| other("no GPU"))?);
        let call = text(call).and_then(|call| serde_json::from_str::<(MigCall, Option<Table>)>(&call).ok());
        let (call, table) = call.ok_or_else(|| other("no such call"))?;
        let session = Session::of_one(&Installation::of_words(rest), index, &gpu)?;
        if let Some(table) = table {
            session.keep_table(&gpu, table);
        }
        answer(&session, &gpu, call)
    };
    let answer = asked().map_err(Failure::of);
    // Both are plain data with names for keys.
    serde_json::to_string(&answer).unwrap_or_default()
}

fn answer(session: &Session, gpu: &GpuUuid, call: MigCall) -> Result<serde_json::Value> {
    fn json<T: Serialize>(value: T) -> Result<serde_json::Value> {
        serde_json::to_value(value).map_err(|why| DriverError::Sim(why.to_string()))
    }
    match call {
        MigCall::Table => json::<Option<Table>>(session.mig_table(gpu)?),
        MigCall::Instances => json::<Vec<GpuInstance>>(session.gpu_instances(gpu)?),
        MigCall::Devices => json(session.mig_devices(gpu)?),
        MigCall::Named { name } => json(session.instance_named(gpu, &name)?),
        MigCall::CreateGpuInstance { profile, start, size } => {
            json(session.create_gpu_instance(gpu, profile, start, size)?)
        }
        MigCall::CreateComputeInstance { instance } => json(session.create_compute_instance(gpu, instance)?),
        MigCall::DestroyComputeInstances { instance } => {
            json(session.destroy_compute_instances(gpu, instance)?)
        }
        MigCall::DestroyGpuInstance { instance } => json(session.destroy_gpu_instance(gpu, instance)?),
    }
}
