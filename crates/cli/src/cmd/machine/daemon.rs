//! `cantle daemon`: an agent. It accepts the whole command line of `clearml-agent daemon`, so that a unit file needs only
//! another program name.

mod background;
mod running;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{AbortCommand, AgentConfig, AllocationMode, Hosts, Hours, Schedule};
use cantle_clearml::Conf;
use clap::Args;
use tokio::sync::watch;

use super::daemon::background::{READY, start_in_background};
use super::serve::{ServeArgs, agent_config, finished};
use crate::context::{CommandResult, Context, agent_runtime};
use crate::error::{CliError, ErrorKind};
use crate::host::{report_ready, until_signal};
use crate::{clearml_conf, connect, containers};

/// `cantle daemon`
#[derive(Args, Debug)]
pub(crate) struct DaemonArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Share GPUs by the slice, as each queue's SPEC says
    #[arg(long)]
    dynamic_gpus: bool,
    /// Stay in the foreground (the default)
    #[arg(long, conflicts_with = "detached")]
    foreground: bool,
    /// Run in the background; prints the path of the log
    #[arg(short, long)]
    detached: bool,
    /// Stop agents of this machine: those with these worker ids, or the one that was started with the same options
    #[arg(long, value_name = "WORKER", num_args = 0.., conflicts_with_all = ["detached", "status"])]
    stop: Option<Vec<String>>,
    /// Have agents of this machine without tasks close the driver for two minutes, so that a GPU can be reset or change its MIG mode:
    /// those with these worker ids, or all
    #[arg(long, value_name = "WORKER", num_args = 0.., conflicts_with_all = ["detached", "status", "stop"])]
    release_gpus: Option<Vec<String>>,
    /// List the agents that run on this machine
    #[arg(long, conflicts_with = "detached")]
    status: bool,
    /// Take tasks only at these hours, e.g. "17-20 TUE" "0-8,20-24 SUN,MON-FRI"
    #[arg(long, value_name = "HOURS DAYS", num_args = 1.., conflicts_with = "downtime")]
    uptime: Vec<String>,
    /// Take no tasks at these hours
    #[arg(long, value_name = "HOURS DAYS", num_args = 1..)]
    downtime: Vec<String>,
    /// Run one task at a time, without GPUs
    #[arg(long, env = "CLEARML_CPU_ONLY", value_parser = clap::builder::FalseyValueParser::new())]
    cpu_only: bool,
    /// Run several tasks at a time, without GPUs: up to N, or any number if N is omitted
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "-1", allow_negative_numbers = true)]
    services_mode: Option<i64>,
    /// The GPUs, if --gpus is not given
    #[arg(long, hide = true, env = "NVIDIA_VISIBLE_DEVICES")]
    visible_devices: Option<String>,
    /// Command to run before a task that is a plain command is stopped
    #[arg(long, hide = true, value_name = "CMD", env = "CLEARML_AGENT_ABORT_CALLBACK_CMD")]
    abort_callback_cmd: Option<String>,
    /// Seconds that this command may take
    #[arg(
        long,
        hide = true,
        value_name = "SECONDS",
        env = "CLEARML_AGENT_ABORT_CALLBACK_TIMEOUT",
        default_value_t = 180
    )]
    abort_callback_timeout: u32,
    /// Worker id [default: composed of name and GPUs as by ClearML's agent]
    #[arg(long, value_name = "ID", env = "CLEARML_WORKER_ID")]
    worker_id: Option<String>,
    /// Tags of status reports
    #[arg(long, value_name = "TAG", num_args = 1..)]
    child_report_tags: Vec<String>,
    #[command(flatten)]
    sdk: SdkArgs,
    #[command(flatten)]
    foreign: ForeignArgs,
}

/// The options by which ClearML's own agent sets up and runs code of the SDK inside the slice.
#[derive(Args, Debug)]
struct SdkArgs {
    /// User for git repositories of tasks
    #[arg(long, value_name = "USER", env = "CLEARML_AGENT_GIT_USER")]
    git_user: Option<String>,
    /// Password or token for git repositories of tasks
    #[arg(long, value_name = "TOKEN", env = "CLEARML_AGENT_GIT_PASS", hide_env_values = true)]
    git_pass: Option<String>,
    /// Install nothing for tasks: all that they need is already installed
    #[arg(long)]
    standalone_mode: bool,
    /// Compile tasks' Python code with optimization; give it twice for more
    #[arg(short = 'O', action = clap::ArgAction::Count)]
    optimization: u8,
    /// Log level of the SDK in tasks
    #[arg(long, value_name = "LEVEL", ignore_case = true,
          value_parser = ["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"])]
    log_level: Option<String>,
}

/// Options of ClearML's agent that have no meaning here.
#[derive(Args, Debug)]
struct ForeignArgs {
    #[arg(long, hide = true)]
    force_current_version: bool,
    #[arg(long, hide = true)]
    check_bootstrap: bool,
    #[arg(long, hide = true)]
    use_owner_token: bool,
    #[arg(long, hide = true, value_name = "REGEX", env = "CLEARML_AGENT_DOCKER_ARGS_FILTERS")]
    docker_args_filters: Option<String>,
}

