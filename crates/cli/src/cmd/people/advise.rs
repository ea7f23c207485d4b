//! `cantle advise`: tasks that would have fitted into a smaller share of a GPU. It changes nothing.

use std::process::ExitCode;

use cantle_clearml::usage::{AdviceLine, GetAdvice};
use clap::Args;
use jiff::{Timestamp, ToSpan as _};

use super::usage::{HOUR, check_order, moment};
use crate::cmd::tasks::list::{amount, memory, or_dash};
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::out::Column;

/// Days that count unless others are asked for.
const DAYS: i64 = 30;

/// `cantle advise`
#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    /// Runs since this day or moment, like 2026-11-01 or 2026-11-01T08:00:00Z [default: 30 days before --to]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    from: Option<Timestamp>,
    /// Runs before this day or moment [default: now]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    to: Option<Timestamp>,
}

const COLUMNS: [Column<AdviceLine>; 8] = [
    Column { head: "TASK", wide: false, cell: |a| a.name.clone() },
    Column { head: "PROJECT", wide: false, cell: |a| or_dash(a.project.as_deref()) },
    Column { head: "GPU", wide: false, cell: |a| amount(a.milli) },
    Column { head: "ENOUGH", wide: false, cell: |a| amount(a.enough_milli) },
    Column { head: "OF-MEMORY", wide: false, cell: |a| memory(a.limit_bytes) },
    Column { head: "PEAK", wide: false, cell: |a| memory(a.peak_bytes) },
    Column { head: "RUNS", wide: false, cell: |a| a.runs.to_string() },
    Column { head: "SPARE-GPU-HOURS", wide: false, cell: |a| format!("{:.3}", a.spare_gpu_seconds / HOUR) },
];

/// The greatest saving first.
pub(crate) fn advise(context: &Context, args: &AdviseArgs) -> CommandResult {
    let to = args.to.unwrap_or_else(Timestamp::now);
    let before = || to.checked_sub((24 * DAYS).hours()).unwrap_or(Timestamp::UNIX_EPOCH);
    let from = args.from.unwrap_or_else(before);
    check_order(from, to)?;
    let request = GetAdvice { from: from.to_string(), to: to.to_string() };
    let advice = Connection::open(context)?.call(&request)?;
    context.printer.items(&advice.lines, |line| line.name.clone(), &COLUMNS);
    if advice.lines.is_empty() {
        let text = "no task would have fitted into a smaller share: that takes three runs with a known peak of memory";
        context.printer.say(text);
    }
    Ok(ExitCode::SUCCESS)
}
