//! The errors of the agent, one line each: what is wrong and the value that was given. [`AgentError::hints`] has the
//! remedies.

use std::io;
use std::path::Path;

use cantle_node::NodeError;

/// An error of the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The node: GPUs, leases, the start of a task.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An address for metrics that is not one, or not free.
    #[error("--metrics-listen {listen}: {reason}")]
    Listen {
        /// As given.
        listen: String,
        /// The error of the system.
        reason: String,
    },
    /// A user for tasks that this agent cannot give them.
    #[error("--task-user {value}: {why}")]
    TaskUser {
        /// As given.
        value: String,
        /// The fault.
        why: String,
    },
    /// A queue that the server does not have.
    #[error("there is no queue \"{queue}\" on the server{}", known_queues(known))]
    UnknownQueue {
        /// As given.
        queue: String,
        /// The queues that there are.
        known: String,
    },
    /// One queue under its name and its id.
    #[error("--queue {0}: names a queue that is listed already")]
    QueueTwice(String),
    /// A signal that this process cannot receive.
    #[error("cannot listen for SIGUSR1: {0}")]
    Signal(io::Error),
    /// The server.
    #[error(transparent)]
    Server(#[from] cantle_clearml::WireError),
}

impl AgentError {
    pub(crate) fn file(path: &Path, error: io::Error) -> Self {
        NodeError::file(path, error).into()
    }

    /// Hints for the user.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Node(error) => error.hints(),
            Self::Server(error) => error.hints(),
            Self::Listen { .. } => vec!["give a free address, e.g. 127.0.0.1:9401".to_owned()],
            Self::TaskUser { .. } => vec![
                "give submitter, agent, or the name of a user of this machine, which useradd makes"
                    .to_owned(),
            ],
            Self::UnknownQueue { .. } => vec!["create it with --create-queue".to_owned()],
            Self::QueueTwice(_) => vec!["give each queue once".to_owned()],
            Self::Signal(_) => Vec::new(),
        }
    }

    /// The exit code that belongs to it (docs/reference/layout.md lists them).
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Node(error) => error.exit_code(),
            Self::UnknownQueue { .. } | Self::QueueTwice(_) | Self::TaskUser { .. } => 2,
            Self::Server(cantle_clearml::WireError::Address { .. }) => 2,
            Self::Server(cantle_clearml::WireError::Unauthorized { .. }) => 4,
            Self::Listen { .. } | Self::Server(_) | Self::Signal(_) => 1,
        }
    }
}

/// Errors of the parts of a node reach the agent as errors of the node.
macro_rules! by_node {
    ($($error:ty),+) => {
        $(impl From<$error> for AgentError {
            fn from(error: $error) -> Self {
                Self::Node(error.into())
            }
        })+
    };
}

by_node!(
    cantle_runtime::files::FileError,
    cantle_driver::DriverError,
    cantle_runtime::StartError,
    cantle_runtime::EngineError,
    cantle_sched::DemandError,
    cantle_model::GpuListError
);

fn known_queues(known: &str) -> String {
    if known.is_empty() { " (it has none)".to_owned() } else { format!(" (it has: {known})") }
}
