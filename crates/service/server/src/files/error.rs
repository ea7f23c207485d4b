//! Why a call of the file server was refused or failed.

use std::io;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// One line for the client; what only the operator may know is in the server's log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{}", .0.message)]
    NotAllowed(ApiError),
    #[error("\"{}\" is not an object path", .0.escape_default())]
    BadName(String),
    #[error("{} is not an object", .0.escape_default())]
    NoObject(String),
    #[error("the object has {length} bytes, and the range begins behind them")]
    NotThere { length: u64 },
    #[error("{0}")]
    Form(#[from] axum::extract::multipart::MultipartError),
    #[error("{0}")]
    Disk(#[from] io::Error),
    #[error("{store} does not answer; this call was not carried out, try again later")]
    Away { store: String },
    #[error("{store} refuses the server's keys; the server's log has its answer")]
    Refused { store: String },
}

impl From<ApiError> for FileError {
    fn from(error: ApiError) -> Self {
        Self::NotAllowed(error)
    }
}

impl FileError {
    /// The call was about an object that is not there.
    pub(super) fn is_gone(&self) -> bool {
        self.status() == StatusCode::NOT_FOUND && !matches!(self, Self::NotAllowed(_))
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::NotAllowed(error) => StatusCode::from_u16(error.code).unwrap_or(StatusCode::FORBIDDEN),
            Self::BadName(_) | Self::Form(_) => StatusCode::BAD_REQUEST,
            Self::NoObject(_) => StatusCode::NOT_FOUND,
            Self::NotThere { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
            // Clients of ClearML repeat a call that got this code.
            Self::Away { .. } | Self::Refused { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Disk(error) => match error.kind() {
                io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
                io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::InvalidFilename => StatusCode::BAD_REQUEST,
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }
}

impl IntoResponse for FileError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), self.to_string()).into_response();
        if let Self::NotThere { length } = self
            && let Ok(range) = format!("bytes */{length}").parse()
        {
            response.headers_mut().insert(header::CONTENT_RANGE, range);
        }
        response
    }
}
