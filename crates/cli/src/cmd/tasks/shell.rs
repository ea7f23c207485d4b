//! `cantle shell` and `cantle attach`: a slice with a terminal in it.

use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::TaskRequest;
use cantle_clearml::exec::{ExecStart, OpenExec};
use cantle_clearml::notebook::NotebookProgram;
use cantle_clearml::tasks::Container;
use cantle_model::{IdleTime, Isolation, TaskStatus, TimeLimit};
use clap::Args;
use clap_complete::ArgValueCompleter;

use super::{exec, one, submit};
use crate::cmd::machine::run;
use crate::complete;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::exec_here;
use crate::out::Printer;
use crate::shared_args::{GpuAmount, MemoryLimitArgs};

/// The command that holds the slice. The terminal is a command in the same task.
const HOLDER: [&str; 2] = ["sleep", "infinity"];
/// A free slice is there at once; later, a look now and then is enough.
const QUICK: Duration = Duration::from_millis(40);
const QUICK_LOOKS: u32 = 50;
const LATER: Duration = Duration::from_millis(300);
/// A task that starts at once has no reason to wait worth a line.
const UNSAID_LOOKS: u32 = 10;

/// The slice of an interactive session.
#[derive(Args, Debug)]
pub(crate) struct SliceArgs {
    /// Queue of the task
    #[arg(long, value_name = "Q", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: Option<String>,
    #[command(flatten)]
    pub(crate) amount: GpuAmount,
    #[command(flatten)]
    pub(crate) memory_limit: MemoryLimitArgs,
    /// The longest time that the task may run (30m, 2h, 1d12h) [default: the queue's]
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<TimeLimit>,
    /// End the task after it was idle for this time (30m, 2h, at least 1m): no work on its GPU, CPU, terminal or notebook [default: the
    /// queue's]. Needs a server
    #[arg(long, value_name = "TIME")]
    idle: Option<IdleTime>,
    /// Project whose quota the task counts against [default: as for submit]
    #[arg(long, value_name = "P", env = "CANTLE_PROJECT")]
    project: Option<String>,
    /// Put these secrets of yours, which cantle secrets sets, into the environment; several with commas. Needs a server
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub(crate) secret: Vec<String>,
}

impl SliceArgs {
    /// Whether something was asked for that only tasks of a queue have.
    pub(crate) const fn needs_server(&self) -> bool {
        self.queue.is_some() || self.idle.is_some() || !self.secret.is_empty()
    }
}

/// `cantle shell`
#[derive(Args, Debug)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    slice: SliceArgs,
    /// Name of the task
    #[arg(long, value_name = "N", default_value = "shell")]
    name: String,
    /// Keep the slice when the terminal is closed: cantle attach opens another one in it
    #[arg(long)]
    keep: bool,
    /// The command and its arguments [default: your shell]
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

/// `cantle attach`
#[derive(Args, Debug)]
pub(crate) struct AttachArgs {
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
}

/// Ends with the exit code of the shell.
pub(crate) fn attach(context: &Context, args: &AttachArgs) -> CommandResult {
    exec::in_task(context, &args.task, Vec::new())
}

/// Ends with the exit code of the command. The task ends with it, and with this process.
pub(crate) fn shell(context: &Context, args: ShellArgs) -> CommandResult {
    run::refuse_inside_a_slice()?;
    let needs_server = args.slice.needs_server() || args.keep;
    let server = match Connection::open_if_any(context)? {
        Some(server) => server,
        None if needs_server => Connection::open(context)?,
        None => {
            return run::in_slice(
                context,
                &args.slice.amount,
                args.slice.memory_limit,
                args.slice.time,
                args.command,
            );
        }
    };
    let id = submit(&server, &args.slice, &args.name, HOLDER.map(str::to_owned).to_vec(), None)?;
    let start = ExecStart { argv: args.command, window: exec_here::window(), to: None };
    let request = OpenExec { task: id.clone(), start, waits: true, ends_task: !args.keep };
    let stream = server.exec_stream(&request)?;
    wait_until_running(&server, &context.printer, &id)?;
    let code = server.talk(stream, &request)?;
    if args.keep {
        context.printer.say(&format!("{id} keeps its slice: cantle attach {id}, cantle stop {id}"));
    }
    Ok(ExitCode::from(code))
}

/// Reports why a task waits, until it waits no longer.
pub(crate) fn wait_until_running(server: &Connection, printer: &Printer, id: &str) -> Result<(), CliError> {
    let mut reported = String::new();
    for looks in 0.. {
        let found = one::view(server, id)?;
        if looks >= UNSAID_LOOKS || found.state != TaskStatus::Queued {
            one::report_progress(server, printer, &found, &mut reported);
        }
        if found.state != TaskStatus::Queued {
            break;
        }
        server.sleep(if looks < QUICK_LOOKS { QUICK } else { LATER });
    }
    Ok(())
}

/// Puts a command that holds a slice into its queue; the id of its task.
pub(crate) fn submit(
    server: &Connection,
    args: &SliceArgs,
    name: &str,
    command: Vec<String>,
    notebook: Option<NotebookProgram>,
) -> Result<String, CliError> {
    let queue = submit::queue_id(server, args.queue.as_deref().unwrap_or("default"))?;
    let cwd = std::env::current_dir().map_err(|why| CliError::of(ErrorKind::Failed, why))?;
    let gpu = args.amount.request()?;
    let request = TaskRequest {
        gpu_memory_limit: args.memory_limit.limit(gpu.as_ref(), Isolation::Any)?,
        gpu,
        cwd: Some(cwd.display().to_string()),
        time: args.time,
        idle: args.idle,
        secrets: args.secret.clone(),
        notebook,
        command,
        ..TaskRequest::default()
    };
    let (project, name) = (args.project.clone(), Some(name.to_owned()));
    submit::send(server, queue, project, (name, Vec::new()), &request, &Container::default())
}
