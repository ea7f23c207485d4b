//! What this program is besides a test.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{Command, RunRequest, run_here};
use cantle_driver::Source;
use cantle_model::{ComputeMode, GpuRequest};
use cantle_runtime::BackendWish;

/// First argument: be `cantle run`.
pub(crate) const RUN: &str = "__test-run";

pub(crate) fn async_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// `PLACE GPU TIMEOUT_S SCRIPT`
pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let [place, gpu, timeout_s, script] = args else { return ExitCode::from(2) };
    let place = Path::new(place);
    let lib_dir = place.join("lib");
    let timeout_s: u64 = timeout_s.to_str().unwrap().parse().unwrap();
    let request = RunRequest {
        request: match gpu.to_str().unwrap() {
            memory if memory.ends_with('i') => GpuRequest::from_memory(memory).unwrap(),
            fraction => GpuRequest::from_fraction(fraction).unwrap(),
        },
        compute: ComputeMode::Even,
        command: Command { argv: vec!["sh".into(), "-c".into(), script.clone()], ..Command::default() },
        timeout: (timeout_s > 0).then(|| Duration::from_secs(timeout_s)),
        source: Source::Sim { dir: place.join("sim"), lib_dir: lib_dir.clone() },
        lib_dir,
        wish: BackendWish::Auto,
    };
    let ran = async_runtime().block_on(run_here(request, &|line| eprintln!("cantle: {line}")));
    match ran {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap()),
        Err(error) => {
            eprintln!("cantle: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
