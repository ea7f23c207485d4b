//! The injector over HTTPS, as the API server calls it, with a certificate that another program provides and renews.
#![allow(clippy::unwrap_used, reason = "a test says by panicking that something is wrong")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cantle_kube::inject::Rules;
use cantle_kube::{Certificates, WebhookSettings, listen, serve_webhook};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use reqwest::{Certificate, Client, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

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
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
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
