//! Connects to the server: its address, and the keys for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::exec::{ExecSide, OpenExec};
use cantle_clearml::{Client, Conf, Credentials, KeySource, Proof, Request, WireError, subcode};
use cantle_server::CredentialsFile;

use crate::announced;
use crate::clearml_conf;
use crate::context::{Context, Global, runtime};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::exec_here;
use crate::keys_file;
use crate::logged_in::Login;

/// Address and keys of the local server, if one ever ran with this state directory.
pub(crate) fn local(state: &Path) -> Result<Option<CredentialsFile>, CliError> {
    CredentialsFile::read(state).map_err(as_kind(ErrorKind::Failed))
}

/// A server that answers calls.
pub(crate) struct Connection {
    client: Arc<Client>,
    runtime: tokio::runtime::Runtime,
    url: String,
}

/// The server's address and keys from one source; the next source fills in the rest.
#[derive(Default)]
struct Access {
    url: Option<String>,
    proof: Option<Proof>,
}

impl Access {
    fn of_flags(global: &Global) -> Self {
        let keys = global.access_key.clone().zip(global.secret_key.clone()).map(credentials);
        let token = || global.auth_token.clone().map(Proof::Token);
        let proof = keys.map(Proof::Keys).or_else(|| global.token_file.clone().map(Proof::TokenFile));
        let proof = proof.or_else(token);
        Self { url: global.server.clone().or_else(|| global.api_host.clone()), proof }
    }

    fn of_conf(conf: &Conf) -> Self {
        let keys = conf.text("api.credentials.access_key").zip(conf.text("api.credentials.secret_key"));
        Self { url: conf.text("api.api_server"), proof: keys.map(credentials).map(Proof::Keys) }
    }

    fn or(self, next: impl FnOnce() -> Result<Option<Self>, CliError>) -> Result<Self, CliError> {
        if self.url.is_some() && self.proof.is_some() {
            return Ok(self);
        }
        let next = next()?.unwrap_or_default();
        Ok(Self { url: self.url.or(next.url), proof: self.proof.or(next.proof) })
    }
}

fn credentials((access_key, secret_key): (String, String)) -> Credentials {
    Credentials { access_key, secret_key }
}

/// The address and keys to use: flags and environment first, then a `clearml.conf` that was named, then the local server,
/// then the user's own `clearml.conf`.
pub(crate) fn address(context: &Context) -> Result<(String, Credentials), CliError> {
    match access(context)? {
        (url, Proof::Keys(keys)) => Ok((url, keys)),
        (url, Proof::Token(_) | Proof::TokenFile(_)) => {
            Err(CliError::new(ErrorKind::Auth, format!("a login at {url} is not enough here"))
                .with_hint("give the agent keys of its own with --keys FILE"))
        }
    }
}

/// Where the keys of [`address`] may be replaced: in the file that they came from.
pub(crate) fn key_source(context: &Context) -> Option<KeySource> {
    keys_file::source(&context.global).filter(|_| Access::of_flags(&context.global).proof.is_none())
}

/// The same for people, who may also have logged in, and for callers with a token that is renewed.
pub(crate) fn access(context: &Context) -> Result<(String, Proof), CliError> {
    let access = known(context)?;
    let url = access.url.ok_or_else(|| {
        let text = format!("no server: none ran with the state directory {}", context.dirs.state.display());
        CliError::new(ErrorKind::Usage, text).with_hint("start cantle up, or give --server URL")
    })?;
    let proof = access.proof.ok_or_else(|| {
        CliError::new(ErrorKind::Auth, format!("no keys for {url}"))
            .with_hint("set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or log in with cantle login")
            .with_hint("an administrator of the server makes keys: cantle users add NAME --role member --project PROJECT")
    })?;
    Ok((url, proof))
}

/// Everything that is known about server and keys.
fn known(context: &Context) -> Result<Access, CliError> {
    let (global, state) = (&context.global, &context.dirs.state);
    let of_local = |local: CredentialsFile| Access {
        url: Some(local.url.clone()),
        proof: Some(Proof::Keys(local.credentials())),
    };
    let of_file = |(url, keys)| Access { url, proof: Some(Proof::Keys(keys)) };
    Access::of_flags(global)
        .or(|| Ok(keys_file::read(global)?.map(of_file)))?
        .or(|| Ok(clearml_conf::named(global)?.as_ref().map(Access::of_conf)))?
        .or(|| {
            Ok(logged_in(context)?
                .map(|(url, token)| Access { url: Some(url), proof: Some(Proof::Token(token)) }))
        })?
        .or(|| Ok(local(state)?.map(of_local)))?
        .or(|| Ok(clearml_conf::of_user(global)?.as_ref().map(Access::of_conf)))?
        .or(|| Ok(announced::found(context).map(|url| Access { url: Some(url), proof: None })))
}

