//! Leader election: of several replicas, only the holder of the Lease works. Clocks of different machines are never
//! compared: a Lease is free when this replica has not seen it change for its duration.
//!
//! Renewing also fences. It replaces the Lease at the version that this replica wrote last, so it succeeds only if no
//! other replica has been leader meanwhile.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, timeout};

use crate::KubeError;

/// A replica's part in the election.
pub(crate) struct Leader {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    /// As the API server has it, if this process holds it.
    held: Option<(Lease, Instant)>,
    /// Another replica's: its version, and since when it is that.
    seen: Option<(String, Instant)>,
    /// The greatest version of the Lease that was ever seen.
    newest: u64,
    went_back: bool,
}

impl Leader {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        name: String,
        identity: String,
        duration: Duration,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name,
            identity,
            duration,
            held: None,
            seen: None,
            newest: 0,
            went_back: false,
        }
    }

    /// Work only while this is true; it ends well before another replica may begin.
    pub(crate) fn leads(&self) -> bool {
        self.held.as_ref().is_some_and(|(_, at)| at.elapsed() < self.duration * 2 / 3)
    }

    /// Interval of polls.
    pub(crate) fn pace(&self) -> Duration {
        self.duration / 6
    }

    /// Is it time to renew?
    pub(crate) fn is_due(&self) -> bool {
        self.held.as_ref().is_some_and(|(_, at)| at.elapsed() >= self.pace())
    }

    /// Has the Lease an older version than it had? Then the API server's state was restored from a backup, and watches wait for
    /// versions of the future. It is asked once.
    pub(crate) const fn went_back(&mut self) -> bool {
        std::mem::replace(&mut self.went_back, false)
    }

    /// Takes note of a version. Those of one object only grow, as numbers (KEP-5504).
    fn note(&mut self, lease: &Lease) {
        let version = lease.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0);
        if version < self.newest && version > 0 {
            (self.went_back, self.held) = (true, None);
        }
        self.newest = version;
    }

    /// Takes the Lease if it is free.
    pub(crate) async fn acquire(&mut self) -> Result<bool, KubeError> {
        let began = Instant::now();
        let lease = match self.api.get(&self.name).await {
            Ok(lease) => lease,
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                Lease { metadata, spec: None }
            }
            Err(error) => return Err(error.into()),
        };
        self.note(&lease);
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if !holder.is_empty() && holder != self.identity && !self.has_run_out(&lease) {
            return Ok(false);
        }
        let taken = self.write(lease, began, true).await?;
        if taken {
            tracing::info!(identity = self.identity, "this replica leads");
        }
        Ok(taken)
    }

    /// It was not renewed for its whole duration, while we watched.
    fn has_run_out(&mut self, lease: &Lease) -> bool {
        let version = lease.resource_version().unwrap_or_default();
        let duration_s = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let duration = Duration::from_secs(u64::try_from(duration_s).unwrap_or(0));
        match &self.seen {
            Some((seen, since)) if *seen == version => since.elapsed() > duration,
            _ => {
                self.seen = Some((version, Instant::now()));
                false
            }
        }
    }

    /// Renews; `false` if another replica has the Lease now.
    pub(crate) async fn renew(&mut self) -> Result<bool, KubeError> {
        let began = Instant::now();
        let Some((lease, _)) = self.held.clone() else { return Ok(false) };
        let renewed = timeout(self.duration / 3, self.write(lease, began, false)).await;
        let renewed = renewed.unwrap_or_else(|_| {
            Err(KubeError::Interrupted("no answer within a third of the Lease's time".to_owned()))
        })?;
        if !renewed {
            tracing::warn!(identity = self.identity, "another replica leads now");
        }
        Ok(renewed)
    }

    async fn write(&mut self, mut lease: Lease, began: Instant, new_holder: bool) -> Result<bool, KubeError> {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if new_holder {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(self.duration.as_secs()).ok();
        spec.renew_time = Some(now);
        let params = PostParams::default();
        let written = match &lease.metadata.resource_version {
            None => self.api.create(&params, &lease).await,
            Some(_) => self.api.replace(&self.name, &params, &lease).await,
        };
        match written {
            Ok(lease) => {
                self.note(&lease);
                self.held = Some((lease, began));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.held = None;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Lets the next one begin at once.
    pub(crate) async fn release(&mut self) {
        let Some((mut lease, _)) = self.held.take() else { return };
        lease.spec.get_or_insert_with(LeaseSpec::default).holder_identity = None;
        if let Err(error) = self.api.replace(&self.name, &PostParams::default(), &lease).await {
            tracing::info!("the Lease runs out by itself: {error}");
        }
    }
}
