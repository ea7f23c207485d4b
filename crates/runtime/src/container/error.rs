//! What can go wrong with a container.

use std::path::PathBuf;

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nobody listens.
    #[error("no container engine at {}; is dockerd running, and may this user open its socket?", .0.display())]
    NotThere(PathBuf),
    /// It refuses, with its own message.
    #[error("container engine: {what}: {why}")]
    Refused {
        /// What was asked.
        what: String,
        /// The answer.
        why: String,
    },
    /// Its answer is not one of Docker's API.
    #[error("container engine: {what}: cannot understand the answer: {why}")]
    Garbled {
        /// What was asked.
        what: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// No answer within the limit.
    #[error("container engine: {what}: no answer within {seconds} s")]
    Hangs {
        /// What was asked.
        what: String,
        /// How long was waited.
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
        /// What is wrong with it.
        why: String,
    },
    /// Its effect on the limit is not known.
    #[error("container option {0} is not one that cantle knows, so nobody can say what it does to the limit")]
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
