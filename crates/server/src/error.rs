//! How a call fails: ClearML's codes and subcodes, one line of text.

use cantle_clearml::subcode;
use cantle_store::StoreError;

/// A refusal or failure, as it goes into the envelope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) code: u16,
    pub(crate) subcode: u32,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(code: u16, subcode: u32, message: impl Into<String>) -> Self {
        Self { code, subcode, message: message.into() }
    }

    /// The request is not what the endpoint takes.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, subcode::VALIDATION, format!("Validation error ({})", message.into()))
    }

    /// No credentials, or wrong ones.
    pub(crate) fn unauthorized(subcode: u32, message: impl Into<String>) -> Self {
        Self::new(401, subcode, format!("Unauthorized ({})", message.into()))
    }

    /// The key pair that may only look was used for more.
    pub(crate) fn read_only(what: &str) -> Self {
        Self::new(
            403,
            0,
            format!("Forbidden ({what} changes something, and these credentials may only look)"),
        )
    }

    /// No such endpoint. Code and text are what stock agents look for.
    pub(crate) fn unknown_endpoint(name: &str) -> Self {
        Self::new(400, 0, format!("Unsupported endpoint: {name}"))
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::NoTask(_) => subcode::INVALID_TASK_ID,
            StoreError::NoQueue(_) => subcode::INVALID_QUEUE_ID,
            StoreError::NoProject(_) => subcode::INVALID_PROJECT_ID,
            StoreError::NoModel(_) => subcode::INVALID_MODEL_ID,
            StoreError::AlreadyQueued { .. } => subcode::TASK_ALREADY_QUEUED,
            StoreError::NotInQueue { .. } => subcode::TASK_NOT_IN_QUEUE,
            StoreError::Status { .. } | StoreError::Claimed { .. } | StoreError::StaleEviction(_) => {
                subcode::INVALID_TASK_STATUS
            }
            StoreError::OverQuota { .. } => subcode::OVER_QUOTA,
            StoreError::NameTaken { .. } => subcode::NAME_TAKEN,
            StoreError::QueueNotEmpty(_) => subcode::QUEUE_NOT_EMPTY,
            StoreError::ProjectHasTasks(_) => subcode::PROJECT_HAS_TASKS,
            StoreError::Database(_) | StoreError::Migrate(_) | StoreError::Corrupt { .. } => {
                tracing::error!("{error}");
                return Self::new(500, 0, "the server's database failed; see the server's log");
            }
        };
        Self::new(400, code, error.to_string())
    }
}
