//! The smallest program over this crate, and what its tests run: `start attached SPEC_JSON`,
//! `start detached SPEC_JSON TASK_DIR` or `start container SPEC_JSON SOCKET IMAGE`.
//! Exits as the task does; prints on stderr which backend enforces the limit.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use cantle_runtime::{
    ContainerOutput, ContainerSpec, Engine, RunningTask, StartError, TASK_INIT_COMMAND, TaskDirectory,
    TaskSpec, start_attached, start_detached,
};

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    if args.first().is_some_and(|arg| arg == TASK_INIT_COMMAND) {
        return cantle_runtime::task_init_main(&args[1..]);
    }
    let (Some(mode), Some(spec)) = (args.first(), args.get(1)) else { return ExitCode::from(2) };
    let spec: TaskSpec = match fs::read(spec).map(|text| serde_json::from_slice(&text)) {
        Ok(Ok(spec)) => spec,
        _ => return ExitCode::from(2),
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async {
        let started = match args.get(2) {
            Some(dir) if mode == "detached" => {
                start_detached(&spec, &TaskDirectory::new(dir), Path::new("/proc/self/exe")).await
            }
            Some(socket) if mode == "container" => start_container(&spec, socket.as_ref(), args.get(3)).await,
            _ => start_attached(&spec),
        };
        run(started).await
    })
}

async fn start_container(
    spec: &TaskSpec,
    socket: &Path,
    image: Option<&OsString>,
) -> Result<RunningTask, StartError> {
    let container = ContainerSpec {
        task: "example".into(),
        image: image.map(|image| image.to_string_lossy().into_owned()).unwrap_or_default(),
        options: Vec::new(),
        devices: Vec::new(),
        driver_files: Vec::new(),
    };
    let engine = Engine::connect(Some(socket)).await?;
    engine.start(spec, &container, ContainerOutput::Inherit).await
}

async fn run(started: Result<RunningTask, StartError>) -> ExitCode {
    let mut err = std::io::stderr();
    match started {
        Ok(mut task) => {
            let _ = writeln!(err, "leader {} backend {:?}", task.leader().pid, task.backend());
            ExitCode::from(u8::try_from(task.wait().await.code()).unwrap_or(125))
        }
        Err(error) => {
            let _ = writeln!(err, "{error}");
            ExitCode::from(error.exit_code())
        }
    }
}
