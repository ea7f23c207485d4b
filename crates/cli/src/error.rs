//! What can go wrong, as the user sees it: one line and an exit code (CONTRACT: exit codes).

use std::process::ExitCode;

/// The class of an error decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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
    /// No GPU, driver or enforcement.
    Unavailable = 7,
    /// Somebody else holds it.
    Conflict = 8,
}

/// One line for the user.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct CliError {
    code: u8,
    text: String,
}

/// How a command ends: well, with a task's exit code, or with an error.
pub(crate) type Outcome = Result<ExitCode, CliError>;

impl CliError {
    /// An error of this class.
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self::with_code(kind as u8, text)
    }

    /// An error whose exit code another room knows.
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Is it of this class?
    pub(crate) const fn is(&self, kind: Kind) -> bool {
        self.code == kind as u8
    }

    /// The line.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// For `map_err`: any error, given a class.
pub(crate) fn as_kind<E: std::fmt::Display>(kind: Kind) -> impl Fn(E) -> CliError {
    move |error| CliError::new(kind, error.to_string())
}
