//! The settings of an agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use cantle_clearml::{ClientTls, Credentials, KeySource};
use cantle_driver::Installation;
use cantle_model::{EnforceMode, GpuList, QueueSpec};
use cantle_node::mig::{Adopt, WholeGpu};
use cantle_node::{Docker, NodeStore, Watch};
use cantle_runtime::{BackendChoice, Privileges};
use cantle_sched::Policy;

use crate::{AbortCommand, Schedule, SdkDirectories, TaskUserPolicy};

/// The resources that the agent allocates to its tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocationMode {
    /// All its GPUs, to one task at a time.
    #[default]
    AllGpus,
    /// Each task gets the slice of its queue's spec (`--dynamic-gpus`).
    Slices,
    /// No GPU; one task at a time (`--cpu-only`).
    NoGpu,
    /// No GPU; a limited number of tasks at a time, any number if `None` (`--services-mode`).
    Services {
        /// At least 1.
        at_once: Option<usize>,
    },
}

impl AllocationMode {
    /// Does the agent neither read nor claim any GPU?
    pub(crate) const fn is_gpuless(self) -> bool {
        matches!(self, Self::NoGpu | Self::Services { .. })
    }

    /// Maximum number of concurrent tasks, where GPUs do not limit it.
    pub(crate) const fn at_once(self) -> Option<usize> {
        match self {
            Self::AllGpus | Self::Slices => None,
            Self::NoGpu => Some(1),
            Self::Services { at_once } => at_once,
        }
    }
}

/// The addresses of the web page and of the file server, which ClearML's SDK cannot derive from that of the API, unless it
/// is that of a ClearML server on its default ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// `api.web_server`, `CLEARML_WEB_HOST`.
    pub web: Option<String>,
    /// `api.files_server`, `CLEARML_FILES_HOST`.
    pub files: Option<String>,
}

impl Hosts {
    /// Fills in what was not set with the addresses of a cantle server, which has all of it under one address.
    pub(crate) fn complete(&mut self, server: &str) {
        let url = server.trim_end_matches('/');
        self.web.get_or_insert_with(|| format!("{url}/ui"));
        self.files.get_or_insert_with(|| format!("{url}/files"));
    }
}

/// Settings of [`crate::daemon`].
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Address of the server, e.g. `http://127.0.0.1:8008`.
    pub server: String,
    /// Key pair for it.
    pub credentials: Credentials,
    /// Where another key pair may be found while the agent runs; `None`: it has this one until it ends.
    pub key_source: Option<KeySource>,
    /// Which servers the agent trusts, and the certificate that it shows to them.
    pub tls: ClientTls,
    /// The addresses that tasks get, in addition to that of the server.
    pub hosts: Hosts,
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
    /// The GPUs that tasks get.
    pub allocation_mode: AllocationMode,
    /// Number of this agent among the agents without GPUs of this name.
    pub cpu_slot: usize,
    /// Order of queues, backfill, placement.
    pub policy: Policy,
    /// Where the GPUs come from.
    pub installation: Installation,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: PathBuf,
    /// Directory for the state that must outlive the agent.
    pub state_dir: PathBuf,
    /// Files in addition to it that no task may see: the agent's keys.
    pub secrets: Vec<PathBuf>,
    /// The cantle binary, which is also each task's supervisor ([`cantle_runtime::TASK_INIT_COMMAND`]).
    pub program: PathBuf,
    /// How often queues and tasks are read.
    pub poll: Duration,
    /// How long a task may take to end after SIGTERM.
    pub stop_grace: Duration,
    /// At which hours tasks are taken.
    pub schedule: Schedule,
    /// The longest time that a stop waits for a task's abort callback, if the task has one.
    pub abort_callback_max: Duration,
    /// The command that runs before a plain command is stopped.
    pub abort_command: Option<AbortCommand>,
    /// How often a running task is reported as alive.
    pub ping_every: Duration,
    /// Tags that status reports carry.
    pub report_tags: Vec<String>,
    /// More arguments for `clearml-agent execute`, which runs code of ClearML's SDK.
    pub sdk_words: Vec<String>,
    /// Where ClearML's agent works.
    pub sdk: SdkDirectories,
    /// Set for every task, in addition to the variables that every task gets.
    pub task_env: BTreeMap<String, OsString>,
    /// Run tasks in containers.
    pub docker: Option<Docker>,
    /// The accepted backends of enforcement.
    pub wish: BackendChoice,
    /// The wanted backend of memory limits.
    pub enforce: EnforceMode,
    /// Extra privileges of tasks.
    pub privileges: Privileges,
    /// The Unix user that tasks run as.
    pub task_user: TaskUserPolicy,
    /// Output of a run in bytes that the server gets, in addition to its end.
    pub output_limit_bytes: u64,
    /// GPUs to put into MIG mode. Those that are in it already are cut into instances as well.
    pub mig: Option<GpuList>,
    /// The handling of MIG instances that others have created.
    pub mig_adopt: Adopt,
    /// The GPUs for a task that requests whole GPUs where some are in MIG mode.
    pub whole_gpu: WholeGpu,
    /// The handling of a task that holds GPU memory outside its slice.
    pub watch: Watch,
    /// Memory of each slice that is kept for modules.
    pub module_reserve_bytes: u64,
    /// The host memory that suspended tasks of the machine may take, in bytes; none: what is available.
    pub parked_memory: Option<u64>,
    /// Address of the agent's metrics, e.g. `127.0.0.1:9401`; `None`: no metrics.
    pub metrics_listen: Option<String>,
    /// When the agent is asked to stop, running tasks continue, and the next agent adopts them.
    pub keep_tasks: bool,
}

