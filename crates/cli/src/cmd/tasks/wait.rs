//! `cantle wait`: until tasks have ended.

use std::process::ExitCode;
use tokio::time::Instant;

use cantle_model::TimeLimit;
use clap::Args;
use clap_complete::ArgValueCompleter;

use super::one::{Waited, exit_of};
use crate::complete;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};

/// `cantle wait`
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Names of the tasks, their ids, or the beginnings of them
    #[arg(value_name = "TASK", required = true, add = ArgValueCompleter::new(complete::tasks))]
    tasks: Vec<String>,
    /// Give up after this time (30m, 2h); the tasks go on
    #[arg(long, value_name = "TIME")]
    timeout: Option<TimeLimit>,
}

/// Ends as the first of the tasks that did not complete, in the order in which they were named.
pub(crate) fn wait(context: &Context, args: &WaitArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let began = Instant::now();
    let ids = args.tasks.iter().map(|task| server.find_task(task)).collect::<Result<Vec<_>, _>>()?;
    let mut waiting: Vec<Waited> = ids.into_iter().map(Waited::new).collect();
    let mut ended = vec![None; waiting.len()];
    loop {
        for (waited, ended) in waiting.iter_mut().zip(&mut ended).filter(|(_, ended)| ended.is_none()) {
            *ended = waited.look(&server, &context.printer)?;
        }
        if ended.iter().all(Option::is_some) {
            break;
        }
        if let Some(timeout) = args.timeout
            && began.elapsed().as_secs() >= timeout.seconds()
        {
            let open = ended.iter().filter(|ended| ended.is_none()).count();
            let text = format!("{open} of {} tasks have not ended within {timeout}", ended.len());
            return Err(CliError::new(ErrorKind::Failed, text));
        }
        server.pause();
    }
    let mut codes = ended.iter().flatten().map(exit_of);
    codes
        .find(|code| !matches!(code, Ok(code) if *code == ExitCode::SUCCESS))
        .unwrap_or(Ok(ExitCode::SUCCESS))
}
