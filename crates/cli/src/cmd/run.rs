//! `cantle run`: one task now, here, in its slice.

use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{AgentError, Command, Docker, RunRequest, run_docker, run_here};
use cantle_driver::Installation;
use cantle_model::{ComputeMode, GpuList, GpuRequest, Isolation};
use cantle_runtime::{BackendWish, DockerRun, inside_slice};

use super::{Context, runtime};
use crate::args::{DockerRunArgs, RunArgs};
use crate::error::{CliError, Kind, Outcome, as_kind};

/// Ends with the task's exit code.
pub(crate) fn run(context: &Context, args: RunArgs) -> Outcome {
    refuse_inside_a_slice()?;
    let image = match &args.image.image {
        Some(image) => {
            let (image, options) = (Some(image.clone()), args.image.options());
            Some(Docker { image, options, socket: args.socket.resolve()?, ..Docker::default() })
        }
        None => None,
    };
    let (request, gpus) = args.amount.place()?;
    let request = RunRequest {
        request,
        gpus,
        isolation: args.isolation,
        compute: args.compute,
        command: Command { argv: args.command.into_iter().map(Into::into).collect(), ..Command::default() },
        timeout: (args.timeout > 0).then(|| Duration::from_secs(args.timeout)),
        installation: Installation::of_this_machine(),
        lib_dir: context.places.lib.clone(),
        wish: BackendWish::Auto,
        image,
    };
    let talk = |line: &str| context.printer.say(&format!("cantle: {line}"));
    runtime()?.block_on(run_here(request, &talk)).map(exit_code).map_err(from_agent)
}

/// Ends with the container's exit code.
pub(crate) fn docker_run(context: &Context, args: DockerRunArgs) -> Outcome {
    refuse_inside_a_slice()?;
    let docker = DockerRun::parse(&args.command).map_err(as_kind(Kind::Usage))?;
    let request = RunRequest {
        request: args.amount.request()?.unwrap_or(GpuRequest::Gpus(1)),
        gpus: GpuList::All,
        isolation: Isolation::Any,
        compute: ComputeMode::default(),
        command: Command { argv: args.command.into_iter().map(Into::into).collect(), ..Command::default() },
        timeout: (args.timeout > 0).then(|| Duration::from_secs(args.timeout)),
        installation: Installation::of_this_machine(),
        lib_dir: context.places.lib.clone(),
        wish: BackendWish::Auto,
        image: None,
    };
    let talk = |line: &str| context.printer.say(&format!("cantle: {line}"));
    runtime()?.block_on(run_docker(request, &docker, &talk)).map(exit_code).map_err(from_agent)
}

fn refuse_inside_a_slice() -> Result<(), CliError> {
    if inside_slice() {
        let text =
            "this is inside a slice already, and a slice can't be cut again; run the command by itself";
        return Err(CliError::new(Kind::Conflict, text));
    }
    Ok(())
}

/// A process can't end with more than eight bits.
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}

/// The agent knows the exit codes of its errors.
pub(crate) fn from_agent(error: AgentError) -> CliError {
    CliError::with_code(error.exit_code(), error.to_string())
}
