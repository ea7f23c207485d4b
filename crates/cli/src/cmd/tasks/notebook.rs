//! `cantle notebook`: JupyterLab in a slice, at an address of this machine.
//!
//! JupyterLab listens at a Unix socket that only the task's user opens. So no port of the node has to be free, and no other user of
//! the node reaches it. A port of this machine leads to the socket, through the server with its login (`tunnel.rs`). The token is
//! made in the task, and a command in the task reads it: it is on no command line, and JupyterLab prints no token that it was given.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use cantle_clearml::exec::{ExecDoor, ExecEnd, ExecFrame, ExecStart, OpenExec};
use clap::Args;
use clap_complete::ArgValueCompleter;
use serde::Deserialize;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;

use super::forward;
use super::shell;
use super::shell::SliceArgs;
use crate::cmd::machine::run;
use crate::complete;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::frames::FrameReader;
use crate::host::is_root;
use crate::tunnel::Tunnel;

/// Jupyter's own.
const PORT: u16 = 8888;
/// The place of its socket.
const SOCKET: &str = r#"sock="${TMPDIR:-/tmp}/cantle-notebook-$CLEARML_TASK_ID.sock""#;
/// Starts it; `$0` is the program, and the words after it are its arguments.
const START: &str = r#"root=; [ "$(id -u)" != 0 ] || root=--allow-root
JUPYTER_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
export JUPYTER_TOKEN
exec "$0" lab --no-browser $root --ServerApp.sock="$sock" "$@""#;
/// Prints, as one line of JSON, what JupyterLab writes for its user alone once it listens; then holds the connection.
const FIND: &str = r#"dir=$("$0" --runtime-dir) || exit 1
until found=$(grep -ls "$sock" "$dir"/jpserver-*.json); do sleep 0.2; done
tr -d '\n' <"$found"; echo
exec sleep infinity"#;

/// `cantle notebook`
#[derive(Args, Debug)]
pub(crate) struct NotebookArgs {
    #[command(flatten)]
    slice: SliceArgs,
    /// Name of the task
    #[arg(long, value_name = "N", default_value = "notebook")]
    name: String,
    /// The port of this machine for the browser; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// The program on the node, such as that of an environment: /home/anna/venv/bin/jupyter
    #[arg(long, value_name = "PROGRAM", default_value = "jupyter")]
    jupyter: String,
    /// Keep the notebook when this command ends: cantle notebook --attach opens it again
    #[arg(long)]
    keep: bool,
    /// Open the notebook of a task that runs already
    #[arg(
        long,
        value_name = "TASK",
        conflicts_with_all = ["queue", "time", "idle", "project", "keep", "arguments"],
        add = ArgValueCompleter::new(complete::tasks)
    )]
    attach: Option<String>,
    /// Arguments of JupyterLab
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

/// The record that JupyterLab writes about itself.
#[derive(Debug, Deserialize)]
struct JupyterServer {
    token: String,
    sock: String,
}

