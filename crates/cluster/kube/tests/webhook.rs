//! The injector over HTTPS, as the API server calls it, with a certificate that another program provides and renews.
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something is wrong")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cantle_kube::inject::Rules;
use cantle_kube::{Certificates, WebhookSettings, listen, serve_webhook};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use reqwest::{Certificate, Client, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

const PATIENCE: Duration = Duration::from_secs(60);

struct Running {
    calls: SocketAddr,
    observers: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<Result<(), cantle_kube::KubeError>>,
}

/// A certificate in `dir`, and a client that trusts it and nothing else.
fn certificate(dir: &Path) -> Client {
    let CertifiedKey::<KeyPair> { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("tls.crt"), cert.pem()).unwrap();
    std::fs::write(dir.join("tls.key"), signing_key.serialize_pem()).unwrap();
    let trusted = Certificate::from_pem(cert.pem().as_bytes()).unwrap();
    // Each call has a new connection, because the handshake is tested.
    Client::builder().tls_certs_only([trusted]).pool_max_idle_per_host(0).build().unwrap()
}

/// The controller of templates finds no cluster here; that must not keep the injector from answering.
fn start(dir: &Path) -> Running {
    start_at(dir, "http://127.0.0.1:1")
}

fn start_at(dir: &Path, api_server: &str) -> Running {
    let nowhere = kube::Config::new(api_server.parse().unwrap());
    let (calls, observers) =
        (listen(([127, 0, 0, 1], 0).into()).unwrap(), listen(([127, 0, 0, 1], 0).into()).unwrap());
    let (stop, stopped) = oneshot::channel();
    let addresses = (calls.local_addr().unwrap(), observers.local_addr().unwrap());
    let certificates = Certificates::Files { cert: dir.join("tls.crt"), key: dir.join("tls.key") };
    let settings = WebhookSettings { calls, observers, certificates, rules: Rules::default(), pending: None };
    let stopped = async move { drop(stopped.await) };
    let ended = tokio::spawn(serve_webhook(kube::Client::try_from(nowhere).unwrap(), settings, stopped));
    Running { calls: addresses.0, observers: addresses.1, stop, ended }
}

impl Running {
    async fn observe(&self, path: &str) -> (StatusCode, String) {
        let response = reqwest::get(format!("http://{}{path}", self.observers)).await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    async fn ready(&self) {
        let ready = async {
            while self.observe("/readyz").await.0 != StatusCode::OK {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, ready).await.unwrap();
    }

    async fn mutate(&self, client: &Client, body: &Value) -> reqwest::Result<Value> {
        let url = format!("https://localhost:{}/mutate", self.calls.port());
        let sent =
            client.post(url).header("content-type", "application/json").body(body.to_string()).send().await?;
        sent.error_for_status()?.json().await
    }
}

fn review(fraction: &str) -> Value {
    let pod = json!({
        "metadata": {"labels": {"clearml-injector/fraction": fraction}},
        "spec": {"containers": [{"name": "main"}]},
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "object": pod}})
}

#[tokio::test]
async fn answers_over_https_and_shows_a_renewed_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let webhook = start(dir.path());
    assert_eq!(webhook.observe("/healthz").await.0, StatusCode::OK);
    assert_eq!(
        webhook.observe("/readyz").await.0,
        StatusCode::SERVICE_UNAVAILABLE,
        "no certificate, no calls"
    );

    let client = certificate(dir.path());
    webhook.ready().await;
    let answer = webhook.mutate(&client, &review("0.500")).await.unwrap();
    assert_eq!((&answer["response"]["uid"], &answer["response"]["allowed"]), (&json!("u"), &json!(true)));
    assert!(answer["response"]["patch"].is_string());
    let answer = webhook.mutate(&client, &review("0.333")).await.unwrap();
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("label clearml-injector/fraction is \"0.333\"; write 0.125"), "{message}");
    let refused = webhook.mutate(&client, &json!({"kind": "Pod"})).await.unwrap_err();
    assert_eq!(refused.status(), Some(StatusCode::BAD_REQUEST));
    let (_, metrics) = webhook.observe("/metrics").await;
    for line in [
        "cantle_webhook_answers_total{answer=\"injected\"} 1\n",
        "{answer=\"denied\"} 1\n",
        "cantle_webhook_seconds_count 2\n",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }

    let renewed = certificate(dir.path());
    let shown = async {
        while webhook.mutate(&renewed, &review("0.500")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, shown).await.expect("the new certificate is never shown");
    assert!(webhook.mutate(&client, &review("0.500")).await.is_err(), "the old one is no longer shown");

    webhook.stop.send(()).unwrap();
    timeout(PATIENCE, webhook.ended).await.unwrap().unwrap().unwrap();
}

/// An API server as far as its clock goes.
async fn clock_of_an_api_server(date: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let _read = stream.read(&mut head).await.unwrap();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    url
}

#[tokio::test]
async fn is_not_ready_with_another_clock_than_the_api_servers() {
    let dir = tempfile::tempdir().unwrap();
    let _client = certificate(dir.path());
    let webhook = start_at(dir.path(), &clock_of_an_api_server("Sat, 01 Jan 2000 00:00:00 GMT").await);
    let told = async {
        loop {
            let (status, why) = webhook.observe("/readyz").await;
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{why}");
            if why == "no clock that agrees with the API server's yet\n" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, told).await.unwrap();
    webhook.stop.send(()).unwrap();
}

/// Sends a head that announces a body, and `sent` bytes of it.
async fn half_a_body(
    port: u16,
    trusted: Arc<rustls::ClientConfig>,
    announced: usize,
    sent: usize,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = "localhost".try_into().unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(trusted).connect(name, stream).await?;
    let head = format!(
        "POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    for _ in 0..sent.div_ceil(64 << 10) {
        stream.write_all(&[b' '; 64 << 10]).await?;
    }
    Ok(stream)
}

/// A client that has no key opens as many connections as it can and sends most of a large body on each: none of it is kept in
/// memory beyond the bound, and others are answered meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_of_strangers_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let webhook = start(dir.path());
    let client = certificate(dir.path());
    webhook.ready().await;
    webhook.mutate(&client, &review("0.500")).await.unwrap();
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(dir.path().join("tls.crt")).unwrap();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let trusted = rustls::ClientConfig::builder_with_provider(provider);
    let trusted = trusted.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let trusted = Arc::new(trusted.with_no_client_auth());
    let answer = async |mut stream: TlsStream<TcpStream>| {
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        String::from_utf8_lossy(&head[9..]).into_owned()
    };
    let port = webhook.calls.port();
    // More than any review: refused before it is read.
    let large = half_a_body(port, Arc::clone(&trusted), 8 << 20, 0).await.unwrap();
    assert_eq!(answer(large).await, "413");
    // As much as any review, two at once for one address.
    let mib = 4 << 20;
    let held = [
        half_a_body(port, Arc::clone(&trusted), mib, mib - (64 << 10)).await.unwrap(),
        half_a_body(port, Arc::clone(&trusted), mib, mib - (64 << 10)).await.unwrap(),
    ];
    let third = half_a_body(port, Arc::clone(&trusted), mib, 0).await.unwrap();
    assert_eq!(answer(third).await, "503");
    webhook.mutate(&client, &review("0.500")).await.unwrap();
    // A body that does not arrive is given up.
    for stream in held {
        assert_eq!(answer(stream).await, "408");
    }
    // A list of zeros takes more memory than its bytes when it is parsed.
    let zeros = format!("[{}0]", "0,".repeat(300_000));
    let url = format!("https://localhost:{port}/mutate");
    let sent = client.post(url).body(zeros).send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::PAYLOAD_TOO_LARGE);
    webhook.stop.send(()).unwrap();
}