impl AgentConfig {
    /// The defaults: every GPU, all of them for one task at a time, no queue yet.
    #[must_use]
    pub fn new(server: String, credentials: Credentials, installation: Installation) -> Self {
        Self {
            server,
            credentials,
            key_source: None,
            tls: ClientTls::default(),
            hosts: Hosts::default(),
            name: "node".to_owned(),
            worker_id: None,
            queues: Vec::new(),
            create_queues: false,
            gpus: GpuList::All,
            gpus_text: None,
            allocation_mode: AllocationMode::default(),
            cpu_slot: 0,
            policy: Policy::default(),
            installation,
            lib_dir: PathBuf::from("lib"),
            state_dir: PathBuf::from("."),
            secrets: Vec::new(),
            program: PathBuf::from("/proc/self/exe"),
            poll: Duration::from_millis(500),
            stop_grace: Duration::from_secs(10),
            schedule: Schedule::Always,
            abort_callback_max: Duration::from_secs(1800),
            abort_command: None,
            ping_every: Duration::from_secs(60),
            report_tags: Vec::new(),
            sdk_words: Vec::new(),
            sdk: SdkDirectories::default(),
            task_env: BTreeMap::new(),
            docker: None,
            wish: BackendChoice::Auto,
            enforce: EnforceMode::default(),
            privileges: Privileges::default(),
            task_user: TaskUserPolicy::default(),
            output_limit_bytes: 128 << 20,
            mig: None,
            mig_adopt: Adopt::default(),
            whole_gpu: WholeGpu::default(),
            watch: Watch::default(),
            module_reserve_bytes: 0,
            parked_memory: None,
            metrics_listen: None,
            keep_tasks: false,
        }
    }

    /// Worker id as ClearML's agent makes it: `<name>:dgpu0-2`, `<name>:gpu0,1`, `<name>:0` if no GPU was named,
    /// `<name>:cpu:0` if there is to be none, or what was forced.
    #[must_use]
    pub fn worker(&self) -> String {
        if let Some(id) = &self.worker_id {
            return id.clone();
        }
        if self.allocation_mode.is_gpuless() {
            return format!("{}:cpu:{}", self.name, self.cpu_slot);
        }
        let dynamic = self.allocation_mode == AllocationMode::Slices;
        if self.gpus_text.is_none() && !dynamic {
            return format!("{}:0", self.name);
        }
        // A MIG GPU is written 0:1; in an id the colon has a meaning already.
        let gpus = self.gpus_text.as_deref().unwrap_or("all").replace(':', ".");
        let kind = if dynamic { "dgpu" } else { "gpu" };
        format!("{}:{kind}{gpus}", self.name)
    }

    /// Whose processes its tasks are, for people.
    pub(crate) fn whose_tasks(&self) -> String {
        let user = self.task_user.describe();
        match self.privileges {
            Privileges::Machine => format!("{user}, with the machine's privileges (--privileged-task)"),
            Privileges::Own | Privileges::NoNew => user,
        }
    }

    /// Directory of its leases. Agents without GPUs have a store of their own: if one of their tasks uses a GPU
    /// nevertheless, that use is foreign to the agents that allocate the GPU.
    pub(crate) fn node_dir(&self) -> PathBuf {
        if self.allocation_mode.is_gpuless() {
            NodeStore::gpuless_dir(&self.installation)
        } else {
            NodeStore::dir_for(&self.installation)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_ids_are_clearmls() {
        let keys = Credentials { access_key: String::new(), secret_key: String::new() };
        let mut config = AgentConfig::new(String::new(), keys, Installation::of_this_machine());
        config.name = "node1".to_owned();
        assert_eq!(config.worker(), "node1:0");
        config.gpus_text = Some("0,1".to_owned());
        assert_eq!(config.worker(), "node1:gpu0,1");
        (config.gpus_text, config.allocation_mode) = (Some("0, 1".to_owned()), AllocationMode::Slices);
        assert_eq!(config.worker(), "node1:dgpu0, 1");
        config.gpus_text = Some("0:0,0:1".to_owned());
        assert_eq!(config.worker(), "node1:dgpu0.0,0.1");
        (config.allocation_mode, config.cpu_slot) = (AllocationMode::NoGpu, 1);
        assert_eq!(config.worker(), "node1:cpu:1");
        config.worker_id = Some("mine".to_owned());
        assert_eq!(config.worker(), "mine");
    }

    #[test]
    fn privileged_tasks_are_named_as_such() {
        let keys = Credentials { access_key: String::new(), secret_key: String::new() };
        let mut config = AgentConfig::new(String::new(), keys, Installation::of_this_machine());
        config.task_user = TaskUserPolicy::Submitter(BTreeMap::new());
        assert_eq!(config.whose_tasks(), "their submitters (--task-user submitter)");
        config.privileges = Privileges::Machine;
        assert_eq!(
            config.whose_tasks(),
            "their submitters (--task-user submitter), with the machine's privileges (--privileged-task)"
        );
    }
}
