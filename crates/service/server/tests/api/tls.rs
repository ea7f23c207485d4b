//! The server's listener with TLS: unusable certificates, changed ones, client certificates of agents, and handshakes that
//! never end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle_clearml::workers::Register;
use cantle_clearml::{Client, ClientTls, WireError};
use cantle_server::{CredentialsFile, Server, ServerConfig, ServerError, TlsError, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{self, TestServer};

/// An authority of the test's own.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key for these names, changed by `change`, in `dir`.
    fn issue(&self, dir: &Path, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> TlsFiles {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        let files = TlsFiles { cert: dir.join("tls.crt"), key: dir.join("tls.key"), client_ca: None };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    fn file(&self, dir: &Path) -> PathBuf {
        let path = dir.join("ca.crt");
        std::fs::write(&path, self.0.pem()).unwrap();
        path
    }
}

async fn start(tls: TlsFiles, ca: &Path, silence: Duration) -> TestServer {
    let config = ServerConfig { tls: Some(tls), silence, ..ServerConfig::default() };
    let trust = ClientTls { ca: Some(ca.to_owned()), identity: None };
    TestServer::start_trusting(tempfile::tempdir().unwrap(), config, &trust).await
}

async fn refused(tls: TlsFiles) -> (String, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let config = ServerConfig { tls: Some(tls), state_dir: dir.path().to_owned(), ..ServerConfig::default() };
    let error = Server::bind(&config).await.unwrap_err();
    assert!(matches!(error, ServerError::Tls(_)), "{error}");
    assert!(!dir.path().join("server").exists(), "nothing is half done");
    (error.to_string(), error.hints())
}

#[tokio::test]
async fn certificates_that_are_no_use_are_refused_before_anything_is_made() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let dir = dir.path();
    let old = authority.issue(dir, &["localhost"], |cert| cert.not_after = date_time_ymd(2001, 2, 3));
    let (line, hints) = refused(old).await;
    assert!(line.contains("expired on 2001-02-03T00:00:00Z; it is 20"), "{line}");
    assert!(hints[0].contains("renew") && hints[0].contains("clock"), "{hints:?}");
    let young = authority.issue(dir, &["localhost"], |cert| cert.not_before = date_time_ymd(2999, 1, 1));
    let (line, hints) = refused(young).await;
    assert!(line.contains("not valid before 2999-01-01T00:00:00Z"), "{line}");
    assert!(hints[0].contains("clock"), "{hints:?}");
    let good = authority.issue(dir, &["localhost"], |_| ());
    std::fs::write(dir.join("other.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let (line, _) = refused(TlsFiles { key: dir.join("other.key"), ..good.clone() }).await;
    assert!(line.contains("other.key is not the key of the certificate"), "{line}");
    let (line, _) = refused(TlsFiles { key: good.cert.clone(), ..good.clone() }).await;
    assert!(line.contains("tls.crt has no private key"), "{line}");
    let (line, _) = refused(TlsFiles { cert: good.key.clone(), ..good.clone() }).await;
    assert!(line.contains("tls.key has no certificate"), "{line}");
    let (line, _) = refused(TlsFiles { cert: dir.join("none"), ..good.clone() }).await;
    assert!(line.contains("none: No such file"), "{line}");
    let (line, _) = refused(TlsFiles { client_ca: Some(good.key.clone()), ..good }).await;
    assert!(line.contains("tls.key has no certificate"), "{line}");
    std::fs::write(dir.join("bad.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    let bad = TlsFiles { cert: dir.join("bad.crt"), key: dir.join("tls.key"), client_ca: None };
    let error = Server::bind(&ServerConfig { tls: Some(bad), ..ServerConfig::default() }).await.unwrap_err();
    assert!(matches!(error, ServerError::Tls(TlsError::Unusable { .. })), "{error}");
}

#[tokio::test]
async fn plain_http_beyond_loopback_must_be_asked_for() {
    let config =
        |insecure_http| ServerConfig { listen: "0.0.0.0:0".into(), insecure_http, ..ServerConfig::default() };
    let dir = tempfile::tempdir().unwrap();
    let refused =
        Server::bind(&ServerConfig { state_dir: dir.path().into(), ..config(false) }).await.unwrap_err();
    assert!(refused.to_string().contains("in the clear"), "{refused}");
    assert!(refused.hints().iter().any(|hint| hint.contains("--insecure-http")));
    assert!(!dir.path().join("server").exists(), "nothing is half done");
    assert!(Server::bind(&ServerConfig { state_dir: dir.path().into(), ..config(true) }).await.is_ok());
}

#[tokio::test]
async fn a_client_says_what_is_wrong_with_the_certificate() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let files = authority.issue(dir.path(), &["localhost"], |_| ());
    let ca = authority.file(dir.path());
    let server = start(files, &ca, Duration::from_secs(60)).await;
    let url = server.client.url().to_owned();
    assert!(url.starts_with("https://localhost:"), "the name is the certificate's: {url}");
    server.task("over TLS").await;
    let keys = CredentialsFile::read(server.dir.path()).unwrap().unwrap().credentials();
    let said = |url: String, ca: PathBuf| {
        let client =
            Client::with_tls(&url, keys.clone(), &ClientTls { ca: Some(ca), identity: None }).unwrap();
        async move {
            let error = client.call_value("debug.ping", &serde_json::json!({})).await.unwrap_err();
            format!("{error} | {}", error.hints().join(" | "))
        }
    };
    let line = said(url.replace("localhost", "127.0.0.1"), ca.clone()).await;
    assert!(line.contains("for another name"), "{line}");
    let stranger = tempfile::tempdir().unwrap();
    let line = said(url.clone(), Authority::new().file(stranger.path())).await;
    assert!(line.contains("does not trust") && line.contains("--ca FILE"), "{line}");
    let line = said(url.replace("https", "http"), ca.clone()).await;
    assert!(line.contains("speaks TLS") && line.contains("https://"), "{line}");
    let plain = TestServer::start().await;
    let line = said(plain.client.url().replace("http", "https"), ca).await;
    assert!(line.contains("does not speak TLS") && line.contains("http://"), "{line}");
    let no_file = ClientTls { ca: Some("/nonexistent".into()), identity: None };
    assert!(matches!(Client::with_tls(&url, keys.clone(), &no_file), Err(WireError::File { .. })));
    let no_cert = ClientTls { ca: Some("/etc/hostname".into()), identity: None };
    assert!(matches!(Client::with_tls(&url, keys, &no_cert), Err(WireError::Certificates { .. })));
}

/// A connection that was there before stays, and is answered, over the change.
#[tokio::test]
async fn a_new_certificate_is_shown_without_dropping_connections() {
    let (dir, first) = (tempfile::tempdir().unwrap(), Authority::new());
    let files = first.issue(dir.path(), &["localhost"], |_| ());
    let ca = first.file(dir.path());
    // The first connection is still there at the end, however long the change takes.
    let server = start(files, &ca, Duration::from_secs(600)).await;
    server.task("with the first").await;
    // Half a file, or one of another pair, changes nothing.
    std::fs::write(dir.path().join("tls.crt"), "-----BEGIN CERT").unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    common::create_task(&trusting(&server, &ca), "still with the first").await;
    let other = tempfile::tempdir().unwrap();
    let second = Authority::new();
    second.issue(dir.path(), &["localhost"], |_| ());
    let ca = second.file(other.path());
    timeout(Duration::from_secs(60), async {
        while trusting(&server, &ca).call_value("debug.ping", &serde_json::json!({})).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
    // Its client trusts only the first authority: a new connection of it would be refused.
    server.task("on the first connection").await;
}

fn trusting(server: &TestServer, ca: &Path) -> Client {
    let keys = CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let tls = ClientTls { ca: Some(ca.to_owned()), identity: None };
    Client::with_tls(server.client.url(), keys.credentials(), &tls).unwrap()
}

#[tokio::test]
async fn agents_show_a_certificate_where_the_server_wants_one() {
    let (dir, authority, other) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let mut files = authority.issue(dir.path(), &["localhost"], |_| ());
    let ca = authority.file(dir.path());
    files.client_ca = Some(ca.clone());
    let server = start(files, &ca, Duration::from_secs(60)).await;
    let register = Register { worker: "w".into(), ..Register::default() };
    server.task("people need none").await;
    assert_eq!(server.refused(&register).await.0, 403);
    let agent = |issuer: &Authority| {
        let dir = tempfile::tempdir().unwrap();
        let files = issuer.issue(dir.path(), &["gpu1"], |_| ());
        let tls = ClientTls { ca: Some(ca.clone()), identity: Some((files.cert, files.key)) };
        let keys = CredentialsFile::read(server.dir.path()).unwrap().unwrap();
        Client::with_tls(server.client.url(), keys.credentials(), &tls).unwrap()
    };
    agent(&authority).call(&register).await.unwrap();
    let refused = agent(&other).call(&register).await.unwrap_err();
    assert!(matches!(refused, WireError::Distrusted { .. } | WireError::Unreachable { .. }), "{refused}");
}

/// The limits of plain connections also hold before a handshake is done.
#[tokio::test]
async fn handshakes_that_never_end_are_closed_and_others_served() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let files = authority.issue(dir.path(), &["localhost"], |_| ());
    let ca = authority.file(dir.path());
    let server = start(files, &ca, Duration::from_secs(5)).await;
    let address = server.client.url().strip_prefix("https://").unwrap().to_owned();
    let mut silent = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        match n % 3 {
            // Nothing at all; the head of a handshake; one byte after the other, for longer than a handshake may take.
            0 => {}
            1 => stream.write_all(&[0x16, 3, 1, 2, 0]).await.unwrap(),
            _ => stream.write_all(&[0x16]).await.unwrap(),
        }
        silent.push(stream);
    }
    server.task("meanwhile").await;
    for stream in &mut silent {
        // A client that keeps sending a little is no less slow. The server may have closed it by now.
        let _ = stream.write_all(&[3]).await;
    }
    for mut stream in silent {
        let mut rest = Vec::new();
        let closed = timeout(Duration::from_secs(90), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "still open");
    }
    common::create_task(&trusting(&server, &ca), "afterwards").await;
}

#[tokio::test]
async fn keys_come_before_the_body_over_tls_too() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let files = authority.issue(dir.path(), &["localhost"], |_| ());
    let ca = authority.file(dir.path());
    let server = start(files, &ca, Duration::from_secs(60)).await;
    let http = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&std::fs::read(&ca).unwrap()).unwrap()])
        .build()
        .unwrap();
    let answer = http.post(format!("{}/tasks.create", server.client.url())).body(vec![b'x'; 1 << 20]);
    assert_eq!(answer.send().await.unwrap().status(), 401);
}
