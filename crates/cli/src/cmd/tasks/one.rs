//! `cantle why | logs | stop | requeue`: commands about one existing task.

use std::process::ExitCode;

use cantle_clearml::cantle::{ExplainTask, GetNodes, GetTasks, TaskView};
use cantle_clearml::events::GetTaskLog;
use cantle_clearml::tasks::{Enqueue, GetById, Reset, Stop};
use cantle_model::TaskStatus;
use clap::Args;
use clap_complete::ArgValueCompleter;

use crate::cmd::kubernetes::cluster;
use crate::cmd::kubernetes::cluster::ClusterArg;
use crate::complete;
use crate::connect::{Connection, no_task};
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{self, Format, Printer};

/// Events of a task's log that one request asks for.
const LOG_PAGE: u64 = 500;

/// `cantle why`
#[derive(Args, Debug)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    from: ClusterArg,
    /// Name of the task, its id, or the beginning of it; in a cluster the pod, or NAMESPACE/POD
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
}

/// `cantle stop`
#[derive(Args, Debug)]
pub(crate) struct TasksArg {
    /// Names of the tasks, their ids, or the beginnings of them
    #[arg(value_name = "TASK", required = true, add = ArgValueCompleter::new(complete::tasks))]
    tasks: Vec<String>,
}

/// `cantle requeue`
#[derive(Args, Debug)]
pub(crate) struct RequeueArgs {
    #[command(flatten)]
    tasks: TasksArg,
    /// Do not ask before an ended task loses the artifacts of its last run; needed without a terminal
    #[arg(short, long)]
    yes: bool,
}

/// `cantle logs`
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Keep printing until the task ends
    #[arg(short, long)]
    follow: bool,
    /// Number of the run, as `cantle tasks runs TASK` lists it [default: the newest]
    #[arg(long, value_name = "N", conflicts_with = "follow")]
    run: Option<i64>,
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
}

