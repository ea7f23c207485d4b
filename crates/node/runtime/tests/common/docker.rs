//! A real engine, started by `tests/docker/run.sh`.

use std::path::PathBuf;
use std::process::{Command, Output as Finished};

use cantle_model::{LeaseId, TaskId};
use cantle_runtime::{Backend, ContainerSpec, Engine, Exit, RunningTask, StartError, TaskSpec};

use super::{Bench, read};

pub struct Docker {
    pub dir: PathBuf,
    pub image: String,
    pub engine: Engine,
}

impl Docker {
    pub async fn new() -> Option<Self> {
        let (Some(dir), Some(image)) =
            (std::env::var_os("CANTLE_TEST_ENGINE"), std::env::var_os("CANTLE_TEST_IMAGE"))
        else {
            eprintln!("skipped: no engine; run tests/docker/run.sh");
            return None;
        };
        let dir = PathBuf::from(dir);
        let engine = Engine::connect(Some(&dir.join("docker.sock"))).await.unwrap();
        Some(Self { dir, image: image.into_string().unwrap(), engine })
    }

    /// Docker's own client: the outside witness.
    pub fn client(&self, args: &[&str]) -> Finished {
        let socket = format!("unix://{}", self.dir.join("docker.sock").display());
        Command::new("docker").args(["--host", &socket]).args(args).output().unwrap()
    }

    pub fn container(&self, options: &[&str]) -> ContainerSpec {
        ContainerSpec {
            task: TaskId::from("task-1"),
            image: self.image.clone(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            devices: Vec::new(),
            driver_files: Vec::new(),
        }
    }

    pub async fn start(
        &self,
        bench: &Bench,
        script: &str,
        options: &[&str],
    ) -> Result<RunningTask, StartError> {
        let spec = spec(bench, &["sh", "-c", script]);
        self.engine.start(&spec, &self.container(options), bench.container_output()).await
    }

    /// The output of a script, which must succeed and leave nothing behind.
    pub async fn prints(&self, bench: &Bench, script: &str, options: &[&str]) -> String {
        let mut task = self.start(bench, script, options).await.unwrap();
        assert_eq!(task.backend(), &Backend::Container);
        let exit = task.wait().await;
        let text = output(bench);
        assert_eq!(exit, Exit::Code(0), "{text}");
        text
    }

    pub async fn is_left(&self, lease: &LeaseId) -> bool {
        self.engine.leftovers().await.unwrap().iter().any(|leftover| leftover.lease == *lease)
    }
}

/// The lease is named after the bench's directory: each test has its own container.
pub fn spec(bench: &Bench, argv: &[&str]) -> TaskSpec {
    TaskSpec { lease: lease(bench), ..bench.spec(argv) }
}

pub fn lease(bench: &Bench) -> LeaseId {
    let name = bench.dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
    LeaseId(format!("test{name}"))
}

/// The output of the task, without cantle's own lines at the beginning.
pub fn output(bench: &Bench) -> String {
    let text = read(&bench.path("task/output.log"));
    text.lines().filter(|line| !line.starts_with("cantle: ")).collect::<Vec<_>>().join("\n")
}
