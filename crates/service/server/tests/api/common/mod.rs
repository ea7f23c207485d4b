//! A server of the test's own, on loopback, with a client for it.

use cantle_clearml::cantle::{GpuView, NodeQueue, ReportNode};
use cantle_clearml::tasks::{Create, Enqueue};
use cantle_clearml::{Client, ClientTls, Credentials, Request, TaskRequest, queues};
use cantle_model::GpuMode;
use cantle_server::{Server, ServerConfig};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) struct TestServer {
    pub(crate) client: Client,
    pub(crate) dir: tempfile::TempDir,
    http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), false).await
    }

    /// One that answers like ClearML's open-source server.
    pub(crate) async fn start_open_source() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), true).await
    }

    pub(crate) async fn start_in(dir: tempfile::TempDir, open_source: bool) -> Self {
        Self::start_with(dir, ServerConfig { open_source, ..ServerConfig::default() }).await
    }

    /// A server with this configuration.
    pub(crate) async fn start_with(dir: tempfile::TempDir, config: ServerConfig) -> Self {
        Self::start_trusting(dir, config, &ClientTls::default()).await
    }

    /// The same, with a client that trusts the authorities of `tls`.
    pub(crate) async fn start_trusting(
        dir: tempfile::TempDir,
        config: ServerConfig,
        tls: &ClientTls,
    ) -> Self {
        let db = match config.db {
            None => database_of(dir.path()).await,
            db => db,
        };
        let config = ServerConfig { state_dir: dir.path().to_owned(), db, ..config };
        let server = Server::bind(&config).await.unwrap();
        let client = Client::with_tls(server.url(), server.credentials(), tls).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { drop(stopped.await) };
        let serving = tokio::spawn(async { server.serve(shutdown).await.unwrap() });
        Self { client, dir, http: reqwest::Client::new(), stop: Some(stop), serving: Some(serving) }
    }

    /// Stops it and starts another one on the same directory.
    pub(crate) async fn restart(self) -> Self {
        self.restart_with(ServerConfig::default()).await
    }

    /// The same, with this configuration.
    pub(crate) async fn restart_with(mut self, config: ServerConfig) -> Self {
        drop(self.stop.take());
        self.serving.take().unwrap().await.unwrap();
        let Self { dir, .. } = self;
        Self::start_with(dir, config).await
    }

    /// Ends it.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        self.serving.take().unwrap().await.unwrap();
    }

    /// Its database, opened once more.
    pub(crate) async fn store(&self) -> cantle_store::Store {
        let db = database_of(self.dir.path()).await;
        let file = || self.dir.path().join("server/cantle.db").display().to_string();
        cantle_store::Store::connect(&db.unwrap_or_else(file).parse().unwrap()).await.unwrap()
    }

    /// Runs a statement on its database, past the server.
    pub(crate) async fn meddle(&self, sql: &'static str) {
        use sqlx::Connection as _;
        match database_of(self.dir.path()).await {
            Some(address) => {
                let mut connection = sqlx::PgConnection::connect(&address).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            }
            None => {
                let file = self.dir.path().join("server/cantle.db");
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
                let mut connection = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
                sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
            }
        }
    }

    /// A client with connections of its own.
    pub(crate) fn another_client(&self) -> Client {
        let credentials = cantle_server::CredentialsFile::read(self.dir.path()).unwrap().unwrap();
        Client::new(self.client.url(), credentials.credentials()).unwrap()
    }

    pub(crate) async fn queue(&self, name: &str) -> String {
        let create = queues::Create { name: name.into(), ..queues::Create::default() };
        self.client.call(&create).await.unwrap().id
    }

    pub(crate) async fn task(&self, name: &str) -> String {
        create_task(&self.client, name).await
    }

    /// A task with these fields of `tasks.create`.
    pub(crate) async fn task_from(&self, fields: &Value) -> String {
        self.client.call_value("tasks.create", fields).await.unwrap()["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn enqueue(&self, task: &str, queue: &str) {
        let request = Enqueue { task: task.into(), queue: Some(queue.into()), ..Enqueue::default() };
        assert_eq!(self.client.call(&request).await.unwrap().queued, 1);
    }

    pub(crate) async fn take(&self, queue: &str) -> Option<String> {
        let request = queues::GetNextTask { queue: queue.into(), ..queues::GetNextTask::default() };
        self.client.call(&request).await.unwrap().entry.map(|entry| entry.task)
    }

    /// The status and the answer of a call with these keys.
    pub(crate) async fn call_as(&self, who: &Credentials, endpoint: &str, body: &Value) -> (u16, Value) {
        let request = self.http.post(format!("{}/{endpoint}", self.client.url()));
        let request = request.basic_auth(&who.access_key, Some(&who.secret_key));
        let answer = request.body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The agent of this node reports GPUs and the queue q. The report holds for as long as a test takes.
    pub(crate) async fn report_gpus(&self, node: &str, gpus: Vec<GpuView>) {
        let queues = vec![NodeQueue { name: "q".into(), spec: "task".into() }];
        let (node, worker) = (node.to_owned(), format!("{node}:dgpu0"));
        let report = ReportNode { node, worker, queues, gpus, interval_ms: 600_000, ..ReportNode::default() };
        self.client.call(&report).await.unwrap();
    }

    /// Code and subcode of a refusal.
    pub(crate) async fn refused<R: Request>(&self, request: &R) -> (u16, u32) {
        match self.client.call(request).await {
            Err(cantle_clearml::WireError::Refused { code, subcode, .. }) => (code, subcode),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{} was not refused", R::ENDPOINT),
        }
    }

    /// The text of `/metrics`.
    pub(crate) async fn metrics(&self) -> String {
        let credentials = cantle_server::CredentialsFile::read(self.dir.path()).unwrap().unwrap();
        let request = self.http.get(format!("{}/metrics", self.client.url()));
        let request = request.basic_auth(&credentials.access_key, Some(&credentials.secret_key));
        request.send().await.unwrap().text().await.unwrap()
    }

    /// Status of HTTP and the envelope's two codes, for a body as it is.
    pub(crate) async fn raw(&self, endpoint: &str, body: &str) -> (u16, u64, Value) {
        let credentials = cantle_server::CredentialsFile::read(self.dir.path()).unwrap().unwrap();
        let request = self.http.post(format!("{}/{endpoint}", self.client.url()));
        let request = request.basic_auth(&credentials.access_key, Some(&credentials.secret_key));
        let answer = request.body(body.to_owned()).send().await.unwrap();
        let status = answer.status().as_u16();
        let envelope: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(envelope["meta"]["result_code"], json!(status));
        (status, envelope["meta"]["result_subcode"].as_u64().unwrap(), envelope)
    }
}

/// A GPU of 40 GiB that slices share.
pub(crate) fn gpu_view(uuid: &str, model: &str) -> GpuView {
    GpuView {
        index: 0,
        uuid: uuid.to_owned(),
        model: model.to_owned(),
        memory_bytes: 40 << 30,
        mode: GpuMode::Shared,
        allocated_milli: 0,
        slices: Vec::new(),
        foreign: Vec::new(),
        fault: None,
    }
}

pub(crate) async fn create_task(client: &Client, name: &str) -> String {
    let request = TaskRequest { command: vec!["true".into()], ..TaskRequest::default() };
    let fields = Map::from_iter([("hyperparams".to_owned(), json!(request.to_hyperparams()))]);
    let create = Create { name: name.into(), kind: "training".into(), fields };
    client.call(&create).await.unwrap().id
}

/// The database of the server in this directory: a schema of its own on the PostgreSQL that `CANTLE_TEST_POSTGRES` names
/// (`tests/postgres` starts one), or else the default file.
pub(crate) async fn database_of(dir: &std::path::Path) -> Option<String> {
    use sqlx::Connection as _;
    let server = std::env::var("CANTLE_TEST_POSTGRES").ok().filter(|url| !url.is_empty())?;
    let name: String = dir.file_name()?.to_str()?.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("s{}{}", std::process::id(), name.to_lowercase());
    let mut connection = sqlx::PgConnection::connect(&format!("{server}/postgres")).await.unwrap();
    let make = format!("CREATE SCHEMA IF NOT EXISTS {name}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(&mut connection).await.unwrap();
    Some(format!("{server}/postgres?options=-c%20search_path%3D{name}"))
}
