//! Gives each waiting pod with a slice its claim ([`cantle_kube_model::claim`]) and nominates a node for it, so that GPUs are
//! filled one after the other ([`cantle_kube_model::nominate`]). One replica does so. A gate keeps kube-scheduler from a pod
//! until then. A nomination that fails costs only the packing: the gate is removed all the same. A quota of the pod's
//! namespace keeps the gate ([`cantle_kube_model::gpu_quota`]), so no gate is removed before quotas are known.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{Config, Event as Seen};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::KubeError;
use crate::claims::{self, ClaimWork, Claims};
use crate::cluster::{Watched, strip};
use crate::leader::Leader;
use crate::missed::Missed;
use crate::node::ticks;
use crate::preemption::{Evictor, NOTE_MAX};
use crate::waiting::{Counted, WaitingPods};
use crate::watched::follow;
use cantle_kube_model::cluster::ClusterView;
use cantle_kube_model::demand::{PodDemand, demand};
use cantle_kube_model::gpu_quota;
use cantle_kube_model::inject::SLICE_LABEL;
use cantle_kube_model::nominate::{Advice, Nomination, Nominator, Requests, is_held, nominated_node};
use cantle_kube_model::queues::outcome::is_unschedulable;

/// Field manager of what we write.
const MANAGER: &str = "cantle-packing";
/// Pods that are not over.
const LIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Limit of the time until the first lists.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Pods that arrive together are decided together.
const SETTLE: Duration = Duration::from_millis(5);
/// Room comes free without any pod that changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A nomination counts as long as its pod waits with it, and this much longer: the watches show the pod with its node and
/// the allocation of its claim at different moments.
const LATE: Duration = Duration::from_secs(5);
/// Maximum number of concurrent calls.
const AT_ONCE: usize = 16;
/// Another replica takes over after this.
const LEASE: Duration = Duration::from_secs(15);
/// After something failed.
const RETRY: Duration = Duration::from_secs(1);

/// Decides which of several replicas serves waiting pods, and how.
#[derive(Clone, Debug)]
pub struct PendingSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub lease: String,
    /// Tells this replica from the others.
    pub identity: String,
    /// Are nodes nominated?
    pub packs: bool,
    /// Are pods evicted for others of higher priority? Only where nodes are nominated.
    pub preempts: bool,
}

/// Serves waiting pods until `stop` ends, and then lets another replica continue.
pub(crate) async fn keep_serving(
    client: Client,
    settings: PendingSettings,
    metrics: Arc<WaitingPods>,
    stop: impl Future<Output = ()>,
) {
    let mut stop = pin!(stop);
    while !serve(client.clone(), settings.clone(), &metrics, stop.as_mut()).await {
        tracing::warn!("the cluster's state was restored from a backup: reading all of it again");
    }
}

/// The same; false if everything that was read has to be read again.
async fn serve(
    client: Client,
    settings: PendingSettings,
    metrics: &Arc<WaitingPods>,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> bool {
    let PendingSettings { namespace, lease, identity, packs, preempts } = settings;
    let leader = Leader::new(client.clone(), &namespace, lease, identity.clone(), LEASE);
    let watched = loop {
        match Watched::begin(&client).await {
            Ok(watched) => break watched,
            Err(error) => tracing::warn!("waiting pods: {error}; trying again"),
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = &mut stop => return true,
        }
    };
    let mut background = JoinSet::new();
    let changed = Arc::new(Notify::new());
    let (pods, quotas) = follow_pods(&mut background, &client, &changed);
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(identity) };
    let events = Recorder::new(client.clone(), reporter);
    let (requests, made, told) = (Requests::default(), BTreeMap::new(), BTreeMap::new());
    let evictor =
        (packs && preempts).then(|| Evictor::new(client.clone(), events.clone(), Arc::clone(metrics)));
    let let_go = BTreeSet::new();
    let mut server = PendingPods {
        client,
        metrics: Arc::clone(metrics),
        packs,
        watched,
        pods,
        quotas,
        claims: Claims::default(),
        missed: Missed::default(),
        requests,
        let_go,
        leader,
        made,
        events,
        told,
        evictor,
        asked_at: None,
    };
    let mut look = ticks(LOOK_EVERY);
    loop {
        tokio::select! {
            () = changed.notified() => sleep(SETTLE).await,
            _ = look.tick() => {}
            () = &mut stop => {
                server.leave().await;
                return true;
            }
        }
        if let Err(error) = server.turn().await {
            tracing::warn!("waiting pods: {error}; trying again");
            sleep(RETRY).await;
        }
        if server.leader.went_back() {
            return false;
        }
    }
}

