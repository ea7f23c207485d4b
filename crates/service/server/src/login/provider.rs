//! The identity provider: its endpoints, its keys, and its answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::jwk::JwkSet;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::token::{Expected, IdClaims, TokenError, verify};
use super::{LoginError, OidcConfig};
use crate::clock::now_us;

/// The provider has this long for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Longer answers are not read.
const LONGEST: usize = 1 << 20;
/// Endpoints and keys are taken again after this time, so that withdrawn keys go.
const KNOWN_FOR: Duration = Duration::from_secs(3600);
/// After a failure the provider is left alone for this time. All users who log in meanwhile would wait for it, one
/// after the other.
const AWAY_FOR: Duration = Duration::from_secs(5);
/// A token with an unknown key triggers a search for new keys, but not more often.
const NEW_KEYS_AFTER: Duration = Duration::from_secs(10);

/// The contents of `.well-known/openid-configuration`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Endpoints {
    issuer: String,
    pub(super) authorization_endpoint: String,
    pub(super) token_endpoint: String,
    jwks_uri: String,
    pub(super) device_authorization_endpoint: Option<String>,
    userinfo_endpoint: Option<String>,
    scopes_supported: Option<Vec<String>>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

/// The parts of an answer of the token endpoint that we use.
#[derive(Debug, Deserialize)]
pub(super) struct Tokens {
    id_token: Option<String>,
    access_token: Option<String>,
    pub(super) refresh_token: Option<String>,
}

/// A refusal by the provider, in the words of RFC 6749.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) error: String,
    #[serde(default)]
    error_description: String,
}

struct ProviderKeys {
    endpoints: Arc<Endpoints>,
    keys: Arc<JwkSet>,
    since: Instant,
}

/// Data that was learned from the provider.
#[derive(Default)]
struct Memory {
    known: Option<ProviderKeys>,
    /// When it could not be asked last.
    failed: Option<Instant>,
}

/// The provider of this server.
pub(super) struct Provider {
    http: Client,
    issuer: String,
    pub(super) client_id: String,
    secret: Option<String>,
    known: Mutex<Memory>,
}

impl Provider {
    pub(super) fn new(config: &OidcConfig) -> Result<Self, LoginError> {
        let url = Url::parse(&config.issuer).ok().filter(is_safe);
        url.ok_or_else(|| LoginError::Issuer(config.issuer.clone()))?;
        let http = http_client(config.ca.as_deref(), &config.issuer)?;
        let secret = match &config.client_secret {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| file(path, error.to_string()))?;
                Some(text.trim().to_owned()).filter(|secret| !secret.is_empty())
            }
        };
        let (issuer, client_id) = (config.issuer.clone(), config.client_id.clone());
        Ok(Self { http, issuer, client_id, secret, known: Mutex::default() })
    }

    pub(super) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Endpoints and keys, from memory if they are young enough for the caller.
    async fn known(&self, young: Duration) -> Result<(Arc<Endpoints>, Arc<JwkSet>), LoginError> {
        // Held over the fetch: callers that arrive meanwhile wait for the same answer.
        let mut memory = self.known.lock().await;
        if let Some(known) = memory.known.as_ref().filter(|known| known.since.elapsed() < young) {
            return Ok((Arc::clone(&known.endpoints), Arc::clone(&known.keys)));
        }
        if memory.failed.is_some_and(|failed| failed.elapsed() < AWAY_FOR) {
            return Err(LoginError::Away("it failed a moment ago; try again soon".to_owned()));
        }
        let asked = self.ask().await;
        memory.failed = asked.is_err().then(Instant::now);
        let (endpoints, keys) = asked.map(|(endpoints, keys)| (Arc::new(endpoints), Arc::new(keys)))?;
        let known = ProviderKeys {
            endpoints: Arc::clone(&endpoints),
            keys: Arc::clone(&keys),
            since: Instant::now(),
        };
        memory.known = Some(known);
        Ok((endpoints, keys))
    }

    /// Endpoints and keys, from the provider.
    async fn ask(&self) -> Result<(Endpoints, JwkSet), LoginError> {
        let at = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let endpoints: Endpoints = answer(self.http.get(at)).await?;
        if endpoints.issuer != self.issuer {
            return Err(LoginError::Odd(format!(
                "it calls itself {}, not {}",
                endpoints.issuer, self.issuer
            )));
        }
        let all = [&endpoints.authorization_endpoint, &endpoints.token_endpoint, &endpoints.jwks_uri];
        let some = [&endpoints.device_authorization_endpoint, &endpoints.userinfo_endpoint];
        for url in all.into_iter().chain(some.into_iter().flatten()) {
            if !is_as_safe(url, &self.issuer) {
                return Err(LoginError::Odd(format!("{url} is not safe: it must begin with https://")));
            }
        }
        let keys: Keys = answer(self.http.get(&endpoints.jwks_uri)).await?;
        Ok((endpoints, keys.readable()))
    }

    pub(super) async fn endpoints(&self) -> Result<Arc<Endpoints>, LoginError> {
        Ok(self.known(KNOWN_FOR).await?.0)
    }

    /// Sends a form as this client.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        url: &str,
        form: &[(&str, &str)],
    ) -> Result<T, LoginError> {
        let mut form = form.to_vec();
        let mut request = self.http.post(url);
        let endpoints = self.endpoints().await?;
        let methods = endpoints.token_endpoint_auth_methods_supported.as_deref().unwrap_or_default();
        let by_form = !methods.is_empty() && !methods.iter().any(|method| method == "client_secret_basic");
        match &self.secret {
            Some(secret) if by_form => {
                form.extend([("client_id", &*self.client_id), ("client_secret", secret)])
            }
            Some(secret) => request = request.basic_auth(encoded(&self.client_id), Some(encoded(secret))),
            None => form.push(("client_id", &self.client_id)),
        }
        let mut body = Url::parse("http://x").map_err(|error| LoginError::Odd(error.to_string()))?;
        body.query_pairs_mut().extend_pairs(form);
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        answer(request.body(body.query().unwrap_or_default().to_owned())).await
    }

    /// The identity that these tokens prove. If the ID token lacks one of the claims, the provider is asked for them.
    pub(super) async fn identify(
        &self,
        tokens: &Tokens,
        nonce: Option<&str>,
        wanted: &[&str],
    ) -> Result<(String, Map<String, Value>), LoginError> {
        let claims = match &tokens.id_token {
            Some(token) => Some(self.verified(token, nonce).await?),
            // RFC: only the answer to a refresh may lack one, and then no user was redirected.
            None if nonce.is_none() => None,
            None => return Err(LoginError::Odd("its answer has no id_token".to_owned())),
        };
        let (sub, mut about) = claims.map_or_else(Default::default, |claims| (claims.sub, claims.about));
        let endpoints = self.endpoints().await?;
        let is_whole = wanted.iter().all(|claim| about.contains_key(*claim));
        if let (false, Some(url), Some(access)) =
            (is_whole, &endpoints.userinfo_endpoint, &tokens.access_token)
        {
            let more: Map<String, Value> = answer(self.http.get(url).bearer_auth(access)).await?;
            let named = more.get("sub").and_then(Value::as_str).unwrap_or_default().to_owned();
            if named.is_empty() || (!sub.is_empty() && named != sub) {
                return Err(LoginError::Odd("its userinfo is about somebody else".to_owned()));
            }
            about.extend(more);
            return Ok((named, about));
        }
        if sub.is_empty() {
            return Err(LoginError::Odd("its answer has no id_token".to_owned()));
        }
        Ok((sub, about))
    }

    async fn verified(&self, token: &str, nonce: Option<&str>) -> Result<IdClaims, LoginError> {
        let now_s = now_us() / 1_000_000;
        let expected = Expected { issuer: &self.issuer, client_id: &self.client_id, nonce, now_s };
        let first = verify(token, &self.known(KNOWN_FOR).await?.1, &expected);
        let found = match first {
            // The provider may have new keys.
            Err(TokenError::UnknownKey) => verify(token, &self.known(NEW_KEYS_AFTER).await?.1, &expected),
            other => other,
        };
        found.map_err(|error| LoginError::Token(error.to_string()))
    }
}

