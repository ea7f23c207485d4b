//! `cantle tasks --start`: waiting tasks with an estimate of their start.

use std::collections::BTreeMap;
use std::process::ExitCode;

use cantle_clearml::cantle::TaskView;
use cantle_clearml::starts::{GetStarts, StartView};
use cantle_model::TaskStatus;
use serde::Serialize;

use super::list;
use super::list::TasksArgs;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::out::{Column, age, between};

/// A waiting task.
#[derive(Serialize)]
struct EstimatedTask {
    #[serde(flatten)]
    task: TaskView,
    /// When it is expected to start; `null`: unknown.
    estimated_start: Option<String>,
    estimate_basis: String,
}

const COLUMNS: [Column<EstimatedTask>; 6] = [
    Column { head: "ID", wide: false, cell: |w| w.task.id.clone() },
    Column { head: "NAME", wide: false, cell: |w| list::name_of(&w.task) },
    Column { head: "QUEUE", wide: false, cell: |w| list::or_dash(w.task.queue.as_deref()) },
    Column { head: "AGE", wide: false, cell: |w| age(&w.task.created) },
    Column { head: "ESTIMATED START", wide: false, cell: start },
    Column { head: "BASIS", wide: false, cell: |w| w.estimate_basis.clone() },
];

fn start(waiting: &EstimatedTask) -> String {
    let now = jiff::Timestamp::now().to_string();
    let at = waiting.estimated_start.as_deref();
    at.map_or_else(|| "unknown".to_owned(), |at| format!("in {}", between(&now, Some(at))))
}

/// Waiting tasks, those that start first at the top.
pub(super) fn starts(context: &Context, args: &TasksArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let found = list::listed(&server, args, vec![TaskStatus::Queued])?;
    let starts = server.call(&GetStarts {})?.starts;
    let mut starts: BTreeMap<String, StartView> =
        starts.into_iter().map(|start| (start.task.clone(), start)).collect();
    let waiting = found.into_iter().filter(|task| task.state == TaskStatus::Queued).map(|task| {
        let StartView { start, basis, .. } = starts.remove(&task.id).unwrap_or_else(|| StartView {
            basis: "unknown: it is not among the first tasks of its queue".to_owned(),
            ..StartView::default()
        });
        EstimatedTask { task, estimated_start: start, estimate_basis: basis }
    });
    let mut waiting: Vec<EstimatedTask> = waiting.collect();
    waiting.sort_by_key(|waiting| (waiting.estimated_start.is_none(), waiting.estimated_start.clone()));
    context.printer.items(&waiting, |w| w.task.id.clone(), &COLUMNS);
    Ok(ExitCode::SUCCESS)
}