/// Pods with slices, and quotas. A change of a placed pod changes nothing for waiting pods.
fn follow_pods(
    background: &mut JoinSet<()>,
    client: &Client,
    changed: &Arc<Notify>,
) -> (Store<Pod>, Store<ResourceQuota>) {
    let live = Config::default().labels(SLICE_LABEL).fields(LIVE);
    let lean = |pod: &mut Pod| match is_placed(pod) {
        true => strip(pod),
        false => pod.metadata.managed_fields = None,
    };
    let notify = Arc::clone(changed);
    let seen = move |event: &Seen<Pod>| match event {
        Seen::Apply(pod) if is_placed(pod) => {}
        _ => notify.notify_one(),
    };
    let pods = follow(background, Api::all(client.clone()), live, lean, seen);
    let lean = |quota: &mut ResourceQuota| quota.metadata.managed_fields = None;
    let quotas = follow(background, Api::all(client.clone()), Config::default(), lean, |_| {});
    (pods, quotas)
}

fn is_placed(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// A nomination under way.
struct Made {
    nomination: Nomination,
    /// The pod was seen with it.
    is_shown: bool,
    /// When it was made, or last seen.
    seen: Instant,
}

struct PendingPods {
    client: Client,
    metrics: Arc<WaitingPods>,
    packs: bool,
    watched: Watched,
    pods: Store<Pod>,
    quotas: Store<ResourceQuota>,
    claims: Claims,
    missed: Missed,
    /// Those of the pods that this replica has seen.
    requests: Requests,
    /// Pods whose gate was taken away, by their UIDs, until they are seen without it.
    let_go: BTreeSet<String>,
    leader: Leader,
    /// Nominations under way, by the pods' UIDs. Those of a former replica are read from the pods.
    made: BTreeMap<String, Made>,
    events: Recorder,
    /// The texts of the last events, by the pods' UIDs.
    told: BTreeMap<String, String>,
    /// None where no pod has to go for another.
    evictor: Option<Evictor>,
    /// Time of the last check of the Lease, while another replica led.
    asked_at: Option<Instant>,
}

impl PendingPods {
    /// Leaves no pod behind that this replica has held, and lets the next one begin at once.
    async fn leave(mut self) {
        if let Err(error) = self.turn().await {
            tracing::warn!("waiting pods: {error}");
        }
        self.leader.release().await;
    }

    async fn turn(&mut self) -> Result<(), KubeError> {
        if self.leader.is_due() {
            self.leader.renew().await?;
        }
        if !self.leader.leads() {
            self.metrics.leads(false);
            if self.asked_at.is_some_and(|at| at.elapsed() < self.leader.pace()) {
                return Ok(());
            }
            self.asked_at = Some(Instant::now());
            if !self.leader.acquire().await? {
                return Ok(());
            }
        }
        self.metrics.leads(true);
        self.is_known().await?;
        let live = self.pods.state();
        let mut waiting: Vec<Arc<Pod>> = live.iter().filter(|pod| !is_placed(pod)).cloned().collect();
        if waiting.is_empty() {
            self.metrics.see(PodDemand::new());
            return Ok(());
        }
        let view = match self.watched.view().await {
            Ok(view) => Some(view),
            Err(error) => {
                tracing::warn!("waiting pods: {error}; kube-scheduler places them without advice");
                None
            }
        };
        if let Some(view) = &view {
            self.requests.see(view, &live);
        }
        let beyond = self.beyond(view.as_ref(), &live);
        let by_quota = beyond.keys().map(String::as_str).collect();
        self.metrics.see(demand(waiting.iter().map(AsRef::as_ref), &by_quota));
        let (held, allowed) =
            waiting.into_iter().partition(|pod| beyond.contains_key(&pod.uid().unwrap_or_default()));
        waiting = allowed;
        // None where the cluster cannot be seen: pods are not held for that.
        let mut advice = match &view {
            Some(view) if self.packs => self.advise(view, &waiting).await,
            _ => Advice::default(),
        };
        let claims = if view.is_some() { self.claim_work(&waiting)? } else { ClaimWork::default() };
        self.tell(&held, &beyond, &waiting, &advice.lacking, &claims.refused).await;
        self.serve(waiting, &mut advice, claims).await;
        Ok(())
    }

    fn claim_work(&mut self, waiting: &[Arc<Pod>]) -> Result<ClaimWork, KubeError> {
        let Some((slices, claims)) = self.watched.claims() else { return Ok(ClaimWork::default()) };
        // kube-scheduler finds no place, and there is one.
        let is_missed = |uid: &String| self.made.get(uid).is_some_and(|made| made.is_shown);
        let unplaced = waiting.iter().filter(|pod| is_unschedulable(pod)).filter_map(|pod| pod.uid());
        let missed = self.missed.due(&unplaced.filter(is_missed).collect());
        self.claims.work(waiting, claims, &slices.state(), &missed)
    }

    /// Makes all calls, several at a time.
    async fn serve(&mut self, waiting: Vec<Arc<Pod>>, advice: &mut Advice, mut claims: ClaimWork) {
        let mut work = Vec::new();
        for pod in waiting {
            let uid = pod.uid().unwrap_or_default();
            let nomination = advice.nominations.remove(&uid);
            let evictor = self.evictor.as_ref();
            let is_to_wait = claims.refused.contains_key(&uid)
                || evictor.is_some_and(|evictor| evictor.keeps_waiting(&pod, nomination.as_ref()));
            let (claim, nomination) = (claims.missing.remove(&uid), nomination.filter(|_| !is_to_wait));
            let is_held = is_held(&pod) && !is_to_wait;
            if is_held {
                self.let_go.insert(uid.clone());
            }
            if is_held || nomination.is_some() || claim.is_some() {
                work.push(PodWork { pod, uid, claim, nomination, is_held });
            }
        }
        let client = &self.client;
        claims.replaced.iter().for_each(|replaced| self.metrics.count(replaced.cause));
        let deletions = stream::iter(claims.replaced).map(|claim| claims::delete(client, claim));
        for done in deletions.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
            done.unwrap_or_else(|error| tracing::warn!("waiting pods: {error}; trying again"));
        }
        let calls = stream::iter(work).map(|work| work.carry_out(client));
        let done: Vec<Done> = calls.buffer_unordered(AT_ONCE).collect().await;
        for Done { uid, claimed, nomination } in done {
            if let Some(claimed) = claimed {
                self.claims.tried(uid.clone(), claimed.err().map(|error| error.to_string()));
            }
            if let Some(nomination) = nomination {
                self.metrics.count(Counted::Nominated);
                self.made.insert(uid, Made { nomination, is_shown: false, seen: Instant::now() });
            }
        }
    }

    /// A count needs a complete list.
    async fn is_known(&self) -> Result<(), KubeError> {
        let ready = async { self.pods.wait_until_ready().await.and(self.quotas.wait_until_ready().await) };
        match timeout(FIRST_LOOK, ready).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(KubeError::Unseen),
        }
    }

    /// The reasons why pods may not continue, by their UIDs.
    fn beyond(&mut self, view: Option<&ClusterView>, live: &[Arc<Pod>]) -> BTreeMap<String, String> {
        let held: BTreeSet<String> =
            live.iter().filter(|pod| is_held(pod)).filter_map(|pod| pod.uid()).collect();
        self.let_go.retain(|uid| held.contains(uid));
        let unseen = ClusterView::default();
        gpu_quota::beyond(view.unwrap_or(&unseen), &self.quotas.state(), live, &self.let_go)
    }

    async fn advise(&mut self, view: &ClusterView, waiting: &[Arc<Pod>]) -> Advice {
        // Allocated claims are in the view, and their pods need no advice: they would be counted twice.
        let given: BTreeSet<&str> = view.holdings.iter().map(|holding| holding.pod.as_str()).collect();
        let has_none = |pod: &&Arc<Pod>| pod.uid().is_none_or(|uid| !given.contains(uid.as_str()));
        let waiting: Vec<Arc<Pod>> = waiting.iter().filter(has_none).cloned().collect();
        let shown: BTreeMap<String, &Arc<Pod>> =
            waiting.iter().filter_map(|pod| Some((pod.uid()?, pod))).collect();
        self.made.retain(|uid, made| {
            let node = shown.get(uid).map(|pod| nominated_node(pod));
            if node == Some(Some(&made.nomination.node)) {
                (made.is_shown, made.seen) = (true, Instant::now());
            }
            // kube-scheduler takes a nomination away when an attempt has failed: then the pod may have another one.
            let is_refused = made.is_shown && node == Some(None);
            if is_refused {
                self.metrics.count(Counted::Withdrawn);
            }
            !is_refused && !given.contains(uid.as_str()) && made.seen.elapsed() < LATE
        });
        let under_way = self.made.iter().map(|(uid, made)| (uid.clone(), made.nomination.clone())).collect();
        let placed = self.watched.placed();
        let nominator = Nominator::new(view, &self.watched.nodes(), &placed).expecting(self.requests.mix());
        let mut advice = nominator.advise(&waiting, &under_way);
        if let Some(evictor) = &mut self.evictor {
            let in_vain = evictor.turn(&nominator, &placed, &waiting, &under_way).await;
            for (uid, why) in in_vain {
                advice.lacking.entry(uid).and_modify(|lacks| *lacks = format!("{lacks}; preemption: {why}"));
            }
        }
        advice
    }

    /// An event for each pod that waits, when the reason has changed. It is sent once kube-scheduler finds no node for the pod:
    /// kube-scheduler reports that claims cannot be allocated, but neither the request nor the free capacity.
    async fn tell(
        &mut self,
        held: &[Arc<Pod>],
        beyond: &BTreeMap<String, String>,
        waiting: &[Arc<Pod>],
        lacking: &BTreeMap<String, String>,
        unclaimed: &BTreeMap<String, String>,
    ) {
        let whys = [beyond, unclaimed, lacking];
        self.told.retain(|uid, _| whys.iter().any(|whys| whys.contains_key(uid)));
        let unplaced = waiting.iter().filter(|pod| is_unschedulable(pod));
        let all = held.iter().map(|pod| (pod, "ExceedsGpuQuota", beyond));
        // The reason that Kubernetes gives for the claims that it creates.
        let all = all.chain(waiting.iter().map(|pod| (pod, "FailedResourceClaimCreation", unclaimed)));
        let all = all.chain(unplaced.map(|pod| (pod, "NoRoomForSlice", lacking)));
        let news = all.filter_map(|(pod, reason, whys)| {
            let uid = pod.uid()?;
            let why = whys.get(&uid).filter(|why| self.told.get(&uid) != Some(why))?;
            Some((Arc::clone(pod), uid, reason, why))
        });
        for (pod, uid, reason, why) in news.take(AT_ONCE).collect::<Vec<_>>() {
            let event = Event {
                type_: EventType::Warning,
                reason: reason.to_owned(),
                note: Some(why.chars().take(NOTE_MAX).collect()),
                action: "Schedule".to_owned(),
                secondary: None,
            };
            match self.events.publish(&event, &pod.object_ref(&())).await {
                Ok(()) => drop(self.told.insert(uid, why.clone())),
                Err(error) => return tracing::warn!("waiting pods: an event could not be written: {error}"),
            }
        }
    }
}