impl ForeignArgs {
    /// The options that were given and have no effect, each with the reason.
    fn needless(&self) -> impl Iterator<Item = &'static str> {
        let known = [
            (
                self.force_current_version,
                "--force-current-version: no effect; tasks use the clearml-agent of their image or environment",
            ),
            (self.check_bootstrap, "--check-bootstrap: no effect; cantle brings no bootstrap package"),
            (
                self.filters_options(),
                "CLEARML_AGENT_DOCKER_ARGS_FILTERS: no effect; the set of options that a task may bring is fixed",
            ),
        ];
        known.into_iter().filter_map(|(given, why)| given.then_some(why))
    }

    fn filters_options(&self) -> bool {
        self.docker_args_filters.as_ref().is_some_and(|filters| !filters.is_empty())
    }

    /// A given option that requests something that this agent does not do.
    fn refused(&self) -> Option<&'static str> {
        self.use_owner_token
            .then_some("--use-owner-token: only ClearML's paid server lends the tokens of tasks' owners")
    }
}

/// Serves queues, or shows or stops the agents of this machine.
pub(crate) fn daemon(context: &Context, args: &DaemonArgs) -> CommandResult {
    let conf = clearml_conf::effective(&context.global)?;
    let mut config = config(context, args, &conf)?;
    if args.status {
        return running::status(context, &config);
    }
    if let Some(workers) = &args.release_gpus {
        return running::release(context, &config, workers);
    }
    if let Some(workers) = &args.stop {
        let own = [config.worker()];
        return running::stop(context, &config, if workers.is_empty() { &own } else { workers });
    }
    if args.serve.queue.is_empty() && args.dynamic_gpus {
        return Err(CliError::new(ErrorKind::Usage, "--queue is missing")
            .with_hint("name the queues to serve, for example --queue half_gpu=0.5"));
    }
    if let Some(why) = args.foreign.refused() {
        return Err(CliError::new(ErrorKind::Usage, why).with_hint("leave it out"));
    }
    // All checks run before the agent goes to the background.
    cantle_agent::check(&config)?;
    (config.server, config.credentials) = connect::address(context)?;
    config.key_source = connect::key_source(context);
    add_hosts(&mut config, &conf);
    config.tls = context.global.tls();
    args.foreign.needless().for_each(|note| context.printer.say(note));
    if args.detached && !context.global.background {
        return start_in_background(context, &config.worker());
    }
    serve(context, config)
}

