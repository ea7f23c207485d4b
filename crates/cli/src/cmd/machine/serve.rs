//! What `cantle up` and `cantle daemon` share: the queues and GPUs that an agent serves, in the syntax of `clearml-agent
//! daemon`.

mod policy;

use std::time::Duration;

use cantle_agent::{AgentConfig, AgentError, AllocationMode, Hosts, SdkDirectories};
use cantle_driver::Installation;
use cantle_model::{Bytes, GpuList, QueueSpec, QueueWant};
use cantle_node::{Adopt, Watch, WholeGpu};
use clap::{Args, ValueEnum};
use tokio::task::JoinError;

use super::serve::policy::PolicyArgs;
use crate::clearml_conf;
use crate::containers::EngineArgs;
use crate::context::Context;
use crate::error::{CliError, ErrorKind, as_kind};
use crate::host::host_name;
use crate::shared_args::{
    ConsentArgs, EnforceArgs, ParkedArgs, PrivilegeArgs, ReserveArgs, TaskUserArgs, values,
};

/// Which queues and GPUs an agent serves.
#[derive(Args, Debug, Clone)]
pub(crate) struct ServeArgs {
    /// Queues in order of priority, with --dynamic-gpus as NAME=SPEC: a=0.25 b=1 c=1-4 d=task
    #[arg(long, value_name = "NAME[=SPEC]", num_args = 1..)]
    pub(crate) queue: Vec<String>,
    /// GPUs of this machine: 0-2, 0,1 or all; or existing MIG instances: 0:0,0:1 or MIG-…
    #[arg(long, value_name = "LIST", num_args = 1..)]
    pub(crate) gpus: Vec<String>,
    /// Put these GPUs into MIG mode and create instances on them: 0,2=dynamic. GPUs that are already in MIG mode need no option
    #[arg(long, value_name = "LIST=dynamic", value_parser = mig_gpus)]
    mig: Option<GpuList>,
    /// What to do with MIG instances that cantle did not create: busy leaves them alone, destroy destroys unused ones
    #[arg(long, value_enum, value_name = "HOW", default_value = "busy")]
    mig_adopt: MigAdopt,
    /// What a task that requests whole GPUs gets when some GPUs are in MIG mode
    #[arg(long, value_enum, value_name = "WHAT", default_value = "instance")]
    mig_whole_gpu: MigWholeGpu,
    /// Create queues that do not exist
    #[arg(long)]
    pub(crate) create_queue: bool,
    #[command(flatten)]
    policy: PolicyArgs,
    /// What happens to a task that takes more than its slice: warn or kill
    #[arg(long, value_name = "POLICY", value_parser = values::watchdog, default_value = "kill")]
    watchdog: Watch,
    #[command(flatten)]
    reserve: ReserveArgs,
    #[command(flatten)]
    parked: ParkedArgs,
    #[command(flatten)]
    enforce: EnforceArgs,
    #[command(flatten)]
    privileges: PrivilegeArgs,
    #[command(flatten)]
    consent: ConsentArgs,
    #[command(flatten)]
    task_user: TaskUserArgs,
    /// Output of a run that is sent to the server, for example 512Mi; of what comes after it, only the last 1 MiB is sent
    #[arg(long, value_name = "AMOUNT", value_parser = values::bytes, default_value = "128Mi")]
    output_limit: Bytes,
    /// Seconds between two polls of the queues
    #[arg(long, value_name = "SECONDS", env = "CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", default_value_t = 0.5)]
    polling_interval: f64,
    /// Serve the agent's own metrics at http://ADDRESS/metrics, without credentials
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// When asked to stop, leave running tasks to the next agent, which adopts them, instead of stopping them
    #[arg(long)]
    keep_tasks: bool,
    /// Address of the web page that tasks get
    #[arg(long, hide = true, value_name = "URL", env = "CLEARML_WEB_HOST")]
    web_host: Option<String>,
    /// Address of the file server that tasks get
    #[arg(long, hide = true, value_name = "URL", env = "CLEARML_FILES_HOST")]
    files_host: Option<String>,
    /// Name of the worker [default: the name of the host]
    #[arg(long, value_name = "NAME", env = "CLEARML_WORKER_NAME")]
    pub(crate) worker_name: Option<String>,
    #[command(flatten)]
    engine: EngineArgs,
}

/// `--mig-adopt`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum MigAdopt {
    /// Leave them alone
    Busy,
    /// Destroy those that are not in use
    Destroy,
}

impl From<MigAdopt> for Adopt {
    fn from(adopt: MigAdopt) -> Self {
        match adopt {
            MigAdopt::Busy => Self::Busy,
            MigAdopt::Destroy => Self::Destroy,
        }
    }
}

/// `--mig-whole-gpu`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum MigWholeGpu {
    /// It gets an instance of the size of a GPU, if no GPU without MIG is free
    Instance,
    /// It waits for GPUs without MIG
    Wait,
}

