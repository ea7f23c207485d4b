//! `cantle tasks delete`: deletes ended tasks with all their data.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::cantle::{GetTasks, TaskView};
use cantle_clearml::tasks::Delete;
use cantle_model::TaskStatus;
use clap::Args;
use clap_complete::ArgValueCompleter;
use jiff::Timestamp;

use super::list::print_tasks;
use crate::complete;
use crate::connect::{Connection, no_task};
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out;
use crate::shared_args::values;

/// How many tasks one call deletes at most.
const LIMIT: u64 = 100_000;

/// `cantle tasks delete`
#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// The tasks; or choose them with the options
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    tasks: Vec<String>,
    /// Tasks of this queue
    #[arg(long, value_name = "Q", add = ArgValueCompleter::new(complete::queues))]
    queue: Option<String>,
    /// Tasks of this project
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// Tasks in this state [default: completed, failed, stopped, closed]
    #[arg(long, value_name = "STATE")]
    status: Vec<TaskStatus>,
    /// Tasks that ended longer ago than this time (30m, 12h, 7d)
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    older_than: Option<Duration>,
    /// Keep the files of artifacts, models and debug samples
    #[arg(long)]
    keep_files: bool,
    /// Take their names and tags away from the records of their runs, which reports of usage are made of
    #[arg(long)]
    forget_name: bool,
    /// List what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

impl DeleteArgs {
    fn names_none(&self) -> bool {
        let Self { tasks, queue, project, status, older_than, .. } = self;
        tasks.is_empty() && queue.is_none() && project.is_none() && status.is_empty() && older_than.is_none()
    }
}

/// Deletes tasks that ended: their output, their files on the server, and their unpublished models.
pub(crate) fn delete(context: &Context, args: &DeleteArgs) -> CommandResult {
    if args.names_none() {
        let error = CliError::new(ErrorKind::Usage, "tasks delete: no task and no option says which");
        return Err(error.with_hint(
            "name tasks, or choose them: --project P, --queue Q, --status STATE, --older-than 30d",
        ));
    }
    let server = Connection::open(context)?;
    let chosen = chosen(&server, args)?;
    if let Some(task) = chosen.iter().find(|task| !is_deletable(task.state)) {
        return Err(refusal(task));
    }
    let printer = &context.printer;
    if chosen.is_empty() {
        printer.say("no task is like that");
        return Ok(ExitCode::SUCCESS);
    }
    if args.dry_run {
        print_tasks(printer, &chosen);
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes {
        confirm(context, &chosen)?;
    }
    for task in &chosen {
        let request = Delete {
            task: task.id.clone(),
            delete_output_models: true,
            delete_external_artifacts: !args.keep_files,
            cantle_forget_name: args.forget_name,
            ..Delete::default()
        };
        let done = server.about(&task.id, &request)?;
        printer.say(&format!(
            "{}: deleted, with {} files and {} models",
            task.id, done.deleted_files, done.deleted_models
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn chosen(server: &Connection, args: &DeleteArgs) -> Result<Vec<TaskView>, CliError> {
    use TaskStatus::{Closed, Completed, Failed, Stopped};
    let ended = || vec![Completed, Failed, Stopped, Closed];
    let default = if args.tasks.is_empty() { ended() } else { Vec::new() };
    let named = server.find_tasks(&args.tasks)?;
    let request = GetTasks {
        id: named.clone(),
        status: if args.status.is_empty() { default } else { args.status.clone() },
        queue: args.queue.clone(),
        project: args.project.clone(),
        limit: Some(LIMIT),
        ..GetTasks::default()
    };
    let mut found = server.call(&request)?.tasks;
    if let Some(missing) = named.iter().find(|id| !found.iter().any(|task| task.id == **id)) {
        return Err(no_task(missing));
    }
    if let Some(age) = args.older_than {
        let before =
            Timestamp::now() - jiff::SignedDuration::try_from(age).unwrap_or(jiff::SignedDuration::MAX);
        found.retain(|task| ended_before(task, before));
    }
    with_their_tasks(server, found)
}

/// An array with its tasks, which come first: without it a list would show each of them.
fn with_their_tasks(server: &Connection, chosen: Vec<TaskView>) -> Result<Vec<TaskView>, CliError> {
    let mut all: Vec<TaskView> = Vec::with_capacity(chosen.len());
    for task in chosen {
        if task.array.is_some() {
            let of = GetTasks { array: Some(task.id.clone()), limit: Some(LIMIT), ..GetTasks::default() };
            all.extend(server.call(&of)?.tasks);
        }
        all.push(task);
    }
    let mut seen = BTreeSet::new();
    all.retain(|task| seen.insert(task.id.clone()));
    Ok(all)
}

/// Drafts never ended; they are as old as they are.
fn ended_before(task: &TaskView, before: Timestamp) -> bool {
    let time = task.ended.as_ref().unwrap_or(&task.created);
    time.parse::<Timestamp>().is_ok_and(|time| time < before)
}

fn is_deletable(state: TaskStatus) -> bool {
    !matches!(
        state,
        TaskStatus::Queued | TaskStatus::InProgress | TaskStatus::Published | TaskStatus::Publishing
    )
}

fn refusal(task: &TaskView) -> CliError {
    let error = CliError::new(
        ErrorKind::Conflict,
        format!("task {} ({}) is {}; nothing was deleted", task.id, task.name, task.state),
    );
    match task.state {
        TaskStatus::Queued => {
            error.with_hint(format!("take it out of its queue first: cantle move {} --out", task.id))
        }
        TaskStatus::InProgress => error.with_hint(format!("stop it first: cantle stop {}", task.id)),
        _ => error.with_hint("what is published is meant to stay; ClearML's SDK can delete it with force"),
    }
}

/// Asks the person at the terminal.
fn confirm(context: &Context, chosen: &[TaskView]) -> Result<(), CliError> {
    if !out::has_somebody_to_ask() {
        let error = CliError::new(
            ErrorKind::Usage,
            format!("tasks delete: {} tasks, and nobody to ask", chosen.len()),
        );
        return Err(error.with_hint("see them with --dry-run; delete them with --yes"));
    }
    print_tasks(&context.printer, chosen);
    if out::ask(&format!("Delete {} tasks with their output and files?", chosen.len())) {
        return Ok(());
    }
    Err(CliError::new(ErrorKind::Failed, "nothing was deleted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_runs_or_is_published_stays() {
        for state in ["queued", "in_progress", "published", "publishing"] {
            assert!(!is_deletable(state.parse().unwrap()), "{state}");
        }
        for state in ["created", "completed", "failed", "stopped", "closed"] {
            assert!(is_deletable(state.parse().unwrap()), "{state}");
        }
    }
}
