//! `cantle extend`: how long a task may run.

use std::process::ExitCode;

use cantle_clearml::times::{ExtendTask, ShortenTask};
use cantle_model::TimeLimit;
use clap::Args;
use clap_complete::ArgValueCompleter;

use crate::complete;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};

/// `cantle extend`
#[derive(Args, Debug)]
pub(crate) struct ExtendArgs {
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
    /// By this time (30m, 1h, 1d12h)
    #[arg(value_name = "TIME")]
    by: TimeLimit,
    /// Take the time from the task instead; its owner may
    #[arg(long)]
    less: bool,
}

/// Prints the new time limit, counted from the start of the task.
pub(crate) fn extend(context: &Context, args: &ExtendArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let task = server.find_task(&args.task)?;
    let by_s = args.by.seconds();
    let new = if args.less {
        server.about(&task, &ShortenTask { task: task.clone(), by_s })?
    } else {
        server.about(&task, &ExtendTask { task: task.clone(), by_s })?
    };
    context.printer.say(&format!("{task}: may run {} from its start", new.time_limit_s));
    Ok(ExitCode::SUCCESS)
}
