use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

use crate::files::FileError;
use crate::{AdmissionError, EngineError};

/// Why a task did not start. [`StartError::exit_code`] gives docker's code for it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is nothing to run.
    #[error("no command given; write cantle run … -- COMMAND")]
    NoCommand,
    /// The program does not exist.
    #[error("{0}: command not found")]
    NotFound(String),
    /// The program exists but cannot be executed.
    #[error("{program}: cannot execute: {why}")]
    NotExecutable {
        /// As given.
        program: String,
        /// The error of the kernel.
        why: io::Error,
    },
    /// The working directory is not there.
    #[error("working directory {} does not exist", .0.display())]
    NoWorkingDirectory(PathBuf),
    /// The working directory is the kernel's.
    #[error("working directory {} shows the machine's processes and settings, in which no task runs", .0.display())]
    KernelsDirectory(PathBuf),
    /// The task cannot enter the working directory.
    #[error("{} cannot enter its working directory {}: {why}", of_user(.user.as_deref()), .directory.display())]
    Directory {
        /// As it was found outside of the task.
        directory: PathBuf,
        /// The user that the task runs as, if it is not this process's.
        user: Option<String>,
        /// The error of the kernel.
        why: String,
    },
    /// A part of the installation is missing.
    #[error("{} is missing", .0.display())]
    NotInstalled(PathBuf),
    /// Files that a container with a slice gets.
    #[error("the machine does not have what a container with a slice gets: {}", listed(.0))]
    NotOnMachine(Vec<PathBuf>),
    /// The program and its libraries are not of one installation.
    #[error("{} is of another version than this program", .0.display())]
    OtherVersion(PathBuf),
    /// The mount namespace could not be made, and no weaker backend is allowed.
    #[error("cannot give the task its own mount namespace: {0}; enforcement needs root, or allow preload")]
    Namespace(String),
    /// The supervisor could not start it; its own message.
    #[error("{message}")]
    Supervisor {
        /// Its message.
        message: String,
        /// The exit code that goes with it.
        exit_code: u8,
        /// See [`StartError::is_out_of_room`].
        is_out_of_room: bool,
    },
    /// The container's options are refused.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The container engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Any other step before the task's first instruction failed.
    #[error("cannot start the task: {what}: {why}")]
    Setup {
        /// The step.
        what: String,
        /// The fault.
        why: String,
        /// See [`StartError::is_out_of_room`].
        is_out_of_room: bool,
    },
}

/// Why a step failed.
pub(crate) trait Why: ToString {
    /// The machine has no room for more.
    fn is_out_of_room(&self) -> bool {
        false
    }
}

impl Why for &str {}
impl Why for String {}

impl Why for io::Error {
    fn is_out_of_room(&self) -> bool {
        self.raw_os_error().is_some_and(|errno| Errno::from_raw(errno).is_out_of_room())
    }
}

impl Why for Errno {
    fn is_out_of_room(&self) -> bool {
        matches!(
            self,
            Self::EAGAIN | Self::EDQUOT | Self::EMFILE | Self::ENFILE | Self::ENOMEM | Self::ENOSPC
        )
    }
}

impl Why for FileError {
    fn is_out_of_room(&self) -> bool {
        self.source.is_out_of_room()
    }
}

/// The first paths, and how many more there are.
#[must_use]
pub fn listed(paths: &[PathBuf]) -> String {
    let shown = &paths[..paths.len().min(3)];
    let text = shown.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    match paths.len() - shown.len() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

fn of_user(user: Option<&str>) -> String {
    user.map_or_else(|| "the task".to_owned(), |user| format!("user {user}, who the task runs as,"))
}

impl StartError {
    pub(crate) fn setup(what: impl Into<String>, why: impl Why) -> Self {
        Self::Setup { what: what.into(), is_out_of_room: why.is_out_of_room(), why: why.to_string() }
    }

    /// Is it the machine that has no room: too many processes or open files, a full disk or memory? Nothing is wrong with the task, and it
    /// may start later, or elsewhere.
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        match self {
            Self::NotExecutable { why, .. } => why.is_out_of_room(),
            Self::Setup { is_out_of_room, .. } | Self::Supervisor { is_out_of_room, .. } => *is_out_of_room,
            _ => false,
        }
    }

    /// The remedies.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotInstalled(_) => Some(
                "install cantle's libraries, or set CANTLE_LIB_DIR to the lib/cantle directory of an installation",
            ),
            Self::OtherVersion(_) => Some(
                "install the program and its libraries together; CANTLE_LIB_DIR, where it is set, names other libraries",
            ),
            Self::KernelsDirectory(_) => Some("change to another directory than one below /proc or /sys"),
            Self::Directory { user: Some(_), .. } => {
                Some("submit the task from a directory that its user may enter, on the node that runs it")
            }
            Self::Directory { user: None, .. } => {
                Some("the state and the keys of cantle are hidden from tasks (docs/security.md)")
            }
            Self::NotOnMachine(_) => Some("if the driver was updated or removed, restart the agent"),
            _ => None,
        }
    }

    /// 127 not found, 126 cannot execute, 125 anything else: as docker and the shell have it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
            Self::Supervisor { exit_code, .. } => *exit_code,
            _ => 125,
        }
    }
}
