//! `cantle up`: server and agent in one process.

use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::{AgentError, AllocationMode};
use cantle_clearml::Client;
use cantle_clearml::cantle::GetNodes;
use clap::Args;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::serve::{ServeArgs, agent_config, finished};
use crate::announced::announce;
use crate::cmd::fleet::server::{ListenArgs, bind};
use crate::context::{CommandResult, Context, agent_runtime};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::host::{report_ready, until_signal};
use crate::out;

/// `cantle up`
#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    server: ListenArgs,
    #[command(flatten)]
    serve: ServeArgs,
}

/// The queue that `cantle up` serves if none is named.
const DEFAULT_QUEUE: &str = "default";

/// Serves until a signal ends it, or the agent fails.
pub(crate) fn up(context: &Context, args: UpArgs) -> CommandResult {
    let UpArgs { server, mut serve } = args;
    if serve.queue.is_empty() {
        serve.queue.push(DEFAULT_QUEUE.to_owned());
    }
    for queue in serve.queue.iter_mut().filter(|queue| !queue.contains('=')) {
        queue.push_str("=task");
    }
    serve.create_queue = true;
    let mut config = agent_config(context, &serve, AllocationMode::Slices)?;
    // All checks run before the server listens.
    cantle_agent::check(&config)?;
    agent_runtime()?.block_on(async {
        let server = bind(context, server, false).await?;
        (config.server, config.credentials) = (server.url().to_owned(), server.credentials());
        let url = config.server.clone();
        let _announced = announce(context, &url);
        config.tls = context.global.tls();
        let client = Client::with_tls(&url, server.credentials(), &config.tls)?;
        let keys = server.credentials();
        let (stop, stopping) = watch::channel(false);
        let (close, closing) = watch::channel(false);
        let serving = tokio::spawn(server.serve(closed(closing)));
        let mut agent = tokio::spawn(cantle_agent::daemon(config, stopping, || ()));
        wait_for_node(&client, &mut agent).await?;
        context.printer.data(&format!("cantle is up: {url}"));
        report_ready();
        // Elsewhere this is a file, or the journal of the system, which others read.
        let secret = if out::on_terminal() {
            keys.secret_key.as_str()
        } else {
            "not shown: cantle credentials prints it"
        };
        context.printer.data(&format!("access key {}, secret key {secret}", keys.access_key));
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
        // The server ends last: the agent reports to it how its tasks ended.
        close.send_replace(true);
        let served = serving.await.map_err(as_kind(ErrorKind::Failed))?;
        finished(ended)?;
        served?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Until the agent has created its queues and reported its GPUs, or given up.
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
                return Err(CliError::new(ErrorKind::Failed, "the agent ended before it reported"));
            }
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

async fn closed(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop too.
    let _ = stop.wait_for(|stopped| *stopped).await;
}
