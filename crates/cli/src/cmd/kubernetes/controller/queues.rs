//! `cantle controller queues`: runs tasks of ClearML's queues as pods.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::{Client, Proof};
use cantle_kube::queues::{QueueFile, QueueSettings, ServerKeys, serve_queues};
use cantle_kube::{KubeError, connect, listen};
use clap::Args;
use jiff::SignedDuration;

use crate::connect::access;
use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::host::{host_name, until_signal};

/// `cantle controller queues`
#[derive(Args, Debug)]
pub(crate) struct QueuesArgs {
    /// The queues and the templates of their pods: ClearML's values, agentk8sglue.queues and so on
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Namespace of the pods
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "cantle-system")]
    namespace: String,
    /// Name of the Lease and of the worker; each set of queues needs its own
    #[arg(long, value_name = "NAME", default_value = "cantle-queues")]
    name: String,
    /// Name of this replica [default: the name of the host]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// A Secret in that namespace with access_key and secret_key for the tasks; without it each pod contains the keys
    #[arg(long, value_name = "NAME")]
    task_secret: Option<String>,
    /// Time without a renewal by the leading replica after which another one takes over
    #[arg(long, value_name = "TIME", default_value = "15s")]
    lease: SignedDuration,
    /// Time that a pod may fail to pull its image before its task fails
    #[arg(long, value_name = "TIME", default_value = "5m")]
    image_grace: SignedDuration,
    /// Address of /healthz, /readyz and /metrics, over HTTP [default: none]
    #[arg(long, value_name = "ADDR")]
    observe_listen: Option<SocketAddr>,
}

/// Serves until a signal stops it.
pub(super) fn queues(context: &Context, kubeconfig: Option<&Path>, args: QueuesArgs) -> CommandResult {
    let file = read(&args.config)?;
    let (url, proof) = access(context)?;
    let task_keys = task_keys(&proof, args.task_secret)?;
    let settings = QueueSettings {
        file,
        client: Client::with_proof(&url, proof, &context.global.tls())?,
        url,
        task_keys,
        namespace: args.namespace,
        name: args.name,
        identity: identity(args.identity)?,
        lease_duration: at_least(args.lease, "--lease", 2)?,
        image_grace: at_least(args.image_grace, "--image-grace", 0)?,
        observers: args.observe_listen.map(listen).transpose()?,
    };
    runtime()?.block_on(async {
        let client = connect(kubeconfig).await?;
        serve_queues(client, settings, until_signal()).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn read(path: &Path) -> Result<QueueFile, KubeError> {
    let file = |why| KubeError::File { path: path.display().to_string(), why };
    let text = std::fs::read_to_string(path).map_err(file)?;
    QueueFile::parse(&text).map_err(|why| KubeError::Queues { path: path.to_owned(), why })
}

/// Tasks have no token that anybody renews.
fn task_keys(proof: &Proof, secret: Option<String>) -> Result<ServerKeys, CliError> {
    match (secret, proof) {
        (Some(secret), _) => Ok(ServerKeys::Secret(secret)),
        (None, Proof::Keys(keys)) => Ok(ServerKeys::Plain(keys.clone())),
        (None, Proof::Token(_) | Proof::TokenFile(_)) => {
            let text = "--task-secret is missing: tasks need keys, and the controller has none";
            Err(CliError::new(ErrorKind::Usage, text)
                .with_hint("make a Secret with access_key and secret_key in the namespace of the pods"))
        }
    }
}

/// Two processes on one machine are two replicas.
pub(super) fn identity(given: Option<String>) -> Result<String, CliError> {
    let name = match given {
        Some(name) => name,
        None => host_name()?,
    };
    Ok(format!("{name}_{}", std::process::id()))
}

fn at_least(given: SignedDuration, flag: &str, seconds: u64) -> Result<Duration, CliError> {
    let duration = Duration::try_from(given).ok().filter(|given| given.as_secs() >= seconds);
    duration.ok_or_else(|| {
        CliError::new(ErrorKind::Usage, format!("{flag} {given}: it must be at least {seconds}s"))
    })
}
