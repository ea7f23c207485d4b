//! `cantle notebook`: JupyterLab or code-server in a slice, at an address of this machine or of the server.
//!
//! JupyterLab listens at a Unix socket that only the task's user opens. So no port of the node has to be free, and no other user of
//! the node reaches it. A port of this machine leads to the socket, through the server with its login (`tunnel.rs`). The token is
//! made in the task, and a command in the task reads it: it is on no command line, and JupyterLab prints no token that it was given.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use cantle_clearml::TaskRequest;
use cantle_clearml::cantle::TaskView;
use cantle_clearml::exec::{ExecDoor, ExecEnd, ExecFrame, ExecStart, OpenExec};
use cantle_clearml::notebook::{NOTEBOOK_SOCKET, NotebookProgram, notebook_path};
use cantle_clearml::tasks::GetById;
use cantle_model::TaskStatus;
use clap::Args;
use clap_complete::ArgValueCompleter;
use serde::Deserialize;
use tokio::io::AsyncRead;
use tokio::net::TcpListener;
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
/// Removes the sockets of the user's notebooks that are over: a program that is killed leaves its own behind.
const SWEEP: &str = r#"for old in "${sock%/*}"/cantle-notebook-*.sock; do
    [ ! -O "$old" ] || grep -qF " $old" /proc/net/unix || rm -f "$old"
done"#;
/// Starts it; `$0` is the program, and the words after it are its arguments.
const START: &str = r#"root=; [ "$(id -u)" != 0 ] || root=--allow-root
JUPYTER_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
export JUPYTER_TOKEN
exec "$0" lab --no-browser $root --ServerApp.sock="$sock" --ServerApp.base_url="/$CLEARML_TASK_ID/" "$@""#;
/// Prints, as one line of JSON, what JupyterLab writes for its user alone once it listens; then holds the connection.
const FIND: &str = r#"dir=$("$0" --runtime-dir) || exit 1
until found=$(grep -ls "$sock" "$dir"/jpserver-*.json); do sleep 0.2; done
tr -d '\n' <"$found"; echo
exec sleep infinity"#;
/// The same for code-server. It asks for no password: only the task's user opens the socket, and the server asks for the login.
const START_CODE: &str = r#"command -v "$0" >/dev/null || { echo "cantle: $0 is not installed on $(uname -n)" >&2; exit 127; }
exec "$0" --auth none --disable-telemetry --socket "$sock" --socket-mode 600 "$@""#;
const FIND_CODE: &str = r#"until [ -S "$sock" ]; do sleep 0.2; done
printf '{"sock": "%s"}\n' "$sock"
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
    /// Run VS Code (code-server) instead of JupyterLab. It opens at the server only
    #[arg(long, conflicts_with_all = ["jupyter", "port", "attach"])]
    vscode: bool,
    /// The program of --vscode on the node
    #[arg(long, value_name = "PROGRAM", default_value = "code-server", requires = "vscode")]
    code_server: String,
    /// Keep the notebook when this command ends: cantle notebook --attach opens it again
    #[arg(long)]
    keep: bool,
    /// Print the address at the server, and end. The notebook goes on
    #[arg(long, conflicts_with_all = ["attach", "port"])]
    detach: bool,
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
    #[serde(default)]
    token: String,
    sock: String,
    #[serde(default = "root")]
    base_url: String,
}

/// Of a notebook that an older version started.
fn root() -> String {
    "/".to_owned()
}

impl NotebookArgs {
    /// The program that it runs, and the scripts that start and find it.
    const fn program(&self) -> (NotebookProgram, &'static str, &'static str) {
        if self.vscode {
            (NotebookProgram::CodeServer, START_CODE, FIND_CODE)
        } else {
            (NotebookProgram::Jupyterlab, START, FIND)
        }
    }

    /// The command line of a script.
    fn words(&self, script: &str) -> Vec<String> {
        let name = if self.vscode { &self.code_server } else { &self.jupyter };
        ["sh", "-c", &format!("{NOTEBOOK_SOCKET}\n{script}"), name].map(str::to_owned).to_vec()
    }
}

/// Serves the notebook until the task ends or this command is stopped.
pub(crate) fn notebook(context: &Context, args: &NotebookArgs) -> CommandResult {
    run::refuse_inside_a_slice()?;
    let needs_server =
        args.slice.needs_server() || args.keep || args.detach || args.vscode || args.attach.is_some();
    let server = match Connection::open_if_any(context)? {
        Some(server) => server,
        None if needs_server => Connection::open(context)?,
        None => return here(context, args),
    };
    if args.detach {
        context.printer.data(&address(&server, &submit(&server, args)?));
        return Ok(ExitCode::SUCCESS);
    }
    // Before there is a task: the port may be in use.
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), args.port);
    let listener = if args.vscode { None } else { Some(server.run(forward::listen(at))?) };
    let (id, stream) = enter(context, &server, args)?;
    let option = if args.vscode { "--code-server" } else { "--jupyter" };
    let mut opened = Opened { context, id: &id, address: address(&server, &id), listener, option };
    let result = server.run(opened.serve(&server, stream));
    if args.keep {
        context
            .printer
            .say(&format!("{id} keeps its slice: cantle notebook --attach {id}, cantle stop {id}"));
    }
    result
}

