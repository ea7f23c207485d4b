//! Keeps the webhook's certificate valid: from files that another program renews, or from an authority of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::sync::watch;

use super::authorities::{Authorities, CertificateLifetimes, Leaf};
use crate::KubeError;

/// The key of the authorities in the Secret.
const KEY: &str = "authorities.json";
const MANAGER: &str = "cantle-webhook";
/// Interval of checks, in seconds.
const FILES_TICK_S: i64 = 5;
const OWN_TICK_S: (i64, i64) = (1, 60);

/// The source of certificates.
#[derive(Debug, Clone)]
pub enum Certificates {
    /// From files, which may change (cert-manager).
    Files {
        /// Certificates in PEM.
        cert: PathBuf,
        /// The key in PEM.
        key: PathBuf,
    },
    /// From an authority of our own.
    Own {
        /// Namespace of the Secret and of the service.
        namespace: String,
        /// The Secret that replicas share; it must be there.
        secret: String,
        /// The MutatingWebhookConfiguration whose `caBundle`s are to be kept.
        configuration: String,
        /// Names that the server is called by.
        names: Vec<String>,
        /// The lifetimes.
        lifetimes: CertificateLifetimes,
    },
}

/// Holds what the server shows.
pub(super) struct Manager {
    certificates: Certificates,
    client: Client,
    leaf: Option<Leaf>,
    files: Vec<u8>,
    tls: Option<watch::Sender<Arc<ServerConfig>>>,
}

impl Manager {
    pub(super) const fn new(client: Client, certificates: Certificates) -> Self {
        Self { certificates, client, leaf: None, files: Vec::new(), tls: None }
    }

    /// Until there is a certificate that the API server trusts.
    pub(super) async fn start(&mut self) -> watch::Receiver<Arc<ServerConfig>> {
        loop {
            match self.step().await {
                Ok(()) => {}
                Err(error) => tracing::warn!("certificates: {error}; trying again"),
            }
            if let Some(tls) = &self.tls {
                return tls.subscribe();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Renews, without end.
    pub(super) async fn keep(mut self) {
        loop {
            tokio::time::sleep(self.tick()).await;
            if let Err(error) = self.step().await {
                tracing::warn!("certificates: {error}; the one in use stays, trying again");
            }
        }
    }

    fn tick(&self) -> Duration {
        let s = match &self.certificates {
            Certificates::Files { .. } => FILES_TICK_S,
            Certificates::Own { lifetimes, .. } => {
                (lifetimes.leaf_s.min(lifetimes.settle_s) / 10).clamp(OWN_TICK_S.0, OWN_TICK_S.1)
            }
        };
        Duration::from_secs(s.unsigned_abs())
    }

    async fn step(&mut self) -> Result<(), KubeError> {
        match self.certificates.clone() {
            Certificates::Files { cert, key } => {
                let read = |path: &PathBuf| {
                    std::fs::read(path)
                        .map_err(|why| KubeError::File { path: path.display().to_string(), why })
                };
                let (cert, key) = (read(&cert)?, read(&key)?);
                let files = [cert.as_slice(), key.as_slice()].concat();
                if files != self.files {
                    self.show(&cert, &key)?;
                    self.files = files;
                }
            }
            Certificates::Own { namespace, secret, configuration, names, lifetimes } => {
                let now_s = Timestamp::now().as_second();
                let authorities = self.authorities(&namespace, &secret, now_s, &lifetimes).await?;
                self.publish(&configuration, &authorities.bundle()).await?;
                if self.leaf.as_ref().is_none_or(|leaf| leaf.is_due(&authorities, now_s, &lifetimes)) {
                    let leaf = authorities.leaf(&names, now_s, &lifetimes).map_err(KubeError::Certificate)?;
                    if let Some(leaf) = &leaf {
                        self.show(leaf.cert_pem.as_bytes(), leaf.key_pem.as_bytes())?;
                    }
                    self.leaf = leaf;
                }
            }
        }
        Ok(())
    }

    /// From the Secret, renewed where it is time. Of two replicas that renew at once the second is refused, and reads what
    /// the first has written at its next step.
    async fn authorities(
        &self,
        namespace: &str,
        name: &str,
        now_s: i64,
        lifetimes: &CertificateLifetimes,
    ) -> Result<Authorities, KubeError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let mut secret = api.get(name).await?;
        let known = secret.data.as_ref().and_then(|data| data.get(KEY));
        let known: Authorities = match known {
            None => Authorities::default(),
            Some(bytes) => serde_json::from_slice(&bytes.0).map_err(KubeError::Object)?,
        };
        let Some(next) = known.renewed(now_s, lifetimes).map_err(KubeError::Certificate)? else {
            return Ok(known);
        };
        let bytes = serde_json::to_vec(&next).map_err(KubeError::Object)?;
        secret.data.get_or_insert_default().insert(KEY.to_owned(), ByteString(bytes));
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        api.replace(name, &params, &secret).await?;
        tracing::info!("a new certificate authority is in Secret {namespace}/{name}");
        Ok(next)
    }

    /// Writes the bundle of authorities to trust into the webhook configuration.
    async fn publish(&self, configuration: &str, bundle: &str) -> Result<(), KubeError> {
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let there = api.get(configuration).await?;
        let outdated =
            |given: &Option<ByteString>| given.as_ref().is_none_or(|given| given.0 != bundle.as_bytes());
        let webhooks: Vec<_> = there.webhooks.into_iter().flatten().collect();
        let webhooks = webhooks.iter().filter(|webhook| outdated(&webhook.client_config.ca_bundle));
        let bundle = STANDARD.encode(bundle);
        let webhooks: Vec<_> =
            webhooks.map(|w| json!({"name": w.name, "clientConfig": {"caBundle": bundle}})).collect();
        if webhooks.is_empty() {
            return Ok(());
        }
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(configuration, &params, &Patch::Strategic(json!({"webhooks": webhooks}))).await?;
        tracing::info!("caBundle of {configuration} is up to date");
        Ok(())
    }

    fn show(&mut self, cert: &[u8], key: &[u8]) -> Result<(), KubeError> {
        let config = Arc::new(server_config(cert, key)?);
        match &self.tls {
            Some(tls) => drop(tls.send_replace(config)),
            None => self.tls = Some(watch::Sender::new(config)),
        }
        tracing::info!("a new certificate is in use");
        Ok(())
    }
}

fn server_config(cert: &[u8], key: &[u8]) -> Result<ServerConfig, KubeError> {
    let not_pem = |error: rustls::pki_types::pem::Error| KubeError::Tls(error.to_string());
    let certs = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>().map_err(not_pem)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(not_pem)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let refused = |error: rustls::Error| KubeError::Tls(error.to_string());
    let builder = builder.map_err(refused)?.with_no_client_auth();
    builder.with_single_cert(certs, key).map_err(refused)
}
