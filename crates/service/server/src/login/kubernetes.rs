//! Tokens of Kubernetes as proof of the caller's identity: of service accounts, and whatever else the cluster's API
//! server takes.
//!
//! The server asks the API server (TokenReview) and believes nothing that a token says about itself. An answer is kept for a short
//! time, by the token's digest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jsonwebtoken::{Algorithm, decode_header};
use reqwest::{Client, Url};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{LoginError, provider};
use crate::rights::{ExternalIdentity, digest};

/// Where a pod has what it needs to call its cluster.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// A token that was withdrawn is good for so long at most.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// The API server is asked about a refused token this often at most.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Answers that are kept; more than a cluster has callers.
const REMEMBERED: usize = 10_000;
/// Questions at once; the callers are not authenticated yet.
const AT_ONCE: usize = 16;
/// A question waits so long for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// No cluster's token is longer.
const LONGEST: usize = 64 << 10;

/// The settings of `--kubernetes-…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// The audience that tokens are made for.
    pub audience: String,
    /// Address of the API server; none: that of the cluster of this pod.
    pub api: Option<String>,
    /// Host and port of that one, as the kubelet tells each pod.
    pub of_pod: Option<(String, String)>,
    /// Authorities that may vouch for the API server, in PEM; none: those of the pod, or of the system.
    pub ca: Option<PathBuf>,
    /// File with the token that this server shows; none: the pod's. It is read for each question, because it changes.
    pub token_file: Option<PathBuf>,
}

/// The cluster whose tokens are taken.
pub(crate) struct Kubernetes {
    http: Client,
    reviews: String,
    audience: String,
    token_file: PathBuf,
    known: Mutex<BTreeMap<String, CachedReview>>,
    turns: Semaphore,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes").field("reviews", &self.reviews).finish_non_exhaustive()
    }
}

/// The answer to a question.
struct CachedReview {
    /// None: the token is refused.
    who: Option<ExternalIdentity>,
    until: Instant,
}

/// The part of a TokenReview that the API server fills in.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    audiences: Vec<String>,
    user: ReviewedUser,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedUser {
    username: String,
    groups: Vec<String>,
}

/// The identity of a Kubernetes user by its name, as the cluster's own roles know it.
pub(crate) fn identity_of(username: &str) -> String {
    format!("kubernetes#{username}")
}

impl Kubernetes {
    /// Reads the files; the API server is asked when a caller presents a token.
    pub(crate) fn new(config: &KubernetesConfig) -> Result<Self, LoginError> {
        let in_pod = |name: &str| Path::new(IN_POD).join(name);
        let of_pod = || config.of_pod.as_ref().map(|(host, port)| api_of_pod(host, port));
        let api = config.api.clone().or_else(of_pod).ok_or(LoginError::NoCluster)?;
        let ca = match (&config.ca, &config.api) {
            (None, None) => Some(in_pod("ca.crt")),
            (ca, _) => ca.clone(),
        };
        let is_safe = Url::parse(&api).is_ok_and(|url| provider::is_safe(&url));
        if !is_safe {
            return Err(LoginError::Cluster(api));
        }
        Ok(Self {
            http: provider::http_client(ca.as_deref(), &api)?,
            reviews: format!("{}/apis/authentication.k8s.io/v1/tokenreviews", api.trim_end_matches('/')),
            audience: config.audience.clone(),
            token_file: config.token_file.clone().unwrap_or_else(|| in_pod("token")),
            known: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
        })
    }

    /// Whose token it is; none if the API server refuses it.
    pub(crate) async fn who(&self, token: &str) -> Result<Option<ExternalIdentity>, LoginError> {
        let digest = digest(token);
        if let Some(who) = self.remembered(&digest) {
            return Ok(who);
        }
        let turn = timeout(TURN_WITHIN, self.turns.acquire()).await;
        let _turn = turn.ok().and_then(Result::ok).ok_or(LoginError::Busy)?;
        // The one before may have asked the same.
        if let Some(who) = self.remembered(&digest) {
            return Ok(who);
        }
        let who = self.ask(token).await?;
        self.remember(digest, who.clone());
        Ok(who)
    }

