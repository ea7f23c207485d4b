//! The process that enters a task and becomes the command. Until it has given up its privileges, it executes nothing and looks at no path of
//! the task's.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use cantle_model::Holder;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::{set_dumpable, set_no_new_privs};
use nix::sys::stat::umask;
use nix::unistd::{chroot, close, fchdir, fchown, setsid};
use rustix::process::ioctl_tiocsctty;
use serde::{Deserialize, Serialize};

use super::door::{Connected, TaskDoor};
use super::{ExecError, First};
use crate::first::{Orders, SETTINGS, UMASK, reopen};
use crate::ignored::ignore_nothing;
use crate::sandbox::Inside;
use crate::{TaskUser, alive};

/// The namespaces of a task except that of processes, which its parent chose. That of mounts is last: it has no `/proc`
/// of this process.
const NAMESPACES: [(&str, CloneFlags); 4] = [
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("cgroup", CloneFlags::CLONE_NEWCGROUP),
    ("mnt", CloneFlags::CLONE_NEWNS),
];
const SHELL: &str = "/bin/sh";

/// Its orders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entering {
    /// The first process of the task.
    pub(super) first: Holder,
    /// Number of the descriptor to which it reports why it could not. A command that has started closes it.
    pub(super) report: i32,
    /// `TERM`, if its stdin is a terminal.
    pub(super) terminal: Option<String>,
    /// The door that it connects to, instead of becoming a command.
    pub(super) to: Option<TaskDoor>,
}

/// Its `main`; `args` are those after [`super::ENTER`]: its orders, then the command.
pub(crate) fn enter_main(args: &[OsString]) -> ExitCode {
    // Before anything else: the task sees this process already.
    let is_sealed = set_dumpable(false).is_ok();
    let [told, command @ ..] = args else { return ExitCode::from(2) };
    let told = told.to_str().and_then(|text| serde_json::from_str::<Entering>(text).ok());
    let Some(told) = told.filter(|_| is_sealed) else { return ExitCode::from(2) };
    let Ok(mut report) = reopen(told.report, OpenOptions::new().write(true)) else {
        return ExitCode::from(2);
    };
    close_others(report.as_raw_fd());
    let why = match told.enter().and_then(|environment| told.act(command, environment)) {
        Ok(connected) => {
            // As the start of a command closes it.
            drop(report);
            return connected.carry();
        }
        Err(why) => why,
    };
    // No process listens any more if this fails.
    let _ = serde_json::to_vec(&why).map(|line| report.write_all(&line));
    ExitCode::from(why.exit_code())
}

/// All but stdin, stdout, stderr and `kept`.
fn close_others(kept: i32) {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(Result::ok);
    let numbers: Vec<i32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2 && *number != kept) {
        // The listing's own is closed already.
        let _ = close(number);
    }
}

/// Files of the task that are opened on the machine's side.
struct Opened {
    namespaces: Vec<(File, CloneFlags)>,
    root: File,
}

impl Opened {
    fn of(first: &Holder) -> io::Result<Self> {
        let at = |name: &str| File::open(format!("/proc/{}/{name}", first.pid));
        let namespaces = NAMESPACES.iter().map(|(name, kind)| Ok((at(&format!("ns/{name}"))?, *kind)));
        Ok(Self { namespaces: namespaces.collect::<io::Result<_>>()?, root: at("root")? })
    }

    /// Into them, at the first process's root directory.
    fn enter(self) -> Result<(), ExecError> {
        for (file, kind) in &self.namespaces {
            setns(file, *kind).map_err(|why| ExecError::setup("enter its namespaces", why))?;
        }
        let entered = fchdir(&self.root).and_then(|()| chroot("."));
        entered.map_err(|why| ExecError::setup("enter its root directory", why))
    }
}

/// The variables of the task.
type Environment = Vec<(OsString, OsString)>;

