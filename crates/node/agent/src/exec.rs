//! The side of a node of a command in a task: it starts the command and passes on its input and output as frames
//! ([`cantle_clearml::exec`]). The other side is a terminal of this machine or, through the server, of another one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_clearml::exec::{EXEC_FRAME_MAX, ExecDoor, ExecEnd, ExecFrame, ExecFrames, ExecStart};
use cantle_model::Holder;
use cantle_runtime::{
    ExecCommand, ExecError, ExecProcess, ExecStreams, ExecTerminal, TaskDoor, exec_in_task,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// How often the other side hears that this one lives. Servers and proxies end a connection that is silent for a minute.
const PING: Duration = Duration::from_secs(10);
/// For what a command has written before its end. A process that it left behind may keep its output open.
const DRAIN: Duration = Duration::from_millis(500);
/// For the other side to take the last frame.
const GOODBYE: Duration = Duration::from_secs(10);
/// Pieces of input or output that wait.
const WAITING: usize = 4;
/// The size of a piece.
const PIECE: usize = 32 << 10;
const _: () = assert!(PIECE <= EXEC_FRAME_MAX);

/// Runs a command in the task with this first own process, until the command ends, the task ends, or the other side is gone. With a
/// limit, it also ends when nothing was written in either direction for so long.
pub async fn serve_exec<S>(leader: Holder, start: ExecStart, stream: S, idle: Option<Duration>)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, mut writer) = split(stream);
    let terminal = start.window.map(|window| ExecTerminal {
        kind: window.kind,
        rows: window.rows,
        columns: window.columns,
    });
    let to = start.to.map(|door| match door {
        ExecDoor::Port(port) => TaskDoor::Port(port),
        ExecDoor::Socket(path) => TaskDoor::Socket(path.into()),
    });
    let command = ExecCommand { argv: start.argv.into_iter().map(Into::into).collect(), terminal, to };
    let started = spawn_blocking(move || exec_in_task(&leader, &command)).await;
    let end = match started {
        Ok(Ok((process, streams))) => match Ends::of(streams) {
            Ok(ends) => run(process, ends, (reader, &mut writer), idle).await,
            Err(why) => Some(not_started(&why.to_string(), None, 125)),
        },
        Ok(Err(why)) => Some(refused(&why)),
        Err(why) => Some(not_started(&why.to_string(), None, 125)),
    };
    if let Some(end) = end {
        let last = async {
            writer.write_all(&ExecFrame::Ended(end).to_bytes()).await?;
            writer.shutdown().await
        };
        // The other side may be gone.
        let _ = timeout(GOODBYE, last).await;
    }
}

fn refused(why: &ExecError) -> ExecEnd {
    not_started(&why.to_string(), why.hint(), why.exit_code())
}

fn not_started(why: &str, hint: Option<&str>, code: u8) -> ExecEnd {
    ExecEnd { code, error: Some(why.to_owned()), hint: hint.map(str::to_owned) }
}

/// The frame that holds a piece of output.
type ToFrame = fn(Vec<u8>) -> ExecFrame;

/// The ends of the command's streams, for the runtime.
struct Ends {
    input: pipe::Sender,
    outputs: Vec<(pipe::Receiver, ToFrame)>,
    /// To set its size.
    terminal: Option<ExecStreams>,
}

impl Ends {
    fn of(streams: ExecStreams) -> io::Result<Self> {
        Ok(match streams {
            ExecStreams::Terminal(terminal) => {
                let (input, output) = (terminal.try_clone()?, terminal.try_clone()?);
                Self {
                    input: sender(input)?,
                    outputs: vec![(receiver(output)?, ExecFrame::Output)],
                    terminal: Some(ExecStreams::Terminal(terminal)),
                }
            }
            ExecStreams::Pipes([stdin, stdout, stderr]) => Self {
                input: sender(stdin)?,
                outputs: vec![(receiver(stdout)?, ExecFrame::Output), (receiver(stderr)?, ExecFrame::Errors)],
                terminal: None,
            },
        })
    }
}

