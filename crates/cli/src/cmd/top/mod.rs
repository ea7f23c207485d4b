//! `cantle top`: GPUs, the slices on them, the tasks in those, and what waits, live.

mod draw;
mod rows;
mod screen;

use std::process::ExitCode;

use cantle_clearml::cantle::{GetNodes, GetTasks};
use cantle_model::TaskStatus;

use self::draw::Style;
pub(crate) use self::rows::Sort;
use self::rows::{Picture, View};
use super::Context;
use crate::args::TopArgs;
use crate::connect::Server;
use crate::error::{CliError, Outcome};

/// Waiting and running tasks that are asked for; more than fit on any screen.
const TASKS: u64 = 1000;

/// Prints once, or stays until it is told to go.
pub(crate) fn top(context: &Context, args: &TopArgs) -> Outcome {
    let server = Server::find(context)?;
    let style = Style { ascii: args.ascii, color: context.printer.color };
    let view = View { filter: args.filter.clone().unwrap_or_default(), sort: args.sort };
    let picture = look(&server)?;
    if args.once {
        let mut lines = vec![draw::summary(&picture)];
        lines.extend(rows::rows(&picture, &view).iter().map(|row| draw::row(row, style)));
        lines.iter().for_each(|line| context.printer.data(&draw::to_text(line, style)));
        return Ok(ExitCode::SUCCESS);
    }
    screen::run(&server, picture, view, style)?;
    Ok(ExitCode::SUCCESS)
}

fn look(server: &Server) -> Result<Picture, CliError> {
    let nodes = server.call(&GetNodes {})?.nodes;
    let status = vec![TaskStatus::InProgress, TaskStatus::Queued];
    let tasks = server.call(&GetTasks { status, limit: Some(TASKS), ..GetTasks::default() })?.tasks;
    Ok(Picture { nodes, tasks })
}
