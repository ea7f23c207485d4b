//! Nominates a node for each pod that waits with a slice, so that GPUs are filled before others are begun; see
//! [`cantle_kube_model::nominate`]. One replica does it. Whatever comes late or fails costs nothing but the packing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::Store;
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::KubeError;
use crate::cluster::Watched;
use crate::leader::Leader;
use crate::node::ticks;
use crate::watched::follow;
use cantle_kube_model::inject::SLICE_LABEL;
use cantle_kube_model::nominate::{Nomination, Nominator};

/// Field manager of what we write.
const MANAGER: &str = "cantle-packing";
/// Pods that wait for a node.
const WAITING: &str = "spec.nodeName=,status.phase=Pending";
/// What comes together is decided together. Kubernetes needs longer for a pod's claim, which the scheduler waits for.
const SETTLE: Duration = Duration::from_millis(5);
/// Room comes free without any pod that changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What became of a nomination is known by then.
const FORGET: Duration = Duration::from_secs(30);
/// A pod that has its node waits no more, and its claim may be seen this much later.
const CLAIM_LATE: Duration = Duration::from_secs(5);
/// How many calls are under way at once.
const AT_ONCE: usize = 16;
/// Another replica takes over after this.
const LEASE: Duration = Duration::from_secs(15);
/// After something failed.
const RETRY: Duration = Duration::from_secs(1);

/// Who of several replicas nominates.
#[derive(Clone, Debug)]
pub struct PackingSettings {
    /// Where the Lease is.
    pub namespace: String,
    /// Its name.
    pub lease: String,
    /// Tells this replica from the others.
    pub identity: String,
}

/// Nominates until the program ends.
pub(crate) async fn keep_packing(client: Client, settings: PackingSettings) {
    let watched = loop {
        match Watched::begin(&client).await {
            Ok(watched) => break watched,
            Err(error) => tracing::warn!("packing: {error}; trying again"),
        }
        sleep(RETRY).await;
    };
    let mut background = JoinSet::new();
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    let waiting = Config::default().labels(SLICE_LABEL).fields(WAITING);
    let lean = |pod: &mut Pod| pod.metadata.managed_fields = None;
    let pods = follow(&mut background, Api::all(client.clone()), waiting, lean, move |_| notify.notify_one());
    let leader = Leader::new(client.clone(), &settings.namespace, settings.lease, settings.identity, LEASE);
    let mut packer = Packer { client, watched, pods, leader, made: BTreeMap::new(), asked_at: None };
    let mut look = ticks(LOOK_EVERY);
    loop {
        tokio::select! {
            () = changed.notified() => sleep(SETTLE).await,
            _ = look.tick() => {}
        }
        if let Err(error) = packer.turn().await {
            tracing::warn!("packing: {error}; trying again");
            sleep(RETRY).await;
        }
    }
}

struct Packer {
    client: Client,
    watched: Watched,
    pods: Store<Pod>,
    leader: Leader,
    /// Nominations under way, by the pods' UIDs. They may be lost: then a moment is packed less well.
    made: BTreeMap<String, (Nomination, Instant)>,
    /// When the Lease was looked at, while another replica led.
    asked_at: Option<Instant>,
}

impl Packer {
    async fn turn(&mut self) -> Result<(), KubeError> {
        if self.leader.is_due() {
            self.leader.renew().await?;
        }
        if !self.leader.leads() {
            if self.asked_at.is_some_and(|at| at.elapsed() < self.leader.pace()) {
                return Ok(());
            }
            self.asked_at = Some(Instant::now());
            if !self.leader.acquire().await? {
                return Ok(());
            }
        }
        let waiting = self.pods.state();
        if waiting.is_empty() {
            return Ok(());
        }
        let view = self.watched.view().await?;
        // What has been given out is in the view.
        let is_open = |uid: &String| !view.holdings.iter().any(|holding| holding.pod == *uid);
        let is_there = |uid: &String| waiting.iter().any(|pod| pod.uid().as_ref() == Some(uid));
        let counts = |uid: &String, age| is_open(uid) && age < FORGET && (age < CLAIM_LATE || is_there(uid));
        self.made.retain(|uid, (_, at)| counts(uid, at.elapsed()));
        let under_way = self.made.iter().map(|(uid, (made, _))| (uid.clone(), made.clone())).collect();
        let nominator = Nominator::new(&view, &self.watched.nodes(), &self.watched.placed());
        let mut chosen = nominator.nominations(&waiting, &under_way);
        let mut nominated: Vec<(Arc<Pod>, String, Nomination)> = Vec::new();
        for pod in waiting {
            let uid = pod.uid().unwrap_or_default();
            if let Some(nomination) = chosen.remove(&uid) {
                nominated.push((pod, uid, nomination));
            }
        }
        let client = &self.client;
        let calls = stream::iter(nominated).map(|(pod, uid, nomination)| async move {
            nominate(client, &pod, &nomination.node).await.map(|()| (uid, nomination))
        });
        let done: Vec<_> = calls.buffer_unordered(AT_ONCE).collect().await;
        for each in done {
            match each {
                Ok((uid, nomination)) => drop(self.made.insert(uid, (nomination, Instant::now()))),
                Err(error) => tracing::debug!("packing: {error}"),
            }
        }
        Ok(())
    }
}

async fn nominate(client: &Client, pod: &Pod, node: &str) -> Result<(), KubeError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": node}});
    match api.patch_status(&pod.name_any(), &params, &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        // It is gone, or another one has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
