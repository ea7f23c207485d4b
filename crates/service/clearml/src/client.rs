//! The asynchronous client of the API.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::events::{AddBatch, AddBatchReply, ReportedEvent};
use crate::exec::{EXEC_PROTOCOL, ExecSide, exec_path};
use crate::keys::Keys;
use crate::tls::{ClientTls, explain};
use crate::{Credentials, Envelope, KeySource, Proof, Request, WireError, without_nulls};

/// A client of a ClearML server. It logs in at the first call, and again when the server refuses its token.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    keys: Keys,
    token: Mutex<Option<String>>,
    /// A token that another program renews.
    token_file: Option<PathBuf>,
    /// Calls of cantle's own service that this server does not have: it is ClearML's, or an older cantle.
    lacking: Mutex<BTreeSet<&'static str>>,
}

const JSON: &str = "application/json";
const JSON_LINES: &str = "application/json-lines";

/// How long a connection is kept for the next request. Servers and the proxies before them close a silent connection
/// after 60 s or more, and a request that crosses that closing is lost.
const IDLE: Duration = Duration::from_secs(30);

impl Client {
    /// A client for the server at `base_url`, for example `http://127.0.0.1:8008`. Nothing is sent yet.
    ///
    /// # Errors
    /// If `base_url` is not an http(s) address.
    pub fn new(base_url: &str, credentials: Credentials) -> Result<Self, WireError> {
        Self::with_tls(base_url, credentials, &ClientTls::default())
    }

