//! `cantle server`: the server alone.

use std::process::ExitCode;
use std::time::Duration;

use cantle_server::Server;
use clap::Args;

use crate::context::{CommandResult, Context, runtime};
use crate::error::CliError;
use crate::host::{report_ready, until_signal};
use crate::shared_args::values;

/// `cantle server`
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    listen: ListenArgs,
    /// Behave exactly like ClearML's open-source server, without cantle's additions
    #[arg(long, hide = true)]
    open_source: bool,
}

/// Where a server listens and keeps its data.
#[derive(Args, Debug)]
pub(super) struct ListenArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8008")]
    listen: String,
    /// Database [default: in the state directory]
    #[arg(
        long = "database",
        alias = "db",
        env = "CANTLE_DATABASE",
        hide_env_values = true,
        value_name = "sqlite:PATH|postgres://…"
    )]
    db: Option<String>,
    /// Artifacts, models and debug images: a directory, or a bucket of any store that speaks S3, which AWS_* variables
    /// describe [default: in the state directory]
    #[arg(long, value_name = "DIR|s3://BUCKET[/PREFIX]")]
    files: Option<String>,
    /// Require no credentials: on loopback only, for a machine with one user
    #[arg(long)]
    open: bool,
    /// Count past use of GPUs against projects when spare capacity is shared; after this time (30m, 12h, 7d) it counts half
    /// [default: past use does not count]
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    usage_half_life: Option<Duration>,
    /// Keep events for this time (7d), or `forever`; those of tasks that have not ended stay
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = values::kept)]
    keep_events: values::Kept,
    /// Keep the output of tasks that ended for this time (365d), or `forever`
    #[arg(long, value_name = "TIME", default_value = "forever", value_parser = values::kept)]
    keep_logs: values::Kept,
}

/// Serves until a signal ends it.
pub(crate) fn server(context: &Context, args: ServerArgs) -> CommandResult {
    runtime()?.block_on(async {
        let server = bind(context, args.listen, args.open_source).await?;
        context.printer.data(&format!("cantle server is up: {}", server.url()));
        report_ready();
        server.serve(until_signal()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Opens database and socket.
pub(super) async fn bind(
    context: &Context,
    listen: ListenArgs,
    open_source: bool,
) -> Result<Server, CliError> {
    let config = cantle_server::ServerConfig {
        listen: listen.listen,
        db: listen.db,
        files: listen.files,
        open: listen.open,
        state_dir: context.dirs.state.clone(),
        open_source,
        usage_half_life: listen.usage_half_life,
        keep_events: listen.keep_events.0,
        keep_logs: listen.keep_logs.0,
        ..cantle_server::ServerConfig::default()
    };
    Ok(Server::bind(&config).await?)
}
