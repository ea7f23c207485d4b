//! `cantle top`: GPUs, their slices, the tasks in those, and the waiting tasks, live.

mod draw;
mod rows;
mod screen;

use std::process::ExitCode;

use clap::Args;

use super::top::draw::Style;
use super::top::rows::{Picture, Sort, ViewOptions};
use crate::connect::Connection;
use crate::context::{CommandResult, Context};

/// `cantle top`
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Print once and exit, for scripts
    #[arg(long)]
    once: bool,
    /// Draw with ASCII characters only
    #[arg(long)]
    ascii: bool,
    /// Only GPUs, tasks and queues with this text in their name
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Order of the GPUs
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = Sort::Node)]
    sort: Sort,
}

/// Prints once, or stays until the user leaves.
pub(crate) fn top(context: &Context, args: &TopArgs) -> CommandResult {
    let server = Connection::open_if_any(context)?;
    let server = server.as_ref();
    let style = Style { ascii: args.ascii, color: context.printer.color };
    let view = ViewOptions { filter: args.filter.clone().unwrap_or_default(), sort: args.sort };
    let picture = Picture::fetch(server)?;
    if args.once {
        let mut lines = vec![draw::summary(&picture)];
        lines.extend(rows::rows(&picture, &view).iter().map(|row| draw::row(row, style)));
        lines.iter().for_each(|line| context.printer.data(&draw::to_text(line, style)));
        return Ok(ExitCode::SUCCESS);
    }
    screen::run(server, picture, view, style)?;
    Ok(ExitCode::SUCCESS)
}
