//! An identity provider that lies: with tokens of other keys, algorithms, issuers, audiences and logins, with answers without an end,
//! with redirects, without TLS, about another user, and slowly. No attacker logs in, and the server answers all others.
//! The negative control is the same login with an honest answer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::serve::Listener;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cantle_server::{OidcConfig, ServerConfig};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::common::TestServer;

/// The provider's answer to the code of a login whose nonce is given.
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
    /// The values that the discovery contains instead.
    discovered: Vec<(&'static str, String)>,
    /// Where the discovery sends its callers instead.
    moved: Option<String>,
}

type Shared = Arc<Mutex<Provider>>;

fn key() -> (EncodingKey, Vec<u8>) {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    (EncodingKey::from_ec_der(pair.serialized_der()), pair.public_key_raw().to_vec())
}

impl Provider {
    async fn start() -> Shared {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (shared, router) = Self::at(format!("http://{}", listener.local_addr().unwrap()));
        tokio::spawn(async move { axum::serve(listener, router).await });
        shared
    }

    /// The same with TLS; the authority that vouches for it is in the file.
    async fn start_with_tls(ca: &std::path::Path) -> Shared {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(ca, authority.pem()).unwrap();
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let chain = vec![params.signed_by(&pair, &authority).unwrap().der().clone()];
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(pair.serialize_der()).into();
        let crypto = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(crypto).with_safe_default_protocol_versions();
        let tls = tls.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (shared, router) = Self::at(format!("https://{}", tcp.local_addr().unwrap()));
        let listener = WithTls { tcp, acceptor: TlsAcceptor::from(Arc::new(tls)) };
        tokio::spawn(async move { axum::serve(listener, router).await });
        shared
    }

    fn at(url: String) -> (Shared, Router) {
        let ((signing, point), (other, _)) = (key(), key());
        let (lie, nonce, discovered) = (Lie::Honest, String::new(), Vec::new());
        let provider = Self { url, signing, other, point, lie, nonce, hangs: false, discovered, moved: None };
        let shared = Arc::new(Mutex::new(provider));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/keys", get(keys))
            .route("/token", post(token))
            .with_state(Arc::clone(&shared));
        (shared, router)
    }