impl Entering {
    /// Into the task, with its rights only from then on.
    fn enter(&self) -> Result<Environment, ExecError> {
        let setup = |what: &'static str| move |why: io::Error| ExecError::setup(what, why);
        let first = First::read(&self.first)?;
        let mut environment = first.environment().map_err(setup("read its environment"))?;
        let opened = Opened::of(&self.first).map_err(setup("open its namespaces"))?;
        // The opened files and the data belong to the task, and not to a later process with its number.
        if !alive(&self.first) {
            return Err(ExecError::Ended);
        }
        let Orders { door, more_doors, inside, no_new_privileges, user, directory, .. } = first.orders;
        for door in door.into_iter().chain(more_doors) {
            fs::write(door, "0").map_err(|why| match why.kind() {
                io::ErrorKind::NotFound => ExecError::Ended,
                _ => ExecError::Group(why.to_string()),
            })?;
        }
        if inside.is_some() {
            opened.enter()?;
        }
        self.give_up(inside.as_ref(), no_new_privileges)?;
        self.take_terminal(user.as_ref())?;
        if let Some(user) = &user {
            umask(UMASK);
            user.take_over().map_err(setup("become its user"))?;
            // Another user's processes could trace this one otherwise.
            set_dumpable(false).map_err(|why| ExecError::setup("stay out of reach", why))?;
            environment.retain(|(name, value)| name != SETTINGS || File::open(value).is_ok());
        }
        let entered = std::env::set_current_dir(&directory);
        entered.map_err(|why| ExecError::setup(&format!("enter {}", directory.display()), why))?;
        Ok(environment)
    }

    /// Becomes the command, which does not return unless it fails; or connects.
    fn act(&self, command: &[OsString], environment: Environment) -> Result<Connected, ExecError> {
        match &self.to {
            Some(door) => door.connect(),
            None => Err(self.execute(command, environment)),
        }
    }

    /// Gives up the rights that the task's first process gave up, too.
    fn give_up(&self, inside: Option<&Inside>, no_new_privileges: bool) -> Result<(), ExecError> {
        if let Some(inside) = inside {
            inside.restrict().map_err(|why| ExecError::setup("close the sandbox", why))?;
        }
        if no_new_privileges {
            set_no_new_privs().map_err(|why| ExecError::setup("give up new privileges", why))?;
        }
        Ok(())
    }

    /// A session of its own, so that no terminal of the caller's is left; with the terminal that it has got.
    fn take_terminal(&self, user: Option<&TaskUser>) -> Result<(), ExecError> {
        setsid().map_err(|why| ExecError::setup("begin a session", why))?;
        if self.terminal.is_some() {
            ioctl_tiocsctty(io::stdin()).map_err(|why| ExecError::setup("take the terminal", why))?;
        }
        if let Some(user) = user {
            // Programs open them again by their names, such as `/dev/stdout`.
            let (uid, gid) = user.owner();
            let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
            for file in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
                fchown(file, uid, gid).map_err(|why| ExecError::setup("hand over its descriptors", why))?;
            }
        }
        Ok(())
    }

    fn execute(&self, command: &[OsString], mut environment: Environment) -> ExecError {
        if let Some(kind) = &self.terminal {
            environment.retain(|(name, _)| name != "TERM");
            environment.push(("TERM".into(), kind.into()));
        }
        let shell = environment.iter().find(|(name, _)| name == "SHELL").map(|(_, shell)| shell.clone());
        let shell = [shell.unwrap_or_else(|| SHELL.into())];
        let argv = if command.is_empty() { &shell[..] } else { command };
        let [program, args @ ..] = argv else { return ExecError::setup("start", "no command") };
        ignore_nothing();
        let why = Command::new(program).args(args).env_clear().envs(environment).exec();
        failed(program, &why)
    }
}

fn failed(program: &OsStr, why: &io::Error) -> ExecError {
    let program = program.to_string_lossy().into_owned();
    match why.kind() {
        io::ErrorKind::NotFound => ExecError::NotFound(program),
        _ => ExecError::NotExecutable { program, why: why.to_string() },
    }
}
