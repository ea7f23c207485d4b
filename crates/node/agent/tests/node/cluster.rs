//! A server in this process, and daemons that are processes of their own.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use cantle_clearml::cantle::{EventView, GetEvents, GetNodes, GetTasks, TaskView};
use cantle_clearml::events::GetTaskLog;
use cantle_clearml::{Client, Request, TaskRequest, queues, tasks};
use cantle_model::{GpuRequest, TaskStatus};
use cantle_server::{Server, ServerConfig};
use serde_json::{Map, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::place::{Place, eventually};
use crate::role::{DAEMON, async_runtime};

pub(crate) struct Cluster<'a> {
    pub(crate) place: &'a Place,
    runtime: Runtime,
    client: Client,
    keys: [String; 3],
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(place: &'a Place) -> Self {
        let (keys, server) = start_server(place, &format!("127.0.0.1:{}", own_port()));
        let runtime = async_runtime();
        let credentials =
            cantle_clearml::Credentials { access_key: keys[1].clone(), secret_key: keys[2].clone() };
        let client = Client::new(&keys[0], credentials).unwrap();
        Self { place, runtime, client, keys, server: Some(server) }
    }

    pub(crate) fn stop_server(&mut self) {
        let (stop, thread) = self.server.take().unwrap();
        stop.send(()).unwrap();
        thread.join().unwrap();
    }

    pub(crate) fn restart_server(&mut self) {
        let listen = self.keys[0].strip_prefix("http://").unwrap();
        self.server = Some(start_server(self.place, listen).1);
    }

    /// `cantle daemon --dynamic-gpus --gpus GPUS --queue QUEUES…`; returns once it has reported.
    pub(crate) fn daemon(&self, gpus: &str, queues: &[&str]) -> Daemon {
        let daemon = self.daemon_that_may_fail(gpus, queues);
        eventually("the daemon has reported", || {
            self.call(&GetNodes {}).nodes.iter().any(|node| node.alive && node.queues.len() == queues.len())
        });
        daemon
    }

    pub(crate) fn daemon_that_may_fail(&self, gpus: &str, queues: &[&str]) -> Daemon {
        let mut command = self.place.role(DAEMON);
        command.args(&self.keys).arg(gpus).args(queues);
        Daemon(command.stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn call<R: Request>(&self, request: &R) -> R::Response {
        let once = || self.runtime.block_on(self.client.call(request));
        match once() {
            // The server was restarted meanwhile, and a connection that was kept open is not.
            Err(error) if error.is_temporary() => once().unwrap(),
            answer => answer.unwrap(),
        }
    }

    pub(crate) fn make_queue(&self, name: &str) -> String {
        self.call(&queues::Create { name: name.to_owned(), ..queues::Create::default() }).id
    }

    /// `cantle submit --queue QUEUE --name NAME -- sh -c SCRIPT`
    pub(crate) fn submit(&self, queue: &str, name: &str, script: &str) -> String {
        self.submit_with(queue, name, script, None)
    }

    pub(crate) fn submit_with(
        &self,
        queue: &str,
        name: &str,
        script: &str,
        gpu: Option<GpuRequest>,
    ) -> String {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let request = TaskRequest { command, gpu, ..TaskRequest::default() };
        self.enqueue(queue, name, &json!({ "hyperparams": request.to_hyperparams() }))
    }

    pub(crate) fn enqueue(&self, queue: &str, name: &str, fields: &serde_json::Value) -> String {
        let fields: Map<_, _> = fields.as_object().unwrap().clone();
        let create = tasks::Create { name: name.to_owned(), kind: "training".to_owned(), fields };
        let task = self.call(&create).id;
        let enqueue = tasks::Enqueue {
            task: task.clone(),
            queue_name: Some(queue.to_owned()),
            ..tasks::Enqueue::default()
        };
        self.call(&enqueue);
        task
    }

    pub(crate) fn stop_task(&self, task: &str) {
        self.call(&tasks::Stop { task: task.to_owned(), ..tasks::Stop::default() });
    }

    pub(crate) fn task(&self, task: &str) -> TaskView {
        let request = GetTasks { id: vec![task.to_owned()], ..GetTasks::default() };
        self.call(&request).tasks.into_iter().next().unwrap()
    }

    pub(crate) fn wait(&self, task: &str, state: TaskStatus) -> TaskView {
        eventually(&format!("task {task} is {state}; it is {:?}", self.task(task)), || {
            let now = self.task(task);
            assert!(now.state == state || !now.state.is_final(), "{now:?}, expected {state}");
            now.state == state
        });
        self.task(task)
    }

    pub(crate) fn log(&self, task: &str) -> String {
        let request = GetTaskLog {
            task: task.to_owned(),
            batch_size: Some(10_000),
            after: Some(0),
            ..GetTaskLog::default()
        };
        self.call(&request).events.into_iter().filter_map(|event| event.msg).collect()
    }

    pub(crate) fn events(&self, task: &str) -> Vec<EventView> {
        let request = GetEvents { task: Some(task.to_owned()), ..GetEvents::default() };
        self.call(&request).events
    }

    /// Index of the first GPU of each running task.
    pub(crate) fn placement(&self) -> BTreeMap<String, Vec<u32>> {
        let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for gpu in self.call(&GetNodes {}).nodes.into_iter().flat_map(|node| node.gpus) {
            for slice in gpu.slices {
                found.entry(slice.task).or_default().push(gpu.index);
            }
        }
        found
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.stop_server();
        }
    }
}

/// A port for a server that is started again on it: outside of the range from which the kernel gives ports, to others too.
fn own_port() -> u64 {
    loop {
        let port = 20_000 + RandomState::new().hash_one(()) % 10_000;
        if TcpListener::bind(format!("127.0.0.1:{port}")).is_ok() {
            return port;
        }
    }
}

fn start_server(place: &Place, listen: &str) -> ([String; 3], (oneshot::Sender<()>, JoinHandle<()>)) {
    let config = ServerConfig {
        listen: listen.to_owned(),
        state_dir: place.path().join("server"),
        // A daemon killed between taking and starting a task makes the server give it back; a test shall not wait long.
        start_within: Duration::from_secs(10),
        ..ServerConfig::default()
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        async_runtime().block_on(async {
            let server = Server::bind(&config).await.unwrap();
            let keys = server.credentials();
            tell.send([server.url().to_owned(), keys.access_key, keys.secret_key]).unwrap();
            server.serve(async { drop(stopped.await) }).await.unwrap();
        });
    });
    (told.recv().unwrap(), (stop, thread))
}

/// A daemon; killed if the test forgets it.
pub(crate) struct Daemon(Child);

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// SIGTERM, as `systemctl stop` does.
    pub(crate) fn terminate(&mut self) {
        let pid = self.pid().to_string();
        std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(self.0.wait().unwrap().success());
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it gives up; its exit code and its output.
    pub(crate) fn failure(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.0.stderr.take().unwrap(), &mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already, in most tests.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
