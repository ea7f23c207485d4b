//! The smallest program over this room, and what its tests run: `start attached|detached SPEC_JSON [TASK_DIR]`.
//! Exits as the task does; says on stderr what enforces the limit.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use cantle_runtime::{Running, StartError, TASK_INIT_COMMAND, TaskSpec, start_attached, start_detached};

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
                start_detached(&spec, Path::new(dir), Path::new("/proc/self/exe")).await
            }
            _ => start_attached(&spec),
        };
        run(started).await
    })
}

async fn run(started: Result<Running, StartError>) -> ExitCode {
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
