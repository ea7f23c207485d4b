//! `cantle exec`: a command in a running task.

use std::process::ExitCode;

use cantle_clearml::exec::{ExecStart, OpenExec};
use cantle_driver::Installation;
use cantle_model::{Holder, Lease};
use cantle_node::NodeStore;
use cantle_runtime::inside_slice;
use clap::Args;
use clap_complete::ArgValueCompleter;

use crate::complete;
use crate::connect::{Connection, access};
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::exec_here;

/// Characters of an id that are enough to mean a task.
const SHORTEST: usize = 4;
/// Of what waits between the two ends of a command on this machine.
const BUFFER_BYTES: usize = 256 << 10;

/// `cantle exec`
#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Ends with the exit code of the command.
pub(crate) fn exec(context: &Context, args: ExecArgs) -> CommandResult {
    in_task(context, &args.task, args.command)
}

/// Runs a command in a task, or a shell if there is none.
pub(crate) fn in_task(context: &Context, task: &str, argv: Vec<String>) -> CommandResult {
    let start = ExecStart { argv, window: exec_here::window(), to: None };
    match place(context, task)? {
        ExecTarget::Here(leader) => run_here(leader, start),
        ExecTarget::Server(server, task) => {
            let request = OpenExec { task, start, waits: false, ends_task: false };
            Ok(ExitCode::from(server.exec(&request)?))
        }
    }
}

/// Where a task is entered.
pub(crate) enum ExecTarget {
    /// On this machine, by its first process.
    Here(Holder),
    /// Through the server that knows it by this id.
    Server(Connection, String),
}

/// Of the task that a word means.
pub(crate) fn place(context: &Context, task: &str) -> Result<ExecTarget, CliError> {
    if inside_slice() {
        let text = "this is inside a slice, and no task can enter another one";
        return Err(CliError::new(ErrorKind::Conflict, text).with_hint("run the command by itself"));
    }
    if let Some(leader) = here(task)? {
        return Ok(ExecTarget::Here(leader));
    }
    // A user without a server means a task of this machine.
    access(context).map_err(|why| {
        let text = format!("there is no task {task} of this user on this machine, and {why}");
        CliError::new(ErrorKind::NotFound, text).with_hint("cantle ps lists the tasks of this machine")
    })?;
    let server = Connection::open(context)?;
    let task = server.find_task(task)?;
    Ok(ExecTarget::Server(server, task))
}

fn run_here(leader: Holder, start: ExecStart) -> CommandResult {
    let has_window = start.window.is_some();
    runtime()?.block_on(async {
        let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
        let served = tokio::spawn(cantle_agent::serve_exec(leader, start, theirs, None));
        let code = exec_here::talk(ours, has_window).await;
        // After a signal the command is ended, too.
        let _ = served.await;
        code.map(ExitCode::from)
    })
}

/// The first process of the task of this user that a word means, if it runs on this machine.
fn here(word: &str) -> Result<Option<Holder>, CliError> {
    let installation = Installation::of_this_machine();
    let mut found: Vec<Lease> = Vec::new();
    for dir in [NodeStore::dir_for(&installation), NodeStore::gpuless_dir(&installation)] {
        if dir.is_dir() {
            found.extend(NodeStore::open(&dir)?.leases()?.into_iter().filter(|lease| means(word, lease)));
        }
    }
    // A name may be that of several; a whole id is that of one.
    if found.iter().any(|lease| lease.task.0 == word) {
        found.retain(|lease| lease.task.0 == word);
    }
    found.retain(|lease| lease.leader.is_some_and(|leader| cantle_runtime::alive(&leader)));
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(one.leader),
        several => {
            let text = format!("\"{word}\" means {} tasks", several.len());
            let lines = several.iter().map(|lease| format!("{} is {}", lease.task.0, lease.name));
            Err(CliError::new(ErrorKind::Usage, text).with_hint("write more of the id").with_hints(lines))
        }
    }
}

fn means(word: &str, lease: &Lease) -> bool {
    lease.name == word || word.len() >= SHORTEST && lease.task.0.starts_with(word)
}
