//! `cantle daemon`: one agent, in the foreground or the background, and the agents that run here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use cantle_agent::{AbortCommand, Claim, Config, Gives, Hours, Schedule};
use cantle_clearml::Conf;
use cantle_model::GpuUuid;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::run::from_agent;
use super::up::{agent_config, finished, until_signal};
use super::{Context, runtime};
use crate::args::{DaemonArgs, SdkArgs};
use crate::error::{CliError, Kind, Outcome, as_kind};
use crate::out::Column;
use crate::{clearml_conf, connect, containers};

/// What an agent in the background says on its standard output once it serves.
const READY: &str = "ready";
/// Longer than an agent may take to stop its tasks and to say goodbye.
const STOP_WITHIN: Duration = Duration::from_secs(40);

/// Serves queues, or does what else was asked for.
pub(crate) fn daemon(context: &Context, args: &DaemonArgs) -> Outcome {
    let conf = match clearml_conf::named(&context.global)? {
        Some(conf) => conf,
        None => clearml_conf::of_user(&context.global)?.unwrap_or_default(),
    };
    let mut config = config(context, args, &conf)?;
    if args.status {
        return status(context, &config);
    }
    if let Some(workers) = &args.stop {
        let own = [config.worker()];
        return stop(context, &config, if workers.is_empty() { &own } else { workers });
    }
    if args.serve.queue.is_empty() && args.dynamic_gpus {
        let text = "--queue is missing; name the queues to serve, for example --queue half_gpu=0.5";
        return Err(CliError::new(Kind::Usage, text));
    }
    if let Some(why) = args.foreign.refused() {
        return Err(CliError::new(Kind::Usage, why));
    }
    // What can be refused is refused before anything goes to the background.
    cantle_agent::check(&config).map_err(from_agent)?;
    (config.server, config.credentials) = connect::address(context)?;
    args.foreign.needless().for_each(|note| context.printer.say(note));
    if args.detached && !context.global.background {
        return start_in_background(context, &config.worker());
    }
    serve(context, config)
}