/// Of a pipe, or of a terminal, which can be waited for in the same way.
fn sender(file: OwnedFd) -> io::Result<pipe::Sender> {
    do_not_block(&file)?;
    pipe::Sender::from_owned_fd_unchecked(file)
}

fn receiver(file: OwnedFd) -> io::Result<pipe::Receiver> {
    do_not_block(&file)?;
    pipe::Receiver::from_owned_fd_unchecked(file)
}

fn do_not_block(file: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GETFL)?);
    fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// How the command ended; `None` if the other side is gone, and the command was ended for that.
async fn run(
    mut process: ExecProcess,
    ends: Ends,
    (reader, writer): (impl AsyncRead + Unpin, &mut (impl AsyncWrite + Unpin)),
    idle: Option<Duration>,
) -> Option<ExecEnd> {
    let (is_used, mut unused) = (AtomicBool::new(false), Duration::ZERO);
    let (frames, mut waiting) = mpsc::channel(WAITING);
    let Ends { input, outputs, terminal } = ends;
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|(output, frame)| tokio::spawn(copy_out(output, frame, frames.clone())))
        .collect();
    drop(frames);
    let mut feeding = std::pin::pin!(feed(reader, input, terminal, &is_used));
    let exit = loop {
        tokio::select! {
            exit = process.wait() => break Some(exit),
            () = &mut feeding => break None,
            Some(frame) = waiting.recv() => {
                unused = Duration::ZERO;
                if writer.write_all(&ExecFrame::to_bytes(&frame)).await.is_err() { break None; }
            }
            () = sleep(PING) => {
                unused = if is_used.swap(false, Ordering::Relaxed) { Duration::ZERO } else { unused + PING };
                if idle.is_some_and(|idle| unused >= idle) {
                    process.end().await;
                    return Some(not_started("nobody wrote anything for too long", None, 1));
                }
                if writer.write_all(&ExecFrame::Ping.to_bytes()).await.is_err() { break None; }
            }
        }
    };
    let Some(exit) = exit else {
        // The close of a terminal ends the command, if it does not ignore that.
        outputs.iter().for_each(tokio::task::JoinHandle::abort);
        drop(waiting);
        process.end().await;
        return None;
    };
    while let Ok(Some(frame)) = timeout(DRAIN, waiting.recv()).await {
        if writer.write_all(&frame.to_bytes()).await.is_err() {
            break;
        }
    }
    outputs.iter().for_each(tokio::task::JoinHandle::abort);
    Some(ExecEnd { code: u8::try_from(exit.code() & 0xff).unwrap_or(1), ..ExecEnd::default() })
}

async fn copy_out(mut output: pipe::Receiver, frame: ToFrame, to: mpsc::Sender<ExecFrame>) {
    let mut piece = vec![0; PIECE];
    // A terminal that no process has open any more answers with an error.
    while let Ok(length @ 1..) = output.read(&mut piece).await {
        if to.send(frame(piece.get(..length).unwrap_or_default().to_vec())).await.is_err() {
            return;
        }
    }
}

/// Gives the command its input until the other side is gone, or sends what is no frame.
async fn feed(
    mut reader: impl AsyncRead + Unpin,
    input: pipe::Sender,
    terminal: Option<ExecStreams>,
    is_used: &AtomicBool,
) {
    let (mut frames, mut piece) = (ExecFrames::default(), vec![0; PIECE]);
    let mut input = Some(input);
    loop {
        match reader.read(&mut piece).await {
            Ok(length @ 1..) => frames.push(piece.get(..length).unwrap_or_default()),
            _ => return,
        }
        is_used.store(true, Ordering::Relaxed);
        loop {
            match frames.next_frame() {
                Ok(Some(ExecFrame::Input(bytes))) => {
                    let written = match &mut input {
                        Some(open) => open.write_all(&bytes).await.is_ok(),
                        None => true,
                    };
                    if !written {
                        // As after `| head`: what comes is read and dropped, because the end of the other side must be seen.
                        input = None;
                    }
                }
                Ok(Some(ExecFrame::InputEnd)) => input = None,
                Ok(Some(ExecFrame::Resize(rows, columns))) => {
                    if let Some(terminal) = &terminal {
                        terminal.resize(rows, columns);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}