impl From<MigWholeGpu> for WholeGpu {
    fn from(whole: MigWholeGpu) -> Self {
        match whole {
            MigWholeGpu::Instance => Self::Instance,
            MigWholeGpu::Wait => Self::Wait,
        }
    }
}

/// From `--mig LIST=dynamic`.
fn mig_gpus(text: &str) -> Result<GpuList, String> {
    let list = text.strip_suffix("=dynamic");
    let list =
        list.ok_or_else(|| format!("--mig {text}: write LIST=dynamic, for example --mig 0,2=dynamic"))?;
    GpuList::parse(&[list.to_owned()]).map_err(|error| format!("--mig {text}: {error}"))
}

/// The settings of the agent. Server and keys are still to be filled in.
pub(crate) fn agent_config(
    context: &Context,
    serve: &ServeArgs,
    gives: AllocationMode,
) -> Result<AgentConfig, CliError> {
    let seconds = serve.polling_interval;
    if !(0.05..=3600.0).contains(&seconds) {
        let text = format!("--polling-interval {seconds}: give 0.05 to 3600 seconds");
        return Err(CliError::new(ErrorKind::Usage, text));
    }
    let keys = cantle_clearml::Credentials { access_key: String::new(), secret_key: String::new() };
    let mut config = AgentConfig::new(String::new(), keys, Installation::of_this_machine());
    let is_dynamic = gives == AllocationMode::Slices;
    config.queues = serve.queue.iter().map(|text| queue(text, is_dynamic)).collect::<Result<_, _>>()?;
    if !serve.gpus.is_empty() {
        config.gpus = GpuList::parse(&serve.gpus).map_err(as_kind(ErrorKind::Usage))?;
        // A part of the worker's id: `--gpus 0, 1`, as ClearML's pages write it, is 0,1 there.
        config.gpus_text = Some(serve.gpus.join(" ").replace(", ", ",").replace(' ', ","));
    }
    config.mig.clone_from(&serve.mig);
    config.mig_adopt = serve.mig_adopt.into();
    config.whole_gpu = serve.mig_whole_gpu.into();
    config.name = serve.worker_name.clone().map_or_else(host_name, Ok)?;
    config.create_queues = serve.create_queue;
    config.allocation_mode = gives;
    config.policy = serve.policy.policy();
    config.lib_dir = context.dirs.lib.clone();
    config.state_dir = context.dirs.state.join("agent");
    config.secrets = context.global.secrets();
    config.program = std::env::current_exe().map_err(as_kind(ErrorKind::Failed))?;
    config.watch = serve.watchdog;
    config.module_reserve_bytes = serve.reserve.bytes();
    config.parked_memory = serve.parked.bytes();
    config.enforce = serve.enforce.mode();
    config.privileges = serve.privileges.privileges();
    serve.consent.check(config.privileges)?;
    config.task_user = serve.task_user.policy()?;
    config.output_limit_bytes = serve.output_limit.0;
    config.poll = Duration::from_secs_f64(seconds);
    config.docker = serve.engine.resolve()?;
    serve.privileges.check(config.docker.is_some())?;
    config.sdk = sdk_directories(context)?;
    config.hosts = Hosts { web: serve.web_host.clone(), files: serve.files_host.clone() };
    config.metrics_listen.clone_from(&serve.metrics_listen);
    config.keep_tasks = serve.keep_tasks;
    Ok(config)
}

/// Where `clearml-agent` works, which reads the same file.
fn sdk_directories(context: &Context) -> Result<SdkDirectories, CliError> {
    let conf = clearml_conf::effective(&context.global)?;
    let directory = |key, default| clearml_conf::directory(&conf, key, default);
    Ok(SdkDirectories {
        venvs: directory("agent.venvs_dir", "~/.clearml/venvs-builds"),
        venvs_cache: directory("agent.venvs_cache.path", "~/.clearml/venvs-cache"),
        home: clearml_conf::home(),
        are_of_pip: conf.text("agent.package_manager.type").is_none_or(|kind| kind == "pip"),
    })
}

fn queue(text: &str, is_dynamic: bool) -> Result<QueueSpec, CliError> {
    match (is_dynamic, text.contains('=')) {
        (true, _) => QueueSpec::parse(text).map_err(as_kind(ErrorKind::Usage)),
        (false, false) => Ok(QueueSpec { name: text.to_owned(), want: QueueWant::Task }),
        (false, true) => {
            Err(CliError::new(ErrorKind::Usage, format!("--queue {text}: NAME=SPEC needs --dynamic-gpus")))
        }
    }
}

/// The result of the async task that ran an agent.
pub(crate) fn finished(ended: Result<Result<(), AgentError>, JoinError>) -> Result<(), CliError> {
    Ok(ended.map_err(as_kind(ErrorKind::Failed))??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_gpus_say_what_is_wrong() {
        assert_eq!(mig_gpus("0,2=dynamic"), Ok(GpuList::Indices(vec![0, 2])));
        assert!(mig_gpus("0,2").unwrap_err().contains("0,2=dynamic"));
        assert!(mig_gpus("x=dynamic").unwrap_err().starts_with("--mig x=dynamic: "));
    }
}
