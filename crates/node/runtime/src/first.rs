//! The first process of a task: a small program of cantle's between the supervisor and the task.
//!
//! It enters the task's control group, closes the task's sandbox from within, gives up privileges, and only then starts
//! the task. In its pid namespace it is process 1, which the
//! kernel protects: no signal from within ends it, and all orphans become its children. It ends when none is left, and the
//! kernel kills the processes that are left when it ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::prctl::{set_child_subreaper, set_no_new_privs};
use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, close, pipe2};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::error::Why as _;
use crate::sandbox::Inside;
use crate::{Exit, StartError, TaskUser};

/// The word after [`crate::TASK_INIT_COMMAND`] that makes a program a task's first process.
pub(crate) const FIRST: &str = "--first";

/// The name of the memory in which it keeps the secrets of its task.
const SECRETS: &str = "cantle-secrets";

/// The umask of a login.
pub(crate) const UMASK: Mode = Mode::from_bits_truncate(0o022);
/// Names the settings of ClearML's programs.
pub(crate) const SETTINGS: &str = "CLEARML_CONFIG_FILE";

/// The steps of the first process before it starts the task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// Number of the descriptor that it reports to.
    pub(crate) report: i32,
    /// Number of the descriptor from which it learns that it may start the task.
    pub(crate) go: i32,
    /// The control group to enter.
    pub(crate) door: Option<PathBuf>,
    /// Its counterparts in other hierarchies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) more_doors: Vec<PathBuf>,
    /// Its orders in the task's namespaces, if it has them.
    pub(crate) inside: Option<Inside>,
    /// It and the task get no privileges from programs that they start.
    pub(crate) no_new_privileges: bool,
    /// The user that the task runs as, if it is not this process's.
    pub(crate) user: Option<TaskUser>,
    /// The task's working directory.
    pub(crate) directory: PathBuf,
}

/// Its reports, one per line: first [`Report::Started`] or another of the errors, then how the task ended.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    Started,
    Ended(Exit),
    NotFound,
    NotExecutable { errno: i32 },
    Namespace { why: String },
    Directory { why: String },
    Setup { what: String, why: String, is_out_of_room: bool },
}

impl Report {
    fn setup(what: impl Into<String>, why: &io::Error) -> Self {
        Self::Setup { what: what.into(), why: why.to_string(), is_out_of_room: why.is_out_of_room() }
    }
}

/// The supervisor's end of the reports.
#[derive(Debug)]
pub(crate) struct Reports(BufReader<File>);

impl Reports {
    /// The other end, as its number, stays open for the first process.
    pub(crate) fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((Self(BufReader::new(File::from(ours))), theirs))
    }

    /// Waits until the task is started.
    pub(crate) fn started(
        &mut self,
        program: &str,
        directory: &Path,
        user: Option<&TaskUser>,
    ) -> Result<(), StartError> {
        let program = program.to_owned();
        match self.next() {
            Some(Report::Started) => Ok(()),
            Some(Report::NotFound) => Err(StartError::NotFound(program)),
            Some(Report::NotExecutable { errno }) => {
                Err(StartError::NotExecutable { program, why: io::Error::from_raw_os_error(errno) })
            }
            Some(Report::Namespace { why }) => Err(StartError::Namespace(why)),
            Some(Report::Directory { why }) => {
                let user = user.map(|user| user.name().to_owned());
                Err(StartError::Directory { directory: directory.to_owned(), user, why })
            }
            Some(Report::Setup { what, why, is_out_of_room }) => {
                Err(StartError::Setup { what, why, is_out_of_room })
            }
            Some(Report::Ended(_)) | None => {
                Err(StartError::setup("first process", "it ended without a report"))
            }
        }
    }

    /// Waits until the task has ended; `None` if the first process was killed before it could report how.
    pub(crate) fn ended(&mut self) -> Option<Exit> {
        match self.next() {
            Some(Report::Ended(exit)) => Some(exit),
            _ => None,
        }
    }

    fn next(&mut self) -> Option<Report> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

/// The supervisor's word that the task may start: its processes can be found from now on. If the supervisor ends before, the task does
/// not start.
#[derive(Debug)]
pub(crate) struct Go(File);

impl Go {
    /// The other end, as its number, stays open for the first process.
    pub(crate) fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (theirs, ours) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok((Self(File::from(ours)), theirs))
    }

    /// With the secrets of the task. They come this way because anybody can read a command line, and because the environment of the
    /// first process would be that of a program of root's.
    pub(crate) fn say(mut self, secrets: &BTreeMap<String, String>) -> io::Result<()> {
        self.0.write_all(&serde_json::to_vec(secrets)?)
    }
}

impl Orders {
    /// The program that carries them out and then starts `argv`.
    pub(crate) fn command(&self, argv: &[OsString]) -> io::Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(crate::TASK_INIT_COMMAND).arg(FIRST).arg(serde_json::to_string(self)?).args(argv);
        Ok(command)
    }
}

