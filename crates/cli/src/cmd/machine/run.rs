//! `cantle run`: runs one task now, on this machine, in a slice.

use std::process::ExitCode;
use std::time::Duration;

use cantle_driver::Installation;
use cantle_model::{ComputeRequest, EnforceMode, GpuList, GpuRequest, Isolation, TimeLimit};
use cantle_node::{Command, Docker, RunRequest, run_docker, run_here};
use cantle_runtime::{BackendChoice, DockerRun, Privileges, inside_slice};

use clap::Args;

use crate::containers::{ImageArgs, SocketArgs};
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::shared_args::{
    ComputeArgs, EnforceArgs, GpuAmount, MemoryLimitArgs, PrivilegeArgs, ReserveArgs, values,
};

/// `cantle run`
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    amount: GpuAmount,
    #[command(flatten)]
    memory_limit: MemoryLimitArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    /// What isolates the slice: any, mig or shared
    #[arg(long, value_name = "KIND", value_parser = values::isolation, default_value = "any")]
    isolation: Isolation,
    /// Seconds to wait for capacity [default: fail immediately]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// The longest time that the command may run (30m, 2h, 1d12h); then it is stopped
    #[arg(long, value_name = "TIME")]
    time: Option<TimeLimit>,
    #[command(flatten)]
    reserve: ReserveArgs,
    #[command(flatten)]
    enforce: EnforceArgs,
    #[command(flatten)]
    privileges: PrivilegeArgs,
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    socket: SocketArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// `cantle docker-run`
#[derive(Args, Debug)]
pub(crate) struct DockerRunArgs {
    #[command(flatten)]
    amount: GpuAmount,
    #[command(flatten)]
    reserve: ReserveArgs,
    /// Seconds to wait for capacity [default: fail immediately]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    #[command(flatten)]
    socket: SocketArgs,
    /// The whole command line: docker run --gpus device=INDEX … IMAGE CMD
    #[arg(last = true, required = true, value_name = "DOCKER RUN …")]
    command: Vec<String>,
}

/// Ends with the task's exit code.
pub(crate) fn run(context: &Context, args: RunArgs) -> CommandResult {
    refuse_inside_a_slice()?;
    let image = match &args.image.image {
        Some(image) => {
            let (image, options) = (Some(image.clone()), args.image.options());
            Some(Docker { image, options, socket: args.socket.resolve()?, ..Docker::default() })
        }
        None => None,
    };
    args.privileges.check(image.is_some())?;
    let slice = args.amount.request_and_gpus()?;
    let request = RunRequest {
        memory_limit: args.memory_limit.limit(Some(&slice.0), args.isolation)?,
        isolation: args.isolation,
        compute: args.compute.request(),
        module_reserve_bytes: args.reserve.bytes(),
        timeout: timeout(args.timeout),
        time: args.time,
        privileges: args.privileges.privileges(),
        enforce: args.enforce.mode(),
        image,
        ..plain(context, slice, args.command)
    };
    carry_out(context, request)
}

/// A command in a slice of this machine, or the user's shell if there is none.
pub(crate) fn in_slice(
    context: &Context,
    amount: &GpuAmount,
    memory_limit: MemoryLimitArgs,
    time: Option<TimeLimit>,
    command: Vec<String>,
) -> CommandResult {
    let slice = amount.request_and_gpus()?;
    let memory_limit = memory_limit.limit(Some(&slice.0), Isolation::Any)?;
    let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    let mut request = RunRequest { memory_limit, time, ..plain(context, slice, command) };
    if request.command.argv.is_empty() {
        request.command.argv.push(shell());
    }
    carry_out(context, request)
}

/// A command in a slice of this machine, with nothing asked for but the slice.
fn plain(context: &Context, (request, gpus): (GpuRequest, GpuList), command: Vec<String>) -> RunRequest {
    RunRequest {
        request,
        gpus,
        memory_limit: None,
        isolation: Isolation::Any,
        compute: ComputeRequest::default(),
        command: Command { argv: command.into_iter().map(Into::into).collect(), ..Command::default() },
        module_reserve_bytes: 0,
        timeout: None,
        time: None,
        installation: Installation::of_this_machine(),
        lib_dir: context.dirs.lib.clone(),
        backend: BackendChoice::Auto,
        privileges: Privileges::default(),
        enforce: EnforceMode::default(),
        image: None,
    }
}

fn carry_out(context: &Context, request: RunRequest) -> CommandResult {
    let talk = |line: &str| context.printer.say(&format!("cantle: {line}"));
    Ok(exit_code(runtime()?.block_on(run_here(request, &talk))?))
}

/// Ends with the container's exit code.
pub(crate) fn docker_run(context: &Context, args: DockerRunArgs) -> CommandResult {
    refuse_inside_a_slice()?;
    let docker = DockerRun::parse(&args.command).map_err(as_kind(ErrorKind::Usage))?;
    let slice = (args.amount.request()?.unwrap_or(GpuRequest::Gpus(1)), GpuList::All);
    let request = RunRequest {
        module_reserve_bytes: args.reserve.bytes(),
        timeout: timeout(args.timeout),
        image: Some(Docker { socket: args.socket.resolve()?, ..Docker::default() }),
        ..plain(context, slice, args.command)
    };
    let talk = |line: &str| context.printer.say(&format!("cantle: {line}"));
    Ok(exit_code(runtime()?.block_on(run_docker(request, &docker, &talk))?))
}

/// 0 seconds are no wait at all, as without the flag.
fn timeout(seconds: Option<u64>) -> Option<Duration> {
    seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

pub(crate) fn refuse_inside_a_slice() -> Result<(), CliError> {
    if inside_slice() {
        let text = "this is inside a slice already, and a slice cannot be cut again";
        return Err(CliError::new(ErrorKind::Conflict, text).with_hint("run the command by itself"));
    }
    Ok(())
}

/// A process cannot end with more than eight bits.
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}
