//! `cantle up | server | daemon | credentials`: what stays.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{Config, daemon as serve_queues};
use cantle_clearml::Credentials;
use cantle_model::{GpuList, QueueSpec, QueueWant};
use cantle_sched::{Order, Policy};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::run::from_agent;
use super::{Context, runtime};
use crate::args::{DaemonArgs, Serve, ServerArgs, UpArgs};
use crate::connect::{self, LocalServer};
use crate::error::{CliError, Kind, Outcome, as_kind};
use crate::out::{Column, Format};

/// How long a task may take to end after SIGTERM.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// The queue that `cantle up` serves if none is named.
const DEFAULT_QUEUE: &str = "default";

/// The server alone.
pub(crate) fn server(context: &Context, args: ServerArgs) -> Outcome {
    runtime()?.block_on(async {
        let server = start_server(context, &args).await?;
        context.printer.say(&format!("cantle server is up: {}", server.local.url));
        server.stop_after(until_signal().await).await
    })
}

/// Server and agent in one process.
pub(crate) fn up(context: &Context, args: UpArgs) -> Outcome {
    let mut serve = args.serve;
    if serve.queue.is_empty() {
        serve.queue.push(DEFAULT_QUEUE.to_owned());
    }
    for queue in serve.queue.iter_mut().filter(|queue| !queue.contains('=')) {
        queue.push_str("=task");
    }
    serve.create_queue = true;
    // Everything that can be refused is refused before the server listens.
    let mut config = agent_config(context, &serve, true)?;
    runtime()?.block_on(async {
        cantle_agent::check(&config).map_err(from_agent)?;
        let server = start_server(context, &args.server).await?;
        let LocalServer { url, access_key, secret_key } = server.local.clone();
        config.server.clone_from(&url);
        config.credentials = Credentials { access_key: access_key.clone(), secret_key: secret_key.clone() };
        let (stop, stopping) = watch::channel(false);
        let agent = tokio::spawn(serve_queues(config, stopping));
        context.printer.data(&format!("cantle is up: {url}\n  access key  {access_key}\n  secret key  {secret_key}"));
        context.printer.say("  submit:     cantle submit --queue QUEUE -- COMMAND");
        server.with_agent(agent, stop).await
    })
}

/// The agent alone.
pub(crate) fn daemon(context: &Context, args: DaemonArgs) -> Outcome {
    if args.serve.queue.is_empty() {
        return Err(CliError::new(Kind::Usage, "--queue is missing; name the queues to serve, for example --queue half_gpu=0.5"));
    }
    let mut config = agent_config(context, &args.serve, args.dynamic_gpus)?;
    cantle_agent::check(&config).map_err(from_agent)?;
    (config.server, config.credentials) = connect::address(context)?;
    runtime()?.block_on(async {
        let (stop, stopping) = watch::channel(false);
        let agent = serve_queues(config, stopping);
        tokio::pin!(agent);
        tokio::select! {
            ended = &mut agent => ended.map_err(from_agent)?,
            () = until_signal() => {
                let _ = stop.send(true);
                agent.await.map_err(from_agent)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn agent_config(context: &Context, serve: &Serve, dynamic: bool) -> Result<Config, CliError> {
    let usage = |error: &dyn std::fmt::Display| CliError::new(Kind::Usage, error.to_string());
    let queue = |text: &String| match (dynamic, text.contains('=')) {
        (false, false) => Ok(QueueSpec { name: text.clone(), want: QueueWant::Task }),
        (false, true) => Err(CliError::new(Kind::Usage, format!("--queue {text}: NAME=SPEC needs --dynamic-gpus"))),
        (true, _) => QueueSpec::parse(text).map_err(|e| usage(&e)),
    };
    let queues = serve.queue.iter().map(queue).collect::<Result<_, _>>()?;
    let gpus = if serve.gpus.is_empty() { GpuList::All } else { GpuList::parse(&serve.gpus).map_err(|e| usage(&e))? };
    let order = if serve.order_fairness { Order::Fair } else { Order::Strict };
    if !(0.05..=3600.0).contains(&serve.polling_interval) {
        let given = serve.polling_interval;
        return Err(CliError::new(Kind::Usage, format!("--polling-interval {given}: give 0.05 to 3600 seconds")));
    }
    Ok(Config {
        server: String::new(),
        credentials: Credentials { access_key: String::new(), secret_key: String::new() },
        name: serve.worker_name.clone().map_or_else(host_name, Ok)?,
        worker_id: None,
        queues,
        create_queues: serve.create_queue,
        gpus,
        gpus_text: (!serve.gpus.is_empty()).then(|| serve.gpus.join(" ")),
        dynamic,
        policy: Policy { order, backfill: serve.backfill, ..Policy::default() },
        source: context.places.source()?,
        lib_dir: context.places.lib.clone(),
        state_dir: context.places.state.join("agent"),
        poll: Duration::from_secs_f64(serve.polling_interval),
        stop_grace: STOP_GRACE,
    })
}

fn host_name() -> Result<String, CliError> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").map_err(as_kind(Kind::Failed))?;
    Ok(name.trim().to_owned())
}

async fn until_signal() {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    if let (Ok(mut terminate), Ok(mut interrupt)) = signals {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    }
}

#[derive(Serialize)]
struct Keys {
    url: String,
    access_key: String,
    secret_key: String,
}

/// The local server's keys.
pub(crate) fn credentials(context: &Context) -> Outcome {
    let file: PathBuf = connect::local_file(&context.places.state);
    let missing = || CliError::new(Kind::NotFound, format!("{}: no server ran with this state directory yet", file.display()));
    let LocalServer { url, access_key, secret_key } = connect::local(&context.places.state).ok_or_else(missing)?;
    if context.printer.format == Format::Conf {
        context.printer.data(&clearml_conf(&url, &access_key, &secret_key));
        return Ok(ExitCode::SUCCESS);
    }
    const COLUMNS: [Column<Keys>; 3] = [
        Column { head: "URL", wide: false, cell: |k| k.url.clone() },
        Column { head: "ACCESS KEY", wide: false, cell: |k| k.access_key.clone() },
        Column { head: "SECRET KEY", wide: false, cell: |k| k.secret_key.clone() },
    ];
    context.printer.items(&[Keys { url, access_key, secret_key }], |k| k.access_key.clone(), &COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// What ClearML's clients read from `~/clearml.conf`.
fn clearml_conf(url: &str, access_key: &str, secret_key: &str) -> String {
    format!(
        "api {{\n    api_server: {url}\n    web_server: {url}/ui\n    files_server: {url}/files\n    credentials {{\n        \
         \"access_key\" = \"{access_key}\"\n        \"secret_key\" = \"{secret_key}\"\n    }}\n}}"
    )
}
