//! HTTP as the real clients speak it, and malformed requests.

use cantle_clearml::{Client, Credentials, Listing, WireError, projects, queues};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::common::TestServer;

#[tokio::test]
async fn get_with_body_any_version_any_field() {
    let server = TestServer::start().await;
    let url = server.client.url().to_owned();
    let credentials = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let http = reqwest::Client::new();
    let login = http.get(format!("{url}/auth.login"));
    let login =
        login.basic_auth(&credentials.access_key, Some(&credentials.secret_key)).send().await.unwrap();
    let login: Value = serde_json::from_slice(&login.bytes().await.unwrap()).unwrap();
    let token = login["data"]["token"].as_str().unwrap();
    for path in ["v2.23/queues.create", "queues.create", "v2.5/queues.create", "api/v2.9/queues.create"] {
        let body = json!({"name": path, "method": "get", "unheard_of": {"x": [null]}}).to_string();
        let answer = http.get(format!("{url}/{path}")).bearer_auth(token).body(body).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(answer["meta"]["endpoint"]["name"], "queues.create");
        assert_eq!(answer["data"]["id"].as_str().unwrap().len(), 32);
    }
    let healthy = http.get(format!("{url}/healthz")).send().await.unwrap();
    assert_eq!(healthy.status(), 200, "without credentials");
}

#[tokio::test]
async fn wrong_credentials_and_no_server() {
    let server = TestServer::start().await;
    let wrong = Credentials { access_key: "X".into(), secret_key: "Y".into() };
    let stranger = Client::new(server.client.url(), wrong.clone()).unwrap();
    let denied = stranger.call(&queues::GetAll::default()).await.unwrap_err();
    assert!(matches!(denied, WireError::Unauthorized { .. }), "{denied}");
    let nobody = Client::new("http://127.0.0.1:9", wrong).unwrap();
    let away = nobody.call(&queues::GetAll::default()).await.unwrap_err();
    assert!(away.is_temporary() && away.to_string().starts_with("cannot reach the server at"), "{away}");
}

#[tokio::test]
async fn a_client_survives_a_server_that_forgot_its_token() {
    let server = TestServer::start().await;
    server.queue("q").await;
    std::fs::remove_file(server.dir.path().join("server/token.key")).unwrap();
    let (old, server) = {
        let credentials = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
        (credentials, server.restart().await)
    };
    assert_eq!(server.client.call(&queues::GetAll::default()).await.unwrap().queues.len(), 1);
    let new = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    assert_eq!((old.access_key, old.secret_key), (new.access_key, new.secret_key));
}

