//! Another command in a running task: in its namespaces, its control group and its slice, as its user, with its environment.
//!
//! The task is a stranger ([`crate::sandbox`]), and a process that enters it has privileges until it is inside. So:
//!
//! * What is to be entered is read from the task's *first process*, which is cantle's own and which the task can neither write nor
//!   end (`first.rs`): namespaces, root directory, environment, user, working directory. Nothing that the task can change decides.
//! * A thread of this process makes a child in the pid namespace of the task, and stays outside. The child (`inside.rs`) is this program. It closes all
//!   descriptors but three and cannot be traced. It opens what it needs on the machine's side, enters, gives up what the task may not have, and only then
//!   looks for the first file of the task: the command, with the task's own rights.
//! * The terminal is a new one. Those of the caller never get into the task, which could type into them.
//!
//! The kernel ends the command with the task: in a pid namespace no process outlives the first one, and what the control group has is
//! killed with it. Where a task has neither, no command can enter it.

mod door;
mod inside;
mod process;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;

pub use door::TaskDoor;

use cantle_model::Holder;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::first::{FIRST, Orders, kept_secrets};
use crate::{TASK_INIT_COMMAND, alive, holder_of, parent_of};

pub(crate) use inside::enter_main;
pub use process::{ExecProcess, ExecStreams, exec_in_task};

/// The word after [`TASK_INIT_COMMAND`] that makes a program enter a task.
pub(crate) const ENTER: &str = "--enter";

/// A command to run in a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecCommand {
    /// Program and arguments; none for the shell of the task's user.
    pub argv: Vec<OsString>,
    /// The terminal that it gets; pipes if none.
    pub terminal: Option<ExecTerminal>,
    /// Instead of a program: stdin and stdout are those of a connection to what listens here in the task.
    pub to: Option<TaskDoor>,
}

/// A terminal for a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecTerminal {
    /// The value of `TERM`.
    pub kind: String,
    /// Its height.
    pub rows: u16,
    /// Its width.
    pub columns: u16,
}

/// Why a command does not run in a task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ExecError {
    /// It ended meanwhile.
    #[error("the task has ended")]
    Ended,
    /// It is no process of cantle's.
    #[error(
        "the task runs in a container, which its engine enters: docker exec, or podman exec, on its node"
    )]
    Container,
    /// The task belongs to another user of this machine, who alone (and no other root) can vouch for its files.
    #[error("the task was started by another user of this machine")]
    OtherUser,
    /// Nothing would end the command with the task.
    #[error("the task has neither a sandbox nor a control group that would hold another command")]
    Unbounded,
    /// This user may not put a process into the group of the task.
    #[error("cannot enter the control group of the task: {0}")]
    Group(String),
    /// The program does not exist in the task.
    #[error("{0}: command not found")]
    NotFound(String),
    /// The program exists but cannot be executed.
    #[error("{program}: cannot execute: {why}")]
    NotExecutable {
        /// As given.
        program: String,
        /// The error of the kernel.
        why: String,
    },
    /// Nothing listens there, or it takes no connection of the task's user.
    #[error("cannot connect to {door} in the task: {why}")]
    NoConnection {
        /// Where.
        door: TaskDoor,
        /// The error of the kernel.
        why: String,
    },
    /// Another step failed.
    #[error("cannot enter the task: {what}: {why}")]
    Setup {
        /// The step.
        what: String,
        /// The fault.
        why: String,
    },
}

impl ExecError {
    pub(crate) fn setup(what: &str, why: impl ToString) -> Self {
        Self::Setup { what: what.to_owned(), why: why.to_string() }
    }

    /// 127 not found, 126 cannot execute, as docker and the shell have it; else that of the class of the error
    /// (docs/reference/layout.md).
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
            Self::Setup { .. } => 125,
            Self::Ended => 8,
            Self::OtherUser => 4,
            Self::NoConnection { .. } => 3,
            Self::Container | Self::Unbounded | Self::Group(_) => 7,
        }
    }

    /// The remedy.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::OtherUser => Some("run cantle exec as the user who started it"),
            Self::Unbounded | Self::Group(_) => {
                Some("start both in one scope of systemd: systemd-run --user --scope -p Delegate=yes bash")
            }
            _ => None,
        }
    }
}

/// The first process of a running task, as far as it vouches for the task.
pub(crate) struct First {
    holder: Holder,
    pub(crate) orders: Orders,
}

impl First {
    /// Of the task whose first own process this is.
    fn of_task(leader: &Holder) -> Result<Self, ExecError> {
        let parent = parent_of(leader.pid).and_then(holder_of).ok_or(ExecError::Ended)?;
        let first = Self::read(&parent)?;
        // Only now is the parent known to be the task's: the pid of the task may have been given to another process before.
        if alive(leader) { Ok(first) } else { Err(ExecError::Ended) }
    }

    /// This very process, which must be one of cantle's and of this user.
    pub(crate) fn read(holder: &Holder) -> Result<Self, ExecError> {
        let at = format!("/proc/{}", holder.pid);
        let gone = |_: io::Error| ExecError::Ended;
        let (line, owner) =
            (fs::read(format!("{at}/cmdline")).map_err(gone)?, fs::metadata(&at).map_err(gone)?);
        let mut words = line.split(|byte| *byte == 0).skip(1);
        let is_ours =
            words.next() == Some(TASK_INIT_COMMAND.as_bytes()) && words.next() == Some(FIRST.as_bytes());
        let orders = words.next().filter(|_| is_ours).and_then(|orders| serde_json::from_slice(orders).ok());
        if !alive(holder) {
            return Err(ExecError::Ended);
        }
        if owner.uid() != geteuid().as_raw() {
            return Err(ExecError::OtherUser);
        }
        orders.map(|orders| Self { holder: *holder, orders }).ok_or(ExecError::Container)
    }

    /// Is there something that ends all processes of the task together?
    fn is_bounded(&self) -> bool {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace("self");
        self.orders.door.is_some() || own.is_some() && own != namespace(&self.holder.pid.to_string())
    }

    /// The variables that the task was started with, secrets among them.
    pub(crate) fn environment(&self) -> io::Result<Vec<(OsString, OsString)>> {
        let all = fs::read(format!("/proc/{}/environ", self.holder.pid))?;
        let pair = |entry: &[u8]| {
            let at = entry.iter().skip(1).position(|byte| *byte == b'=')? + 1;
            let (name, value) = (entry.get(..at)?.to_vec(), entry.get(at + 1..)?.to_vec());
            Some((OsString::from_vec(name), OsString::from_vec(value)))
        };
        let secrets = kept_secrets(self.holder.pid)?;
        let kept = secrets.into_iter().map(|(name, value)| (name.into(), value.into()));
        // The later one of a name counts.
        Ok(all.split(|byte| *byte == 0).filter_map(pair).chain(kept).collect())
    }
}
