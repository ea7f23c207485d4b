//! `cantle controller queues`: tasks in ClearML's queues become pods.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use cantle_kube::queues::{QueueFile, QueueSettings, serve_queues};
use cantle_kube::{KubeError, connect, listen};
use clap::Args;
use jiff::SignedDuration;

use super::from_kube;
use crate::cmd::up::{host_name, until_signal};
use crate::cmd::{Context, runtime};
use crate::connect::address;
use crate::error::{CliError, Kind, Outcome};

/// `cantle controller queues`
#[derive(Args, Debug)]
pub(crate) struct QueuesArgs {
    /// Which queues, and what their pods look like: ClearML's values, agentk8sglue.queues and so on
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where the pods are made
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "cantle-system")]
    namespace: String,
    /// Name of the Lease and of the worker: another one for another set of queues
    #[arg(long, value_name = "NAME", default_value = "cantle-queues")]
    name: String,
    /// This replica's own name; default: the host's
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// A Secret in that namespace with access_key and secret_key, for the tasks; without it the keys are in each pod
    #[arg(long, value_name = "NAME")]
    task_secret: Option<String>,
    /// After so long without a sign of the leading replica another one takes over
    #[arg(long, value_name = "TIME", default_value = "15s")]
    lease: SignedDuration,
    /// So long a pod may fail to get its image before its task has failed
    #[arg(long, value_name = "TIME", default_value = "5m")]
    image_grace: SignedDuration,
    /// Where /healthz, /readyz and /metrics are, over HTTP; default: nowhere
    #[arg(long, value_name = "ADDR")]
    observe_listen: Option<SocketAddr>,
}

/// Serves until it is told to stop.
pub(super) fn queues(context: &Context, kubeconfig: Option<&Path>, args: QueuesArgs) -> Outcome {
    let file = read(&args.config).map_err(from_kube)?;
    let (url, credentials) = address(context)?;
    let settings = QueueSettings {
        file,
        url,
        credentials,
        secret: args.task_secret,
        namespace: args.namespace,
        name: args.name,
        identity: identity(args.identity)?,
        lease_duration: at_least(args.lease, "--lease", 2)?,
        image_grace: at_least(args.image_grace, "--image-grace", 0)?,
        observers: args.observe_listen.map(listen).transpose().map_err(from_kube)?,
    };
    runtime()?.block_on(async {
        let client = connect(kubeconfig).await.map_err(from_kube)?;
        serve_queues(client, settings, until_signal()).await.map_err(from_kube)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn read(path: &Path) -> Result<QueueFile, KubeError> {
    let file = |why| KubeError::File { path: path.display().to_string(), why };
    let text = std::fs::read_to_string(path).map_err(file)?;
    QueueFile::parse(&text).map_err(|why| KubeError::Queues { path: path.to_owned(), why })
}

/// Two processes on one machine are two replicas.
fn identity(given: Option<String>) -> Result<String, CliError> {
    let name = match given {
        Some(name) => name,
        None => host_name()?,
    };
    Ok(format!("{name}_{}", std::process::id()))
}

fn at_least(given: SignedDuration, flag: &str, seconds: u64) -> Result<Duration, CliError> {
    let duration = Duration::try_from(given).ok().filter(|given| given.as_secs() >= seconds);
    duration
        .ok_or_else(|| CliError::new(Kind::Usage, format!("{flag} {given}: it must be at least {seconds}s")))
}
