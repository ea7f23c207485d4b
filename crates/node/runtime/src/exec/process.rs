//! The side of a command in a task that is outside of it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cantle_model::Holder;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::sync::oneshot;

use super::inside::Entering;
use super::{ENTER, ExecCommand, ExecError, ExecTerminal, First};
use crate::{Exit, TASK_INIT_COMMAND};

/// The longest time that a process needs to become the command. The task can stop it on its way.
const START: Duration = Duration::from_secs(10);
/// Between SIGHUP and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// The ends of a command's input and output.
#[derive(Debug)]
pub enum ExecStreams {
    /// Of its terminal: both directions.
    Terminal(OwnedFd),
    /// Its stdin, stdout and stderr.
    Pipes([OwnedFd; 3]),
}

/// A command that runs in a task.
#[derive(Debug)]
pub struct ExecProcess {
    /// It leads a process group of this number.
    group: Pid,
    has_ended: Arc<AtomicBool>,
    ended: oneshot::Receiver<Exit>,
}

/// Starts a command in the task that has this first own process (`leader` of its lease). Blocks until the command has started.
///
/// # Errors
/// If it does not start; nothing of it is left then.
pub fn exec_in_task(leader: &Holder, what: &ExecCommand) -> Result<(ExecProcess, ExecStreams), ExecError> {
    let first = First::of_task(leader)?;
    if !first.is_bounded() {
        return Err(ExecError::Unbounded);
    }
    let (report, theirs) = pipe().map_err(|why| ExecError::setup("pipe", why))?;
    let terminal = what.terminal.as_ref().map(|terminal| terminal.kind.clone());
    let to = what.to.clone();
    let told = Entering { first: first.holder, report: theirs.as_raw_fd(), terminal, to };
    let told = serde_json::to_string(&told).map_err(|why| ExecError::setup("write its orders", why))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(TASK_INIT_COMMAND).arg(ENTER).arg(told).args(&what.argv);
    // Everything that it finds in the task is the task's.
    command.env_clear();
    let ends =
        Ends::make(what.terminal.as_ref(), &mut command).map_err(|why| ExecError::setup("terminal", why))?;
    let mut child = spawn_beside(&first, command)?;
    drop(theirs);
    let group = Pid::from_raw(child.id().cast_signed());
    let streams = ends.streams(&mut child)?;
    let failed = wait_for_start(report);
    if let Err(why) = failed {
        // One that was stopped on its way: it is not the command yet, and nothing is below it.
        let _ = child.kill();
        let _ = child.wait();
        return Err(why);
    }
    let (sender, ended) = oneshot::channel();
    let has_ended = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&has_ended);
    let waiting = thread::Builder::new().spawn(move || {
        let exit = child.wait().map_or(Exit::Lost, Exit::of_status);
        noted.store(true, Ordering::Release);
        sender.send(exit)
    });
    waiting.map_err(|why| ExecError::setup("start a thread", why))?;
    Ok((ExecProcess { group, has_ended, ended }, streams))
}

impl ExecProcess {
    /// Waits for its end. May be cancelled and called again, but not after it has answered.
    pub async fn wait(&mut self) -> Exit {
        (&mut self.ended).await.unwrap_or(Exit::Lost)
    }

    /// SIGHUP to the command and what it runs in the foreground, and SIGKILL after a moment.
    pub async fn end(&mut self) {
        self.signal(Signal::SIGHUP);
        if tokio::time::timeout(GRACE, self.wait()).await.is_err() {
            self.signal(Signal::SIGKILL);
            self.wait().await;
        }
    }

    /// To its process group; one that has ended gets none, because its number may be another's.
    fn signal(&self, signal: Signal) {
        if !self.has_ended.load(Ordering::Acquire) {
            // It may have ended since.
            let _ = killpg(self.group, signal);
        }
    }
}

impl ExecStreams {
    /// Tells the terminal that the window has another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        if let Self::Terminal(terminal) = self {
            set_size(terminal, rows, columns);
        }
    }
}

/// A thread enters the pid namespace of the task for its children, makes the child, and ends. The thread itself stays outside.
fn spawn_beside(first: &First, mut command: Command) -> Result<std::process::Child, ExecError> {
    let namespace =
        first.orders.inside.as_ref().map(|_| File::open(format!("/proc/{}/ns/pid", first.holder.pid)));
    let namespace = namespace.transpose().map_err(|_| ExecError::Ended)?;
    thread::scope(|scope| {
        let maker = thread::Builder::new().spawn_scoped(scope, || {
            if let Some(namespace) = namespace {
                setns(namespace, CloneFlags::CLONE_NEWPID)
                    .map_err(|why| ExecError::setup("enter its pid namespace", why))?;
            }
            command.spawn().map_err(|why| ExecError::setup("start a process", why))
        });
        let maker = maker.map_err(|why| ExecError::setup("start a thread", why))?;
        maker.join().unwrap_or_else(|_| Err(ExecError::setup("start a process", "the thread panicked")))
    })
}

/// The other end, as its number, stays open for the child.
fn pipe() -> io::Result<(File, OwnedFd)> {
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok((File::from(ours), theirs))
}

/// Until the command has closed the pipe by starting, or the reason is there.
fn wait_for_start(mut report: File) -> Result<(), ExecError> {
    let wait = PollTimeout::try_from(START).unwrap_or(PollTimeout::NONE);
    let mut files = [PollFd::new(report.as_fd(), PollFlags::POLLIN)];
    if poll(&mut files, wait) == Ok(0) {
        return Err(ExecError::setup("start the command", "the task did not let it start within 10 s"));
    }
    let mut text = Vec::new();
    let read = report.read_to_end(&mut text);
    read.map_err(|why| ExecError::setup("read the report", why))?;
    if text.is_empty() {
        return Ok(());
    }
    Err(serde_json::from_slice(&text).unwrap_or_else(|why| ExecError::setup("read the report", why)))
}

enum Ends {
    Terminal(OwnedFd),
    Pipes,
}

impl Ends {
    fn make(terminal: Option<&ExecTerminal>, command: &mut Command) -> io::Result<Self> {
        let Some(terminal) = terminal else {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            return Ok(Self::Pipes);
        };
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        set_size(&ours, terminal.rows, terminal.columns);
        let (second, third) = (theirs.try_clone()?, theirs.try_clone()?);
        command.stdin(theirs).stdout(second).stderr(third);
        Ok(Self::Terminal(ours))
    }

    fn streams(self, child: &mut std::process::Child) -> Result<ExecStreams, ExecError> {
        if let Self::Terminal(terminal) = self {
            return Ok(ExecStreams::Terminal(terminal));
        }
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(ExecError::setup("pipes", "none"));
        };
        Ok(ExecStreams::Pipes([stdin.into(), stdout.into(), stderr.into()]))
    }
}

fn set_size(terminal: &OwnedFd, rows: u16, columns: u16) {
    // A terminal of the usual size works, too.
    let _ = tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 });
}
