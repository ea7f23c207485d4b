//! `cantle up | server | credentials`: what stays.

use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{AgentError, Config, Gives};
use cantle_clearml::Client;
use cantle_clearml::cantle::GetNodes;
use cantle_driver::Installation;
use cantle_model::{GpuList, QueueSpec, QueueWant};
use cantle_server::{CredentialsFile, Server, ServerError, credentials_path};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::run::from_agent;
use super::{Context, runtime};
use crate::args::{CredentialsArgs, Listen, Serve, ServerArgs, UpArgs};
use crate::connect::{self, describe};
use crate::error::{CliError, Kind, Outcome, as_kind};
use crate::out::{Column, Format};

/// The queue that `cantle up` serves if none is named.
const DEFAULT_QUEUE: &str = "default";

/// The server alone.
pub(crate) fn server(context: &Context, args: ServerArgs) -> Outcome {
    runtime()?.block_on(async {
        let server = bind(context, args.listen, args.open_source).await?;
        context.printer.data(&format!("cantle server is up: {}", server.url()));
        server.serve(until_signal()).await.map_err(as_kind(Kind::Failed))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Server and agent in one process.
pub(crate) fn up(context: &Context, args: UpArgs) -> Outcome {
    let UpArgs { server, mut serve } = args;
    if serve.queue.is_empty() {
        serve.queue.push(DEFAULT_QUEUE.to_owned());
    }
    for queue in serve.queue.iter_mut().filter(|queue| !queue.contains('=')) {
        queue.push_str("=task");
    }
    serve.create_queue = true;
    let mut config = agent_config(context, &serve, Gives::Slices)?;
    // What can be refused is refused before the server listens.
    cantle_agent::check(&config).map_err(from_agent)?;
    runtime()?.block_on(async {
        let server = bind(context, server, false).await?;
        (config.server, config.credentials) = (server.url().to_owned(), server.credentials());
        let url = config.server.clone();
        let client = Client::new(&url, server.credentials()).map_err(describe)?;
        let keys = server.credentials();
        let (stop, stopping) = watch::channel(false);
        let (close, closing) = watch::channel(false);
        let serving = tokio::spawn(server.serve(closed(closing)));
        let mut agent = tokio::spawn(cantle_agent::daemon(config, stopping, || ()));
        wait_for_node(&client, &mut agent).await?;
        context.printer.data(&format!("cantle is up: {url}"));
        context.printer.data(&format!("access key {}, secret key {}", keys.access_key, keys.secret_key));
        let early = tokio::select! {
            ended = &mut agent => Some(ended),
            () = until_signal() => None,
        };
        let ended = match early {
            Some(ended) => ended,
            None => {
                stop.send_replace(true);
                agent.await
            }
        };
        // The server goes last: the agent tells it how its tasks ended.
        close.send_replace(true);
        let served = serving.await.map_err(as_kind(Kind::Failed))?;
        finished(ended)?;
        served.map_err(as_kind(Kind::Failed))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn bind(context: &Context, listen: Listen, open_source: bool) -> Result<Server, CliError> {
    let config = cantle_server::Config {
        listen: listen.listen,
        db: listen.db,
        open: listen.open,
        state_dir: context.places.state.clone(),
        open_source,
        usage_half_life: listen.usage_half_life,
        ..cantle_server::Config::default()
    };
    Server::bind(&config).await.map_err(|error| {
        let kind = if matches!(error, ServerError::Open(_)) { Kind::Usage } else { Kind::Failed };
        CliError::new(kind, error.to_string())
    })
}

pub(crate) fn agent_config(context: &Context, serve: &Serve, gives: Gives) -> Result<Config, CliError> {
    let usage = |error: &dyn std::fmt::Display| CliError::new(Kind::Usage, error.to_string());
    let queue = |text: &String| match (gives == Gives::Slices, text.contains('=')) {
        (true, _) => QueueSpec::parse(text).map_err(|e| usage(&e)),
        (false, false) => Ok(QueueSpec { name: text.clone(), want: QueueWant::Task }),
        (false, true) => Err(usage(&format!("--queue {text}: NAME=SPEC needs --dynamic-gpus"))),
    };
    let seconds = serve.polling_interval;
    if !(0.05..=3600.0).contains(&seconds) {
        return Err(usage(&format!("--polling-interval {seconds}: give 0.05 to 3600 seconds")));
    }
    let keys = cantle_clearml::Credentials { access_key: String::new(), secret_key: String::new() };
    let mut config = Config::new(String::new(), keys, Installation::of_this_machine());
    config.queues = serve.queue.iter().map(queue).collect::<Result<_, _>>()?;
    if !serve.gpus.is_empty() {
        config.gpus = GpuList::parse(&serve.gpus).map_err(|e| usage(&e))?;
        config.gpus_text = Some(serve.gpus.join(" "));
    }
    config.mig.clone_from(&serve.mig);
    config.mig_adopt = serve.mig_adopt.into();
    config.whole_gpu = serve.mig_whole_gpu.into();
    config.name = serve.worker_name.clone().map_or_else(host_name, Ok)?;
    config.create_queues = serve.create_queue;
    config.gives = gives;
    config.policy = serve.policy.policy();
    config.lib_dir = context.places.lib.clone();
    config.state_dir = context.places.state.join("agent");
    config.program = std::env::current_exe().map_err(as_kind(Kind::Failed))?;
    config.watch = serve.watchdog;
    config.poll = Duration::from_secs_f64(seconds);
    config.docker = serve.engine.resolve()?;
    config.metrics_listen.clone_from(&serve.metrics_listen);
    Ok(config)
}

pub(crate) fn host_name() -> Result<String, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(as_kind(Kind::Failed))?;
    Ok(name.trim().to_owned())
}

pub(crate) type Ended = Result<Result<(), AgentError>, tokio::task::JoinError>;

pub(crate) fn finished(ended: Ended) -> Result<(), CliError> {
    ended.map_err(as_kind(Kind::Failed))?.map_err(from_agent)
}

/// Until the agent has made its queues and reported its GPUs, or given up.
async fn wait_for_node(
    client: &Client,
    agent: &mut JoinHandle<Result<(), AgentError>>,
) -> Result<(), CliError> {
    loop {
        if client.call(&GetNodes {}).await.is_ok_and(|found| found.nodes.iter().any(|node| node.alive)) {
            return Ok(());
        }
        tokio::select! {
            ended = &mut *agent => {
                finished(ended)?;
                return Err(CliError::new(Kind::Failed, "the agent ended before it reported"));
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

async fn closed(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop too.
    let _ = stop.wait_for(|stopped| *stopped).await;
}

pub(crate) async fn until_signal() {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    if let (Ok(mut terminate), Ok(mut interrupt)) = signals {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    }
}

const KEY_COLUMNS: [Column<CredentialsFile>; 3] = [
    Column { head: "URL", wide: false, cell: |k| k.url.clone() },
    Column { head: "ACCESS KEY", wide: false, cell: |k| k.access_key.clone() },
    Column { head: "SECRET KEY", wide: false, cell: |k| k.secret_key.clone() },
];

/// The local server's keys.
pub(crate) fn credentials(context: &Context, args: &CredentialsArgs) -> Outcome {
    let state = &context.places.state;
    let found = if args.read_only {
        CredentialsFile::read_viewer(state).map_err(as_kind(Kind::Failed))?
    } else {
        connect::local(state)?
    };
    let keys = found.ok_or_else(|| {
        let file = credentials_path(state);
        CliError::new(
            Kind::NotFound,
            format!("{}: no server ran with this state directory yet", file.display()),
        )
    })?;
    if context.printer.format == Format::Conf {
        context.printer.data(&clearml_conf(&keys));
    } else {
        context.printer.items(&[keys], |k| k.access_key.clone(), &KEY_COLUMNS);
    }
    Ok(ExitCode::SUCCESS)
}

/// What ClearML's clients read from `~/clearml.conf`.
fn clearml_conf(keys: &CredentialsFile) -> String {
    let CredentialsFile { url, access_key, secret_key } = keys;
    let lines = [
        "api {".to_owned(),
        format!("    api_server: {url}"),
        format!("    web_server: {url}"),
        format!("    files_server: {url}/files"),
        "    credentials {".to_owned(),
        format!("        access_key: \"{access_key}\""),
        format!("        secret_key: \"{secret_key}\""),
        "    }".to_owned(),
        "}".to_owned(),
    ];
    lines.join("\n")
}
