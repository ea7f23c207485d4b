//! Finding the server and the keys for it.

use std::path::Path;
use std::time::Duration;

use cantle_clearml::{Client, Conf, Credentials, Error, Request, subcode};
use cantle_server::CredentialsFile;

use crate::args::Global;
use crate::clearml_conf;
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

/// What one source says about the server; the next one fills in the rest.
#[derive(Default)]
struct Access {
    url: Option<String>,
    keys: Option<Credentials>,
}

impl Access {
    fn of_flags(global: &Global) -> Self {
        let keys = global.access_key.clone().zip(global.secret_key.clone());
        Self { url: global.server.clone().or_else(|| global.api_host.clone()), keys: keys.map(credentials) }
    }

    fn of_conf(conf: &Conf) -> Self {
        let keys = conf.text("api.credentials.access_key").zip(conf.text("api.credentials.secret_key"));
        Self { url: conf.text("api.api_server"), keys: keys.map(credentials) }
    }

    fn or(self, next: impl FnOnce() -> Result<Option<Self>, CliError>) -> Result<Self, CliError> {
        if self.url.is_some() && self.keys.is_some() {
            return Ok(self);
        }
        let next = next()?.unwrap_or_default();
        Ok(Self { url: self.url.or(next.url), keys: self.keys.or(next.keys) })
    }
}

fn credentials((access_key, secret_key): (String, String)) -> Credentials {
    Credentials { access_key, secret_key }
}

/// The address and keys to use: flags and environment first, then a `clearml.conf` that was named, then the local server,
/// then the user's own `clearml.conf`.
pub(crate) fn address(context: &Context) -> Result<(String, Credentials), CliError> {
    let (global, state) = (&context.global, &context.places.state);
    let of_local =
        |local: CredentialsFile| Access { url: Some(local.url.clone()), keys: Some(local.credentials()) };
    let access = Access::of_flags(global)
        .or(|| Ok(clearml_conf::named(global)?.as_ref().map(Access::of_conf)))?
        .or(|| Ok(local(state)?.map(of_local)))?
        .or(|| Ok(clearml_conf::of_user(global)?.as_ref().map(Access::of_conf)))?;
    let url = access.url.ok_or_else(|| {
        let text = format!(
            "no server: none ran with the state directory {}; start cantle up, or give --server URL",
            state.display()
        );
        CliError::new(Kind::Usage, text)
    })?;
    let keys = access.keys.ok_or_else(|| {
        let text = format!("no keys for {url}; set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY");
        CliError::new(Kind::Auth, text)
    })?;
    Ok((url, keys))
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