/// The actions that a pod needs.
struct PodWork {
    pod: Arc<Pod>,
    uid: String,
    claim: Option<ResourceClaim>,
    nomination: Option<Nomination>,
    /// It waits for nothing else.
    is_held: bool,
}

/// The results of these actions.
struct Done {
    uid: String,
    /// Set if a claim was to be created.
    claimed: Option<Result<(), KubeError>>,
    /// Set if it was written.
    nomination: Option<Nomination>,
}

impl PodWork {
    /// Creates the claim, nominates, and then lets kube-scheduler have the pod. If the nomination fails, the pod is
    /// scheduled anyway.
    async fn carry_out(self, client: &Client) -> Done {
        let Self { pod, uid, claim, nomination, is_held } = self;
        let create = async { Some(claims::create(client, claim.as_ref()?).await) };
        let nominate = async {
            let nomination = nomination?;
            match nominate(client, &pod, &nomination.node).await {
                Ok(()) => Some(nomination),
                Err(error) => {
                    tracing::debug!("waiting pods: {error}");
                    None
                }
            }
        };
        let (claimed, nomination) = futures_util::join!(create, nominate);
        if let Some(nomination) = &nomination {
            tracing::debug!(pod = pod.name_any(), node = nomination.node, "nominated");
        }
        if let Some(Err(error)) = &claimed {
            tracing::warn!("waiting pods: claim of {}: {error}; trying again", pod.name_any());
        } else if is_held && let Err(error) = release(client, &pod).await {
            tracing::warn!("waiting pods: {}: {error}; trying again", pod.name_any());
        }
        Done { uid, claimed, nomination }
    }
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
