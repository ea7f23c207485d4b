//! Quotas across the cluster: what the server says about projects, what the cluster's GPUs are used for, and the decision
//! made of both carried out. As long as no project has a quota nothing of this happens, and the cluster is not read.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cantle_clearml::TaskRequest;
use cantle_clearml::quotas::Fleet;
use cantle_model::Slice;
use cantle_sched::{Eviction, Wait};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use tokio::time::Instant;

use super::admit::{Admission, queue_of, rooms, task_of};
use super::plan::{Asked, Candidate, Decided, GONE, Own, is_behind, plan};
use super::report::node_report;
use super::round::{Controller, Lines};
use super::verdict::{Step, is_unschedulable};
use super::wants::{Room, Wants};
use crate::KubeError;
use crate::cluster::{View, Watched};
use crate::phase::has_ended;

/// So many words and reports in one round: the others follow.
const AT_ONCE: usize = 32;
/// The server is told of changes no more often than this,
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// and of what has not changed so often.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(20);

/// What is known about quotas.
pub(super) struct Quotas {
    client: Client,
    watched: Option<Watched>,
    /// What waiting tasks ask for.
    requests: BTreeMap<String, TaskRequest>,
    /// What waiting tasks say.
    said: BTreeMap<String, String>,
    /// What the server was told that pods hold, by UID.
    told: BTreeMap<String, Vec<Slice>>,
    /// When and what the server was told of the cluster.
    reported: Option<(Instant, String)>,
}

/// What a decision is made from, all of one moment.
pub(super) struct Look {
    fleet: Fleet,
    view: View,
}

impl Quotas {
    pub(super) const fn new(client: Client) -> Self {
        Self {
            client,
            watched: None,
            requests: BTreeMap::new(),
            said: BTreeMap::new(),
            told: BTreeMap::new(),
            reported: None,
        }
    }

    /// Another replica may have led meanwhile.
    pub(super) fn forget(&mut self) {
        self.said.clear();
        self.told.clear();
    }
}

impl Controller {
    /// Looks at projects and the cluster; `None` if no project has a quota.
    pub(super) async fn look(&mut self, lines: &Lines) -> Result<Option<Look>, KubeError> {
        let fleet = self.server.fleet(&self.forge.owner, &self.ids).await?;
        if fleet.projects.is_empty() {
            return Ok(None);
        }
        let waiting: BTreeSet<&String> = lines.values().flatten().collect();
        self.quotas.requests.retain(|task, _| waiting.contains(task));
        self.quotas.said.retain(|task, _| waiting.contains(task));
        let new = fleet.waiting.iter().map(|told| &told.task);
        let new: Vec<String> =
            new.filter(|task| !self.quotas.requests.contains_key(*task)).cloned().collect();
        self.quotas.requests.extend(self.server.requests(&new).await?);
        let watched = match &self.quotas.watched {
            Some(watched) => watched,
            None => self.quotas.watched.insert(Watched::begin(&self.quotas.client).await?),
        };
        let view = watched.view().await?;
        Ok(Some(Look { fleet, view }))
    }

    /// Asks the engine.
    pub(super) fn decide(
        &self,
        look: &Look,
        pods: &[impl Borrow<Pod>],
        lines: &Lines,
    ) -> Result<Decided, KubeError> {
        let own: Vec<Own> = pods.iter().map(Borrow::borrow).filter_map(own).collect();
        let candidates = self.candidates(look, pods, lines);
        let asked = Asked { view: &look.view, fleet: &look.fleet, own: &own, candidates: &candidates };
        plan(&asked, Timestamp::now().as_millisecond())
    }

    /// Tasks that wait, are told of by the server, and whose queue has room for a pod.
    fn candidates(&self, look: &Look, pods: &[impl Borrow<Pod>], lines: &Lines) -> Vec<Candidate> {
        let has_pod: BTreeSet<&str> = pods.iter().filter_map(|pod| task_of(pod.borrow())).collect();
        let rooms = rooms(&self.forge.file.queues, pods);
        let mut candidates = Vec::new();
        for told in &look.fleet.waiting {
            let at = self.ids.iter().position(|id| *id == told.queue);
            let waits = || lines.get(&told.queue).is_some_and(|line| line.contains(&told.task));
            let Some(at) = at.filter(|at| rooms[*at] > 0 && waits()) else { continue };
            if has_pod.contains(told.task.as_str()) || self.is_held(&told.task) {
                continue;
            }
            let Some(request) = self.quotas.requests.get(&told.task) else { continue };
            let queue = &self.forge.file.queues[at];
            let wants = Wants::of_task(&queue.template, request);
            let (request, told) = (request.clone(), told.clone());
            candidates.push(Candidate { queue: queue.name.clone(), wants, request, told });
        }
        candidates
    }

    /// Those of the tasks that may start whose queues have room for their pods.
    pub(super) fn admitted(
        &self,
        decided: &Decided,
        pods: &[impl Borrow<Pod>],
        lines: &Lines,
    ) -> Vec<Admission> {
        let mut rooms = rooms(&self.forge.file.queues, pods);
        let mut admitted = Vec::new();
        for (task, room) in &decided.starts {
            let Some(queue) = self.queue_of_waiting(task, lines).filter(|at| rooms[*at] > 0) else {
                continue;
            };
            rooms[queue] -= 1;
            admitted.push(Admission { queue, task: task.clone(), room: Some(room.clone()) });
        }
        admitted
    }

