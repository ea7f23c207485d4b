//! `cantle tasks runs TASK`: all runs of a task.

use std::process::ExitCode;

use cantle_clearml::runs::{GetRuns, RunView};
use cantle_clearml::subcode;
use clap::Args;
use clap_complete::ArgValueCompleter;

use super::list::{amount, memory, or_dash};
use crate::complete;
use crate::connect::{Connection, no_task};
use crate::context::{CommandResult, Context};
use crate::error::CliError;
use crate::out::Column;

/// `cantle tasks runs`
#[derive(Args, Debug)]
pub(crate) struct RunsArgs {
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
}

const COLUMNS: [Column<RunView>; 13] = [
    Column { head: "RUN", wide: false, cell: |r| r.run.to_string() },
    Column { head: "QUEUE", wide: true, cell: |r| or_dash(r.queue.as_deref()) },
    Column { head: "NODE", wide: false, cell: |r| or_dash(r.node.as_deref()) },
    Column { head: "GPU", wide: false, cell: |r| amount(r.milli) },
    Column { head: "MEMORY", wide: false, cell: |r| memory(r.memory_limit_bytes) },
    Column {
        head: "PEAK",
        wide: false,
        cell: |r| r.measured.peak_bytes.map_or_else(|| "-".to_owned(), memory),
    },
    Column { head: "GPU-TIME", wide: true, cell: |r| gpu_time(r.measured.gpu_time_us) },
    Column { head: "TAKEN", wide: true, cell: |r| or_dash(r.taken.as_deref()) },
    Column { head: "STARTED", wide: false, cell: |r| or_dash(r.started.as_deref()) },
    Column { head: "ENDED", wide: false, cell: |r| or_dash(r.ended.as_deref()) },
    Column { head: "OUTCOME", wide: false, cell: |r| or_dash(r.outcome.map(|o| o.to_string()).as_deref()) },
    Column { head: "EXIT", wide: false, cell: |r| or_dash(r.exit_code.map(|c| c.to_string()).as_deref()) },
    Column { head: "WHY", wide: false, cell: |r| r.why.clone().unwrap_or_default() },
];

/// The first run first.
pub(crate) fn runs(context: &Context, args: &RunsArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let task = server.find_task(&args.task)?;
    let runs = server.answer(&GetRuns { task }).map_err(|error| {
        if error.is_subcode(subcode::INVALID_TASK_ID) { no_task(&args.task) } else { CliError::from(error) }
    })?;
    context.printer.items(&runs.runs, |r| r.run.to_string(), &COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// In seconds.
fn gpu_time(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{}.{:03}s", us / 1_000_000, us / 1000 % 1000))
}
