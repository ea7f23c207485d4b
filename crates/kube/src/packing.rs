//! Nominates a node for each pod that waits with a slice, so that GPUs are filled before others are begun; see
//! [`cantle_kube_model::nominate`]. One replica does it. A gate keeps kube-scheduler from a pod until its node is nominated; whatever
//! fails here costs nothing but the packing, and the gate goes all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource as _, ResourceExt as _};
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
use cantle_kube_model::nominate::{Advice, Nomination, Nominator, is_held, nominated_node};
use cantle_kube_model::queues::outcome::is_unschedulable;

/// Field manager of what we write.
const MANAGER: &str = "cantle-packing";
/// Pods that wait for a node.
const WAITING: &str = "spec.nodeName=,status.phase=Pending";
/// What comes together is decided together. Kubernetes needs longer for a pod's claim, which the scheduler waits for.
const SETTLE: Duration = Duration::from_millis(5);
/// Room comes free without any pod that changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A nomination counts as long as its pod waits with it, and this much longer: the pod is seen to have it, and to wait no more, at
/// other moments than its claim is seen to have been allocated.
const LATE: Duration = Duration::from_secs(5);
/// Length of an event's text in characters: Kubernetes takes 1,024 bytes.
const NOTE_MAX: usize = 500;
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

/// Nominates until `stop` ends, and then lets another replica go on.
pub(crate) async fn keep_packing(client: Client, settings: PackingSettings, stop: impl Future<Output = ()>) {
    let PackingSettings { namespace, lease, identity } = settings;
    let leader = Leader::new(client.clone(), &namespace, lease, identity.clone(), LEASE);
    let mut stop = pin!(stop);
    let watched = loop {
        match Watched::begin(&client).await {
            Ok(watched) => break watched,
            Err(error) => tracing::warn!("packing: {error}; trying again"),
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = &mut stop => return,
        }
    };
    let mut background = JoinSet::new();
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    let waiting = Config::default().labels(SLICE_LABEL).fields(WAITING);
    let lean = |pod: &mut Pod| pod.metadata.managed_fields = None;
    let pods = follow(&mut background, Api::all(client.clone()), waiting, lean, move |_| notify.notify_one());
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(identity) };
    let events = Recorder::new(client.clone(), reporter);
    let (made, told) = (BTreeMap::new(), BTreeMap::new());
    let mut packer = Packer { client, watched, pods, leader, made, events, told, asked_at: None };
    let mut look = ticks(LOOK_EVERY);
    loop {
        tokio::select! {
            () = changed.notified() => sleep(SETTLE).await,
            _ = look.tick() => {}
            () = &mut stop => return packer.leave().await,
        }
        if let Err(error) = packer.turn().await {
            tracing::warn!("packing: {error}; trying again");
            sleep(RETRY).await;
        }
    }
}

/// A nomination under way.
struct Made {
    nomination: Nomination,
    /// The pod was seen with it.
    is_shown: bool,
    /// When it was made, or last seen.
    seen: Instant,
}

struct Packer {
    client: Client,
    watched: Watched,
    pods: Store<Pod>,
    leader: Leader,
    /// Nominations under way, by the pods' UIDs. Those of a former replica are read from the pods.
    made: BTreeMap<String, Made>,
    events: Recorder,
    /// What events have said, by the pods' UIDs.
    told: BTreeMap<String, String>,
    /// When the Lease was looked at, while another replica led.
    asked_at: Option<Instant>,
}