#[tokio::test]
async fn malformed_requests_get_400() {
    let server = TestServer::start().await;
    for (endpoint, body) in [
        ("tasks.create", "{"),
        ("tasks.create", "[]"),
        ("tasks.create", "{}"),
        ("tasks.create", r#"{"name":1,"type":"training"}"#),
        ("tasks.get_all", r#"{"status":["nonsense"]}"#),
        ("tasks.get_all", r#"{"order_by":["nonsense"]}"#),
        ("events.add_batch", "not json"),
        ("events.add_batch", r#"{"type":"log","task":"nope","msg":"x"}"#),
        ("no.such", "{}"),
        ("nonsense", "{}"),
    ] {
        let (status, _, envelope) = server.raw(endpoint, body).await;
        assert_eq!(status, 400, "{endpoint} {body}");
        assert_ne!(envelope["meta"]["result_msg"], "OK");
    }
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let (status, ..) = server.raw("tasks.edit", &format!(r#"{{"task":"x","runtime":{deep}}}"#)).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn uploads_come_back() {
    let server = TestServer::start().await;
    let credentials = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let http = reqwest::Client::new();
    let url = format!("{}/files", server.client.url());
    let name = "P1/train.97fb/artifacts/d/ü d.json";
    let body = format!(
        "--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"d.json\"\r\n\r\n{{\"a\": 1}}\r\n--b--\r\n"
    );
    let post = |body: String| {
        let request = http.post(&url).basic_auth(&credentials.access_key, Some(&credentials.secret_key));
        request.header("Content-Type", "multipart/form-data; boundary=b").body(body).send()
    };
    let stored = post(body.clone()).await.unwrap();
    assert_eq!(stored.status(), 200);
    assert_eq!(stored.text().await.unwrap(), json!([name]).to_string());
    let get = |path: &str| {
        http.get(format!("{url}/{path}"))
            .basic_auth(&credentials.access_key, Some(&credentials.secret_key))
            .send()
    };
    assert_eq!(get(name).await.unwrap().text().await.unwrap(), r#"{"a": 1}"#);
    let large = "x".repeat(5 << 20);
    assert_eq!(post(body.replace("{\"a\": 1}", &large)).await.unwrap().status(), 200);
    assert_eq!(get(name).await.unwrap().text().await.unwrap(), large, "more than one piece");
    assert_eq!(get("P1").await.unwrap().status(), 404, "a directory is not an object");
    assert_eq!(get("P1/absent").await.unwrap().status(), 404);
    assert_eq!(get("%2e%2e/credentials.json").await.unwrap().status(), 400);
    assert_eq!(post(body.replace(name, "../../x")).await.unwrap().status(), 400);
    assert_eq!(http.get(format!("{url}/{name}")).send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn null_is_absent() {
    let server = TestServer::start().await;
    let (status, ..) = server.raw("projects.create", r#"{"name":"P","description":null,"tags":null}"#).await;
    assert_eq!(status, 200);
    let found = server.client.call(&projects::GetAll { list: Listing::named("^P$") }).await;
    assert_eq!(found.unwrap().projects.len(), 1);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\\PC]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(known_field(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Names that endpoints look for, so that random bodies get past the first check.
fn known_field() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "task",
        "queue",
        "name",
        "type",
        "id",
        "ids",
        "tasks",
        "worker",
        "status",
        "force",
        "project",
        "hyperparams",
        "only_fields",
        "order_by",
        "page",
        "page_size",
        "tags",
        "runtime",
        "script",
        "execution",
        "container",
        "artifacts",
        "models",
        "metadata",
        "events",
        "node",
        "gpus",
        "slices",
        "lease",
        "scroll_id",
        "event_type",
        "batch_size",
        "key",
        "samples",
        "limit",
        "after",
        "_any_",
        "_all_",
        "last_seen",
        "worker_pattern",
        "timestamp",
        "iter",
        "metric",
        "variant",
        "value",
        "msg",
        "runtime_properties",
        "machine_stats",
        "count",
        "new_status",
        "from_date",
        "to_date",
        "interval",
        "items",
        "queue_ids",
        "worker_ids",
        "refresh",
        "iters",
    ])
    .prop_map(str::to_owned)
}

/// For any input: an envelope goes out, and never a 500.
#[test]
fn random_json_never_breaks_the_server() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(TestServer::start());
    let (_, _, answer) = runtime.block_on(server.raw("server.endpoints", "{}"));
    let mut endpoints: Vec<String> = serde_json::from_value(answer["data"]["endpoints"].clone()).unwrap();
    // Its answers have no envelope: `metering` tests it.
    endpoints.retain(|endpoint| endpoint != "get_usages");
    assert!(endpoints.len() > 70, "{} endpoints", endpoints.len());
    // Something to hit.
    let queue = runtime.block_on(server.queue("q"));
    let task = runtime.block_on(server.task("t"));
    let config = ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(endpoint in prop::sample::select(endpoints), mut body in any_json(), real in 0..4)| {
        if let Value::Object(fields) = &mut body {
            if real > 0 { fields.insert("task".into(), json!(task)); }
            if real > 1 { fields.insert("queue".into(), json!(queue)); }
        }
        let (status, _, envelope) = runtime.block_on(server.raw(&endpoint, &body.to_string()));
        prop_assert!(matches!(status, 200 | 400), "{} {} → {}", endpoint, body, envelope);
    });
}
