//! `cantle server`: the server alone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cantle_server::{KubernetesConfig, OidcConfig, Server, TlsFiles};
use clap::Args;

use crate::announced::announce;
use crate::cmd::people::usage::prices;
use crate::context::{CommandResult, Context, runtime};
use crate::error::CliError;
use crate::host::{report_ready, until_signal};
use crate::shared_args::{ServerNotifyArgs, values};

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
pub(crate) struct ListenArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8008")]
    listen: String,
    /// The server's certificate, then those of its authorities, in PEM; read again when the file changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authorities of client certificates, in PEM: agents must show a certificate of one of them
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Speak plain HTTP to other machines too: in a network that you trust, or behind a proxy that speaks TLS
    #[arg(long, conflicts_with = "tls_cert")]
    insecure_http: bool,
    /// Address of the server for clients, if it is another one than that of --listen
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Address to listen on for the notebooks of tasks, which need another port than the page [default: where --listen is on loopback, any
    /// free port; otherwise none]
    #[arg(long, value_name = "ADDRESS")]
    notebook_listen: Option<String>,
    /// Address of notebooks for browsers, if it is another one: https://notebooks.example, or https://*.notebooks.example, where * is the
    /// id of the task, so that each notebook has a host of its own
    #[arg(long, value_name = "URL")]
    notebook_url: Option<String>,
    /// Issuer of the identity provider (OpenID Connect) with which people log in, as written in its tokens
    #[arg(long, value_name = "URL", requires = "oidc_client_id")]
    oidc_issuer: Option<String>,
    /// Client id of this server at the identity provider
    #[arg(long, value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// File with the secret of the client [default: a public client]
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Certificates of the authorities that cantle trusts for the identity provider, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_ca: Option<PathBuf>,
    /// The claim that has the groups of a user
    #[arg(long, value_name = "CLAIM", default_value = "groups")]
    oidc_groups_claim: String,
    /// The claim that has the name of a user, such as the name of its Unix user; a login without it is refused [default: the first of
    /// preferred_username, email and name]
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer")]
    oidc_name_claim: Option<String>,
    /// Take tokens of Kubernetes that are made for this audience: its users become users here, with the groups that it names
    #[arg(long, value_name = "AUDIENCE")]
    kubernetes_tokens: Option<String>,
    /// Address of the API server that says whose token it is [default: that of the cluster of this pod]
    #[arg(long, value_name = "URL", requires = "kubernetes_tokens")]
    kubernetes_api: Option<String>,
    /// Certificates of the authorities that may vouch for the API server, in PEM [default: those of the pod]
    #[arg(long, value_name = "FILE", requires = "kubernetes_tokens")]
    kubernetes_ca: Option<PathBuf>,
    /// The token that this server shows to the API server; it needs the right to create tokenreviews [default: that of the pod]
    #[arg(long, value_name = "FILE", requires = "kubernetes_tokens")]
    kubernetes_token_file: Option<PathBuf>,
    /// What the kubelet tells each pod
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", hide = true)]
    kubernetes_service_host: Option<String>,
    /// What the kubelet tells each pod
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", hide = true)]
    kubernetes_service_port: Option<String>,
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
    /// The prices of GPUs for `cantle usage`, the page and ClearML's get_usages, a TOML file (docs/guide/usage.md) [default: reports have
    /// no costs]
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,
    /// Keep events for this time (7d), or `forever`; those of tasks that have not ended stay
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = values::kept)]
    keep_events: values::Kept,
    /// Keep the output of ended tasks for this time (365d), or `forever`
    #[arg(long, value_name = "TIME", default_value = "forever", value_parser = values::kept)]
    keep_logs: values::Kept,
    /// Keep the audit for this time (365d), or `forever`
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = values::kept)]
    keep_audit: values::Kept,
    #[command(flatten)]
    notify: ServerNotifyArgs,
}

/// Serves until a signal ends it.
pub(crate) fn server(context: &Context, args: ServerArgs) -> CommandResult {
    runtime()?.block_on(async {
        let server = bind(context, args.listen, args.open_source).await?;
        let _announced = announce(context, server.url());
        context.printer.data(&format!("cantle server is up: {}", server.url()));
        report_ready();
        server.serve(until_signal()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Opens database and socket.
pub(crate) async fn bind(
    context: &Context,
    listen: ListenArgs,
    open_source: bool,
) -> Result<Server, CliError> {
    let config = cantle_server::ServerConfig {
        listen: listen.listen,
        tls: listen.tls_cert.zip(listen.tls_key).map(|(cert, key)| TlsFiles {
            cert,
            key,
            client_ca: listen.tls_client_ca,
        }),
        insecure_http: listen.insecure_http,
        url: listen.url,
        notebook_listen: listen.notebook_listen,
        notebook_url: listen.notebook_url,
        oidc: listen.oidc_issuer.zip(listen.oidc_client_id).map(|(issuer, client_id)| OidcConfig {
            issuer,
            client_id,
            client_secret: listen.oidc_client_secret_file,
            ca: listen.oidc_ca,
            groups_claim: listen.oidc_groups_claim,
            name_claim: listen.oidc_name_claim,
        }),
        kubernetes: listen.kubernetes_tokens.map(|audience| KubernetesConfig {
            audience,
            api: listen.kubernetes_api,
            of_pod: listen.kubernetes_service_host.zip(listen.kubernetes_service_port),
            ca: listen.kubernetes_ca,
            token_file: listen.kubernetes_token_file,
        }),
        db: listen.db,
        files: listen.files,
        open: listen.open,
        state_dir: context.dirs.state.clone(),
        open_source,
        usage_half_life: listen.usage_half_life,
        prices: listen.prices.as_deref().map(prices::read).transpose()?,
        keep_events: listen.keep_events.0,
        keep_logs: listen.keep_logs.0,
        keep_audit: listen.keep_audit.0,
        notify: listen.notify.config(),
        ..cantle_server::ServerConfig::default()
    };
    let server = Server::bind(&config).await?;
    // The directories exist now. If they cannot be hidden, the server still serves: it may run no tasks here.
    if let Err(error) = cantle_node::hide_from_tasks(&private_paths(&config)) {
        tracing::warn!(%error, "tasks of root on this machine can see the state of this server");
    }
    Ok(server)
}

/// The paths that no task on this machine may see: the state of the server, and the keys and the data that are
/// elsewhere.
fn private_paths(config: &cantle_server::ServerConfig) -> Vec<PathBuf> {
    let tls = config.tls.as_ref().map(|tls| tls.key.clone());
    let oidc = config.oidc.as_ref().and_then(|oidc| oidc.client_secret.clone());
    let files = config.files.as_deref().filter(|files| !files.contains("://")).map(PathBuf::from);
    let database = config.db.as_deref().filter(|db| !db.starts_with("postgres"));
    let database = database.map(|db| db.strip_prefix("sqlite:").unwrap_or(db));
    // SQLite keeps what is new in a file of its own for a while.
    let database =
        database.into_iter().flat_map(|db| ["", "-wal", "-shm"].map(|end| format!("{db}{end}").into()));
    let notices = [config.notify.secret.clone(), config.notify.smtp_password.clone()];
    let elsewhere = [tls, oidc, files, config.kubernetes.as_ref().and_then(|it| it.token_file.clone())];
    std::iter::once(config.state_dir.join("server"))
        .chain(elsewhere.into_iter().chain(notices).flatten())
        .chain(database)
        .collect()
}
