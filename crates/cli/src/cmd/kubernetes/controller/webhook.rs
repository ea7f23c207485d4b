//! `cantle controller webhook`: the injector.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantle_kube::inject::{InjectionMode, Rules};
use cantle_kube::{
    CertificateLifetimes, Certificates, PendingSettings, WebhookSettings, connect, listen, serve_webhook,
};
use clap::Args;
use jiff::SignedDuration;

use super::path::PathArg;
use super::queues::identity;
use crate::context::{CommandResult, runtime};
use crate::error::{CliError, ErrorKind};
use crate::host::until_signal;

/// `cantle controller webhook`
#[derive(Args, Debug)]
pub(crate) struct WebhookArgs {
    /// Address for the API server's calls, over HTTPS
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Address of /healthz, /readyz and /metrics, over HTTP
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:9402")]
    observe_listen: SocketAddr,
    /// How pods get slices
    #[arg(long, value_enum, default_value_t = PathArg::Dra)]
    path: PathArg,
    /// Name of the scheduler that asks the extender (classic path)
    #[arg(long, value_name = "NAME", default_value = "cantle-scheduler")]
    scheduler: String,
    /// Serve pods that request nvidia.com/mig-… under limits (classic path); omit it if NVIDIA's device plugin allocates
    /// these instances
    #[arg(long)]
    mig_resources: bool,
    /// Nominate no nodes for pods with slices; kube-scheduler then spreads them over all nodes (with claims)
    #[arg(long)]
    no_packing: bool,
    /// Evict no pods for a waiting pod of higher priority (with claims; --no-packing implies it)
    #[arg(long)]
    no_preemption: bool,
    /// Name of this replica [default: the name of the host]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// An environment variable that pods with a slice may not set (repeatable); default: LD_PRELOAD, LD_AUDIT,
    /// LD_LIBRARY_PATH, NVIDIA_VISIBLE_DEVICES. CANTLE_* is never allowed
    #[arg(long, value_name = "NAME")]
    deny_env: Vec<String>,
    /// Certificate in PEM, renewed by another program (cert-manager); without it cantle is its own authority
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    #[command(flatten)]
    own: Own,
}

/// cantle's own certificate authority.
#[derive(Args, Debug)]
struct Own {
    /// Namespace of the service and of the Secret
    #[arg(long, value_name = "NAME", default_value = "cantle-system")]
    namespace: String,
    /// Service that the API server calls
    #[arg(long, value_name = "NAME", default_value = "cantle-webhook")]
    service: String,
    /// Another name or address that the API server calls (repeatable)
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// The Secret in which replicas share the certificate authority; it must exist
    #[arg(long, value_name = "NAME", default_value = "cantle-webhook-ca")]
    secret: String,
    /// The MutatingWebhookConfiguration whose caBundle is kept up to date
    #[arg(long, value_name = "NAME", default_value = "cantle-webhook")]
    configuration: String,
    /// Lifetime of a certificate authority; it is renewed when a third is left
    #[arg(long, value_name = "TIME", default_value = "8760h")]
    ca_life: SignedDuration,
    /// Lifetime of a certificate; it is renewed when half is left
    #[arg(long, value_name = "TIME", default_value = "24h")]
    cert_life: SignedDuration,
    /// Time that API servers have to learn a new authority before it signs
    #[arg(long, value_name = "TIME", default_value = "5m")]
    ca_settle: SignedDuration,
}

impl WebhookArgs {
    fn certificates(&self) -> Result<Certificates, CliError> {
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            return Ok(Certificates::Files { cert: cert.clone(), key: key.clone() });
        }
        let own = &self.own;
        let lifetimes = CertificateLifetimes {
            authority_s: own.ca_life.as_secs(),
            leaf_s: own.cert_life.as_secs(),
            settle_s: own.ca_settle.as_secs(),
        };
        if !lifetimes.fit() {
            let text = "--cert-life and --ca-settle together must be at most a third of --ca-life";
            return Err(CliError::new(ErrorKind::Usage, text));
        }
        let service = format!("{}.{}.svc", own.service, own.namespace);
        let names = [service.clone(), format!("{service}.cluster.local")].into_iter().chain(own.host.clone());
        Ok(Certificates::Own {
            namespace: own.namespace.clone(),
            secret: own.secret.clone(),
            configuration: own.configuration.clone(),
            names: names.collect(),
            lifetimes,
        })
    }
}

/// Runs until a signal stops it.
pub(super) fn webhook(kubeconfig: Option<&Path>, args: WebhookArgs) -> CommandResult {
    let certificates = args.certificates()?;
    let mut rules = Rules::default();
    if !args.deny_env.is_empty() {
        rules.denied_env = args.deny_env;
    }
    if args.path == PathArg::Classic {
        rules.mode = InjectionMode::Classic { scheduler: args.scheduler, mig_resources: args.mig_resources };
    }
    let has_claims = args.path == PathArg::Dra;
    rules.packs = has_claims && !args.no_packing;
    let pending = || {
        let (namespace, lease) = (args.own.namespace.clone(), format!("{}-packing", args.own.service));
        let identity = identity(args.identity.clone())?;
        let (packs, preempts) = (rules.packs, !args.no_preemption);
        Ok::<_, CliError>(PendingSettings { namespace, lease, identity, packs, preempts })
    };
    let settings = WebhookSettings {
        pending: if has_claims { Some(pending()?) } else { None },
        calls: listen(args.listen)?,
        observers: listen(args.observe_listen)?,
        certificates,
        rules,
    };
    runtime()?.block_on(async {
        let client = connect(kubeconfig).await?;
        serve_webhook(client, settings, until_signal()).await?;
        Ok(ExitCode::SUCCESS)
    })
}
