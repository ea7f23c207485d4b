//! Errors as the user sees them: one line, hints, an exit code (docs/reference/layout.md lists them), and with `-v` the
//! causes.

use std::error::Error;
use std::process::ExitCode;

use cantle_agent::AgentError;
use cantle_clearml::subcode;
#[cfg(feature = "kubernetes")]
use cantle_kube::KubeError;
use cantle_machine::MachineError;
use cantle_node::NodeError;
use cantle_server::ServerError;
use cantle_store::StoreError;

use crate::help::in_words;

/// The class of an error decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// Something failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// No such task, queue, file.
    NotFound = 3,
    /// Not allowed: credentials.
    Auth = 4,
    /// Refused by quota or policy.
    Refused = 5,
    /// No capacity within the time given.
    NoCapacity = 6,
    /// No GPU, driver or enforcement.
    Unavailable = 7,
    /// Another process or user holds it.
    Conflict = 8,
    /// The task could not be set up.
    NotStarted = 125,
    /// The task's program cannot be executed.
    NotExecutable = 126,
    /// The task's program does not exist.
    NoSuchProgram = 127,
}

impl ErrorKind {
    const ALL: [Self; 11] = [
        Self::Failed,
        Self::Usage,
        Self::NotFound,
        Self::Auth,
        Self::Refused,
        Self::NoCapacity,
        Self::Unavailable,
        Self::Conflict,
        Self::NotStarted,
        Self::NotExecutable,
        Self::NoSuchProgram,
    ];

    /// The class with this exit code; one that is not in the list is a plain failure.
    pub(crate) fn of_exit_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code).unwrap_or(Self::Failed)
    }
}

/// An error as the user sees it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct CliError {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
    hints: Vec<String>,
}

impl CliError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, hints: Vec::new() }
    }

    /// An error that speaks for itself.
    pub(crate) fn of(kind: ErrorKind, error: impl Error + Send + Sync + 'static) -> Self {
        Self::new(kind, error.to_string()).with_source(error)
    }

    /// An error with what failed in front of it.
    pub(crate) fn wrap(
        kind: ErrorKind,
        what: impl std::fmt::Display,
        error: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self::new(kind, format!("{what}: {error}")).with_source(error)
    }

    /// The error that caused this one.
    pub(crate) fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Adds an action that the user can take; the first hint is printed first.
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// As [`Self::with_hint`], for what another crate knows.
    pub(crate) fn with_hints(mut self, hints: impl IntoIterator<Item = String>) -> Self {
        self.hints.extend(hints);
        self
    }

    /// With the command that was called in place of the server's calls.
    pub(crate) fn in_words_of(mut self, called: &str) -> Self {
        self.message = in_words(&self.message, called);
        self
    }

    pub(crate) const fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.kind as u8)
    }

    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// The messages of the errors below this one. Those that only repeat the message above them are left out.
    pub(crate) fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut next = self.source();
        while let Some(error) = next {
            let message = error.to_string();
            if message != *causes.last().unwrap_or(&self.message) {
                causes.push(message);
            }
            next = error.source();
        }
        causes
    }
}

/// For `map_err`: any error, given a class.
pub(crate) fn as_kind<E: Error + Send + Sync + 'static>(kind: ErrorKind) -> impl Fn(E) -> CliError {
    move |error| CliError::of(kind, error)
}

impl From<cantle_clearml::WireError> for CliError {
    fn from(error: cantle_clearml::WireError) -> Self {
        use cantle_clearml::WireError as ServerRefusal;
        const MISSING: [u32; 6] = [
            subcode::INVALID_TASK_ID,
            subcode::INVALID_QUEUE_ID,
            subcode::INVALID_PROJECT_ID,
            subcode::INVALID_POOL,
            subcode::INVALID_SECRET,
            subcode::INVALID_RECEIVER,
        ];
        const REFUSED: [u32; 3] = [subcode::OVER_QUOTA, subcode::OTHER_SIZE, subcode::OVER_TIME];
        const CONFLICTS: [u32; 3] = [subcode::INVALID_TASK_STATUS, subcode::POOL_IN_USE, subcode::NEVER_MET];
        let kind = match &error {
            ServerRefusal::Address { .. }
            | ServerRefusal::File { .. }
            | ServerRefusal::Certificates { .. } => ErrorKind::Usage,
            ServerRefusal::Unauthorized { .. } | ServerRefusal::Refused { code: 403, .. } => ErrorKind::Auth,
            e if e.is_subcode(subcode::INVALID_USER) => ErrorKind::NotFound,
            e if REFUSED.iter().any(|code| e.is_subcode(*code)) => ErrorKind::Refused,
            e if MISSING.iter().any(|code| e.is_subcode(*code)) => ErrorKind::NotFound,
            e if CONFLICTS.iter().any(|code| e.is_subcode(*code)) => ErrorKind::Conflict,
            _ => ErrorKind::Failed,
        };
        let hints = error.hints();
        Self::of(kind, error).with_hints(hints)
    }
}

impl From<NodeError> for CliError {
    fn from(error: NodeError) -> Self {
        let hints = error.hints();
        Self::of(ErrorKind::of_exit_code(error.exit_code()), error).with_hints(hints)
    }
}

impl From<AgentError> for CliError {
    fn from(error: AgentError) -> Self {
        let hints = error.hints();
        Self::of(ErrorKind::of_exit_code(error.exit_code()), error).with_hints(hints)
    }
}

#[cfg(feature = "kubernetes")]
impl From<KubeError> for CliError {
    fn from(error: KubeError) -> Self {
        let hints = error.hints();
        Self::of(ErrorKind::of_exit_code(error.exit_code()), error).with_hints(hints)
    }
}

impl From<ServerError> for CliError {
    fn from(error: ServerError) -> Self {
        let kind = match &error {
            ServerError::Open(_)
            | ServerError::Plain(_)
            | ServerError::Url { .. }
            | ServerError::NotebookUrl
            | ServerError::Tls(_)
            | ServerError::Login(_)
            | ServerError::Files(_)
            | ServerError::OwnTools(_)
            | ServerError::Store(StoreError::Scheme(_) | StoreError::Address(_)) => ErrorKind::Usage,
            // "foo" can never be listened on, with or without another listener.
            ServerError::Listen { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
                ErrorKind::Usage
            }
            ServerError::Taken { .. } | ServerError::Exists(_) => ErrorKind::Conflict,
            ServerError::NoState(_) => ErrorKind::NotFound,
            _ => ErrorKind::Failed,
        };
        let hints = error.hints();
        Self::of(kind, error).with_hints(hints)
    }
}

impl From<MachineError> for CliError {
    fn from(error: MachineError) -> Self {
        let kind = match error {
            MachineError::Gpus(_) | MachineError::Version(_) => ErrorKind::Usage,
            MachineError::NoDriver(_) | MachineError::NoNamespace(_) | MachineError::Step { .. } => {
                ErrorKind::Unavailable
            }
        };
        Self::of(kind, error)
    }
}
