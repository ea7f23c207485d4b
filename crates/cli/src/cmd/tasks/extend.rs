//! `cantle extend`: how long a task may run, or be idle.

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
    /// Change for how long the task may be idle, instead of how long it may run
    #[arg(long)]
    idle: bool,
}

/// Prints the new limit.
pub(crate) fn extend(context: &Context, args: &ExtendArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let task = server.find_task(&args.task)?;
    let (by_s, idle) = (args.by.seconds(), args.idle);
    let new = if args.less {
        server.about(&task, &ShortenTask { task: task.clone(), by_s, idle })?
    } else {
        server.about(&task, &ExtendTask { task: task.clone(), by_s, idle })?
    };
    let limit = new.time_limit_s;
    context.printer.say(&match idle {
        true => format!("{task}: may be idle for {limit}"),
        false => format!("{task}: may run {limit} from its start"),
    });
    Ok(ExitCode::SUCCESS)
}
