//! Login with an identity provider (OpenID Connect): with a browser (authorization code and PKCE) and with the CLI (device code).
//!
//! The server is the provider's only client: the CLI knows neither issuer nor secret. The result is an [`ExternalIdentity`],
//! which `rights` turns into a user. The caller gets a token of the server, which expires within the hour. Groups and the
//! user's state at the provider are read at each login and each refresh.

mod kubernetes;
mod pages;
mod provider;
mod token;

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use self::provider::{Provider, Tokens};
use crate::clock::{new_id, now_us};
use crate::rights::ExternalIdentity;

pub use kubernetes::KubernetesConfig;
pub(crate) use kubernetes::{Kubernetes, foreign_token, identity_of};
pub(crate) use pages::{calls, router};

/// The lifetime of a login's token; then it is refreshed, and the provider is asked again.
pub(crate) const TOKEN_S: i64 = 3600;
/// A browser has this long to come back.
const BROWSER_S: i64 = 600;
/// Concurrent requests to the provider; their callers have no keys yet.
const AT_ONCE: usize = 8;
/// The requested scopes, as far as the provider knows them.
const SCOPES: [&str; 4] = ["profile", "email", "groups", "offline_access"];

/// The settings of `--oidc-…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The provider's address, as its tokens have it.
    pub issuer: String,
    /// This server at the provider.
    pub client_id: String,
    /// File with the client's secret; none: a public client.
    pub client_secret: Option<PathBuf>,
    /// Authorities that may vouch for the provider, in PEM; none: those of the system.
    pub ca: Option<PathBuf>,
    /// The claim that has the groups.
    pub groups_claim: String,
    /// The claim that has the user's name, and that each login must have; none: the first of `preferred_username`, `email` and `name`.
    pub name_claim: Option<String>,
}

/// Why a login fails. Each is one line that states what is wrong.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// Not an address, or one that others can read along.
    #[error("--oidc-issuer {0} is not an address of a provider: it must begin with https://")]
    Issuer(String),
    /// Not an address, or one that others can read along.
    #[error("--kubernetes-api {0} is not an address of an API server: it must begin with https://")]
    Cluster(String),
    /// Not in a pod, and no API server named.
    #[error("--kubernetes-tokens: this server is in no pod and does not know the cluster's API server")]
    NoCluster,
    /// The cluster does not say whose token it is.
    #[error("the cluster's API server does not review tokens for this server: {0}")]
    Review(String),
    /// A file that the command line names.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The provider cannot be reached.
    #[error("the identity provider cannot be reached: {0}")]
    Away(String),
    /// The provider's answer is none.
    #[error("the identity provider's answer is unexpected: {0}")]
    Odd(String),
    /// The provider refuses.
    #[error("the identity provider refuses it: {code} {text}")]
    Refused {
        /// In the words of RFC 6749.
        code: String,
        /// The provider's own words.
        text: String,
    },
    /// A token that is no proof.
    #[error("the identity provider's token is refused: {0}")]
    Token(String),
    /// The response does not belong to this browser's login.
    #[error("this login was not begun in this browser, or it took too long: {0}")]
    Stray(&'static str),
    /// Too many at once.
    #[error("too many logins at once; try again")]
    Busy,
}

/// Login with a provider.
pub(crate) struct Login {
    provider: Provider,
    groups_claim: String,
    name_claim: Option<String>,
    /// Of the page's address after a login at the provider.
    redirect_uri: String,
    /// Signs what a browser keeps during its login. It is gone with the process, and such logins with it.
    secret: String,
    turns: Semaphore,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("client_id", &self.provider.client_id).finish_non_exhaustive()
    }
}

/// The signed cookie of a browser while its user is at the provider.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    state: String,
    nonce: String,
    verifier: String,
    /// The page that the user requested.
    next: String,
    exp: i64,
}

/// The user who logged in, and how the login is refreshed.
struct LoggedIn {
    who: ExternalIdentity,
    refresh_token: Option<String>,
}

