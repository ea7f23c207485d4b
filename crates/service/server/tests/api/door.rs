//! Callers without keys: their data is not stored, and their open connections are closed.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_server::ServerConfig;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::common::{self, TestServer};

/// Longer than a machine under load takes for anything here.
const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(server: &TestServer) -> TcpStream {
    TcpStream::connect(server.client.url().strip_prefix("http://").unwrap()).await.unwrap()
}

#[tokio::test]
async fn keys_come_before_the_body() {
    let server = TestServer::start().await;
    let mut stream = connect(&server).await;
    let head = "POST /tasks.create HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401", "though the body has not come");
}

/// Without keys, and with a body that no socket's buffers hold.
#[tokio::test]
async fn a_client_that_still_sends_gets_its_answer() {
    let server = TestServer::start().await;
    for _ in 0..5 {
        let mut stream = connect(&server).await;
        let body = vec![b' '; 8 << 20];
        let head =
            format!("POST /tasks.create HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 401"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn a_body_has_a_limit() {
    let server = TestServer::start().await;
    let body = json!({"name": "x".repeat(17 << 20), "type": "training"}).to_string();
    let refused =
        server.client.call_value("tasks.create", &serde_json::from_str(&body).unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("16 MiB"), "{refused}");
}

#[tokio::test]
async fn silent_connections_are_closed_and_others_served() {
    let config = ServerConfig { silence: Duration::from_secs(1), ..ServerConfig::default() };
    let server = TestServer::start_with(tempfile::tempdir().unwrap(), config).await;
    let mut silent = Vec::new();
    for n in 0..200 {
        let mut stream = connect(&server).await;
        if n % 2 == 0 {
            stream.write_all(b"POST /tasks.create HTTP/1.1\r\nHo").await.unwrap();
        }
        silent.push(stream);
    }
    server.task("meanwhile").await;
    for mut stream in silent {
        let mut rest = Vec::new();
        // Closed, with or without an answer before it.
        let closed = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "still open");
    }
    // The first client's own connection is being closed at about this moment.
    let afterwards = server.another_client();
    common::create_task(&afterwards, "afterwards").await;
}

/// Sends a byte every half second; how long it may.
async fn drip(stream: &mut TcpStream, seconds: u64) -> Option<Duration> {
    let started = tokio::time::Instant::now();
    let mut space = [0; 1024];
    while started.elapsed() < Duration::from_secs(seconds) {
        let read = timeout(Duration::from_millis(500), stream.read(&mut space)).await;
        if matches!(read, Ok(Ok(0) | Err(_))) || stream.write_all(b"a").await.is_err() {
            return Some(started.elapsed());
        }
    }
    None
}

#[tokio::test]
async fn a_stranger_says_in_time_what_it_wants() {
    let server = TestServer::start().await;
    let begin = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Drip: ";
    let mut stranger = connect(&server).await;
    stranger.write_all(begin).await.unwrap();
    // After a first answer, too.
    let mut answered = connect(&server).await;
    answered.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    timeout(PATIENCE, answered.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    answered.write_all(begin).await.unwrap();
    // The negative control: a connection that has shown a key.
    let keys = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let pair = STANDARD.encode(format!("{}:{}", keys.access_key, keys.secret_key));
    let mut known = connect(&server).await;
    let login = format!(
        "POST /debug.ping HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {pair}\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    known.write_all(login.as_bytes()).await.unwrap();
    timeout(PATIENCE, known.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    known.write_all(begin).await.unwrap();
    let (stranger, answered, known) =
        tokio::join!(drip(&mut stranger, 30), drip(&mut answered, 30), drip(&mut known, 14));
    for closed in [stranger, answered] {
        let after = closed.expect("it is still open");
        assert!(after > Duration::from_secs(5), "{after:?}: there is time for a slow line");
    }
    assert_eq!(known, None);
}

/// No answer is a page by accident: what a browser shows of the API and of files has no scripts and no other site around it.
#[tokio::test]
async fn answers_say_that_they_are_no_pages() {
    let server = TestServer::start().await;
    let http = reqwest::Client::new();
    for path in ["debug.ping", "tasks.get_all", "files/x/y.html", "healthz", "metrics", "no.such"] {
        let answer = http.get(format!("{}/{path}", server.client.url())).send().await.unwrap();
        let header = |name: &str| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header("x-content-type-options").as_deref(), Some("nosniff"), "{path}");
        let policy = header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && policy.contains("sandbox"), "{path}: {policy}");
        assert_eq!(header("strict-transport-security"), None, "{path}: it is plain HTTP");
    }
}

/// Wrong keys are answered later and later, the right ones at once.
#[tokio::test]
async fn guessing_keys_becomes_slow() {
    let server = TestServer::start().await;
    let http = reqwest::Client::new();
    let guess = |n: u32| {
        let request = http.get(format!("{}/debug.ping", server.client.url()));
        request.basic_auth("NOSUCHKEY", Some(format!("guess{n}"))).send()
    };
    let began = tokio::time::Instant::now();
    for n in 0..40 {
        assert_eq!(guess(n).await.unwrap().status(), 401);
    }
    let guessed = began.elapsed();
    // Without a delay it takes a fraction of that. The 21st to 40th wait 0.1, 0.2, … s, less what is forgiven meanwhile.
    assert!(guessed > Duration::from_secs(5), "{guessed:?}");
    let keys = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let request = http.get(format!("{}/debug.ping", server.client.url()));
    let right = request.basic_auth(&keys.access_key, Some(&keys.secret_key)).send();
    let right = tokio::select! {
        answer = right => answer.unwrap(),
        _ = guess(41) => panic!("a wrong key was answered before the right one"),
    };
    assert_eq!(right.status(), 200);
}
