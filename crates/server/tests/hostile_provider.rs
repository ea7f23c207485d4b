//! An identity provider that lies: with tokens of other keys, algorithms, issuers, audiences and logins, with answers without an end,
//! with redirects, and slowly. Nobody gets in, and the server answers everybody else. The negative control is the same login with
//! an honest answer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says by panicking that something is wrong")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cantle_server::{OidcConfig, ServerConfig};
use common::TestServer;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};

/// What the provider answers to the code of a login whose nonce is given.
#[derive(Clone, Debug)]
enum Lie {
    Honest,
    OtherKey,
    NoSignature,
    SharedSecret,
    Claim(&'static str, Value),
    Huge(usize),
    Endless,
    Elsewhere,
    NoToken,
    Html,
}

struct Provider {
    url: String,
    signing: EncodingKey,
    other: EncodingKey,
    point: Vec<u8>,
    lie: Lie,
    nonce: String,
    /// The discovery never answers.
    hangs: bool,
}

type Shared = Arc<Mutex<Provider>>;

fn key() -> (EncodingKey, Vec<u8>) {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    (EncodingKey::from_ec_der(pair.serialized_der()), pair.public_key_raw().to_vec())
}

impl Provider {
    async fn start() -> Shared {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let ((signing, point), (other, _)) = (key(), key());
        let provider =
            Self { url, signing, other, point, lie: Lie::Honest, nonce: String::new(), hangs: false };
        let shared = Arc::new(Mutex::new(provider));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        shared
    }

    fn id_token(&self) -> String {
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims = json!({
            "iss": self.url, "sub": "anna", "aud": "cantle", "exp": now + 300, "iat": now, "nonce": self.nonce,
            "preferred_username": "anna",
        });
        let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::ES256) };
        match &self.lie {
            Lie::Claim(name, value) => claims[*name] = value.clone(),
            Lie::Huge(bytes) => claims["name"] = json!("x".repeat(*bytes)),
            Lie::OtherKey => return encode(&header, &claims, &self.other).unwrap(),
            Lie::SharedSecret => {
                let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
                return encode(&header, &claims, &EncodingKey::from_secret(&self.point)).unwrap();
            }
            Lie::NoSignature => {
                let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
                return format!("{}.{}.", part(&json!({"alg": "none", "kid": "k1"})), part(&claims));
            }
            _ => {}
        }
        encode(&header, &claims, &self.signing).unwrap()
    }
}

async fn discovery(State(provider): State<Shared>) -> Json<Value> {
    let (url, hangs) = {
        let provider = provider.lock().unwrap();
        (provider.url.clone(), provider.hangs)
    };
    if hangs {
        std::future::pending::<()>().await;
    }
    Json(json!({
        "issuer": url, "authorization_endpoint": format!("{url}/authorize"), "token_endpoint": format!("{url}/token"),
        "jwks_uri": format!("{url}/keys"),
    }))
}

async fn keys(State(provider): State<Shared>) -> Json<Value> {
    let point = provider.lock().unwrap().point.clone();
    let part = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&point[range]);
    let key = json!({"kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "alg": "ES256", "x": part(1..33), "y": part(33..65)});
    Json(json!({"keys": [key]}))
}

async fn token(State(provider): State<Shared>) -> Response {
    let provider = provider.lock().unwrap();
    match &provider.lie {
        Lie::Elsewhere => Redirect::temporary("http://127.0.0.1:1/token").into_response(),
        Lie::NoToken => Json(json!({"access_token": "x"})).into_response(),
        Lie::Html => (StatusCode::OK, "<html>").into_response(),
        Lie::Endless => {
            let spaces = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 64 << 10]));
            axum::body::Body::from_stream(spaces).into_response()
        }
        _ => Json(json!({"id_token": provider.id_token(), "access_token": "x"})).into_response(),
    }
}

/// A browser that logs in: the answer to its return from the provider.
async fn log_in(server: &TestServer, provider: &Shared) -> reqwest::Response {
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let begun = browser.get(format!("{}/ui/-/login", server.client.url())).send().await.unwrap();
    let cookie = begun.headers()[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
    let to = reqwest::Url::parse(begun.headers()[header::LOCATION].to_str().unwrap()).unwrap();
    let asked = |name: &str| to.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
    provider.lock().unwrap().nonce = asked("nonce");
    let back = format!("{}/ui/-/login/callback?code=c&state={}", server.client.url(), asked("state"));
    browser.get(back).header(header::COOKIE, cookie).send().await.unwrap()
}

fn is_in(answer: &reqwest::Response) -> bool {
    let cookies = answer.headers().get_all(header::SET_COOKIE).iter();
    cookies
        .filter_map(|cookie| cookie.to_str().ok())
        .any(|cookie| cookie.starts_with("cantle_session=") && !cookie.starts_with("cantle_session=;"))
}

async fn server_of(provider: &Shared) -> TestServer {
    let issuer = provider.lock().unwrap().url.clone();
    let oidc = OidcConfig {
        issuer,
        client_id: "cantle".into(),
        client_secret: None,
        ca: None,
        groups_claim: "groups".into(),
    };
    let config = ServerConfig { oidc: Some(oidc), ..ServerConfig::default() };
    TestServer::start_with(tempfile::tempdir().unwrap(), config).await
}

#[tokio::test]
async fn no_lie_of_a_provider_lets_anybody_in() {
    let provider = Provider::start().await;
    let server = server_of(&provider).await;
    let lies = [
        Lie::OtherKey,
        Lie::NoSignature,
        Lie::SharedSecret,
        Lie::Claim("iss", json!("https://login.example")),
        Lie::Claim("aud", json!("another")),
        Lie::Claim("aud", json!([])),
        Lie::Claim("nonce", json!("of another login")),
        Lie::Claim("nonce", Value::Null),
        Lie::Claim("exp", json!(1)),
        Lie::Claim("exp", json!("soon")),
        Lie::Claim("sub", json!("")),
        Lie::Claim("sub", json!({"a": 1})),
        Lie::Huge(100 << 10),
        Lie::Huge(4 << 20),
        Lie::Endless,
        Lie::Elsewhere,
        Lie::NoToken,
        Lie::Html,
    ];
    for lie in lies {
        provider.lock().unwrap().lie = lie.clone();
        let answer = log_in(&server, &provider).await;
        assert!(!is_in(&answer), "{lie:?} let somebody in");
        assert!(matches!(answer.status().as_u16(), 400..500 | 502 | 503), "{lie:?}: {}", answer.status());
    }
    provider.lock().unwrap().lie = Lie::Honest;
    let answer = log_in(&server, &provider).await;
    assert!(is_in(&answer), "the negative control: {:?}", answer.headers());
}

/// Thirty people log in while the provider does not answer: they wait for it together, not one after the other, and nobody else
/// waits.
#[tokio::test]
async fn a_provider_that_hangs_holds_nobody_up() {
    let provider = Provider::start().await;
    let server = server_of(&provider).await;
    provider.lock().unwrap().hangs = true;
    let login = || reqwest::get(format!("{}/ui/-/login", server.client.url()));
    let all = futures_util::future::join_all((0..30).map(|_| login()));
    // One after the other they would take 300 s.
    let answers = tokio::time::timeout(Duration::from_secs(120), all);
    let (answers, task) = tokio::join!(answers, server.task("meanwhile"));
    assert_eq!(task.len(), 32);
    for answer in answers.expect("they wait for each other") {
        assert!(!is_in(&answer.unwrap()));
    }
}
