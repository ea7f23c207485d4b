//! Quotas across the cluster: reads the projects from the server and the use of GPUs from the cluster, and carries out
//! the decision. Without a quota on any project, it does nothing and does not read the cluster.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cantle_clearml::TaskRequest;
use cantle_clearml::quotas::Fleet;
use cantle_model::Slice;
use cantle_sched::Wait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use tokio::time::Instant;

use super::controller::{Backlog, Controller};
use super::metrics::known_uid;
use crate::KubeError;
use crate::cluster::Watched;
use cantle_kube_model::cluster::ClusterView;
use cantle_kube_model::phase::has_ended;
use cantle_kube_model::queues::admit::task_of;
use cantle_kube_model::queues::outcome::PodAction;
use cantle_kube_model::queues::plan::{ClusterDecision, ClusterQuestion, GONE, OwnPod, is_behind, plan};
use cantle_kube_model::queues::pod_request::{AdmittedSlices, PodRequest};
use cantle_kube_model::queues::report::{REPORT_EVERY, node_report};
use cantle_kube_model::queues::under_quotas::ServedQueues;

/// Limit of messages and reports in one round: the others follow.
const AT_ONCE: usize = 32;
/// Changes are reported no more often than this, and what has not changed every [`REPORT_EVERY`].
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// The known state of quotas.
pub(super) struct Quotas {
    client: Client,
    watched: Option<Watched>,
    /// The requests of waiting tasks.
    requests: BTreeMap<String, TaskRequest>,
    /// Status messages of waiting tasks.
    messages: BTreeMap<String, String>,
    /// The holdings of pods that were reported to the server, by UID.
    reported_slices: BTreeMap<String, Vec<Slice>>,
    /// When and what was reported of the cluster.
    reported: Option<(Instant, String)>,
}

/// The input of a decision, all of one moment.
pub(super) struct QuotaInput {
    fleet: Fleet,
    view: ClusterView,
}

impl Quotas {
    pub(super) const fn new(client: Client) -> Self {
        Self {
            client,
            watched: None,
            requests: BTreeMap::new(),
            messages: BTreeMap::new(),
            reported_slices: BTreeMap::new(),
            reported: None,
        }
    }

    /// Another replica may have led meanwhile.
    pub(super) fn forget(&mut self) {
        self.messages.clear();
        self.reported_slices.clear();
    }
}

impl Controller {
    /// Looks at projects and the cluster; `None` if no project has a quota.
    pub(super) async fn look(&mut self, backlog: &Backlog) -> Result<Option<QuotaInput>, KubeError> {
        let fleet = self.server.fleet(&self.builder.owner, &self.ids).await?;
        if fleet.projects.is_empty() {
            return Ok(None);
        }
        let waiting: BTreeSet<&String> = backlog.values().flatten().collect();
        self.quotas.requests.retain(|task, _| waiting.contains(task));
        self.quotas.messages.retain(|task, _| waiting.contains(task));
        let new = fleet.waiting.iter().map(|waiting| &waiting.task);
        let new: Vec<String> =
            new.filter(|task| !self.quotas.requests.contains_key(*task)).cloned().collect();
        self.quotas.requests.extend(self.server.requests(&new).await?);
        let watched = match &self.quotas.watched {
            Some(watched) => watched,
            None => self.quotas.watched.insert(Watched::begin(&self.quotas.client).await?),
        };
        let view = watched.view().await?;
        Ok(Some(QuotaInput { fleet, view }))
    }

    /// The queues, and the tasks that wait in them.
    pub(super) fn queues<'a>(&'a self, backlog: &'a Backlog) -> ServedQueues<'a> {
        ServedQueues { configs: &self.builder.file.queues, ids: &self.ids, backlog }
    }

    /// Asks the scheduler.
    pub(super) fn decide(
        &self,
        look: &QuotaInput,
        pods: &[impl Borrow<Pod>],
        backlog: &Backlog,
    ) -> Result<ClusterDecision, KubeError> {
        let own: Vec<OwnPod> = pods.iter().map(Borrow::borrow).filter_map(OwnPod::of).collect();
        let is_held = |task: &str| self.is_held(task);
        let candidates =
            self.queues(backlog).candidates(&look.fleet.waiting, &self.quotas.requests, pods, is_held);
        let asked =
            ClusterQuestion { view: &look.view, fleet: &look.fleet, own: &own, candidates: &candidates };
        Ok(plan(&asked, Timestamp::now().as_millisecond())?)
    }