    fn queue_of_waiting(&self, task: &str, lines: &Lines) -> Option<usize> {
        let waits = |id: &String| lines.get(id).is_some_and(|line| line.iter().any(|each| each == task));
        self.ids.iter().position(waits)
    }

    /// Does what a decision says beside new pods: stops those who have to make room, takes back pods that wait for room
    /// that is gone, and tells everybody.
    pub(super) async fn settle(
        &mut self,
        look: &Look,
        decided: &Decided,
        pods: &[impl Borrow<Pod>],
        lines: &Lines,
    ) -> Result<(), KubeError> {
        let evictions = self.within_rooms(decided, pods, lines);
        self.server.evict(&self.forge.owner, evictions, &look.fleet).await?;
        let pods: Vec<&Pod> = pods.iter().map(Borrow::borrow).collect();
        for pod in &pods {
            let uid = pod.uid().unwrap_or_default();
            if decided.stuck.contains(&uid) && !self.is_done(&uid) {
                let outcome = self.act(pod, Step::Requeue(GONE.to_owned())).await;
                self.note(vec![(Some(uid), outcome)]);
            }
        }
        self.tell_held(look, &pods).await?;
        self.tell_waiting(&decided.waits).await?;
        self.report_cluster(look, &decided.waits).await
    }

    /// Nobody is stopped for a task whose queue may have no more pods.
    fn within_rooms(&self, decided: &Decided, pods: &[impl Borrow<Pod>], lines: &Lines) -> Vec<Eviction> {
        let rooms = rooms(&self.forge.file.queues, pods);
        let mut served: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for admission in self.admitted(decided, pods, lines) {
            served.entry(admission.queue).or_default().insert(admission.task);
        }
        let mut may = |eviction: &Eviction| {
            let Some(queue) = self.queue_of_waiting(&eviction.for_task.0, lines) else { return false };
            let served = served.entry(queue).or_default();
            served.contains(&eviction.for_task.0)
                || served.len() < rooms[queue] && served.insert(eviction.for_task.0.clone())
        };
        decided.evictions.iter().filter(|eviction| may(eviction)).cloned().collect()
    }

    /// What pods really hold, once the cluster's scheduler has given it to them, is what the server counts.
    async fn tell_held(&mut self, look: &Look, pods: &[&Pod]) -> Result<(), KubeError> {
        let mut held: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
        for holding in &look.view.holdings {
            held.entry(&holding.pod).or_default().extend(holding.slices.iter().cloned());
        }
        let there: BTreeSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.quotas.told.retain(|uid, _| there.contains(uid));
        let mut calls = 0;
        for pod in pods {
            let (Some(task), Some(uid)) = (task_of(pod), pod.uid()) else { continue };
            let Some(slices) = held.remove(uid.as_str()).filter(|_| !has_ended(pod)) else { continue };
            let known = self.quotas.told.entry(uid.clone()).or_insert_with(|| Room::of_pod(pod).slices);
            if *known == slices || calls == AT_ONCE {
                continue;
            }
            calls += 1;
            known.clone_from(&slices);
            self.server.hold(&self.forge.owner, task, &uid, slices, Wants::of_pod(pod).quota_milli).await?;
        }
        Ok(())
    }

    /// Why a task waits stands in its message.
    async fn tell_waiting(&mut self, waits: &[Wait]) -> Result<(), KubeError> {
        let mut calls = 0;
        for wait in waits {
            let words = format!("waiting: {}", wait.reason);
            let known = self.quotas.said.get(&wait.task.0);
            // Behind whom a task stands changes with every start.
            let is_news = known.is_none() || !is_behind(wait) && known != Some(&words);
            if is_news && calls < AT_ONCE {
                calls += 1;
                self.server.say(&wait.task.0, &words).await?;
                self.quotas.said.insert(wait.task.0.clone(), words);
            }
        }
        Ok(())
    }

    /// The cluster is one node to the server: its GPUs, who has them, and why which task waits.
    async fn report_cluster(&mut self, look: &Look, waits: &[Wait]) -> Result<(), KubeError> {
        let due = |after: Duration| self.quotas.reported.as_ref().is_none_or(|(at, _)| at.elapsed() >= after);
        if !due(REPORT_AFTER) {
            return Ok(());
        }
        let report = node_report(&self.forge, &look.view, waits);
        let text = serde_json::to_string(&report).map_err(KubeError::Object)?;
        let changed = self.quotas.reported.as_ref().is_none_or(|(_, known)| *known != text);
        if changed || due(REPORT_EVERY) {
            self.server.report_node(&report).await?;
            self.quotas.reported = Some((Instant::now(), text));
        }
        Ok(())
    }
}

/// A pod of ours that is not over.
fn own(pod: &Pod) -> Option<Own> {
    if has_ended(pod) {
        return None;
    }
    Some(Own {
        uid: pod.uid()?,
        task: task_of(pod)?.to_owned(),
        queue: queue_of(pod).cloned().unwrap_or_default(),
        wants: Wants::of_pod(pod),
        room: Room::of_pod(pod),
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        is_unschedulable: is_unschedulable(pod),
    })
}
