//! What a daemon is told at its start.

use std::path::PathBuf;
use std::time::Duration;

use cantle_clearml::Credentials;
use cantle_driver::Source;
use cantle_model::{GpuList, QueueSpec};
use cantle_runtime::BackendWish;
use cantle_sched::Policy;

use super::Docker;
use crate::mig::Adopt;
use crate::watchdog::Watch;

/// Settings of [`crate::daemon`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the server, e.g. `http://127.0.0.1:8008`.
    pub server: String,
    /// Key pair for it.
    pub credentials: Credentials,
    /// Name of the node: `agent.worker_name`, `CLEARML_WORKER_NAME` or the host name.
    pub name: String,
    /// A worker id to use as it is (`CLEARML_WORKER_ID`), instead of one made of name and GPUs.
    pub worker_id: Option<String>,
    /// Queues in order of priority, and what their tasks get.
    pub queues: Vec<QueueSpec>,
    /// Make queues that do not exist.
    pub create_queues: bool,
    /// The GPUs to use.
    pub gpus: GpuList,
    /// `--gpus` as it was written: worker ids repeat it.
    pub gpus_text: Option<String>,
    /// Cut GPUs by queue (`--dynamic-gpus`). Otherwise one task at a time gets all GPUs of this agent.
    pub dynamic: bool,
    /// Order of queues, backfill, placement.
    pub policy: Policy,
    /// Where the GPUs come from.
    pub source: Source,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: PathBuf,
    /// Where the agent keeps what must outlive it.
    pub state_dir: PathBuf,
    /// The cantle binary, which is also each task's supervisor ([`cantle_runtime::TASK_INIT_COMMAND`]).
    pub program: PathBuf,
    /// How often queues and tasks are looked at.
    pub poll: Duration,
    /// How long a task may take to end after SIGTERM.
    pub stop_grace: Duration,
    /// Run tasks in containers.
    pub docker: Option<Docker>,
    /// Which enforcement is accepted.
    pub wish: BackendWish,
    /// GPUs to put into MIG mode. Those that are in it already are cut into instances as well.
    pub mig: Option<GpuList>,
    /// What happens to MIG instances that others have made.
    pub mig_adopt: Adopt,
    /// What happens to a task that takes what is not its own.
    pub watch: Watch,
}

impl Config {
    /// The defaults: every GPU, all of them for one task at a time, no queue yet.
    #[must_use]
    pub fn new(server: String, credentials: Credentials, source: Source) -> Self {
        Self {
            server,
            credentials,
            name: "node".to_owned(),
            worker_id: None,
            queues: Vec::new(),
            create_queues: false,
            gpus: GpuList::All,
            gpus_text: None,
            dynamic: false,
            policy: Policy::default(),
            source,
            lib_dir: PathBuf::from("lib"),
            state_dir: PathBuf::from("."),
            program: PathBuf::from("/proc/self/exe"),
            poll: Duration::from_millis(500),
            stop_grace: Duration::from_secs(10),
            docker: None,
            wish: BackendWish::Auto,
            mig: None,
            mig_adopt: Adopt::default(),
            watch: Watch::default(),
        }
    }

    /// Worker id as ClearML's agent makes it: `<name>:dgpu0-2`, `<name>:gpu0,1`, or what was forced.
    #[must_use]
    pub fn worker(&self) -> String {
        if let Some(id) = &self.worker_id {
            return id.clone();
        }
        // A MIG GPU is written 0:1; in an id the colon has a meaning already.
        let gpus = self.gpus_text.as_deref().unwrap_or("all").replace(':', ".");
        let kind = if self.dynamic { "dgpu" } else { "gpu" };
        format!("{}:{kind}{gpus}", self.name)
    }
}
