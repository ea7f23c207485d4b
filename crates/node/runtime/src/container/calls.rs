//! Calls to an engine. Every call has a time limit, so that a hanging engine delays only its own tasks.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use bollard::errors::Error;
use bollard::query_parameters::RemoveContainerOptions;
use bollard::{API_DEFAULT_VERSION, Docker};

use super::EngineError;
use crate::Exit;

/// Nothing but fetching an image takes longer on a healthy engine.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A client of the engine at `socket`. Nothing is asked yet: the engine may be away at the moment.
pub(super) fn client(socket: &Path) -> Result<Docker, EngineError> {
    let path = socket.display().to_string();
    let docker = Docker::connect_with_unix(&path, CALL_LIMIT.as_secs(), API_DEFAULT_VERSION);
    docker.map_err(|_| EngineError::NotThere(socket.to_owned()))
}

/// Ends and removes a container. One that is not there is no error.
pub(super) async fn remove(docker: &Docker, id: &str) -> Result<(), EngineError> {
    let options = RemoveContainerOptions { force: true, v: true, ..Default::default() };
    let call = docker.remove_container(id, Some(options));
    match tokio::time::timeout(CALL_LIMIT, call).await {
        // Gone already, or about to be: another process removes it.
        Ok(Err(Error::DockerResponseServerError { status_code: 404 | 409, .. }) | Ok(())) => Ok(()),
        Ok(Err(error)) => Err(refused("remove", &error)),
        Err(_) => Err(hangs("remove", CALL_LIMIT)),
    }
}

/// The state of a container, as the engine reports it.
pub(super) enum ContainerStatus {
    Running,
    /// How, if the engine knows its exit code.
    Ended(Option<Exit>),
    /// There is no such container.
    Gone,
    /// The engine does not answer; the container may nevertheless run.
    Unknown,
}

pub(super) async fn status(docker: &Docker, id: &str) -> ContainerStatus {
    match tokio::time::timeout(CALL_LIMIT, docker.inspect_container(id, None)).await {
        Ok(Ok(found)) => {
            let state = found.state.unwrap_or_default();
            if state.running.unwrap_or(false) || state.restarting.unwrap_or(false) {
                return ContainerStatus::Running;
            }
            let limit = found.host_config.and_then(|config| u64::try_from(config.memory?).ok());
            let (limit, out_of_memory) =
                (limit.filter(|bytes| *bytes > 0), state.oom_killed.unwrap_or(false));
            let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
            ContainerStatus::Ended(code.map(|code| Exit::of_container(code, limit, out_of_memory)))
        }
        Ok(Err(Error::DockerResponseServerError { status_code: 404, .. })) => ContainerStatus::Gone,
        Ok(Err(_)) | Err(_) => ContainerStatus::Unknown,
    }
}

/// Waits for the engine's answer, up to a limit.
pub(super) async fn limited<T>(
    what: &str,
    limit: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, EngineError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::RequestTimeoutError)) | Err(_) => Err(hangs(what, limit)),
        Ok(Err(error @ (Error::JsonDataError { .. } | Error::JsonSerdeError { .. }))) => {
            Err(EngineError::Garbled { what: what.to_owned(), why: error.to_string() })
        }
        Ok(Err(error)) => Err(refused(what, &error)),
    }
}

fn refused(what: &str, error: &Error) -> EngineError {
    let why = match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        other => other.to_string(),
    };
    EngineError::Refused { what: what.to_owned(), why }
}

fn hangs(what: &str, limit: Duration) -> EngineError {
    EngineError::Hangs { what: what.to_owned(), seconds: limit.as_secs() }
}