impl Login {
    /// Reads the files; the provider itself is asked when a user logs in.
    pub(crate) fn new(config: &OidcConfig) -> Result<Self, LoginError> {
        Ok(Self {
            provider: Provider::new(config)?,
            groups_claim: config.groups_claim.clone(),
            name_claim: config.name_claim.clone(),
            redirect_uri: String::new(),
            secret: new_id() + &new_id(),
            turns: Semaphore::new(AT_ONCE),
        })
    }

    /// For the server that clients know by this address.
    pub(crate) fn for_server(self, url: &str) -> Arc<Self> {
        Arc::new(Self { redirect_uri: format!("{url}/ui/-/login/callback"), ..self })
    }

    /// The address for a browser, and its cookie meanwhile.
    async fn begin(&self, next: &str) -> Result<(String, String), LoginError> {
        let _turn = self.turns.try_acquire().map_err(|_| LoginError::Busy)?;
        let endpoints = self.provider.endpoints().await?;
        let begun = Begun {
            state: new_id(),
            nonce: new_id(),
            verifier: new_id() + &new_id(),
            next: own_path(next),
            exp: now_us() / 1_000_000 + BROWSER_S,
        };
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&begun.verifier));
        // A page needs no token that outlives it.
        let scope = endpoints.scopes(&SCOPES[..3]);
        let odd = |error: String| LoginError::Odd(error);
        let mut url =
            reqwest::Url::parse(&endpoints.authorization_endpoint).map_err(|error| odd(error.to_string()))?;
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &self.provider.client_id),
            ("redirect_uri", &self.redirect_uri),
            ("scope", &scope),
            ("state", &begun.state),
            ("nonce", &begun.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let kept =
            encode(&Header::new(Algorithm::HS256), &begun, &EncodingKey::from_secret(self.secret.as_bytes()));
        Ok((url.into(), kept.map_err(|error| odd(error.to_string()))?))
    }

    /// The browser's cookie, if the server signed it for this login.
    fn begun(&self, kept: &str, state: &str) -> Result<Begun, LoginError> {
        let key = DecodingKey::from_secret(self.secret.as_bytes());
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        let begun = decode::<Begun>(kept, &key, &validation);
        let begun = begun.map_err(|_| LoginError::Stray("its cookie is missing, old or changed"))?.claims;
        if state.is_empty() || begun.state != state {
            return Err(LoginError::Stray("the state is another one"));
        }
        Ok(begun)
    }

    /// The end of a browser's login: the code becomes a person.
    async fn finish(&self, begun: &Begun, code: &str) -> Result<LoggedIn, LoginError> {
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.redirect_uri),
            ("code_verifier", &begun.verifier),
        ];
        self.exchange(&form, Some(&begun.nonce)).await
    }

    /// A new login from the refresh token of an earlier one; fails when the provider has revoked it.
    async fn refresh(&self, refresh_token: &str) -> Result<LoggedIn, LoginError> {
        let form = [("grant_type", "refresh_token"), ("refresh_token", refresh_token)];
        let mut found = self.exchange(&form, None).await?;
        found.refresh_token.get_or_insert_with(|| refresh_token.to_owned());
        Ok(found)
    }

    /// The provider's answer to a request for a device code, as RFC 8628 has it.
    async fn device(&self) -> Result<Map<String, Value>, LoginError> {
        let _turn = self.turns.try_acquire().map_err(|_| LoginError::Busy)?;
        let endpoints = self.provider.endpoints().await?;
        let url = endpoints.device_authorization_endpoint.as_ref();
        let url =
            url.ok_or_else(|| LoginError::Odd("it has no device codes; log in on the page".to_owned()))?;
        self.provider.post(url, &[("scope", &endpoints.scopes(&SCOPES))]).await
    }

    /// Whether the person has confirmed the device's code; `None`: not yet.
    async fn poll(&self, device_code: &str) -> Result<Option<LoggedIn>, LoginError> {
        const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
        let form = [("grant_type", GRANT), ("device_code", device_code)];
        match self.exchange(&form, None).await {
            Ok(found) => Ok(Some(found)),
            Err(LoginError::Refused { code, .. })
                if matches!(code.as_str(), "authorization_pending" | "slow_down") =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn exchange(&self, form: &[(&str, &str)], nonce: Option<&str>) -> Result<LoggedIn, LoginError> {
        let _turn = self.turns.try_acquire().map_err(|_| LoginError::Busy)?;
        let endpoints = self.provider.endpoints().await?;
        let tokens: Tokens = self.provider.post(&endpoints.token_endpoint, form).await?;
        let (sub, about) = self.provider.identify(&tokens, nonce, &self.claims()).await?;
        let who = ExternalIdentity {
            id: format!("{}#{sub}", self.provider.issuer()),
            name: name_of(&about, &sub, self.name_claim.as_deref())?,
            groups: groups_of(about.get(&self.groups_claim)),
        };
        Ok(LoggedIn { who, refresh_token: tokens.refresh_token })
    }

    /// The claims that the provider is asked for where its token lacks them.
    fn claims(&self) -> Vec<&str> {
        [self.groups_claim.as_str()].into_iter().chain(self.name_claim.as_deref()).collect()
    }
}

/// A name for people: the first that is there, or the one that the configuration names.
fn name_of(about: &Map<String, Value>, sub: &str, claim: Option<&str>) -> Result<String, LoginError> {
    let text = |name: &str| about.get(name).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let named = match claim {
        Some(claim) => text(claim).ok_or_else(|| {
            LoginError::Odd(format!("its answer has no claim {claim:?}, which --oidc-name-claim names"))
        })?,
        None => ["preferred_username", "email", "name"].into_iter().find_map(text).unwrap_or(sub),
    };
    Ok(named.trim().chars().filter(|c| !c.is_control()).take(100).collect())
}

/// A list, or one group alone.
fn groups_of(claim: Option<&Value>) -> Vec<String> {
    let mut groups: Vec<String> = match claim {
        Some(Value::Array(groups)) => groups.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::String(group)) => vec![group.clone()],
        _ => Vec::new(),
    };
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// A path of the page; anything else would send people somewhere else with our word for it.
fn own_path(next: &str) -> String {
    let is_ours = (next == "/ui" || next.starts_with("/ui/"))
        && next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && !next.starts_with("/ui/-/")
        && !next.contains("//")
        && !next.contains("..");
    if is_ours { next.to_owned() } else { "/ui".to_owned() }
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a soak says what it did")]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::hostile::{Dice, share};

    fn login() -> Login {
        let config = OidcConfig {
            issuer: "http://127.0.0.1:1".into(),
            client_id: "cantle".into(),
            client_secret: None,
            ca: None,
            groups_claim: "groups".into(),
            name_claim: None,
        };
        Login::new(&config).unwrap()
    }

    #[test]
    fn nobody_is_sent_elsewhere() {
        for ours in ["/ui", "/ui/tasks/1?tab=logs", "/ui/projects"] {
            assert_eq!(own_path(ours), ours);
        }
        for other in [
            "",
            "/",
            "//evil.example",
            "https://evil.example/ui/",
            "/ui//evil.example",
            "/uix",
            "/ui/\\evil",
            "/\\evil",
            "/ui/../healthz",
            "/ui/ x",
            "/ui/\r\nSet-Cookie: a=b",
            "/ui/-/login",
            "javascript:alert(1)",
            "/ui/\u{e9}",
        ] {
            assert_eq!(own_path(other), "/ui", "{other}");
        }
    }

    #[test]
    fn providers_that_others_read_along_are_refused() {
        for issuer in
            ["http://login.example", "ftp://x", "login.example", "", "http://127.0.0.1.evil.example"]
        {
            let config = OidcConfig {
                issuer: issuer.into(),
                client_id: String::new(),
                client_secret: None,
                ca: None,
                groups_claim: String::new(),
                name_claim: None,
            };
            assert!(matches!(Login::new(&config), Err(LoginError::Issuer(_))), "{issuer}");
        }
    }

    #[test]
    fn only_the_browser_that_began_a_login_ends_it() {
        let login = login();
        let kept = |login: &Login, exp: i64| {
            let begun =
                Begun { state: "s".into(), nonce: "n".into(), verifier: "v".into(), next: "/ui".into(), exp };
            encode(&Header::new(Algorithm::HS256), &begun, &EncodingKey::from_secret(login.secret.as_bytes()))
                .unwrap()
        };
        let soon = now_us() / 1_000_000 + 60;
        assert_eq!(login.begun(&kept(&login, soon), "s").unwrap().nonce, "n");
        assert!(login.begun(&kept(&login, soon), "t").is_err());
        assert!(login.begun(&kept(&login, soon), "").is_err());
        assert!(login.begun(&kept(&login, soon - 120), "s").is_err(), "too late");
        assert!(login.begun("", "").is_err() && login.begun("a.b.c", "s").is_err());
        assert!(login.begun(&kept(&self::login(), soon), "s").is_err(), "of another server");
    }

    #[test]
    fn no_hostile_cookie_of_a_login_and_no_way_elsewhere() {
        let (login, mut dice) = (login(), Dice::of("logins that were not begun here"));
        let begun = Begun {
            state: "state".into(),
            nonce: "n".into(),
            verifier: "v".into(),
            next: "/ui".into(),
            exp: now_us() / 1_000_000 + 3600,
        };
        let key = EncodingKey::from_secret(login.secret.as_bytes());
        let good = encode(&Header::new(Algorithm::HS256), &begun, &key).unwrap();
        assert!(login.begun(&good, "state").is_ok(), "the negative control");
        let body = |kept: &str| kept.split('.').nth(1).map(str::to_owned);
        let count = share(10);
        for _ in 0..count {
            let (kept, state) = (dice.mutated(&good), dice.mutated("state"));
            assert!(state == "state" || login.begun(&good, &state).is_err(), "{state:?}");
            if login.begun(&kept, "state").is_ok() {
                assert_eq!(body(&kept), body(&good), "{kept}");
            }
            let pieces =
                ["/ui", "/", "//", "evil.example", "..", "\\", "?", "%2f", "-", ":", "@", "\r\n", "#"];
            let next: String = (0..=dice.below(6)).map(|_| dice.one_of(&pieces)).collect();
            for next in [next, dice.mutated("/ui/tasks?x=1"), dice.words()] {
                let base = reqwest::Url::parse("https://gpu1:8008/ui/-/login/callback").unwrap();
                let target = base.join(&own_path(&next)).unwrap();
                assert!(
                    target.origin() == base.origin() && target.path().starts_with("/ui"),
                    "{next:?} → {target}"
                );
            }
        }
        println!("{count} cookies of logins, {count} states, {} paths: none got in or away", 3 * count);
    }

    #[test]
    fn names_and_groups() {
        let about = json!({"preferred_username": " ", "email": "a@x\n", "name": "Anna"});
        let about = about.as_object().unwrap();
        assert_eq!(name_of(about, "1", None).unwrap(), "a@x");
        assert_eq!(name_of(&Map::new(), "1", None).unwrap(), "1");
        assert_eq!(name_of(about, "1", Some("email")).unwrap(), "a@x");
        let missing = name_of(about, "1", Some("uid")).unwrap_err().to_string();
        assert!(missing.contains("no claim \"uid\""), "{missing}");
        assert_eq!(groups_of(Some(&json!(["b", "a", 1, "b"]))), ["a", "b"]);
        assert_eq!(groups_of(Some(&json!("a"))), ["a"]);
        assert!(groups_of(Some(&json!({}))).is_empty() && groups_of(None).is_empty());
    }
}
