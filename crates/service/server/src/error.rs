//! Failures of calls: ClearML's codes and subcodes, one line of text, and the cause for the server's log.

use std::error::Error;
use std::sync::Arc;

use cantle_clearml::subcode;
use cantle_store::StoreError;

use crate::rights::{Principal, Right};
use crate::services::refused::reason;

/// A refusal or failure, as it goes into the envelope. The source stays on the server.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) code: u16,
    pub(crate) subcode: u32,
    pub(crate) message: String,
    #[source]
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl ApiError {
    pub(crate) fn new(code: u16, subcode: u32, message: impl Into<String>) -> Self {
        Self { code, subcode, message: message.into(), source: None }
    }

    /// The error that caused this one.
    pub(crate) fn caused_by(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The request, or a part of it, cannot be read.
    pub(crate) fn unreadable(source: impl Error + Send + Sync + 'static) -> Self {
        Self::invalid(source.to_string()).caused_by(source)
    }

    /// The answer cannot be written.
    pub(crate) fn unwritable(source: serde_json::Error) -> Self {
        Self::new(500, 0, source.to_string()).caused_by(source)
    }

    /// The request is not what the endpoint takes.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(400, subcode::VALIDATION, format!("Validation error ({})", message.into()))
    }

    /// No credentials, or wrong ones.
    pub(crate) fn unauthorized(subcode: u32, message: impl Into<String>) -> Self {
        Self::new(401, subcode, format!("Unauthorized ({})", message.into()))
    }

    /// The caller lacks a right, in this project or for the whole server.
    pub(crate) fn forbidden(who: &Principal, right: Right, what: &str, project: Option<&str>) -> Self {
        let place =
            project.map_or_else(|| "everywhere".to_owned(), |project| format!("in project {project}"));
        let ask = match project {
            Some(_) => "a manager of the project or an administrator",
            None => "an administrator",
        };
        let (name, right) = (who.label(), right.name());
        Self::new(
            403,
            0,
            format!("Forbidden ({what} needs the right \"{right}\" {place}; {name} lacks it; ask {ask})"),
        )
    }

    /// A running task wants to change what is not its own.
    pub(crate) fn not_of_a_task(who: &Principal, what: &str) -> Self {
        let own = who.task().unwrap_or_default();
        let text = format!(
            "Forbidden ({what}: the token of task {own} changes this task and the tasks that it made; use a key pair of {} for others)",
            who.name
        );
        Self::new(403, 0, text)
    }

    /// A call that is for agents, on a connection without a certificate.
    pub(crate) fn no_certificate(what: &str) -> Self {
        let why = "is for agents with a client certificate of the authority in --tls-client-ca";
        Self::new(403, 0, format!("Forbidden ({what} {why})"))
    }

    /// No such endpoint. Stock agents check for this code and text.
    pub(crate) fn unknown_endpoint(name: &str) -> Self {
        let why = reason(name).map(|reason| format!(" ({reason})")).unwrap_or_default();
        Self::new(400, 0, format!("Unsupported endpoint: {name}{why}"))
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::NoTask(_) => subcode::INVALID_TASK_ID,
            StoreError::NoQueue(_) => subcode::INVALID_QUEUE_ID,
            StoreError::NoProject(_) => subcode::INVALID_PROJECT_ID,
            StoreError::NoModel(_) => subcode::INVALID_MODEL_ID,
            StoreError::LongDocument { .. } | StoreError::ManyDocuments { .. } => subcode::VALIDATION,
            StoreError::AlreadyQueued { .. } => subcode::TASK_ALREADY_QUEUED,
            StoreError::NotInQueue { .. } => subcode::TASK_NOT_IN_QUEUE,
            StoreError::Status { .. }
            | StoreError::Claimed { .. }
            | StoreError::NotHeld { .. }
            | StoreError::StaleRun { .. }
            | StoreError::StaleEviction(_) => subcode::INVALID_TASK_STATUS,
            StoreError::NoUser(_) => subcode::INVALID_USER,
            StoreError::OverQuota { .. }
            | StoreError::OverPool { .. }
            | StoreError::OutsidePools { .. }
            | StoreError::OverLimit { .. }
            | StoreError::OverBudget { .. }
            | StoreError::OverQueued { .. } => subcode::OVER_QUOTA,
            StoreError::NoTime { .. } => subcode::OVER_TIME,
            StoreError::NoPool { .. } => subcode::INVALID_POOL,
            StoreError::PoolInUse { .. } => subcode::POOL_IN_USE,
            StoreError::NameTaken { .. } => subcode::NAME_TAKEN,
            StoreError::QueueNotEmpty(_) => subcode::QUEUE_NOT_EMPTY,
            StoreError::ProjectHasTasks(_) => subcode::PROJECT_HAS_TASKS,
            StoreError::Storage { fault, .. } => {
                tracing::error!("{error}");
                let message = format!("{fault}; this call was not carried out, try again later");
                // Clients of ClearML and cantle's own repeat a call that got this code.
                return Self::new(503, 0, message).caused_by(error);
            }
            StoreError::Database(_)
            | StoreError::Migrate(_)
            | StoreError::Newer(_)
            | StoreError::Outdated { .. }
            | StoreError::NoBackup { .. }
            | StoreError::Scheme(_)
            | StoreError::Address(_)
            | StoreError::Refused { .. }
            | StoreError::TooOld { .. }
            | StoreError::Encoding { .. }
            | StoreError::Standby(_)
            | StoreError::Pooled(_)
            | StoreError::NotEmpty
            | StoreError::Miscounted { .. }
            | StoreError::Corrupt { .. } => {
                tracing::error!("{error}");
                let message = "the server's database failed; see the server's log";
                return Self::new(500, 0, message).caused_by(error);
            }
        };
        Self::new(400, code, error.to_string()).caused_by(error)
    }
}