/// Serves the notebook until the task ends or this command is stopped.
pub(crate) fn notebook(context: &Context, args: NotebookArgs) -> CommandResult {
    run::refuse_inside_a_slice()?;
    let needs_server = args.slice.needs_server() || args.keep || args.attach.is_some();
    let server = match Connection::open_if_any(context)? {
        Some(server) => server,
        None if needs_server => Connection::open(context)?,
        None => return here(context, args),
    };
    // Before there is a task: the port may be in use.
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), args.port);
    let listener = server.run(forward::listen(at))?;
    let script = |script: &str| format!("{SOCKET}\n{script}");
    let find = ["sh", "-c", &script(FIND), args.jupyter.as_str()].map(str::to_owned).to_vec();
    let start = ExecStart { argv: find, ..ExecStart::default() };
    let (id, stream) = match &args.attach {
        Some(word) => {
            let task = server.find_task(word)?;
            let request = OpenExec { task: task.clone(), start, ..OpenExec::default() };
            (task, server.exec_stream(&request)?)
        }
        None => {
            let words = ["sh", "-c", &script(START), args.jupyter.as_str()].map(str::to_owned);
            let command = words.into_iter().chain(args.arguments).collect();
            let task = shell::submit(&server, &args.slice, &args.name, command)?;
            let request = OpenExec { task: task.clone(), start, waits: true, ends_task: !args.keep };
            let stream = server.exec_stream(&request)?;
            shell::wait_until_running(&server, &context.printer, &task)?;
            (task, stream)
        }
    };
    let tunnel = Arc::new(Tunnel::Server { client: server.client(), task: id.clone() });
    let result = server.run(async {
        let mut control = Control::new(stream);
        let JupyterServer { token, sock } = tokio::select! {
            found = control.line(&id) => found?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        };
        let at = listener.local_addr().map_err(|why| CliError::of(ErrorKind::Failed, why))?;
        context.printer.data(&format!("http://{at}/lab?token={token}"));
        let (failed, mut failures) = mpsc::channel(1);
        tokio::spawn(forward::serve(tunnel, listener, ExecDoor::Socket(sock), failed));
        let mut ending = std::pin::pin!(control.end());
        loop {
            tokio::select! {
                why = &mut ending => return Err(ended(&id, why)),
                Some(why) = failures.recv() => match why {
                    why if forward::has_ended(&why) => return Err(why),
                    why => context.printer.say(&why.to_string()),
                },
                _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            }
        }
    });
    if args.keep {
        context
            .printer
            .say(&format!("{id} keeps its slice: cantle notebook --attach {id}, cantle stop {id}"));
    }
    result
}

/// Without a server: in a slice of this machine, where JupyterLab prints its own address.
fn here(context: &Context, args: NotebookArgs) -> CommandResult {
    let root = is_root().then_some("--allow-root");
    let port = format!("--ServerApp.port={}", args.port);
    let words = [args.jupyter.as_str(), "lab", "--no-browser", port.as_str()].into_iter().chain(root);
    let command = words.map(str::to_owned).chain(args.arguments).collect();
    run::in_slice(context, &args.slice.amount, args.slice.memory_limit, args.slice.time, command)
}

fn ended(task: &str, why: ExecEnd) -> CliError {
    let text = why.error.unwrap_or_else(|| "the notebook has ended".to_owned());
    CliError::new(ErrorKind::Failed, text).with_hint(format!("cantle logs {task} has what it printed"))
}

/// The connection of the command that finds the notebook.
struct Control<R> {
    frames: FrameReader<R>,
    printed: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Control<R> {
    fn new(stream: R) -> Self {
        Self { frames: FrameReader::new(stream), printed: Vec::new() }
    }

    /// The record that JupyterLab wrote about itself.
    async fn line(&mut self, task: &str) -> Result<JupyterServer, CliError> {
        loop {
            if let Some(end) = self.read().await {
                let text = end.error.unwrap_or_else(|| "JupyterLab does not run".to_owned());
                return Err(CliError::new(
                    ErrorKind::Failed,
                    format!("there is no notebook in task {task}: {text}"),
                )
                .with_hint(format!(
                    "cantle logs {task} has what it printed; --jupyter names the program on the node"
                )));
            }
            if self.printed.contains(&b'\n') {
                let found = serde_json::from_slice(&self.printed);
                return found.map_err(|why| {
                    CliError::wrap(ErrorKind::Failed, "JupyterLab wrote something else", why)
                });
            }
        }
    }

    /// Waits for its end.
    async fn end(&mut self) -> ExecEnd {
        loop {
            if let Some(end) = self.read().await {
                return end;
            }
        }
    }

    /// Takes a frame; the end, if that is it.
    async fn read(&mut self) -> Option<ExecEnd> {
        match self.frames.next().await {
            Ok(ExecFrame::Output(bytes)) => self.printed.extend(bytes),
            Ok(ExecFrame::Ended(end)) => return Some(end),
            Ok(_) => {}
            Err(_) => {
                let error = Some("the connection to the task broke".to_owned());
                return Some(ExecEnd { code: 1, error, hint: None });
            }
        }
        None
    }
}