/// The first process's `main`; `args` are those after [`FIRST`].
pub(crate) fn first_main(args: &[OsString]) -> ExitCode {
    let [orders, program, args @ ..] = args else { return ExitCode::from(2) };
    let orders = orders.to_str().and_then(|text| serde_json::from_str::<Orders>(text).ok());
    let Some(orders) = orders else { return ExitCode::from(2) };
    let (Ok(mut report), Ok(go)) =
        (reopen(orders.report, File::options().write(true)), reopen(orders.go, File::options().read(true)))
    else {
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(args);
    let started = orders.prepare().and_then(|()| wait_for(go)).and_then(|secrets| {
        let kept = keep(&secrets).map_err(|why| Report::setup("keep the secrets", &why))?;
        command.envs(secrets);
        Ok((orders.start(command)?, kept))
    });
    // Outside of a pid namespace the terminal's signals are for the task. The kernel refuses no set of signals.
    let _ = SigSet::all().thread_block();
    match started {
        Ok((child, _kept)) => {
            say(&mut report, &Report::Started);
            wait_for_all(Pid::from_raw(child.id().cast_signed()), &mut report);
            ExitCode::SUCCESS
        }
        Err(why) => {
            say(&mut report, &why);
            ExitCode::FAILURE
        }
    }
}

/// The end of a pipe that the supervisor left open, so that the task does not inherit it.
pub(crate) fn reopen(number: i32, options: &mut OpenOptions) -> io::Result<File> {
    // Without waiting for a supervisor that was killed.
    let path = format!("/proc/self/fd/{number}");
    let file = options.custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    // It is open, or the path above would have led nowhere.
    let _ = close(number);
    Ok(file)
}

/// Until the supervisor has written down where the task is found.
fn wait_for(mut go: File) -> Result<BTreeMap<String, String>, Report> {
    let mut secrets = Vec::new();
    let read = go.read_to_end(&mut secrets).and_then(|_| Ok(serde_json::from_slice(&secrets)?));
    read.map_err(|why| Report::setup("wait for the supervisor", &why))
}

/// Keeps the secrets for commands that enter the task: in memory, behind a descriptor that no process of the task has or can open.
fn keep(secrets: &BTreeMap<String, String>) -> io::Result<Option<File>> {
    if secrets.is_empty() {
        return Ok(None);
    }
    let mut memory = File::from(memfd_create(SECRETS, MemfdFlags::CLOEXEC)?);
    memory.write_all(&serde_json::to_vec(secrets)?)?;
    Ok(Some(memory))
}

/// The secrets that the first process with this pid keeps.
pub(crate) fn kept_secrets(pid: u32) -> io::Result<BTreeMap<String, String>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path)
            .is_ok_and(|target| target == Path::new(&format!("/memfd:{SECRETS} (deleted)")))
        {
            return Ok(serde_json::from_slice(&fs::read(&path)?)?);
        }
    }
    Ok(BTreeMap::new())
}

/// The supervisor may have been killed. The task continues nevertheless.
fn say(report: &mut File, what: &Report) {
    if let Ok(mut line) = serde_json::to_vec(what) {
        line.push(b'\n');
        let _ = report.write_all(&line);
    }
}

/// Until no process of the task is left.
fn wait_for_all(task: Pid, report: &mut File) {
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == task => say(report, &Report::Ended(Exit::Code(code))),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == task => {
                say(report, &Report::Ended(Exit::Signal(signal as i32)));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

impl Orders {
    fn prepare(&self) -> Result<(), Report> {
        let setup = |what: &str| {
            let what = what.to_owned();
            move |why: io::Error| Report::setup(what, &why)
        };
        for door in self.door.iter().chain(&self.more_doors) {
            fs::write(door, "0").map_err(setup("enter the task's control group"))?;
        }
        if let Some(inside) = &self.inside {
            inside.close().map_err(|why| match why.cause() {
                cause if cause.is_out_of_room() => Report::setup("close the sandbox", cause),
                _ => Report::Namespace { why: why.to_string() },
            })?;
        }
        // Process 1 of a pid namespace adopts orphans without this call.
        set_child_subreaper(true).map_err(io::Error::from).map_err(setup("adopt the task's orphans"))?;
        if self.no_new_privileges {
            set_no_new_privs().map_err(io::Error::from).map_err(setup("give up new privileges"))?;
        }
        Ok(())
    }

    /// As the task's user. This process stays root's, out of reach of the task.
    fn start(&self, mut command: Command) -> Result<Child, Report> {
        let Some(user) = &self.user else { return self.start_here(command) };
        umask(UMASK);
        let started = user.act(|| {
            // The settings of the agent's user, which a file of this user's own replaces.
            if std::env::var_os(SETTINGS).is_some_and(|path| File::open(path).is_err()) {
                command.env_remove(SETTINGS);
            }
            self.start_here(command)
        });
        started.unwrap_or_else(|why| Err(Report::setup(format!("become user {}", user.name()), &why)))
    }

    fn start_here(&self, mut command: Command) -> Result<Child, Report> {
        let entered = std::env::set_current_dir(&self.directory);
        entered.map_err(|why| Report::Directory { why: why.to_string() })?;
        command.spawn().map_err(|why| match why.kind() {
            io::ErrorKind::NotFound => Report::NotFound,
            _ => Report::NotExecutable { errno: why.raw_os_error().unwrap_or(0) },
        })
    }
}
