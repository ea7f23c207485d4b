//! A disk that is full or broken, at every write of the server: a library put before libc makes one write after the other
//! fail, once or from then on. It replaces the disk; the server, its database and its files are real.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cantle_clearml::{Client, queues};
use cantle_server::CredentialsFile;
use serde_json::{Value, json};

use crate::common::create_task;

const ENOSPC: i64 = 28;
const EIO: i64 = 5;
/// No call writes more often than this.
const WRITES: i64 = 200;

/// The library, and the file that tells it what is to fail.
struct Faults {
    library: PathBuf,
    control: std::fs::File,
    path: PathBuf,
    dir: PathBuf,
    /// Only writes below it fail.
    below: PathBuf,
}

impl Faults {
    fn new(work: &Path, dir: &Path) -> Self {
        let library = work.join("faults.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(gcc.status().unwrap().success());
        let path = work.join("control");
        std::fs::write(&path, [0; 32]).unwrap();
        let control = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        Self { library, control, path, dir: dir.to_owned(), below: dir.to_owned() }
    }

    /// After `until` writes that go well, the next one fails with this error, or with `lasts` all do.
    fn arm(&self, until: i64, error: i64, lasts: bool) {
        let words = [until, 0, i64::from(lasts), 0];
        self.control.write_all_at(&words.map(i64::to_le_bytes).concat(), 0).unwrap();
        self.control.write_all_at(&error.to_le_bytes(), 8).unwrap();
    }

    /// From now on everything goes well. Returns how many writes failed.
    fn disarm(&self) -> i64 {
        self.control.write_all_at(&0_i64.to_le_bytes(), 8).unwrap();
        let mut failed = [0; 8];
        self.control.read_exact_at(&mut failed, 24).unwrap();
        i64::from_le_bytes(failed)
    }

    /// A server whose writes can fail; `None` if it did not start.
    fn serve(&self) -> Option<(Process, Client)> {
        let tests = std::env::current_exe().unwrap();
        let program = tests.ancestors().nth(2).unwrap().join("examples/serve");
        let child = Command::new(program)
            .arg(&self.dir)
            .env("LD_PRELOAD", &self.library)
            .env("FAULT_CONTROL", &self.path)
            .env("FAULT_DIR", &self.below)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Process(child);
        let mut url = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
        if url.is_empty() {
            assert!(!child.0.wait().unwrap().success());
            return None;
        }
        let keys = CredentialsFile::read(&self.dir).unwrap().unwrap();
        Some((child, Client::new(url.trim(), keys.credentials()).unwrap()))
    }
}

/// A server that ends with the test, however that ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn health(client: &Client) -> (u16, String) {
    let answer = reqwest::get(format!("{}/healthz", client.url())).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

async fn field(client: &Client, task: &str, name: &str) -> Value {
    client.call_value("tasks.get_by_id", &json!({"task": task})).await.unwrap()["task"][name].clone()
}

/// The calls that are tried: each with what must be seen afterwards if it was refused, and if not.
async fn call(
    client: &Client,
    name: &str,
    task: &str,
    queue: &str,
) -> Result<Value, cantle_clearml::WireError> {
    let body = match name {
        "tasks.enqueue" => json!({"task": task, "queue": queue}),
        "tasks.create" => {
            json!({"name": format!("made {task}"), "type": "training", "comment": "x".repeat(20_000)})
        }
        "events.add" => json!({"type": "log", "task": task, "msg": "line"}),
        _ => json!({"task": task}),
    };
    client.call_value(name, &body).await
}

/// Is what the call does there (`true`), or nothing of it (`false`)? Anything between is half done.
async fn is_done(client: &Client, name: &str, task: &str, queue: &str) -> bool {
    let status = field(client, task, "status").await;
    let entries = client.call_value("queues.get_by_id", &json!({"queue": queue})).await.unwrap();
    let waits = entries["queue"]["entries"].as_array().unwrap().iter().any(|entry| entry["task"] == task);
    assert_eq!(waits, status == "queued", "{name}: {status} and in the queue: {waits}");
    match name {
        "tasks.enqueue" => waits,
        "tasks.started" => {
            assert_eq!(field(client, task, "started").await.is_null(), status != "in_progress");
            status == "in_progress"
        }
        "tasks.create" => {
            let wanted = json!({"name": format!("^made {task}$")});
            let found = client.call_value("tasks.get_all", &wanted).await.unwrap();
            !found["tasks"].as_array().unwrap().is_empty()
        }
        _ => {
            let log = client.call_value("events.get_task_log", &json!({"task": task})).await.unwrap();
            log["total"] != 0
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_at_any_write_stops_nobody_for_good() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let faults = Faults::new(work.path(), state.path());
    let (child, client) = faults.serve().unwrap();
    let queue =
        client.call(&queues::Create { name: "q".into(), ..queues::Create::default() }).await.unwrap().id;
    let mut points = 0;
    for name in ["tasks.create", "tasks.enqueue", "tasks.started", "events.add"] {
        for (error, lasts) in [(ENOSPC, false), (ENOSPC, true), (EIO, false), (EIO, true)] {
            for until in 0..WRITES {
                let task = create_task(&client, name).await;
                faults.arm(until, error, lasts);
                let answer = call(&client, name, &task, &queue).await;
                let told = (lasts && answer.is_err()).then_some(health(&client).await);
                let failed = faults.disarm();
                let at = format!("{name}, errno {error}, lasting {lasts}, write {until}");
                if let Err(error) = &answer {
                    assert!(error.is_temporary() && error.to_string().contains("disk"), "{at}: {error}");
                    assert!(failed > 0, "{at}: {error}");
                }
                if let Some((status, text)) = told {
                    assert!(status == 503 && text.contains("disk"), "{at}: health said {status} {text}");
                }
                assert_eq!(health(&client).await, (200, "ok\n".to_owned()), "{at}: health afterwards");
                assert_eq!(is_done(&client, name, &task, &queue).await, answer.is_ok(), "{at}");
                if answer.is_err() {
                    call(&client, name, &task, &queue)
                        .await
                        .unwrap_or_else(|error| panic!("{at}, again: {error}"));
                    assert!(is_done(&client, name, &task, &queue).await, "{at}, again");
                }
                points += failed.min(1);
                if failed == 0 {
                    break;
                }
            }
        }
    }
    drop(child);
    eprintln!("{points} writes failed");
    assert!(points > 40, "only {points} writes failed: does the library work?");
}

/// At every eleventh write of a start, with both errors in turn: the next start goes well, with whole keys.
#[test]
fn a_start_that_was_cut_off_is_made_good_by_the_next() {
    let work = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for (until, error) in (0..WRITES * 4).step_by(11).zip([ENOSPC, EIO].into_iter().cycle()) {
        let state = tempfile::tempdir().unwrap();
        let faults = Faults::new(work.path(), state.path());
        faults.arm(until, error, true);
        let started = faults.serve();
        let failed = faults.disarm();
        refused += i32::from(started.is_none());
        if let Some((child, _)) = started {
            drop(child);
        }
        let (child, _) = faults.serve().unwrap_or_else(|| panic!("errno {error}, write {until}"));
        drop(child);
        if failed == 0 {
            break;
        }
    }
    assert!(refused > 5, "only {refused} starts failed: does the library work?");
}

#[tokio::test]
async fn an_upload_that_failed_leaves_nothing() {
    let (work, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut faults = Faults::new(work.path(), state.path());
    // Not those of the database: the server writes there by itself, too, and such a write would fail in place of the upload's.
    faults.below = state.path().join("server/files");
    let (child, client) = faults.serve().unwrap();
    let keys = CredentialsFile::read(state.path()).unwrap().unwrap();
    let body =
        "--b\r\nContent-Disposition: form-data; name=\"P/x\"; filename=\"x\"\r\n\r\nhello\r\n--b--\r\n";
    let post = || {
        let request = reqwest::Client::new().post(format!("{}/files", client.url()));
        let request = request.basic_auth(&keys.access_key, Some(&keys.secret_key));
        request.header("Content-Type", "multipart/form-data; boundary=b").body(body).send()
    };
    for until in 0..WRITES {
        faults.arm(until, ENOSPC, false);
        let status = post().await.unwrap().status().as_u16();
        if faults.disarm() == 0 {
            assert!(status == 200 && until > 2, "{until}");
            break;
        }
        assert_eq!(status, 507, "write {until}");
        assert!(!state.path().join("server/files/P/x").exists(), "write {until}");
        let left = std::fs::read_dir(state.path().join("server/files"));
        let left: Vec<_> = left.into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "P"), "write {until} left {left:?}");
    }
    drop(child);
}