fn serve(context: &Context, config: AgentConfig) -> CommandResult {
    let ready = {
        let (printer, background) = (context.printer, context.global.background);
        move || {
            report_ready();
            if background {
                printer.data(READY);
            }
        }
    };
    agent_runtime()?.block_on(async {
        let (stop, stopping) = watch::channel(false);
        let mut agent = tokio::spawn(cantle_agent::daemon(config, stopping, ready));
        tokio::select! {
            ended = &mut agent => finished(ended)?,
            () = until_signal() => {
                stop.send_replace(true);
                finished(agent.await)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The command line takes precedence, then the environment, then the file.
fn config(context: &Context, args: &DaemonArgs, conf: &Conf) -> Result<AgentConfig, CliError> {
    let mut serve = args.serve.clone();
    serve.worker_name = serve.worker_name.or_else(|| conf.text("agent.worker_name"));
    let mode = allocation_mode(args)?;
    if matches!(mode, AllocationMode::AllGpus | AllocationMode::Slices) && serve.gpus.is_empty() {
        serve.gpus.extend(args.visible_devices.clone().filter(|list| is_gpu_list(list)));
    }
    let mut config = agent_config(context, &serve, mode)?;
    if let Some(docker) = &mut config.docker {
        containers::complete(docker, conf);
    }
    config.worker_id = args.worker_id.clone().or_else(|| conf.text("agent.worker_id"));
    config.cpu_slot = cpu_slot(&config, args.stop.is_some())?;
    config.schedule = schedule(args, conf)?;
    config.report_tags.clone_from(&args.child_report_tags);
    config.abort_command = abort_command(args)?;
    config.sdk_words = sdk_words(&args.sdk);
    config.task_env = task_env(args);
    if let Some(seconds) = conf.number("agent.abort_callback_max_timeout").filter(|seconds| *seconds >= 0.0) {
        config.abort_callback_max = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    }
    if let Some(seconds) = conf.number("agent.task_ping_interval_sec").filter(|seconds| *seconds >= 1.0) {
        config.ping_every = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    }
    Ok(config)
}

/// The GPUs of tasks, from the command line.
fn allocation_mode(args: &DaemonArgs) -> Result<AllocationMode, CliError> {
    let (flag, mode) = match args.services_mode {
        None if args.cpu_only => ("--cpu-only", AllocationMode::NoGpu),
        None if args.dynamic_gpus => return Ok(AllocationMode::Slices),
        None => return Ok(AllocationMode::AllGpus),
        Some(-1) => ("--services-mode", AllocationMode::Services { at_once: None }),
        Some(most) => {
            let at_once = usize::try_from(most).ok().filter(|most| *most > 0);
            let at_once = at_once.ok_or_else(|| {
                CliError::new(ErrorKind::Usage, format!("--services-mode {most}: must be at least 1"))
                    .with_hint("give the number of tasks that may run at once, or nothing for any number")
            })?;
            ("--services-mode", AllocationMode::Services { at_once: Some(at_once) })
        }
    };
    let others = [("--dynamic-gpus", args.dynamic_gpus), ("--gpus", !args.serve.gpus.is_empty())];
    match others.into_iter().find(|(_, given)| *given) {
        None => Ok(mode),
        Some((other, _)) => {
            let why = format!("{flag} and {other}: the first gives tasks no GPU, the second does");
            Err(CliError::new(ErrorKind::Usage, why).with_hint("omit one"))
        }
    }
}

/// `NVIDIA_VISIBLE_DEVICES` may name GPUs by index; anything else in it is meant for the container toolkit.
fn is_gpu_list(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
}

/// ClearML numbers the agents of one name that have no GPUs: the first number that is free, or, to stop an agent, that is in
/// use.
fn cpu_slot(config: &AgentConfig, running: bool) -> Result<usize, CliError> {
    if matches!(config.allocation_mode, AllocationMode::AllGpus | AllocationMode::Slices)
        || config.worker_id.is_some()
    {
        return Ok(0);
    }
    let agents = cantle_node::agents(&config.installation)?;
    let runs = |slot: &usize| {
        let worker = AgentConfig { cpu_slot: *slot, ..config.clone() }.worker();
        agents.iter().any(|agent| agent.worker == worker)
    };
    // One more than there are agents is always free.
    Ok((0..=agents.len()).find(|slot| runs(slot) == running).unwrap_or(0))
}

/// The addresses of a `clearml.conf` that is about this server.
fn add_hosts(config: &mut AgentConfig, conf: &Conf) {
    let same = |url: String| url.trim_end_matches('/') == config.server.trim_end_matches('/');
    if conf.text("api.api_server").is_some_and(same) {
        let AgentConfig { hosts: Hosts { web, files }, .. } = config;
        *web = web.take().or_else(|| conf.text("api.web_server"));
        *files = files.take().or_else(|| conf.text("api.files_server"));
    }
}

fn schedule(args: &DaemonArgs, conf: &Conf) -> Result<Schedule, CliError> {
    let (up, down) = if args.uptime.is_empty() && args.downtime.is_empty() {
        (conf.list("agent.uptime"), conf.list("agent.downtime"))
    } else {
        (args.uptime.clone(), args.downtime.clone())
    };
    let hours = |name: &str, pieces: &[String]| {
        Hours::parse(pieces)
            .map_err(|error| CliError::new(ErrorKind::Usage, format!("{name} {error}")).with_source(error))
    };
    match (up.is_empty(), down.is_empty()) {
        (true, true) => Ok(Schedule::Always),
        (false, true) => hours("--uptime", &up).map(Schedule::Up),
        (true, false) => hours("--downtime", &down).map(Schedule::Down),
        (false, false) => {
            let why = "clearml.conf: agent.uptime and agent.downtime are both set";
            Err(CliError::new(ErrorKind::Usage, why).with_hint("remove one of them"))
        }
    }
}

fn abort_command(args: &DaemonArgs) -> Result<Option<AbortCommand>, CliError> {
    let text = args.abort_callback_cmd.as_deref().unwrap_or_default();
    let argv = shlex::split(text).ok_or_else(|| {
        let why = format!("CLEARML_AGENT_ABORT_CALLBACK_CMD={text}: a quote in it is not closed");
        CliError::new(ErrorKind::Usage, why)
    })?;
    let within = Duration::from_secs(args.abort_callback_timeout.into());
    Ok((!argv.is_empty()).then_some(AbortCommand { argv, within }))
}

/// Options for `clearml-agent execute`.
fn sdk_words(sdk: &SdkArgs) -> Vec<String> {
    let mut words = vec!["-O".to_owned(); sdk.optimization.into()];
    if sdk.standalone_mode {
        words.push("--standalone-mode".to_owned());
    }
    if let Some(level) = &sdk.log_level {
        words.extend(["--log-level".to_owned(), level.to_uppercase()]);
    }
    words
}

/// The environment of tasks. Secrets are passed here and not on command lines, which everybody can read.
fn task_env(args: &DaemonArgs) -> BTreeMap<String, OsString> {
    let tags = (!args.child_report_tags.is_empty()).then(|| args.child_report_tags.join(" "));
    let set = [
        ("CLEARML_AGENT_GIT_USER", args.sdk.git_user.clone()),
        ("CLEARML_AGENT_GIT_PASS", args.sdk.git_pass.clone()),
        ("CLEARML_WORKER_TAGS", tags),
    ];
    set.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect()
}
