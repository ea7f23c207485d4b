//! Connections into a task: one that finds its notebook, and those that lead to it. They are made as those of `cantle forward` are.

use axum::http::StatusCode;
use cantle_clearml::exec::{ExecDoor, ExecFrame, ExecFrames, ExecStart};
use cantle_clearml::notebook::{NOTEBOOK_SOCKET, NotebookProgram};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, split};
use tokio::time::{Duration, timeout};

use super::pages::Page;
use crate::app::Call;
use crate::error::ApiError;
use crate::execs;

/// The size of a piece.
const PIECE: usize = 32 << 10;
/// Bytes that wait between the two ends.
const BUFFER: usize = 256 << 10;
/// For the command that finds a notebook.
const FIND_WITHIN: Duration = Duration::from_secs(20);
/// Longer output of it is none.
const MOST_OUTPUT: usize = 8 << 10;
/// Prints the socket once something listens there, and the token, which only processes of the task's user can read.
const FIND_JUPYTER: &str = r#"[ -S "$sock" ] || exit 0
for process in /proc/[0-9]*; do
  tr '\0' '\n' 2>/dev/null <"$process/cmdline" | grep -qxF -e "--ServerApp.sock=$sock" || continue
  token=$(tr '\0' '\n' 2>/dev/null <"$process/environ" | sed -n 's/^JUPYTER_TOKEN=//p')
  [ -z "$token" ] || { printf '%s\n%s\n' "$sock" "$token"; exit 0; }
done"#;
const FIND_CODE_SERVER: &str = r#"[ -S "$sock" ] && printf '%s\n\n' "$sock""#;

/// A notebook that listens in a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) socket: String,
    /// Of the run: each has another token.
    lease: Option<String>,
    /// Jupyter's. It is the task's own, and goes nowhere but to the task.
    pub(super) token: String,
}

/// Where the notebook of the task listens.
pub(super) async fn find(
    call: &Call,
    task: &str,
    lease: Option<String>,
    program: NotebookProgram,
) -> Result<Found, Page> {
    let known = call.app.notebooks.found().get(task).cloned();
    if let Some(found) = known.filter(|found| found.lease == lease) {
        return Ok(found);
    }
    let find = match program {
        NotebookProgram::Jupyterlab => FIND_JUPYTER,
        NotebookProgram::CodeServer => FIND_CODE_SERVER,
    };
    let argv = ["sh", "-c", &format!("{NOTEBOOK_SOCKET}\n{find}")].map(str::to_owned).to_vec();
    let start = ExecStart { argv, ..ExecStart::default() };
    let printed = timeout(FIND_WITHIN, output(call, task, start)).await;
    let slow = || Page::new(StatusCode::GATEWAY_TIMEOUT, "The node of the task does not answer.");
    let printed = printed.map_err(|_| slow())?.map_err(Page::refused)?;
    let mut lines = printed.lines().map(str::to_owned);
    let (Some(socket), Some(token)) = (lines.next(), lines.next()) else { return Err(Page::starting()) };
    let found = Found { socket, lease, token };
    call.app.notebooks.found().insert(task.to_owned(), found.clone());
    Ok(found)
}

/// The output of a command in the task.
async fn output(call: &Call, task: &str, start: ExecStart) -> Result<String, ApiError> {
    let mut entered = execs::enter(call, task, start).await?;
    let (mut frames, mut piece, mut printed) = (ExecFrames::default(), vec![0; PIECE], Vec::new());
    let odd = |error: &dyn std::fmt::Display| ApiError::new(502, 0, format!("the task: {error}"));
    loop {
        match frames.next_frame().map_err(|error| odd(&error))? {
            Some(ExecFrame::Output(bytes)) if printed.len() + bytes.len() <= MOST_OUTPUT => {
                printed.extend(bytes);
            }
            Some(ExecFrame::Output(_)) => return Err(odd(&"its notebook has no address")),
            Some(ExecFrame::Ended(end)) => match end.error {
                Some(error) => return Err(odd(&error)),
                None => return String::from_utf8(printed).map_err(|error| odd(&error)),
            },
            Some(_) => {}
            None => match entered.stream.read(&mut piece).await {
                Ok(length @ 1..) => frames.push(piece.get(..length).unwrap_or_default()),
                _ => return Err(odd(&"the connection broke")),
            },
        }
    }
}

/// A connection to the notebook. It ends with either side.
pub(super) async fn connect(call: &Call, task: &str, found: &Found) -> Result<DuplexStream, ApiError> {
    let to = Some(ExecDoor::Socket(found.socket.clone()));
    let entered = execs::enter(call, task, ExecStart { to, ..ExecStart::default() }).await?;
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        let execs::Entered { stream, entry } = entered;
        let (reader, writer) = split(stream);
        let (from, to) = split(theirs);
        // A side that is gone, or sends what is no frame, ends it.
        let _ = tokio::select! {
            sent = send(from, writer) => sent,
            received = receive(reader, to) => received,
        };
        drop(entry);
    });
    Ok(ours)
}

async fn send(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        let bytes = piece.get(..length).unwrap_or_default().to_vec();
        to.write_all(&ExecFrame::Input(bytes).to_bytes()).await?;
        to.flush().await?;
    }
}

async fn receive(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let (mut frames, mut piece) = (ExecFrames::default(), vec![0; PIECE]);
    loop {
        match frames.next_frame().map_err(std::io::Error::other)? {
            Some(ExecFrame::Output(bytes)) => to.write_all(&bytes).await?,
            Some(ExecFrame::Ended(_)) => return to.shutdown().await,
            Some(_) => {}
            None => match from.read(&mut piece).await? {
                0 => return Ok(()),
                length => frames.push(piece.get(..length).unwrap_or_default()),
            },
        }
    }
}
