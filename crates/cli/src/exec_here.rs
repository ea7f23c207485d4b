//! The user's side of a command in a task: the terminal or the pipes of this process, as frames ([`cantle_clearml::exec`]).

use std::io::{self, IsTerminal as _, Read as _};
use std::thread;

use cantle_clearml::exec::{ExecEnd, ExecFrame, ExecWindow};
use ratatui::crossterm::terminal;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, split};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::error::{CliError, ErrorKind, as_kind};
use crate::frames::FrameReader;

/// The size of a piece of input or output.
const PIECE: usize = 32 << 10;
/// Pieces of input that wait.
const WAITING: usize = 4;
const UNKNOWN: &str = "dumb";

/// The terminal of this process, if its input and output are one.
pub(crate) fn window() -> Option<ExecWindow> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return None;
    }
    let (columns, rows) = terminal::size().unwrap_or((80, 24));
    let kind =
        std::env::var_os("TERM").map_or_else(|| UNKNOWN.into(), |kind| kind.to_string_lossy().into_owned());
    Some(ExecWindow { kind, rows, columns })
}

/// Passes each key on as it is, until it is dropped: Ctrl-C and Ctrl-Z are for the command.
struct RawTerminal;

impl RawTerminal {
    fn take() -> Result<Self, CliError> {
        terminal::enable_raw_mode().map_err(|why| CliError::wrap(ErrorKind::Failed, "terminal", why))?;
        Ok(Self)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone has no mode.
        let _ = terminal::disable_raw_mode();
    }
}

/// The signals that end this process, and the one for another size of the window.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    resize: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            resize: signal(SignalKind::window_change())?,
        })
    }
}

/// Connects this process's stdin, stdout and stderr with the command at the other end of `stream`, until it ends. Its exit code.
///
/// # Errors
/// If it did not start, or the connection broke.
pub(crate) async fn talk(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    has_window: bool,
) -> Result<u8, CliError> {
    let mut signals = Signals::listen().map_err(as_kind(ErrorKind::Failed))?;
    let raw = if has_window { Some(RawTerminal::take()?) } else { None };
    let (reader, writer) = split(stream);
    let (frames, waiting) = mpsc::channel(WAITING);
    let input = frames.clone();
    // It may block on a read without end, so nothing joins this thread.
    thread::spawn(move || read_input(&input));
    tokio::spawn(send(writer, waiting));
    let mut showing = std::pin::pin!(show(reader));
    let end = loop {
        tokio::select! {
            end = &mut showing => break end,
            _ = signals.hangup.recv() => break Ok(ended_by(SignalKind::hangup())),
            _ = signals.terminate.recv() => break Ok(ended_by(SignalKind::terminate())),
            _ = signals.resize.recv(), if has_window => {
                if let Ok((columns, rows)) = terminal::size() {
                    // Of many changes the last one counts; a full channel means that the other side does not take input.
                    let _ = frames.try_send(ExecFrame::Resize(rows, columns));
                }
            }
        }
    };
    drop(raw);
    match end {
        Ok(ExecEnd { code, error: None, .. }) => Ok(code),
        Ok(ExecEnd { code, error: Some(error), hint }) => {
            Err(CliError::new(ErrorKind::of_exit_code(code), error).with_hints(hint))
        }
        Err(why) => Err(CliError::wrap(ErrorKind::Failed, "the connection to the command broke", why)),
    }
}

fn ended_by(kind: SignalKind) -> ExecEnd {
    ExecEnd { code: u8::try_from(128 + kind.as_raw_value()).unwrap_or(1), ..ExecEnd::default() }
}

fn read_input(frames: &mpsc::Sender<ExecFrame>) {
    let mut piece = vec![0; PIECE];
    loop {
        let frame = match io::stdin().lock().read(&mut piece) {
            Ok(length @ 1..) => ExecFrame::Input(piece.get(..length).unwrap_or_default().to_vec()),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
            _ => ExecFrame::InputEnd,
        };
        let is_last = frame == ExecFrame::InputEnd;
        if frames.blocking_send(frame).is_err() || is_last {
            return;
        }
    }
}

async fn send(mut writer: impl AsyncWrite + Unpin, mut frames: mpsc::Receiver<ExecFrame>) {
    while let Some(frame) = frames.recv().await {
        // The reader sees why.
        if writer.write_all(&frame.to_bytes()).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

/// Prints what arrives, until the end.
async fn show(reader: impl AsyncRead + Unpin) -> io::Result<ExecEnd> {
    let mut frames = FrameReader::new(reader);
    let (output, waiting) = mpsc::channel(WAITING);
    // It may have to wait for the program that reads from it, and the keys must go on meanwhile.
    let printing = thread::spawn(move || print(waiting));
    let closed = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    loop {
        match frames.next().await? {
            frame @ (ExecFrame::Output(_) | ExecFrame::Errors(_)) => {
                output.send(frame).await.map_err(closed)?
            }
            ExecFrame::Ended(end) => {
                drop(output);
                // All of it is printed before the exit code is known.
                let _ = tokio::task::spawn_blocking(|| printing.join()).await;
                return Ok(end);
            }
            _ => {}
        }
    }
}

/// Until there is no more, or the reader is gone.
fn print(mut frames: mpsc::Receiver<ExecFrame>) {
    while let Some(frame) = frames.blocking_recv() {
        let written = match frame {
            ExecFrame::Output(bytes) => write(io::stdout().lock(), &bytes),
            ExecFrame::Errors(bytes) => write(io::stderr().lock(), &bytes),
            _ => Ok(()),
        };
        if written.is_err() {
            return;
        }
    }
}

fn write(mut to: impl io::Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
