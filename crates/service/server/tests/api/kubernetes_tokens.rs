//! Tokens of Kubernetes, against an API server of the test's own: how often it is asked, and what holds while it is away.
//! `tests/cluster/test_kubernetes_tokens.py` has a real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cantle_clearml::{Client, ClientTls, Proof, WireError};
use cantle_server::{KubernetesConfig, ServerConfig};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::TestServer;

const CI: &str = "system:serviceaccount:jobs:ci";

/// A token as a cluster signs it, for a user; only the API server can say whether it is good.
fn token(of: &str) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.c2ln", part(json!({ "alg": "RS256", "kid": "k" })), part(json!({ "sub": of })))
}

/// Takes the token of one account, for one audience, from a server that shows its own token.
async fn review(
    State(asked): State<Arc<AtomicUsize>>,
    headers: HeaderMap,
    Json(review): Json<Value>,
) -> Json<Value> {
    asked.fetch_add(1, Ordering::Relaxed);
    assert_eq!(headers["authorization"], "Bearer of-the-server");
    let is_good = review["spec"]["token"] == token(CI) && review["spec"]["audiences"] == json!(["cantle"]);
    let user = json!({ "username": CI, "groups": ["system:serviceaccounts:jobs", "system:authenticated"] });
    Json(if is_good {
        json!({ "status": { "authenticated": true, "user": user, "audiences": ["cantle"] } })
    } else {
        json!({ "status": { "error": "invalid bearer token" } })
    })
}

struct Cluster {
    asked: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
    server: TestServer,
}

impl Cluster {
    async fn start() -> Self {
        let asked = Arc::<AtomicUsize>::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = format!("http://{}", listener.local_addr().unwrap());
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let router = Router::new().route(path, post(review)).with_state(Arc::clone(&asked));
        let serving = tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        std::fs::write(&own, "of-the-server\n").unwrap();
        let kubernetes = KubernetesConfig {
            audience: "cantle".into(),
            api: Some(api),
            token_file: Some(own),
            ..KubernetesConfig::default()
        };
        let config = ServerConfig { kubernetes: Some(kubernetes), ..ServerConfig::default() };
        Self { asked, serving, server: TestServer::start_with(dir, config).await }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// A client that reads this token from a file.
    fn client(&self, token: &str) -> Client {
        let file = self.server.dir.path().join("token");
        std::fs::write(&file, token).unwrap();
        Client::with_proof(self.server.client.url(), Proof::TokenFile(file), &ClientTls::default()).unwrap()
    }

    async fn user(&self, token: &str) -> Result<Value, WireError> {
        let answer = self.client(token).call_value("users.get_current_user", &json!({})).await?;
        Ok(answer["user"].clone())
    }
}

fn said(answer: Result<Value, WireError>) -> String {
    answer.unwrap_err().to_string()
}

#[tokio::test]
async fn an_account_is_a_user_with_the_roles_of_its_groups() {
    let cluster = Cluster::start().await;
    let user = cluster.user(&token(CI)).await.unwrap();
    assert_eq!((&user["name"], &user["cantle_roles"]), (&json!(CI), &json!([])), "no rights by itself");
    let role = json!({ "who": "group:system:serviceaccounts:jobs", "role": "viewer" });
    cluster.server.client.call_value("cantle.set_role", &role).await.unwrap();
    let user = cluster.user(&token(CI)).await.unwrap();
    assert_eq!(user["cantle_roles"], json!([{ "role": "viewer", "project": "" }]));
    assert_eq!(cluster.asked(), 1, "the answer is kept");
    let longer = cluster.client(&token(CI)).call_value("auth.login", &json!({})).await;
    assert!(said(longer).contains("cannot be prolonged"));
    cluster.server.client.call_value("cantle.remove_user", &json!({ "user": CI })).await.unwrap();
    assert!(said(cluster.user(&token(CI)).await).contains("was removed"));
}

/// The replicas of a controller log in at the same moment, and the server does not know them yet.
#[tokio::test]
async fn one_account_is_one_user() {
    let cluster = Cluster::start().await;
    let client = cluster.client(&token(CI));
    let body = json!({});
    let call = || client.call_value("users.get_current_user", &body);
    let (a, b, c, d) = tokio::join!(call(), call(), call(), call());
    let ids: Vec<Value> = [a, b, c, d].map(|answer| answer.unwrap()["user"]["id"].clone()).to_vec();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn what_the_cluster_refuses_is_refused() {
    let cluster = Cluster::start().await;
    for _ in 0..3 {
        assert!(said(cluster.user(&token("system:admin")).await).contains("Kubernetes refuses the token"));
    }
    assert_eq!(cluster.asked(), 1, "a refusal is kept, too");
    // Of this server's own signature, or none at all: the cluster never sees them.
    let own = cluster.server.client.new_token().await.unwrap();
    assert_eq!(cluster.user(&own).await.unwrap()["name"], "admin");
    assert!(said(cluster.user("x.y.z").await).contains("invalid token"));
    assert_eq!(cluster.asked(), 1);
}

#[tokio::test]
async fn while_the_cluster_is_away_only_known_tokens_are_good() {
    let cluster = Cluster::start().await;
    cluster.user(&token(CI)).await.unwrap();
    cluster.serving.abort();
    assert!(cluster.user(&token(CI)).await.is_ok());
    assert!(said(cluster.user(&token("another")).await).contains("does not review tokens"));
}

#[tokio::test]
async fn an_agents_account_is_named_when_it_is_made() {
    let cluster = Cluster::start().await;
    // It logged in before it was named: that user has no roles, and gives its identity up.
    cluster.user(&token(CI)).await.unwrap();
    let agent = |name: &str| json!({ "name": name, "role": "agent", "node": name, "kubernetes": CI });
    cluster.server.client.call_value("cantle.add_user", &agent("queues")).await.unwrap();
    let user = cluster.user(&token(CI)).await.unwrap();
    assert_eq!((&user["name"], &user["cantle_roles"][0]["role"]), (&json!("queues"), &json!("agent")));
    let other = cluster.server.client.call_value("cantle.add_user", &agent("others")).await;
    assert!(said(other).contains("is the user queues already"), "two agents are not one account");
    let users = cluster.server.client.call_value("cantle.get_users", &json!({})).await.unwrap();
    assert!(!users.to_string().contains("others"), "and no user is made");
}