    /// The same, with authorities to trust and a certificate to show.
    ///
    /// # Errors
    /// If `base_url` is not an http(s) address, or a file is no use.
    pub fn with_tls(base_url: &str, credentials: Credentials, tls: &ClientTls) -> Result<Self, WireError> {
        let url = base_url.trim_end_matches('/').to_owned();
        let address = || WireError::Address { url: url.clone() };
        let parsed = reqwest::Url::parse(&url).map_err(|_| address())?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
            return Err(address());
        }
        let settings = || {
            reqwest::Client::builder()
                .connect_timeout(Duration::from_secs(5))
                .timeout(Duration::from_secs(30))
                .pool_idle_timeout(IDLE)
        };
        let http = tls.build(settings, parsed.scheme())?.map_err(|source| unreachable(&url, source))?;
        let (keys, token) = (Keys::new(credentials, None), Mutex::default());
        Ok(Self { http, url, keys, token, token_file: None, lacking: Mutex::default() })
    }

    /// The same client, which looks for another key pair before each call. It goes over to a pair that the server accepts, so the
    /// old pair can be revoked while the client works.
    #[must_use]
    pub fn renewed_from(self, source: Option<KeySource>) -> Self {
        Self { keys: Keys::new(self.keys.used(), source), ..self }
    }

    /// A client that has a token in place of keys. It cannot get another one: once the server refuses it, calls fail.
    ///
    /// # Errors
    /// As [`Client::with_tls`].
    pub fn with_token(base_url: &str, token: String, tls: &ClientTls) -> Result<Self, WireError> {
        let none = Credentials { access_key: String::new(), secret_key: String::new() };
        let client = Self::with_tls(base_url, none, tls)?;
        *client.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
        Ok(client)
    }

    /// A client with this proof.
    ///
    /// # Errors
    /// As [`Client::with_tls`].
    pub fn with_proof(base_url: &str, proof: Proof, tls: &ClientTls) -> Result<Self, WireError> {
        match proof {
            Proof::Keys(keys) => Self::with_tls(base_url, keys, tls),
            Proof::Token(token) => Self::with_token(base_url, token, tls),
            Proof::TokenFile(path) => {
                let client = Self::with_token(base_url, String::new(), tls)?;
                Ok(Self { token_file: Some(path), ..client })
            }
        }
    }

    /// A new token, for a program that must not have the keys: it lives for 30 days from now.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn new_token(&self) -> Result<String, WireError> {
        self.log_in().await
    }

    /// A call by a user without keys: a login.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn call_without_keys(&self, endpoint: &str, body: &Value) -> Result<Value, WireError> {
        self.post(endpoint, JSON, body.to_string(), "").await
    }

    /// The server's address, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Response, WireError> {
        let endpoint = R::ENDPOINT;
        let encode = |source| WireError::Encode { endpoint: endpoint.to_owned(), source };
        let body = serde_json::to_value(request).map(without_nulls).map_err(encode)?;
        let data = self.call_value(endpoint, &body).await?;
        serde_json::from_value(without_nulls(data)).map_err(|error| self.odd(endpoint, error.to_string()))
    }

    fn lacking(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.lacking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is it known that the server has no such call? Each is asked for itself: an older cantle has the others.
    #[must_use]
    pub fn lacks<R: Request>(&self) -> bool {
        self.lacking().contains(R::ENDPOINT)
    }

    /// A call of cantle's own service; `None` from a server that does not have it.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn call_extended<R: Request>(&self, request: &R) -> Result<Option<R::Response>, WireError> {
        if self.lacks::<R>() {
            return Ok(None);
        }
        match self.call(request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_unknown_endpoint() => {
                tracing::info!("the server has no {}: it is ClearML's, or an older cantle", R::ENDPOINT);
                self.lacking().insert(R::ENDPOINT);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends JSON to any endpoint, for endpoints without a type here.
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn call_value(&self, endpoint: &str, body: &Value) -> Result<Value, WireError> {
        self.send(endpoint, JSON, body.to_string()).await
    }

    /// Reports log lines and scalars (`events.add_batch`, one JSON object per line).
    ///
    /// # Errors
    /// See [`WireError`].
    pub async fn add_batch(&self, events: &[ReportedEvent]) -> Result<AddBatchReply, WireError> {
        let endpoint = AddBatch::ENDPOINT;
        let mut lines = String::new();
        for event in events {
            let encode = |source| WireError::Encode { endpoint: endpoint.to_owned(), source };
            lines.push_str(&serde_json::to_string(event).map_err(encode)?);
            lines.push('\n');
        }
        let data = self.send(endpoint, JSON_LINES, lines).await?;
        serde_json::from_value(data).map_err(|error| self.odd(endpoint, error.to_string()))
    }

    async fn send(
        &self,
        endpoint: &str,
        content_type: &'static str,
        body: String,
    ) -> Result<Value, WireError> {
        if let Some(token) = self.token_of_file()? {
            return self.post(endpoint, content_type, body, &format!("Bearer {token}")).await;
        }
        self.renew_keys().await;
        let (token, fresh) = match self.known_token() {
            Some(token) => (token, false),
            None => (self.log_in().await?, true),
        };
        match self.post(endpoint, content_type, body.clone(), &format!("Bearer {token}")).await {
            // The token may have expired, or the server may have a new secret: log in again, once.
            Err(WireError::Unauthorized { .. }) if !fresh && !self.keys.used().access_key.is_empty() => {
                let token = self.log_in().await.inspect_err(|_| self.keys.try_all_again())?;
                self.post(endpoint, content_type, body, &format!("Bearer {token}")).await
            }
            answer => answer,
        }
    }

    /// Connects to one end of a command in a task. The connection lasts until one side closes it.
    ///
    /// # Errors
    /// See [`WireError`]. A server without such commands answers that there is none.
    pub async fn connect(&self, exec: &str, side: ExecSide) -> Result<reqwest::Upgraded, WireError> {
        let lost = |source: reqwest::Error| unreachable(&self.url, source);
        let path = exec_path(exec, side);
        let request = self.http.get(format!("{}/{path}", self.url));
        let request = request.header("Connection", "upgrade").header("Upgrade", EXEC_PROTOCOL);
        let request = request.header("Authorization", self.authorization().await?);
        let response = request.send().await.map_err(lost)?;
        let status = response.status().as_u16();
        if status == 101 {
            return response.upgrade().await.map_err(lost);
        }
        let bytes = response.bytes().await.map_err(lost)?;
        match serde_json::from_slice(&bytes) {
            Ok(Envelope { meta, .. }) if meta.result_code >= 400 => {
                Err(refused(&path, meta.result_code, meta.result_subcode, meta.result_msg))
            }
            _ => Err(self.odd(
                &path,
                format!("HTTP status {status}: the server, or a proxy, does not change the protocol"),
            )),
        }
    }

    /// For a call that is not repeated: the token of a call shortly before.
    async fn authorization(&self) -> Result<String, WireError> {
        let token = match self.token_of_file()?.or_else(|| self.known_token()) {
            Some(token) => token,
            None => self.log_in().await?,
        };
        Ok(format!("Bearer {token}"))
    }

    /// The token of a client that has it from a file. It is renewed there before it ends.
    fn token_of_file(&self) -> Result<Option<String>, WireError> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let token = std::fs::read_to_string(path);
        let token = token.map_err(|source| WireError::File { path: path.clone(), source })?;
        Ok(Some(token.trim().to_owned()))
    }

    fn known_token(&self) -> Option<String> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes over to another key pair, if there is one and the server accepts it.
    async fn renew_keys(&self) {
        let Some(offered) = self.keys.offered() else { return };
        match self.log_in_with(&offered).await {
            Ok(_) => self.keys.take(offered),
            Err(WireError::Unauthorized { .. }) => self.keys.refuse(offered),
            // The call itself meets the same difficulty, and reports it.
            Err(_) => {}
        }
    }

    async fn log_in(&self) -> Result<String, WireError> {
        self.log_in_with(&self.keys.used()).await
    }

    async fn log_in_with(&self, keys: &Credentials) -> Result<String, WireError> {
        let Credentials { access_key, secret_key } = keys;
        let shown = match self.known_token().filter(|_| access_key.is_empty()) {
            Some(token) => format!("Bearer {token}"),
            None => format!("Basic {}", STANDARD.encode(format!("{access_key}:{secret_key}"))),
        };
        let data = self.post("auth.login", JSON, "{}".to_owned(), &shown).await?;
        let Some(token) = data.get("token").and_then(Value::as_str) else {
            return Err(self.odd("auth.login", "no token in it".to_owned()));
        };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.to_owned());
        Ok(token.to_owned())
    }

    async fn post(
        &self,
        endpoint: &str,
        content_type: &str,
        body: String,
        authorization: &str,
    ) -> Result<Value, WireError> {
        let lost = |source: reqwest::Error| unreachable(&self.url, source);
        let request = self.http.post(format!("{}/{endpoint}", self.url));
        let mut request = request.header("Content-Type", content_type);
        if !authorization.is_empty() {
            request = request.header("Authorization", authorization);
        }
        let response = request.body(body).send().await.map_err(lost)?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(lost)?;
        let Ok(Envelope { meta, data }) = serde_json::from_slice(&bytes) else {
            return Err(match status {
                // A proxy in between does not answer with an envelope.
                429 | 502..=504 => refused(
                    endpoint,
                    status,
                    0,
                    format!("no server answers at the moment: HTTP status {status}"),
                ),
                _ => self.odd(endpoint, format!("HTTP status {status} and no ClearML envelope")),
            });
        };
        match meta.result_code {
            200..=299 => Ok(data),
            401 => {
                let said =
                    meta.result_msg.strip_prefix("Unauthorized (").and_then(|said| said.strip_suffix(')'));
                let message = said.unwrap_or(&meta.result_msg).to_owned();
                Err(WireError::Unauthorized { url: self.url.clone(), message })
            }
            code => Err(refused(endpoint, code, meta.result_subcode, meta.result_msg)),
        }
    }

    fn odd(&self, endpoint: &str, detail: String) -> WireError {
        WireError::Answer { endpoint: endpoint.to_owned(), url: self.url.clone(), detail }
    }
}