impl Packer {
    /// Leaves no pod behind that this replica has held, and lets the next one begin at once.
    async fn leave(mut self) {
        if let Err(error) = self.turn().await {
            tracing::warn!("packing: {error}");
        }
        self.leader.release().await;
    }

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
        let mut advice = self.advise(&waiting).await;
        self.tell(&waiting, &advice.lacking).await;
        let mut work: Vec<(Arc<Pod>, Option<Nomination>)> = Vec::new();
        for pod in waiting {
            let nomination = advice.nominations.remove(&pod.uid().unwrap_or_default());
            if nomination.is_some() || is_held(&pod) {
                work.push((pod, nomination));
            }
        }
        let client = &self.client;
        let calls = stream::iter(work).map(|(pod, nomination)| place(client, pod, nomination));
        let done: Vec<_> = calls.buffer_unordered(AT_ONCE).collect().await;
        for (uid, nomination) in done.into_iter().flatten() {
            self.made.insert(uid, Made { nomination, is_shown: false, seen: Instant::now() });
        }
        Ok(())
    }

    /// None where the cluster can't be seen: pods are not held for that.
    async fn advise(&mut self, waiting: &[Arc<Pod>]) -> Advice {
        let view = match self.watched.view().await {
            Ok(view) => view,
            Err(error) => {
                tracing::warn!("packing: {error}; kube-scheduler places pods without advice");
                return Advice::default();
            }
        };
        // What has been given out is in the view.
        let given: BTreeSet<&str> = view.holdings.iter().map(|holding| holding.pod.as_str()).collect();
        let shown: BTreeMap<String, &Arc<Pod>> =
            waiting.iter().filter_map(|pod| Some((pod.uid()?, pod))).collect();
        self.made.retain(|uid, made| {
            let node = shown.get(uid).map(|pod| nominated_node(pod));
            if node == Some(Some(&made.nomination.node)) {
                (made.is_shown, made.seen) = (true, Instant::now());
            }
            // kube-scheduler takes a nomination away when an attempt has failed: then the pod may have another one.
            let is_refused = made.is_shown && node == Some(None);
            !is_refused && !given.contains(uid.as_str()) && made.seen.elapsed() < LATE
        });
        let under_way = self.made.iter().map(|(uid, made)| (uid.clone(), made.nomination.clone())).collect();
        let nominator = Nominator::new(&view, &self.watched.nodes(), &self.watched.placed());
        nominator.advise(waiting, &under_way)
    }

    /// An event for each pod that kube-scheduler has no place for, when what it lacks has changed: kube-scheduler says that claims
    /// can't be allocated, and neither what is needed nor what is free.
    async fn tell(&mut self, waiting: &[Arc<Pod>], lacking: &BTreeMap<String, String>) {
        self.told.retain(|uid, _| lacking.contains_key(uid));
        let is_new = |pod: &&Arc<Pod>| {
            let uid = pod.uid().unwrap_or_default();
            is_unschedulable(pod) && lacking.get(&uid).is_some_and(|why| self.told.get(&uid) != Some(why))
        };
        for pod in waiting.iter().filter(is_new).take(AT_ONCE).cloned().collect::<Vec<_>>() {
            let uid = pod.uid().unwrap_or_default();
            let Some(why) = lacking.get(&uid) else { continue };
            let event = Event {
                type_: EventType::Warning,
                reason: "NoRoomForSlice".to_owned(),
                note: Some(why.chars().take(NOTE_MAX).collect()),
                action: "Schedule".to_owned(),
                secondary: None,
            };
            match self.events.publish(&event, &pod.object_ref(&())).await {
                Ok(()) => drop(self.told.insert(uid, why.clone())),
                Err(error) => return tracing::warn!("packing: an event could not be written: {error}"),
            }
        }
    }
}

/// Nominates, and then lets kube-scheduler have the pod. A nomination that fails holds nothing up.
async fn place(
    client: &Client,
    pod: Arc<Pod>,
    nomination: Option<Nomination>,
) -> Option<(String, Nomination)> {
    let mut made = None;
    if let Some(nomination) = nomination {
        match nominate(client, &pod, &nomination.node).await {
            Ok(()) => {
                tracing::debug!(pod = pod.name_any(), node = nomination.node, "nominated");
                made = Some((pod.uid().unwrap_or_default(), nomination));
            }
            Err(error) => tracing::debug!("packing: {error}"),
        }
    }
    if is_held(&pod)
        && let Err(error) = release(client, &pod).await
    {
        tracing::warn!("packing: {}: {error}; trying again", pod.name_any());
    }
    made
}

async fn nominate(client: &Client, pod: &Pod, node: &str) -> Result<(), KubeError> {
    let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": node}});
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    unless_gone(api.patch_status(&pod.name_any(), &params(), &Patch::Merge(patch)).await)
}

/// Takes the gate away, the only one that is left.
async fn release(client: &Client, pod: &Pod) -> Result<(), KubeError> {
    let patch = json!({"metadata": {"uid": pod.uid()}, "spec": {"schedulingGates": null}});
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    unless_gone(api.patch(&pod.name_any(), &params(), &Patch::Merge(patch)).await)
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// It may be gone, or another one may have its name.
fn unless_gone(patched: kube::Result<Pod>) -> Result<(), KubeError> {
    match patched {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