    async fn ask(&self, token: &str) -> Result<Option<ExternalIdentity>, LoginError> {
        let file = |error: std::io::Error| LoginError::File {
            path: self.token_file.clone(),
            why: error.to_string(),
        };
        let own = tokio::fs::read_to_string(&self.token_file).await.map_err(file)?;
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self.audience]},
        });
        let request = self.http.post(&self.reviews).bearer_auth(own.trim());
        let request = request.header("Content-Type", "application/json").body(body.to_string());
        let review: Review = provider::answer(request).await.map_err(of_cluster)?;
        Ok(self.read(review.status))
    }

    /// An API server that does not know audiences names none, and would take a token that is meant for another program.
    fn read(&self, status: ReviewStatus) -> Option<ExternalIdentity> {
        let ReviewStatus { authenticated, audiences, user } = status;
        let is_good = authenticated && audiences.contains(&self.audience) && !user.username.is_empty();
        let mut groups = user.groups;
        groups.sort_unstable();
        groups.dedup();
        is_good.then(|| ExternalIdentity { id: identity_of(&user.username), name: user.username, groups })
    }

    fn remembered(&self, digest: &str) -> Option<Option<ExternalIdentity>> {
        let known = self.known();
        let found = known.get(digest).filter(|known| known.until > Instant::now())?;
        Some(found.who.clone())
    }

    fn remember(&self, digest: String, who: Option<ExternalIdentity>) {
        let now = Instant::now();
        let until = now + if who.is_some() { KNOWN_FOR } else { REFUSED_FOR };
        let mut known = self.known();
        if known.len() >= REMEMBERED {
            known.retain(|_, known| known.until > now);
        }
        // Of more than can be remembered, each is asked about.
        if known.len() < REMEMBERED {
            known.insert(digest, CachedReview { who, until });
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, CachedReview>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The token of a call that is none of this server's own, which are signed with a shared secret.
pub(crate) fn foreign_token(authorization: Option<&str>) -> Option<&str> {
    let (scheme, token) = authorization?.split_once(' ')?;
    let token = token.trim();
    let is_bearer = scheme.eq_ignore_ascii_case("bearer") && token.len() <= LONGEST;
    let is_foreign = || decode_header(token).is_ok_and(|header| header.alg != Algorithm::HS256);
    (is_bearer && is_foreign()).then_some(token)
}

fn api_of_pod(host: &str, port: &str) -> String {
    if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}

/// It is not the caller's provider that fails, and not the caller who can help it.
fn of_cluster(error: LoginError) -> LoginError {
    match error {
        LoginError::File { .. } | LoginError::Busy => error,
        LoginError::Away(why) | LoginError::Odd(why) => LoginError::Review(why),
        other => LoginError::Review(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Kubernetes {
        let api = Some("http://127.0.0.1:1".to_owned());
        Kubernetes::new(&KubernetesConfig { audience: "cantle".into(), api, ..KubernetesConfig::default() })
            .unwrap()
    }

    fn read(status: serde_json::Value) -> Option<ExternalIdentity> {
        cluster().read(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn only_what_the_api_server_confirms_for_this_audience() {
        let user =
            json!({"username": "system:serviceaccount:jobs:ci", "uid": "1", "groups": ["b", "a", "b"]});
        let good = json!({"authenticated": true, "audiences": ["cantle"], "user": user});
        let who = read(good.clone()).unwrap();
        assert_eq!(who.id, "kubernetes#system:serviceaccount:jobs:ci");
        assert_eq!(
            (who.name.as_str(), who.groups),
            ("system:serviceaccount:jobs:ci", vec!["a".into(), "b".into()])
        );
        for (field, value) in [
            ("authenticated", json!(false)),
            ("audiences", json!(["other"])),
            ("audiences", json!([])),
            ("user", json!({})),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert_eq!(read(bad), None, "{field}");
        }
        assert_eq!(read(json!({})), None);
    }

    #[test]
    fn own_tokens_are_never_sent_to_the_cluster() {
        let header = |text: &str| {
            use base64::Engine as _;
            let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
            format!("Bearer {header}.e30.c2ln")
        };
        let of = |text: &str| foreign_token(Some(&header(text))).is_some();
        assert!(of(r#"{"alg":"RS256","kid":"k"}"#) && of(r#"{"alg":"ES256"}"#));
        assert!(!of(r#"{"alg":"HS256","typ":"JWT"}"#) && !of(r#"{"alg":"none"}"#));
        let basic = header(r#"{"alg":"RS256"}"#).replace("Bearer", "Basic");
        assert_eq!(foreign_token(Some(&basic)), None);
        assert_eq!(foreign_token(Some("Bearer x.y.z")), None);
        assert_eq!(foreign_token(None), None);
    }

    #[test]
    fn where_a_pods_cluster_is() {
        assert_eq!(api_of_pod("10.96.0.1", "443"), "https://10.96.0.1:443");
        assert_eq!(api_of_pod("fd00::1", "443"), "https://[fd00::1]:443");
        let nowhere = Kubernetes::new(&KubernetesConfig::default());
        assert!(matches!(nowhere, Err(LoginError::NoCluster)));
    }

    #[test]
    fn clusters_that_others_read_along_are_refused() {
        for api in ["http://10.0.0.1:6443", "", "10.0.0.1:6443"] {
            let config = KubernetesConfig { api: Some(api.into()), ..KubernetesConfig::default() };
            assert!(matches!(Kubernetes::new(&config), Err(LoginError::Cluster(_))), "{api}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_kept_for_a_short_time() {
        let cluster = cluster();
        let who = ExternalIdentity { id: "kubernetes#a".into(), name: "a".into(), groups: Vec::new() };
        cluster.remember("good".into(), Some(who.clone()));
        cluster.remember("bad".into(), None);
        assert_eq!(cluster.remembered("good"), Some(Some(who)));
        assert_eq!((cluster.remembered("bad"), cluster.remembered("other")), (Some(None), None));
        tokio::time::advance(REFUSED_FOR).await;
        assert_eq!(cluster.remembered("bad"), None);
        assert!(cluster.remembered("good").is_some());
        tokio::time::advance(KNOWN_FOR).await;
        assert_eq!(cluster.remembered("good"), None);
    }
}
