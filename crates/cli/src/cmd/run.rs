//! `cantle run`: one task now, here, in its slice.

use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{AgentError, Command, RunRequest, run_here};
use cantle_model::GpuRequest;
use cantle_runtime::BackendWish;

use super::{Context, runtime};
use crate::args::RunArgs;
use crate::error::{CliError, Outcome};

/// Ends with the task's exit code.
pub(crate) fn run(context: &Context, args: RunArgs) -> Outcome {
    let request = RunRequest {
        request: args.amount.request().unwrap_or(GpuRequest::Gpus(1)),
        compute: args.compute,
        command: Command { argv: args.command.into_iter().map(Into::into).collect(), ..Command::default() },
        timeout: (args.timeout > 0).then(|| Duration::from_secs(args.timeout)),
        source: context.places.source()?,
        lib_dir: context.places.lib.clone(),
        wish: BackendWish::Auto,
    };
    let talk = |line: &str| context.printer.say(&format!("cantle: {line}"));
    let code = runtime()?.block_on(run_here(request, &talk)).map_err(from_agent)?;
    // A process can't end with more than eight bits.
    Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)))
}

/// The agent knows the exit codes of its errors.
pub(crate) fn from_agent(error: AgentError) -> CliError {
    CliError::with_code(error.exit_code(), error.to_string())
}