fn refused(endpoint: &str, code: u16, subcode: u32, message: String) -> WireError {
    WireError::Refused { endpoint: endpoint.to_owned(), code, subcode, message }
}

/// The last error of the chain is the most helpful: "connection refused" rather than "error sending request".
fn unreachable(url: &str, source: reqwest::Error) -> WireError {
    let reason = innermost(&source);
    match explain(url, &reason) {
        Some((reason, hint)) => WireError::Distrusted { url: url.to_owned(), reason, hint },
        None => WireError::Unreachable { url: url.to_owned(), reason, source },
    }
}

fn innermost(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    if error.is_timeout() { "no answer in time".to_owned() } else { inner.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Credentials {
        Credentials { access_key: "A".into(), secret_key: "very secret".into() }
    }

    #[test]
    fn addresses() {
        assert_eq!(Client::new("http://127.0.0.1:8008/", keys()).unwrap().url(), "http://127.0.0.1:8008");
        for url in ["", "localhost:8008", "ftp://host", "http://"] {
            assert!(matches!(Client::new(url, keys()), Err(WireError::Address { .. })), "{url}");
        }
    }

    /// In a process of its own: where the authorities are is read from its environment.
    #[test]
    fn http_needs_no_certificates_of_authorities() {
        const INSIDE: &str = "CANTLE_TEST_WITHOUT_AUTHORITIES";
        if std::env::var_os(INSIDE).is_some() {
            assert!(Client::new("https://127.0.0.1:1", keys()).is_err(), "there are none here");
            assert!(Client::new("http://127.0.0.1:1", keys()).is_ok());
            return;
        }
        let name = "client::tests::http_needs_no_certificates_of_authorities";
        let mut inner = std::process::Command::new(std::env::current_exe().unwrap());
        inner.args(["--exact", name]).env(INSIDE, "yes");
        inner.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
        let done = inner.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    }

    #[test]
    fn secrets_stay_out_of_logs() {
        let client = Client::new("http://127.0.0.1:8008", keys()).unwrap();
        assert!(!format!("{client:?}").contains("very secret"));
    }
}
