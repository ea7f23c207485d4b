//! Many clients at once, large requests, and a server that is killed in the middle of them.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cantle_clearml::events::{ReportedEvent, SCALAR};
use cantle_clearml::tasks::{Enqueue, GetAll, Started};
use cantle_clearml::{Client, Credentials, queues};
use cantle_server::CredentialsFile;
use serde_json::json;
use tokio::task::JoinSet;

use crate::common::{TestServer, create_task};

async fn next(client: &Client, queue: &str) -> Result<Option<String>, cantle_clearml::WireError> {
    let request = queues::GetNextTask { queue: queue.into(), ..queues::GetNextTask::default() };
    Ok(client.call(&request).await?.entry.map(|entry| entry.task))
}

fn client(credentials: &Credentials, url: &str) -> Client {
    Client::new(url, credentials.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tasks_and_twenty_agents() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let mut expected = BTreeSet::new();
    for n in 0..1000 {
        let id = server.task(&n.to_string()).await;
        server.enqueue(&id, &queue).await;
        expected.insert(id);
    }
    let file = CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let mut agents = JoinSet::new();
    for _ in 0..20 {
        let (queue, client) = (queue.clone(), client(&file.credentials(), &file.url));
        agents.spawn(async move {
            let mut mine = Vec::new();
            while let Some(task) = next(&client, &queue).await.unwrap() {
                client.call(&Started { task: task.clone(), ..Started::default() }).await.unwrap();
                mine.push(task);
            }
            mine
        });
    }
    let all = agents.join_all().await.concat();
    assert_eq!(all.len(), 1000, "each exactly once");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn scalars_are_quick_and_exact() {
    const POINTS: i64 = 100_000;
    let server = TestServer::start().await;
    let task = server.task("t").await;
    let value = |iter: i64| 1.0 / f64::from(i32::try_from(iter).unwrap() + 1) * 1e-7;
    let point = |iter: i64| ReportedEvent {
        kind: SCALAR.into(),
        task: task.clone(),
        timestamp: Some(1_000 + iter),
        metric: Some("loss".into()),
        variant: Some(format!("line {}", iter % 4)),
        iter: Some(iter),
        value: Some(value(iter)),
        ..ReportedEvent::default()
    };
    let points: Vec<ReportedEvent> = (0..POINTS).map(point).collect();
    let begin = tokio::time::Instant::now();
    for batch in points.chunks(5000) {
        assert_eq!(server.client.add_batch(batch).await.unwrap().added, 5000);
    }
    let took = begin.elapsed();
    eprintln!("{POINTS} scalars in {took:?}");
    // A second or two on an idle machine; a batch that became slower with the number of stored events would take longer
    // than this.
    assert!(took.as_secs() < 120, "{took:?}");
    let (mut seen, mut scroll) = (0, String::new());
    loop {
        let page = json!({
            "task": task, "event_type": SCALAR, "batch_size": 10_000, "scroll_id": scroll,
        });
        let page = server.client.call_value("events.get_task_events", &page).await.unwrap();
        let events = page["events"].as_array().unwrap();
        if events.is_empty() {
            break;
        }
        for event in events {
            assert_eq!(
                event["value"].as_f64().unwrap().to_bits(),
                value(event["iter"].as_i64().unwrap()).to_bits()
            );
        }
        seen += events.len();
        scroll = page["scroll_id"].as_str().unwrap().to_owned();
    }
    assert_eq!(i64::try_from(seen).unwrap(), POINTS);
    let graph = json!({"task": task, "samples": 1000});
    let graph = server.client.call_value("events.scalar_metrics_iter_histogram", &graph).await.unwrap();
    assert_eq!(graph["loss"].as_object().unwrap().len(), 4);
    let last = graph["loss"]["line 3"]["x"].as_array().unwrap().last().unwrap();
    assert_eq!(last.as_i64(), Some(POINTS - 1), "thinned out, but the end is there");
}

/// A server in a process of its own.
struct Process {
    child: Child,
    client: Client,
}

impl Process {
    fn start(dir: &Path) -> Self {
        // Next to the test's own binary: target/<profile>/deps/… and target/<profile>/examples/serve.
        let tests = std::env::current_exe().unwrap();
        let program = tests.ancestors().nth(2).unwrap().join("examples/serve");
        let mut child = Command::new(program).arg(dir).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let file = CredentialsFile::read(dir).unwrap().unwrap();
        Self { child, client: client(&file.credentials(), url.trim()) }
    }

    /// `SIGKILL`: it gets no chance to tidy up.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Tasks are queued and taken while the server is killed again and again. Every answered call has taken effect, every
/// task is taken once, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let mut known = BTreeSet::new();
    let mut taken = BTreeSet::new();
    let mut queue = None;
    for round in 0..5 {
        let mut server = Process::start(dir.path());
        if queue.is_none() {
            let create = queues::Create { name: "q".into(), ..queues::Create::default() };
            queue = Some(server.client.call(&create).await.unwrap().id);
        }
        let queue = queue.clone().unwrap();
        let drafts = async {
            let mut ids = Vec::new();
            for n in 0..20 {
                ids.push(create_task(&server.client, &format!("{round}-{n}")).await);
            }
            ids
        }
        .await;
        let working = Arc::new(client(
            &CredentialsFile::read(dir.path()).unwrap().unwrap().credentials(),
            server.client.url(),
        ));
        let answered = Arc::new(AtomicUsize::new(0));
        let worker = {
            let (client, queue, answered) = (Arc::clone(&working), queue.clone(), Arc::clone(&answered));
            tokio::spawn(async move {
                let (mut queued, mut taken) = (Vec::new(), Vec::new());
                for task in drafts {
                    let request =
                        Enqueue { task: task.clone(), queue: Some(queue.clone()), ..Enqueue::default() };
                    let Ok(_) = client.call(&request).await else { break };
                    answered.fetch_add(1, Ordering::Relaxed);
                    queued.push(task);
                    if queued.len() % 2 == 0 {
                        let Ok(next) = next(&client, &queue).await else { break };
                        taken.extend(next);
                    }
                }
                (queued, taken)
            })
        };
        // While the call after that number of answers is under way.
        while answered.load(Ordering::Relaxed) < 3 * (round + 1) && !worker.is_finished() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        server.kill();
        let (queued, now_taken) = worker.await.unwrap();
        known.extend(queued);
        for task in now_taken {
            assert!(taken.insert(task.clone()), "{task} was given out twice");
        }
    }
    let server = Process::start(dir.path());
    let queue = queue.unwrap();
    let all = GetAll { status: vec!["queued".into()], ..GetAll::default() };
    let all: BTreeSet<String> =
        server.client.call(&all).await.unwrap().tasks.into_iter().map(|task| task.id).collect();
    assert!(known.is_subset(&all), "what was acknowledged is there");
    assert!(!known.is_empty() && !taken.is_empty());
    while let Some(task) = next(&server.client, &queue).await.unwrap() {
        assert!(taken.insert(task.clone()), "{task} was given out twice");
    }
    // A take whose answer died with the server is put back by the sweep; all others are accounted for.
    assert!(taken.is_subset(&all) && all.len() - taken.len() <= 5, "{} of {}", taken.len(), all.len());
}
