//! The errors of containers.

use std::path::PathBuf;

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No engine listens.
    #[error("no container engine at {}; is dockerd running, and may this user open its socket?", .0.display())]
    NotThere(PathBuf),
    /// It refuses, with its own message.
    #[error("container engine: {what}: {why}")]
    Refused {
        /// The call.
        what: String,
        /// The answer.
        why: String,
    },
    /// Its answer is not one of Docker's API.
    #[error("container engine: {what}: cannot understand the answer: {why}")]
    Garbled {
        /// The call.
        what: String,
        /// The error in the answer.
        why: String,
    },
    /// No answer within the limit.
    #[error("container engine: {what}: no answer within {seconds} s")]
    Hangs {
        /// The call.
        what: String,
        /// The time that was waited.
        seconds: u64,
    },
}

/// Why a container's options are refused. One line that names the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// It would lift the limit.
    #[error("container option {option} is refused: {why}")]
    Refused {
        /// As given.
        option: String,
        /// The fault.
        why: String,
    },
    /// Its effect on the limit is not known.
    #[error("container option {0} is not one that cantle knows; its effect on the limit is unknown")]
    Unknown(String),
    /// An argument that belongs to no option.
    #[error(
        "\"{0}\" among the container's options is not an option; give the image and the command separately"
    )]
    NotAnOption(String),
    /// The option is known, its value is wrong.
    #[error("container option {0} needs {1}")]
    Value(String, &'static str),
}