fn serve(context: &Context, config: Config) -> Outcome {
    let ready = {
        let (printer, background) = (context.printer, context.global.background);
        move || {
            if background {
                printer.data(READY);
            }
        }
    };
    runtime()?.block_on(async {
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

/// The command line first, then the environment, then the file.
fn config(context: &Context, args: &DaemonArgs, conf: &Conf) -> Result<Config, CliError> {
    let mut serve = args.serve.clone();
    serve.worker_name = serve.worker_name.or_else(|| conf.text("agent.worker_name"));
    let gives = gives(args)?;
    if matches!(gives, Gives::AllGpus | Gives::Slices) && serve.gpus.is_empty() {
        serve.gpus.extend(args.visible_devices.clone().filter(|list| is_gpu_list(list)));
    }
    let mut config = agent_config(context, &serve, gives)?;
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

/// What the command line says that tasks get.
fn gives(args: &DaemonArgs) -> Result<Gives, CliError> {
    let (flag, gives) = match args.services_mode {
        None if args.cpu_only => ("--cpu-only", Gives::NoGpu),
        None if args.dynamic_gpus => return Ok(Gives::Slices),
        None => return Ok(Gives::AllGpus),
        Some(-1) => ("--services-mode", Gives::Services { at_once: None }),
        Some(most) => {
            let at_once = usize::try_from(most).ok().filter(|most| *most > 0);
            let at_once = at_once.ok_or_else(|| {
                let why = format!(
                    "--services-mode {most}: give how many tasks may run at once, or nothing for any number"
                );
                CliError::new(Kind::Usage, why)
            })?;
            ("--services-mode", Gives::Services { at_once: Some(at_once) })
        }
    };
    let others = [("--dynamic-gpus", args.dynamic_gpus), ("--gpus", !args.serve.gpus.is_empty())];
    match others.into_iter().find(|(_, given)| *given) {
        None => Ok(gives),
        Some((other, _)) => {
            let why =
                format!("{flag} and {other}: the first gives tasks no GPU, the second does; leave one out");
            Err(CliError::new(Kind::Usage, why))
        }
    }
}

/// `NVIDIA_VISIBLE_DEVICES` may name GPUs by index; anything else in it is meant for the container toolkit.
fn is_gpu_list(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
}

/// ClearML numbers the agents without GPUs of one name: the first that is free, or, to stop one, that runs.
fn cpu_slot(config: &Config, running: bool) -> Result<usize, CliError> {
    if matches!(config.gives, Gives::AllGpus | Gives::Slices) || config.worker_id.is_some() {
        return Ok(0);
    }
    let agents = cantle_agent::agents(&config.installation).map_err(from_agent)?;
    let runs = |slot: &usize| {
        let worker = Config { cpu_slot: *slot, ..config.clone() }.worker();
        agents.iter().any(|agent| agent.worker == worker)
    };
    // One more than there are agents is always free.
    Ok((0..=agents.len()).find(|slot| runs(slot) == running).unwrap_or(0))
}

fn schedule(args: &DaemonArgs, conf: &Conf) -> Result<Schedule, CliError> {
    let (up, down) = if args.uptime.is_empty() && args.downtime.is_empty() {
        (conf.list("agent.uptime"), conf.list("agent.downtime"))
    } else {
        (args.uptime.clone(), args.downtime.clone())
    };
    let hours = |name: &str, pieces: &[String]| {
        Hours::parse(pieces).map_err(|error| CliError::new(Kind::Usage, format!("{name} {error}")))
    };
    match (up.is_empty(), down.is_empty()) {
        (true, true) => Ok(Schedule::Always),
        (false, true) => hours("--uptime", &up).map(Schedule::Up),
        (true, false) => hours("--downtime", &down).map(Schedule::Down),
        (false, false) => {
            let why = "clearml.conf: agent.uptime and agent.downtime are both set; remove one of them";
            Err(CliError::new(Kind::Usage, why))
        }
    }
}

fn abort_command(args: &DaemonArgs) -> Result<Option<AbortCommand>, CliError> {
    let text = args.abort_callback_cmd.as_deref().unwrap_or_default();
    let argv = shlex::split(text).ok_or_else(|| {
        let why = format!("CLEARML_AGENT_ABORT_CALLBACK_CMD={text}: a quote in it is not closed");
        CliError::new(Kind::Usage, why)
    })?;
    let within = Duration::from_secs(args.abort_callback_timeout.into());
    Ok((!argv.is_empty()).then_some(AbortCommand { argv, within }))
}

/// For `clearml-agent execute`.
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

/// What tasks get in their environment: secrets are not for command lines, which everybody can read.
fn task_env(args: &DaemonArgs) -> BTreeMap<String, OsString> {
    let tags = (!args.child_report_tags.is_empty()).then(|| args.child_report_tags.join(" "));
    let set = [
        ("CLEARML_AGENT_GIT_USER", args.sdk.git_user.clone()),
        ("CLEARML_AGENT_GIT_PASS", args.sdk.git_pass.clone()),
        ("CLEARML_WORKER_TAGS", tags),
    ];
    set.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect()
}

/// Starts this program again, without a terminal, and waits until it serves or gives up.
fn start_in_background(context: &Context, worker: &str) -> Outcome {
    let log = log_path(&context.places.state, worker)?;
    let mut child = background(&log).map_err(as_kind(Kind::Failed))?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said).map_err(as_kind(Kind::Failed))?;
    }
    if said.trim() == READY {
        let (pid, log) = (child.id(), log.display());
        context
            .printer
            .data(&format!("agent {worker} serves in the background (pid {pid}); its log is {log}"));
        return Ok(ExitCode::SUCCESS);
    }
    let ended = child.wait().map_err(as_kind(Kind::Failed))?;
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let last = text.lines().last().unwrap_or("it says nothing");
    let last = last.strip_prefix("cantle: ").unwrap_or(last).to_owned();
    let code = ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(Kind::Failed as u8);
    Err(CliError::with_code(code, last))
}

fn background(log: &Path) -> std::io::Result<Child> {
    let output: File = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
    Command::new(std::env::current_exe()?)
        .arg("--background")
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(output)
        .spawn()
}

fn log_path(state: &Path, worker: &str) -> Result<PathBuf, CliError> {
    let dir = state.join("agent/logs");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| CliError::new(Kind::Failed, format!("{}: {error}", dir.display())))?;
    // Worker ids may hold anything, file names may not.
    let name = worker.replace('/', "_");
    Ok(dir.join(format!("{name}.log")))
}

const AGENT_COLUMNS: [Column<Claim>; 3] = [
    Column { head: "WORKER", wide: false, cell: |agent| agent.worker.clone() },
    Column { head: "PID", wide: false, cell: |agent| agent.holder.pid.to_string() },
    Column { head: "GPUS", wide: false, cell: devices },
];

/// Its GPUs, or its MIG instances where it has not all of a GPU.
fn devices(agent: &Claim) -> String {
    let of =
        |gpu: &GpuUuid| agent.instances.get(gpu).map_or_else(|| gpu.0.clone(), |devices| devices.join(","));
    agent.gpus.iter().map(of).collect::<Vec<_>>().join(",")
}

fn status(context: &Context, config: &Config) -> Outcome {
    let agents = cantle_agent::agents(&config.installation).map_err(from_agent)?;
    context.printer.items(&agents, |agent| agent.worker.clone(), &AGENT_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// As `kill PID` does: their tasks are stopped with them, and the server is told.
fn stop(context: &Context, config: &Config, workers: &[String]) -> Outcome {
    let agents = cantle_agent::agents(&config.installation).map_err(from_agent)?;
    let mut meant = Vec::new();
    for worker in workers {
        let agent = agents.iter().find(|agent| agent.worker == *worker).ok_or_else(|| {
            let others: Vec<&str> = agents.iter().map(|agent| agent.worker.as_str()).collect();
            let others = if others.is_empty() { "none does".to_owned() } else { others.join(", ") };
            CliError::new(
                Kind::NotFound,
                format!("no agent {worker} runs here; of these GPUs' agents: {others}"),
            )
        })?;
        meant.push(agent);
    }
    meant.iter().for_each(|agent| agent.stop());
    runtime()?.block_on(async {
        let until = Instant::now() + STOP_WITHIN;
        for agent in meant {
            while agent.is_alive() {
                if Instant::now() >= until {
                    let (worker, pid) = (&agent.worker, agent.holder.pid);
                    let text =
                        format!("agent {worker} (pid {pid}) was told to stop and still runs; see its log");
                    return Err(CliError::new(Kind::Failed, text));
                }
                sleep(Duration::from_millis(50)).await;
            }
            context.printer.data(&format!("agent {} is stopped", agent.worker));
        }
        Ok(ExitCode::SUCCESS)
    })
}