/// Address and token of `cantle login`, unless another server is meant: that one must not get it.
fn logged_in(context: &Context) -> Result<Option<(String, String)>, CliError> {
    let global = &context.global;
    let wanted = global.server.as_ref().or(global.api_host.as_ref()).map(|url| url.trim_end_matches('/'));
    let Some(login) = Login::read(&context.dirs.state)? else { return Ok(None) };
    if wanted.is_some_and(|wanted| wanted != login.url) {
        return Ok(None);
    }
    Ok(Some(login.usable(&context.dirs.state, &global.tls())?))
}

/// The address that flags and environment name, or that of the local server.
pub(crate) fn server_url(context: &Context) -> Result<String, CliError> {
    let (global, state) = (&context.global, &context.dirs.state);
    let url = Access::of_flags(global)
        .or(|| Ok(clearml_conf::named(global)?.as_ref().map(Access::of_conf)))?
        .or(|| Ok(Login::read(state)?.map(|login| Access { url: Some(login.url), proof: None })))?
        .or(|| Ok(local(state)?.map(|local| Access { url: Some(local.url), proof: None })))?
        .url;
    url.ok_or_else(|| {
        CliError::new(ErrorKind::Usage, "no server to log in to").with_hint("give --server URL")
    })
}

impl Connection {
    /// To the server that flags, environment and files name. Nothing is sent yet.
    pub(crate) fn open(context: &Context) -> Result<Self, CliError> {
        let (url, proof) = access(context)?;
        let tls = context.global.tls();
        let client = Arc::new(Client::with_proof(&url, proof, &tls)?);
        Ok(Self { client, runtime: runtime()?, url })
    }

    /// The address of the server, without a slash at its end.
    pub(crate) fn url(&self) -> &str {
        self.url.trim_end_matches('/')
    }

    /// The client that sends its requests.
    pub(crate) fn client(&self) -> Arc<Client> {
        Arc::clone(&self.client)
    }

    /// Waits for something that uses it.
    pub(crate) fn run<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(what)
    }

    /// The user's end of a command in a task. It moves within [`Self::run`] only.
    pub(crate) fn exec_stream(&self, request: &OpenExec) -> Result<reqwest::Upgraded, CliError> {
        let exec = self.about(&request.task, request)?.exec;
        Ok(self.runtime.block_on(self.client.connect(&exec, ExecSide::User))?)
    }

    /// Sends one request and waits for its answer.
    pub(crate) fn call<R: Request>(&self, request: &R) -> Result<R::Response, CliError> {
        Ok(self.runtime.block_on(self.client.call(request))?)
    }

    /// As [`Self::open`]; none if nothing names a server, or nothing has keys for it: then there is this machine to look at.
    pub(crate) fn open_if_any(context: &Context) -> Result<Option<Self>, CliError> {
        let is_named = context.global.server.is_some() || context.global.api_host.is_some();
        let known = known(context)?;
        if !is_named && (known.url.is_none() || known.proof.is_none()) {
            return Ok(None);
        }
        Self::open(context).map(Some)
    }

    /// As [`Self::call`], for callers that handle the refusal.
    pub(crate) fn answer<R: Request>(&self, request: &R) -> Result<R::Response, WireError> {
        self.runtime.block_on(self.client.call(request))
    }

    /// As [`Self::call`]; an answer that takes longer than this is of no use.
    pub(crate) fn call_within<R: Request>(&self, request: &R, within: Duration) -> Option<R::Response> {
        let answer = async { tokio::time::timeout(within, self.client.call(request)).await };
        self.runtime.block_on(answer).ok()?.ok()
    }

    /// As [`Self::call`], for calls about one task: "no such task" names it.
    pub(crate) fn about<R: Request>(&self, task: &str, request: &R) -> Result<R::Response, CliError> {
        self.runtime.block_on(self.client.call(request)).map_err(|error| {
            if error.is_subcode(subcode::INVALID_TASK_ID) { no_task(task) } else { error.into() }
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
                not_there("project", project)
            } else {
                error.into()
            }
        })
    }

    /// Runs a command in a task by way of the server; its exit code.
    pub(crate) fn exec(&self, request: &OpenExec) -> Result<u8, CliError> {
        self.talk(self.exec_stream(request)?, request)
    }

    /// Connects this process's terminal or pipes with the command at the other end, until it ends. Its exit code.
    pub(crate) fn talk(&self, stream: reqwest::Upgraded, request: &OpenExec) -> Result<u8, CliError> {
        self.runtime.block_on(exec_here::talk(stream, request.start.window.is_some()))
    }

    /// A pause between two polls.
    pub(crate) fn pause(&self) {
        self.sleep(Duration::from_millis(300));
    }

    /// Waits for so long; what its connections send meanwhile is answered.
    pub(crate) fn sleep(&self, time: Duration) {
        // The timer belongs to the runtime, so it must be made within.
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

/// There is no such task.
pub(crate) fn no_task(task: &str) -> CliError {
    not_there("task", task)
}

/// A task, queue or project that does not exist; the command that lists those that do has its name.
pub(crate) fn not_there(kind: &str, name: &str) -> CliError {
    CliError::new(ErrorKind::NotFound, format!("there is no {kind} {name}"))
        .with_hint(format!("cantle {kind}s lists them"))
}