impl Endpoints {
    /// Those of `wanted` that the provider knows; all if it does not list them.
    pub(super) fn scopes(&self, wanted: &[&str]) -> String {
        let is_known = |scope: &&&str| match &self.scopes_supported {
            Some(known) => known.iter().any(|known| known == **scope),
            None => true,
        };
        let known: Vec<&str> = wanted.iter().filter(is_known).copied().collect();
        ["openid"].into_iter().chain(known).collect::<Vec<_>>().join(" ")
    }
}

/// A key that we cannot read must not hide those that we can.
#[derive(Deserialize)]
struct Keys {
    keys: Vec<Value>,
}

impl Keys {
    fn readable(self) -> JwkSet {
        let keys = self.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
        JwkSet { keys }
    }
}

/// The client that calls the provider at `url`: it trusts these authorities and no others; none: those of the system.
pub(super) fn http_client(ca: Option<&Path>, url: &str) -> Result<Client, LoginError> {
    let mut builder = Client::builder().timeout(ANSWER_WITHIN).redirect(Policy::none());
    if let Some(path) = ca {
        let pem = std::fs::read(path).map_err(|error| file(path, error.to_string()))?;
        let found = Certificate::from_pem_bundle(&pem).ok().filter(|found| !found.is_empty());
        builder = builder.tls_certs_only(found.ok_or_else(|| file(path, "no certificate in PEM".into()))?);
    }
    let http = match builder.build() {
        // A system without authorities: http on loopback needs none.
        Err(_) if url.starts_with("http:") => {
            Client::builder().timeout(ANSWER_WITHIN).redirect(Policy::none()).tls_certs_only([]).build()
        }
        built => built,
    };
    http.map_err(|error| LoginError::Away(innermost(&error)))
}

fn file(path: &Path, why: String) -> LoginError {
    LoginError::File { path: path.to_owned(), why }
}

/// https, or a provider on this machine.
pub(super) fn is_safe(url: &Url) -> bool {
    let is_here = matches!(url.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"));
    url.host_str().is_some() && (url.scheme() == "https" || (url.scheme() == "http" && is_here))
}

/// The same, of an address that a provider names: a provider with TLS must not redirect to an address without TLS.
fn is_as_safe(url: &str, issuer: &str) -> bool {
    let is_good = |url: &Url| is_safe(url) && (url.scheme() == "https" || issuer.starts_with("http:"));
    Url::parse(url).ok().as_ref().is_some_and(is_good)
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

pub(super) async fn answer<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, LoginError> {
    let away = |error: reqwest::Error| LoginError::Away(innermost(&error));
    let mut response = request.header("Accept", "application/json").send().await.map_err(away)?;
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(away)? {
        body.extend_from_slice(&chunk);
        if body.len() > LONGEST {
            return Err(LoginError::Odd("its answer is too long".to_owned()));
        }
    }
    if status.is_success() {
        return serde_json::from_slice(&body).map_err(|error| LoginError::Odd(error.to_string()));
    }
    let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
    if refusal.error.is_empty() {
        return Err(LoginError::Odd(format!("it answers {status}")));
    }
    Err(LoginError::Refused { code: refusal.error, text: refusal.error_description })
}

fn innermost(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