/// Why does it wait, or what became of it?
pub(crate) fn why(context: &Context, WhyArgs { from, task }: &WhyArgs) -> CommandResult {
    if let Some(report) = from.read(context)? {
        return cluster::why(context, &report, task);
    }
    let server = Connection::open(context)?;
    let task = server.find_task(task)?;
    let mut found = server.about(&task, &ExplainTask { task: task.clone() })?;
    let printer = &context.printer;
    if printer.format == Format::Json {
        printer.json(&serde_json::json!({"version": 1, "items": [found]}));
        return Ok(ExitCode::SUCCESS);
    }
    let of_nodes = found.nodes.iter_mut().flat_map(|node| [&mut node.reason, &mut node.remedy]).flatten();
    server.name_tasks(&mut std::iter::once(&mut found.reason).chain(of_nodes).collect::<Vec<_>>());
    let place = match (&found.queue, found.position) {
        (Some(queue), Some(0)) => format!(", first in {queue}"),
        (Some(queue), Some(n)) => format!(", behind {n} in {queue}"),
        (Some(queue), None) => format!(", from {queue}"),
        (None, _) => String::new(),
    };
    printer.data(&printer.bold(&format!("{} ({}) is {}{place}", found.name, found.task, found.state)));
    printer.data(&format!("  {}", found.reason));
    for node in &found.nodes {
        let gone = if node.alive { "" } else { " (gone)" };
        let says = node.reason.as_deref().unwrap_or("has not looked at it yet");
        printer.data(&format!("  node {}{gone}: {says}", node.node));
        if let Some(remedy) = &node.remedy {
            printer.data(&format!("    would start with: {remedy}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A task's output.
pub(crate) fn logs(context: &Context, args: &LogsArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let task = &server.find_task(&args.task)?;
    if view(&server, task)?.array.is_some() {
        context.printer.say(&format!(
            "{task} is an array, which prints nothing; its tasks: cantle tasks --array {task}"
        ));
    }
    let print = |position| print_log(&server, &context.printer, task, args.run, position);
    let mut position = print(0)?;
    while args.follow && !view(&server, task)?.state.is_final() {
        server.pause();
        position = print(position)?;
    }
    print(position)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits until a task ends, and ends with its exit code. Prints meanwhile why it waits and where it runs, and its output if
/// `follow`.
pub(crate) fn wait(server: &Connection, printer: &Printer, task: &str, follow: bool) -> CommandResult {
    let mut position = 0;
    let mut waited = Waited::new(task.to_owned());
    loop {
        let ended = waited.look(server, printer)?;
        if follow {
            position = print_log(server, printer, task, None, position)?;
        }
        if let Some(ended) = ended {
            return exit_of(&ended);
        }
        server.pause();
    }
}

/// A task whose end the command waits for.
pub(crate) struct Waited {
    task: String,
    /// The last report about it.
    reported: String,
}

impl Waited {
    pub(crate) const fn new(task: String) -> Self {
        Self { task, reported: String::new() }
    }

    /// Reports why it waits and where it runs, once each; returns the task if it has ended.
    pub(crate) fn look(
        &mut self,
        server: &Connection,
        printer: &Printer,
    ) -> Result<Option<TaskView>, CliError> {
        let found = view(server, &self.task)?;
        report_progress(server, printer, &found, &mut self.reported);
        Ok(Some(found).filter(|task| task.state.is_final()))
    }
}

/// Prints why a task waits and where it runs, if that was not printed last.
pub(crate) fn report_progress(
    server: &Connection,
    printer: &Printer,
    found: &TaskView,
    reported: &mut String,
) {
    // A user who saw it wait also sees where it ran, even if it ended between two polls.
    let was_seen = !reported.is_empty();
    if let Some(progress) = progress(found, was_seen).filter(|progress| progress != reported) {
        let mut named = progress.clone();
        if let Some((_, reason)) = named.split_once(": ") {
            let mut reason = reason.to_owned();
            server.name_tasks(&mut [&mut reason]);
            named = format!("{}: {reason}", found.id);
        }
        printer.say(&named);
        *reported = progress;
    }
}

fn progress(task: &TaskView, was_seen: bool) -> Option<String> {
    match (task.state, &task.reason, &task.node) {
        (TaskStatus::Queued, Some(reason), _) => Some(format!("{}: waits: {reason}", task.id)),
        (state, _, Some(node)) if state == TaskStatus::InProgress || (was_seen && state.is_final()) => {
            Some(format!("{}: runs on {node}", task.id))
        }
        _ => None,
    }
}

pub(crate) fn exit_of(task: &TaskView) -> CommandResult {
    let code = task.exit_code.and_then(|code| u8::try_from(code).ok());
    match (task.state, code) {
        (TaskStatus::Completed, None | Some(0)) => Ok(ExitCode::SUCCESS),
        (_, Some(code)) if code != 0 => Ok(ExitCode::from(code)),
        (state, _) => {
            let reason = task.reason.as_deref().unwrap_or("no reason given");
            Err(CliError::new(ErrorKind::Failed, format!("task {} is {state}: {reason}", task.id)))
        }
    }
}

pub(crate) fn view(server: &Connection, task: &str) -> Result<TaskView, CliError> {
    let request = GetTasks { id: vec![task.to_owned()], ..GetTasks::default() };
    server.call(&request)?.tasks.pop().ok_or_else(|| no_task(task))
}

fn print_log(
    server: &Connection,
    printer: &Printer,
    task: &str,
    run: Option<i64>,
    mut after: i64,
) -> Result<i64, CliError> {
    loop {
        let request = GetTaskLog {
            task: task.to_owned(),
            batch_size: Some(LOG_PAGE),
            after: Some(after),
            run,
            ..GetTaskLog::default()
        };
        let page = server.about(task, &request)?;
        for text in page.events.iter().filter_map(|event| event.msg.as_deref()) {
            printer.raw(text);
            if !text.ends_with('\n') {
                printer.raw("\n");
            }
        }
        if page.events.is_empty() || page.position <= after {
            return Ok(after);
        }
        after = page.position;
    }
}

/// Asks the agents that run them to stop them.
pub(crate) fn stop(context: &Context, TasksArg { tasks }: &TasksArg) -> CommandResult {
    let server = Connection::open(context)?;
    for task in &server.find_tasks(tasks)? {
        let found = view(&server, task)?;
        if found.state.is_final() {
            let text = format!("task {task} ({}) has ended: it is {}", found.name, found.state);
            return Err(CliError::new(ErrorKind::Conflict, text));
        }
        server.about(task, &Stop { task: task.clone(), ..Stop::default() })?;
        context.printer.say(&format!("{task}: stopping"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The node that runs a task no longer reports.
fn is_on_lost_node(server: &Connection, task: &str) -> Result<bool, CliError> {
    let found = view(server, task)?;
    let Some(node) = found.node.filter(|_| found.state == TaskStatus::InProgress) else { return Ok(false) };
    Ok(server.call(&GetNodes {})?.nodes.iter().any(|other| other.node == node && !other.alive))
}

/// Asks before tasks that ended lose the artifacts of their last run. A task that is rescued from a lost node is not meant: it has no result.
fn confirm_requeue(server: &Connection, tasks: &[String]) -> Result<(), CliError> {
    let mut ended = Vec::new();
    for task in tasks {
        ended.extend(Some(view(server, task)?).filter(|task| task.state.is_final()));
    }
    let named = match ended.as_slice() {
        [] => return Ok(()),
        [task] => format!("task {} ({}) is {}", task.id, task.name, task.state),
        many => format!("{} tasks have ended", many.len()),
    };
    if !out::has_somebody_to_ask() {
        let error = CliError::new(ErrorKind::Usage, format!("requeue: {named}, and nobody to ask"));
        return Err(error
            .with_hint("requeue removes the artifacts of the last run from the task, and keeps its output and graphs (cantle logs --run): --yes does it")
            .with_hint("to keep them, submit the command again"));
    }
    if out::ask(&format!(
        "{named}. Requeue, and remove the artifacts of the last run from it? Its output and graphs stay."
    )) {
        return Ok(());
    }
    Err(CliError::new(ErrorKind::Failed, "nothing was requeued"))
}

/// Puts tasks that ended, or whose node is lost, back into the queue they came from.
pub(crate) fn requeue(context: &Context, args: &RequeueArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let tasks = &server.find_tasks(&args.tasks.tasks)?;
    if !args.yes {
        confirm_requeue(&server, tasks)?;
    }
    for task in tasks {
        let found = server.about(task, &GetById { task: task.clone() })?.task;
        let queue = found.execution.queue.ok_or_else(|| {
            CliError::new(ErrorKind::Refused, format!("task {task} was never in a queue"))
                .with_hint("put it into one with cantle submit")
        })?;
        let state = found.status.unwrap_or(TaskStatus::Unknown);
        if !(state.is_final() || state == TaskStatus::Created || is_on_lost_node(&server, task)?) {
            let error = CliError::new(ErrorKind::Conflict, format!("task {task} is {state}"));
            return Err(match state {
                TaskStatus::Queued => error.with_hint(format!("cantle why {task} says what it waits for")),
                _ => error.with_hint(format!("stop it first: cantle stop {task}")),
            });
        }
        server.about(task, &Reset { task: task.clone(), force: true, ..Reset::default() })?;
        server.about(task, &Enqueue { task: task.clone(), queue: Some(queue), ..Enqueue::default() })?;
        context.printer.say(&format!("{task}: queued again"));
    }
    Ok(ExitCode::SUCCESS)
}