/// Where the server opens the notebook of a task, if it runs one.
pub(super) fn address_of(server: &Connection, task: &TaskView) -> Result<Option<String>, CliError> {
    if task.state != TaskStatus::InProgress {
        return Ok(None);
    }
    let found = server.about(&task.id, &GetById { task: task.id.clone() })?.task;
    // A value that cannot be read is no notebook.
    let program = TaskRequest::notebook_of(&found.hyperparams).ok().flatten();
    Ok(program.map(|_| address(server, &task.id)))
}

fn address(server: &Connection, task: &str) -> String {
    format!("{}/{}", server.url(), notebook_path(task))
}

/// The task of a new notebook.
fn submit(server: &Connection, args: &NotebookArgs) -> Result<String, CliError> {
    let (program, start, _) = args.program();
    let command =
        args.words(&format!("{SWEEP}\n{start}")).into_iter().chain(args.arguments.iter().cloned()).collect();
    shell::submit(server, &args.slice, &args.name, command, Some(program))
}

/// The task of the notebook, and the command in it that finds the notebook.
fn enter(
    context: &Context,
    server: &Connection,
    args: &NotebookArgs,
) -> Result<(String, reqwest::Upgraded), CliError> {
    let (_, _, find) = args.program();
    let start = ExecStart { argv: args.words(find), ..ExecStart::default() };
    if let Some(word) = &args.attach {
        let task = server.find_task(word)?;
        let request = OpenExec { task: task.clone(), start, ..OpenExec::default() };
        return Ok((task, server.exec_stream(&request)?));
    }
    let task = submit(server, args)?;
    let request = OpenExec { task: task.clone(), start, waits: true, ends_task: !args.keep };
    let stream = server.exec_stream(&request)?;
    shell::wait_until_running(server, &context.printer, &task)?;
    Ok((task, stream))
}

/// A notebook with its addresses.
struct Opened<'a> {
    context: &'a Context,
    id: &'a str,
    /// At the server.
    address: String,
    /// On this machine; none: it has no password of its own, and every user of this machine could connect.
    listener: Option<TcpListener>,
    /// The option that names its program.
    option: &'static str,
}

impl Opened<'_> {
    async fn serve(&mut self, server: &Connection, stream: reqwest::Upgraded) -> CommandResult {
        let printer = &self.context.printer;
        let mut control = Control::new(stream);
        let JupyterServer { token, sock, base_url } = tokio::select! {
            found = control.line(self.id, self.option) => found?,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        };
        let (failed, mut failures) = mpsc::channel(1);
        match self.listener.take() {
            Some(listener) => {
                let at = listener.local_addr().map_err(|why| CliError::of(ErrorKind::Failed, why))?;
                printer.data(&format!("http://{at}{base_url}lab?token={token}"));
                printer.say(&format!("with your login at the server: {}", self.address));
                let tunnel = Arc::new(Tunnel::Server { client: server.client(), task: self.id.to_owned() });
                tokio::spawn(forward::serve(tunnel, listener, ExecDoor::Socket(sock), failed.clone()));
            }
            None => printer.data(&self.address),
        }
        let mut ending = std::pin::pin!(control.end());
        loop {
            tokio::select! {
                why = &mut ending => return Err(ended(self.id, why)),
                Some(why) = failures.recv() => match why {
                    why if forward::has_ended(&why) => return Err(why),
                    why => printer.say(&why.to_string()),
                },
                _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
            }
        }
    }
}

/// Without a server: in a slice of this machine, where JupyterLab prints its own address.
fn here(context: &Context, args: &NotebookArgs) -> CommandResult {
    let root = is_root().then_some("--allow-root");
    let port = format!("--ServerApp.port={}", args.port);
    let words = [args.jupyter.as_str(), "lab", "--no-browser", port.as_str()].into_iter().chain(root);
    let command = words.map(str::to_owned).chain(args.arguments.iter().cloned()).collect();
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
    async fn line(&mut self, task: &str, option: &str) -> Result<JupyterServer, CliError> {
        loop {
            if let Some(end) = self.read().await {
                let text = end.error.unwrap_or_else(|| "it does not run".to_owned());
                return Err(CliError::new(
                    ErrorKind::Failed,
                    format!("there is no notebook in task {task}: {text}"),
                )
                .with_hint(format!(
                    "cantle logs {task} has what it printed; {option} names the program on the node"
                )));
            }
            if self.printed.contains(&b'\n') {
                let found = serde_json::from_slice(&self.printed);
                return found
                    .map_err(|why| CliError::wrap(ErrorKind::Failed, "the task wrote something else", why));
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