    /// Carries out the part of a decision that is not new pods: preempts, requeues the tasks of pods whose slices another
    /// pod has taken, and reports.
    pub(super) async fn settle(
        &mut self,
        look: &QuotaInput,
        decided: &ClusterDecision,
        pods: &[impl Borrow<Pod>],
        backlog: &Backlog,
    ) -> Result<(), KubeError> {
        let evictions = self.queues(backlog).allowed_evictions(decided, pods);
        self.server.evict(&self.builder.owner, evictions, &look.fleet).await?;
        let pods: Vec<&Pod> = pods.iter().map(Borrow::borrow).collect();
        for pod in &pods {
            let uid = known_uid(pod.uid());
            if decided.stuck.contains(&uid) && !self.memory.finished.contains(&uid) {
                let outcome = self.act(pod, PodAction::Requeue(GONE.to_owned())).await;
                self.note(vec![(Some(uid), outcome)]);
            }
        }
        self.report_held(look, &pods).await?;
        self.report_waiting(&decided.waits).await?;
        let own = pods.iter().map(|pod| known_uid(pod.uid())).collect();
        self.report_cluster(look, &own, &decided.waits).await
    }

    /// Once the cluster's scheduler has allocated GPUs to pods, the server counts these allocations.
    async fn report_held(&mut self, look: &QuotaInput, pods: &[&Pod]) -> Result<(), KubeError> {
        let mut held: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
        for holding in &look.view.holdings {
            held.entry(&holding.pod).or_default().extend(holding.slices.iter().cloned());
        }
        let there: BTreeSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.quotas.reported_slices.retain(|uid, _| there.contains(uid));
        let mut calls = 0;
        for pod in pods {
            let (Some(task), Some(uid)) = (task_of(pod), pod.uid()) else { continue };
            let Some(slices) = held.remove(uid.as_str()).filter(|_| !has_ended(pod)) else { continue };
            let known = self
                .quotas
                .reported_slices
                .entry(uid.clone())
                .or_insert_with(|| AdmittedSlices::of_pod(pod).slices);
            if *known == slices || calls == AT_ONCE {
                continue;
            }
            calls += 1;
            known.clone_from(&slices);
            self.server
                .hold(&self.builder.owner, task, &uid, slices, PodRequest::of_pod(pod).quota_milli)
                .await?;
        }
        Ok(())
    }

    /// A task's message has the reason why it waits.
    async fn report_waiting(&mut self, waits: &[Wait]) -> Result<(), KubeError> {
        let mut calls = 0;
        for wait in waits {
            let words = format!("waiting: {}", wait.reason);
            let known = self.quotas.messages.get(&wait.task.0);
            // The task ahead changes with every start.
            let is_news = known.is_none() || !is_behind(wait) && known != Some(&words);
            if is_news && calls < AT_ONCE {
                calls += 1;
                self.server.report_message(&wait.task.0, &words).await?;
                self.quotas.messages.insert(wait.task.0.clone(), words);
            }
        }
        Ok(())
    }

    /// The cluster is one node to the server: its GPUs, their holders, and the reason why each task waits.
    async fn report_cluster(
        &mut self,
        look: &QuotaInput,
        own: &BTreeSet<String>,
        waits: &[Wait],
    ) -> Result<(), KubeError> {
        let due = |after: Duration| self.quotas.reported.as_ref().is_none_or(|(at, _)| at.elapsed() >= after);
        if !due(REPORT_AFTER) {
            return Ok(());
        }
        let report = node_report(&self.builder, &look.view, own, waits);
        let text = serde_json::to_string(&report).map_err(KubeError::Object)?;
        let changed = self.quotas.reported.as_ref().is_none_or(|(_, known)| *known != text);
        if changed || due(REPORT_EVERY) {
            self.server.report_node(&report).await?;
            self.quotas.reported = Some((Instant::now(), text));
        }
        Ok(())
    }
}
