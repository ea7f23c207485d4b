//! Finding the server and the keys for it.

use std::path::Path;
use std::time::Duration;

use cantle_clearml::{Client, Credentials, Error, Request, subcode};
use cantle_server::CredentialsFile;

use crate::cmd::Context;
use crate::error::{CliError, Kind, as_kind};

/// The local server's address and keys, if one ever ran with this state directory.
pub(crate) fn local(state: &Path) -> Result<Option<CredentialsFile>, CliError> {
    CredentialsFile::read(state).map_err(as_kind(Kind::Failed))
}

/// A server and the way to talk to it.
pub(crate) struct Server {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

/// The address and keys to use: flags and environment first, else those of the local server.
pub(crate) fn address(context: &Context) -> Result<(String, Credentials), CliError> {
    let global = &context.global;
    let local = local(&context.places.state)?;
    let url = global.server.clone().or_else(|| local.as_ref().map(|l| l.url.clone())).ok_or_else(|| {
        let state = context.places.state.display();
        CliError::new(
            Kind::Usage,
            format!(
                "no server: none ran with the state directory {state}; start cantle up, or give --server URL"
            ),
        )
    })?;
    let keys = match (&global.access_key, &global.secret_key, local) {
        (Some(access_key), Some(secret_key), _) => {
            Some(Credentials { access_key: access_key.clone(), secret_key: secret_key.clone() })
        }
        (_, _, Some(local)) => Some(local.credentials()),
        _ => None,
    };
    let credentials = keys.ok_or_else(|| {
        CliError::new(
            Kind::Auth,
            format!("no keys for {url}; set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY"),
        )
    })?;
    Ok((url, credentials))
}

impl Server {
    /// Finds it; nothing is sent yet.
    pub(crate) fn find(context: &Context) -> Result<Self, CliError> {
        let (url, credentials) = address(context)?;
        let client = Client::new(&url, credentials).map_err(describe)?;
        Ok(Self { client, runtime: crate::cmd::runtime()? })
    }

    /// One call, waited for.
    pub(crate) fn call<R: Request>(&self, request: &R) -> Result<R::Response, CliError> {
        self.runtime.block_on(self.client.call(request)).map_err(describe)
    }

    /// One call whose answer is of no use later than this.
    pub(crate) fn call_within<R: Request>(&self, request: &R, patience: Duration) -> Option<R::Response> {
        let answer = async { tokio::time::timeout(patience, self.client.call(request)).await };
        self.runtime.block_on(answer).ok()?.ok()
    }

    /// As [`Self::call`], for calls about one task: "no such task" names it.
    pub(crate) fn about<R: Request>(&self, task: &str, request: &R) -> Result<R::Response, CliError> {
        self.runtime.block_on(self.client.call(request)).map_err(|error| {
            if error.is_subcode(subcode::INVALID_TASK_ID) { no_task(task) } else { describe(error) }
        })
    }

    /// As [`Self::call`], for calls about one project: "no such project" names it.
    pub(crate) fn about_project<R: Request>(
        &self,
        project: &str,
        request: &R,
    ) -> Result<R::Response, CliError> {
        self.runtime.block_on(self.client.call(request)).map_err(|error| {
            if error.is_subcode(subcode::INVALID_PROJECT_ID) {
                let text = format!("there is no project {project}; cantle projects lists them");
                CliError::new(Kind::NotFound, text)
            } else {
                describe(error)
            }
        })
    }

    /// A pause between two looks.
    pub(crate) fn pause(&self) {
        // The timer belongs to the runtime, so it must be made within.
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(300)).await });
    }
}

/// There is no such task.
pub(crate) fn no_task(task: &str) -> CliError {
    CliError::new(Kind::NotFound, format!("there is no task {task}; cantle tasks lists them"))
}

pub(crate) fn describe(error: Error) -> CliError {
    let kind = match &error {
        Error::Address { .. } => Kind::Usage,
        Error::Unauthorized { .. } => Kind::Auth,
        e if [subcode::INVALID_TASK_ID, subcode::INVALID_QUEUE_ID, subcode::INVALID_PROJECT_ID]
            .iter()
            .any(|code| e.is_subcode(*code)) =>
        {
            Kind::NotFound
        }
        e if e.is_subcode(subcode::INVALID_TASK_STATUS) => Kind::Conflict,
        _ => Kind::Failed,
    };
    CliError::new(kind, error.to_string())
}