    fn id_token(&self) -> String {
        let now = jsonwebtoken::get_current_timestamp();
        let mut claims = json!({
            "iss": self.url, "sub": "anna", "aud": "cantle", "exp": now + 300, "iat": now, "nonce": self.nonce,
            "preferred_username": "anna", "email": "anna@example.org",
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

/// It takes connections in TLS alone.
struct WithTls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for WithTls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, from) = self.tcp.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

async fn discovery(State(provider): State<Shared>) -> Response {
    let (url, hangs, discovered, moved) = {
        let provider = provider.lock().unwrap();
        (provider.url.clone(), provider.hangs, provider.discovered.clone(), provider.moved.clone())
    };
    if hangs {
        std::future::pending::<()>().await;
    }
    if let Some(moved) = moved {
        return Redirect::temporary(&moved).into_response();
    }
    let mut known = json!({
        "issuer": url, "authorization_endpoint": format!("{url}/authorize"), "token_endpoint": format!("{url}/token"),
        "jwks_uri": format!("{url}/keys"),
    });
    for (name, instead) in discovered {
        known[name] = json!(instead);
    }
    Json(known).into_response()
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
        _ => {
            let tokens = json!({"id_token": provider.id_token(), "access_token": "x", "refresh_token": "r"});
            Json(tokens).into_response()
        }
    }
}

fn no_redirects() -> reqwest::Client {
    reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap()
}

/// A browser that logs in: the answer to its return from the provider.
async fn log_in(server: &TestServer, provider: &Shared) -> reqwest::Response {
    let browser = no_redirects();
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
    server_trusting(provider, None).await
}

async fn server_trusting(provider: &Shared, ca: Option<PathBuf>) -> TestServer {
    server_naming(provider, ca, None).await
}

async fn server_naming(provider: &Shared, ca: Option<PathBuf>, claim: Option<&str>) -> TestServer {
    let issuer = provider.lock().unwrap().url.clone();
    let oidc = OidcConfig {
        issuer,
        client_id: "cantle".into(),
        client_secret: None,
        ca,
        groups_claim: "groups".into(),
        name_claim: claim.map(str::to_owned),
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
        assert!(!is_in(&answer), "{lie:?} logged a user in");
        assert!(matches!(answer.status().as_u16(), 400..500 | 502 | 503), "{lie:?}: {}", answer.status());
    }
    provider.lock().unwrap().lie = Lie::Honest;
    let answer = log_in(&server, &provider).await;
    assert!(is_in(&answer), "the negative control: {:?}", answer.headers());
}

/// The name of a user can be that of a Unix user, from a claim that the administrator names. No user gets another name
/// instead.
#[tokio::test]
async fn the_name_comes_from_the_claim_that_was_named() {
    let provider = Provider::start().await;
    let server = server_naming(&provider, None, Some("uid")).await;
    let answer = log_in(&server, &provider).await;
    assert!(!is_in(&answer));
    let text = answer.text().await.unwrap();
    assert!(text.contains("uid") && text.contains("--oidc-name-claim"), "{text}");
    provider.lock().unwrap().lie = Lie::Claim("uid", json!("asmith"));
    assert!(is_in(&log_in(&server, &provider).await));
    let (_, _, users) = server.raw("cantle.get_users", "{}").await;
    assert!(users.to_string().contains("\"asmith\"") && !users.to_string().contains("\"anna\""), "{users}");
}

/// Thirty people log in while the provider does not answer: they wait for it together, not one after the other, and no
/// other caller waits.
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

/// Nothing that a provider with TLS says leads to a request without: the secret of the client and the codes of logins would be
/// readable on the way. Loopback is no exception, because the port may belong to another user.
#[tokio::test]
async fn a_provider_with_tls_is_never_asked_without() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let provider = Provider::start_with_tls(&ca).await;
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = format!("http://{}", trap.local_addr().unwrap());
    let lie = |discovered: Vec<(&'static str, String)>, moved: Option<String>| {
        let mut provider = provider.lock().unwrap();
        (provider.discovered, provider.moved) = (discovered, moved);
    };
    let names = [
        "authorization_endpoint",
        "token_endpoint",
        "jwks_uri",
        "device_authorization_endpoint",
        "userinfo_endpoint",
        "issuer",
    ];
    for name in names {
        for at in
            [format!("{plain}/x"), "http://login.example/x".to_owned(), "ftp://login.example".to_owned()]
        {
            lie(vec![(name, at.clone())], None);
            let server = server_trusting(&provider, Some(ca.clone())).await;
            let begun =
                no_redirects().get(format!("{}/ui/-/login", server.client.url())).send().await.unwrap();
            assert_eq!(begun.status(), StatusCode::BAD_GATEWAY, "{name} at {at}");
        }
    }
    lie(Vec::new(), Some(format!("{plain}/.well-known/openid-configuration")));
    let server = server_trusting(&provider, Some(ca.clone())).await;
    let begun = no_redirects().get(format!("{}/ui/-/login", server.client.url())).send().await.unwrap();
    assert_eq!(begun.status(), StatusCode::BAD_GATEWAY, "a redirect");
    // Another authority's certificate is no proof.
    lie(Vec::new(), None);
    let other = dir.path().join("other.pem");
    let of_another = CertificateParams::new(vec!["x".to_owned()]).unwrap();
    std::fs::write(&other, of_another.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()).unwrap();
    let server = server_trusting(&provider, Some(other)).await;
    let begun = no_redirects().get(format!("{}/ui/-/login", server.client.url())).send().await.unwrap();
    assert_eq!(begun.status(), StatusCode::BAD_GATEWAY, "another authority");
    // The negative control.
    let server = server_trusting(&provider, Some(ca)).await;
    assert!(is_in(&log_in(&server, &provider).await));
    assert!(
        tokio::time::timeout(Duration::from_millis(100), trap.accept()).await.is_err(),
        "something was asked"
    );
}

/// The user of the session that this answer begins.
async fn user_of(server: &TestServer, answer: &reqwest::Response) -> Value {
    let cookies =
        answer.headers().get_all(header::SET_COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
    let cookie = cookies.filter_map(|cookie| cookie.strip_prefix("cantle_session=")).next().unwrap();
    user_with(server, cookie.split(';').next().unwrap()).await
}

async fn user_with(server: &TestServer, token: &str) -> Value {
    let call = reqwest::Client::new().post(format!("{}/users.get_current_user", server.client.url()));
    let answer: Value = call.bearer_auth(token).body("{}").send().await.unwrap().json().await.unwrap();
    answer["data"]["user"].clone()
}

/// Names and addresses change hands at a provider; the subject does not. A user with anna's name or address is not
/// anna.
#[tokio::test]
async fn another_subject_with_the_same_address_is_somebody_else() {
    let provider = Provider::start().await;
    let server = server_of(&provider).await;
    let anna = user_of(&server, &log_in(&server, &provider).await).await;
    assert_eq!(anna["name"], "anna");
    let role = json!({"who": "anna", "role": "admin"});
    server.client.call_value("cantle.set_role", &role).await.unwrap();
    let call = async |endpoint: &str, body: Value| {
        let url = format!("{}/{endpoint}", server.client.url());
        let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        answer.json::<Value>().await.unwrap()
    };
    let device = call("cantle.login_poll", json!({"device_code": "d"})).await;
    let token = device["data"]["token"].as_str().unwrap().to_owned();
    assert_eq!(user_with(&server, &token).await["id"], anna["id"]);

    provider.lock().unwrap().lie = Lie::Claim("sub", json!("mallory"));
    let users = async || {
        let found = server.client.call_value("cantle.get_users", &json!({})).await.unwrap();
        found["users"].as_array().unwrap().len()
    };
    let before = users().await;
    let refreshed = call("cantle.login_refresh", json!({"refresh_token": "r"})).await;
    assert_eq!(refreshed["meta"]["result_code"], 401, "{refreshed}");
    assert_eq!(users().await, before, "a refresh makes no user");
    let mallory = user_of(&server, &log_in(&server, &provider).await).await;
    assert!(
        mallory["id"] != anna["id"] && mallory["name"].as_str().unwrap().starts_with("anna ("),
        "{mallory}"
    );
    let all = server.client.call_value("cantle.get_users", &json!({})).await.unwrap()["users"].take();
    let roles = |user: &Value| {
        let found = all.as_array().unwrap().iter().find(|one| one["id"] == user["id"]).unwrap();
        found["roles"].as_array().unwrap().len()
    };
    assert_eq!((roles(&anna), roles(&mallory)), (1, 0));
}

/// A person who was removed here does not come back by way of a provider that still knows the person.
#[tokio::test]
async fn who_was_removed_here_stays_out() {
    let provider = Provider::start().await;
    let server = server_of(&provider).await;
    assert!(is_in(&log_in(&server, &provider).await), "the negative control");
    let poll = async |endpoint: &str, body: Value| {
        let url = format!("{}/{endpoint}", server.client.url());
        let answer = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        answer.json::<Value>().await.unwrap()
    };
    let device = poll("cantle.login_poll", json!({"device_code": "d"})).await;
    let token = device["data"]["token"].as_str().unwrap().to_owned();
    server.client.call_value("cantle.remove_user", &json!({"user": "anna"})).await.unwrap();
    assert_eq!(user_with(&server, &token).await, Value::Null);
    for (endpoint, body) in [
        ("cantle.login_refresh", json!({"refresh_token": "r"})),
        ("cantle.login_poll", json!({"device_code": "d"})),
    ] {
        let refused = poll(endpoint, body).await;
        assert!(refused["data"].get("token").is_none(), "{endpoint}: {refused}");
        assert!((400..500).contains(&refused["meta"]["result_code"].as_u64().unwrap()), "{refused}");
    }
    assert!(!is_in(&log_in(&server, &provider).await));
}
