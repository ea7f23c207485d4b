//! The leader's rounds: look at everything, do what is to be done, give tasks their pods.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::{Api, ResourceExt};
use tokio::time::Instant;

use super::act::{Made, Outcome};
use super::admit::{Admission, admissions, queue_of, surplus, task_of};
use super::leader::Leader;
use super::logs::Logs;
use super::metrics::Metrics;
use super::pod::{Forge, OWNER_LABEL};
use super::quotas::Quotas;
use super::server::{Server, Tasks};
use super::verdict::{Step, has_log, is_gated, judge};
use crate::KubeError;
use crate::phase::has_ended;

/// So many calls at once.
const AT_ONCE: usize = 16;
/// A task that can't be given a pod is tried again after this.
const HOLD: Duration = Duration::from_secs(5);
/// A task that is in no queue and not started: so long somebody else may still be about to start it.
const DOUBT: Duration = Duration::from_secs(15);

/// How often the server is told that somebody serves the queues.
const REPORT: Duration = Duration::from_secs(30);

/// Queues by id, with the tasks that wait in them.
pub(super) type Lines = BTreeMap<String, Vec<String>>;

/// The controller: what it works with, and what it remembers.
pub(super) struct Controller {
    pub(super) pods: Api<Pod>,
    pub(super) namespace: String,
    pub(super) known: Store<Pod>,
    pub(super) server: Arc<Server>,
    /// Ids of the file's queues.
    pub(super) ids: Vec<String>,
    pub(super) forge: Forge,
    pub(super) leader: Leader,
    pub(super) logs: Logs,
    pub(super) image_grace: Duration,
    pub(super) quotas: Quotas,
    pub(super) metrics: Arc<Metrics>,
    pub(super) memory: Memory,
}

/// What one round tells the next. All of it may be lost: the next leader has none of it.
#[derive(Default)]
pub(super) struct Memory {
    looked: Option<Instant>,
    /// Since it leads it has compared the watch with a list.
    begun: bool,
    reported: Option<Instant>,
    /// What tasks say of their pods; by uid, as the next two.
    said: BTreeMap<String, String>,
    /// Nothing more is to be done about these; the watch has yet to see that they are gone.
    done: BTreeSet<String>,
    /// Since when a pod's task is nowhere.
    doubts: BTreeMap<String, Instant>,
    /// Tasks that could not be given a pod, and when.
    held: BTreeMap<String, Instant>,
}

impl Controller {
    /// Leads, or tries to.
    pub(super) async fn turn(&mut self) {
        let began = Instant::now();
        let done = self.try_turn().await;
        if let Err(error) = &done {
            tracing::warn!("{error}; trying again");
        }
        let leads = self.leader.leads();
        self.metrics.leads(leads);
        if leads {
            self.metrics.round(done.is_err(), began.elapsed());
        }
    }

    async fn try_turn(&mut self) -> Result<(), KubeError> {
        if self.leader.is_due() {
            self.leader.renew().await?;
        }
        if !self.leader.leads() {
            let early = self.memory.looked.is_some_and(|at| at.elapsed() < self.leader.pace());
            if early {
                return Ok(());
            }
            self.memory.looked = Some(Instant::now());
            if !self.leader.acquire().await? {
                return Ok(());
            }
            self.memory.begun = false;
        }
        // Before the first list has come nothing is known of any pod.
        if self.known.wait_until_ready().await.is_err() {
            return Err(KubeError::Lost("the watch of pods has ended".to_owned()));
        }
        if !self.memory.begun {
            self.begin().await?;
            self.memory.begun = true;
        }
        if self.memory.reported.is_none_or(|at| at.elapsed() >= REPORT) {
            self.server.report(&self.forge.owner, &self.ids).await?;
            self.memory.reported = Some(Instant::now());
        }
        self.round().await
    }

    /// Others may have led since, and the watch may be late: a pod that it still shows and that is gone must not be judged by
    /// what its task does now, in another pod.
    async fn begin(&mut self) -> Result<(), KubeError> {
        let there = self.list().await?;
        let there: BTreeSet<String> = there.iter().filter_map(ResourceExt::uid).collect();
        self.memory.done = self
            .known
            .state()
            .iter()
            .filter_map(|pod| pod.uid())
            .filter(|uid| !there.contains(uid))
            .collect();
        self.memory.said.clear();
        self.memory.doubts.clear();
        self.memory.held.clear();
        self.quotas.forget();
        Ok(())
    }

    /// All pods of this controller, as they are now.
    async fn list(&self) -> Result<Vec<Pod>, KubeError> {
        let ours = ListParams::default().labels(&format!("{OWNER_LABEL}={}", self.forge.owner));
        Ok(self.pods.list(&ours).await?.items)
    }

    /// Lets another replica go on.
    pub(super) async fn leave(&mut self) {
        self.leader.release().await;
    }

    async fn round(&mut self) -> Result<(), KubeError> {
        let pods = self.known.state();
        self.forget_gone(&pods);
        let lines = self.server.lines(&self.ids).await?;
        let tasks: Vec<String> = pods.iter().filter_map(|pod| task_of(pod)).map(str::to_owned).collect();
        let tasks = self.server.states(&tasks).await?;
        let steps = self.steps(&pods, &tasks, &lines);
        let (to_take, steps): (Vec<_>, Vec<_>) = steps.into_iter().partition(|(_, step)| *step == Step::Take);
        let this = &*self;
        let acts = stream::iter(steps).map(|(pod, step)| async move {
            let outcome = this.act(&pod, step).await;
            (pod.uid(), outcome)
        });
        let outcomes: Vec<_> = acts.buffer_unordered(AT_ONCE).collect().await;
        self.note(outcomes);
        let to_take = to_take.iter().filter_map(|(pod, _)| pod.uid()).collect();
        self.admit(&pods, &lines, &to_take).await
    }

    /// What there is to do about each pod, and is not done yet.
    fn steps(&mut self, pods: &[Arc<Pod>], tasks: &Tasks, lines: &Lines) -> Vec<(Arc<Pod>, Step)> {
        let grace_s = i64::try_from(self.image_grace.as_secs()).unwrap_or(i64::MAX);
        let mut steps = Vec::new();
        for pod in pods {
            let (Some(task), Some(uid)) = (task_of(pod), pod.uid()) else { continue };
            if self.memory.done.contains(&uid) {
                continue;
            }
            if has_log(pod) {
                self.logs.follow(&uid, &pod.name_any(), task, self.forge.worker(task));
            }
            let step = judge(pod, tasks.get(task), Timestamp::now(), grace_s);
            let wait = match &step {
                Step::Nothing => true,
                Step::Say(words) => self.memory.said.get(&uid) == Some(words),
                // A task that leaves its pod has all of its log.
                Step::End(_) | Step::Remove(_) | Step::GiveBack(_) | Step::Requeue(_) => {
                    has_ended(pod) && !self.logs.is_done(&uid)
                }
                Step::Take => !self.is_to_be_taken(&uid, pod, task, lines),
                Step::Lift | Step::Stop => false,
            };
            if !wait {
                steps.push((Arc::clone(pod), step));
            }
        }
        steps
    }

    /// A task that is in no queue may be about to be started by another agent; only after a while it is ours to judge.
    fn is_to_be_taken(&mut self, uid: &str, pod: &Pod, task: &str, lines: &Lines) -> bool {
        let waits = lines.values().flatten().any(|waiting| waiting == task);
        if waits || self.queue_at(pod).is_none() {
            self.memory.doubts.remove(uid);
            return true;
        }
        self.memory.doubts.entry(uid.to_owned()).or_insert_with(Instant::now).elapsed() > DOUBT
    }

    /// Which of our queues a pod's task came from.
    pub(super) fn queue_at(&self, pod: &Pod) -> Option<usize> {
        let name = queue_of(pod)?;
        self.forge.file.queues.iter().position(|queue| queue.name == *name)
    }

    pub(super) fn note(&mut self, outcomes: Vec<(Option<String>, Result<Outcome, KubeError>)>) {
        for (uid, outcome) in outcomes {
            let uid = uid.unwrap_or_default();
            match outcome {
                Ok(Outcome::Nothing) => {}
                Ok(Outcome::Said(words)) => drop(self.memory.said.insert(uid, words)),
                Ok(Outcome::Done) => {
                    self.logs.forget(&uid);
                    self.memory.done.insert(uid);
                }
                Err(error) => tracing::warn!(uid, "{error}; trying again"),
            }
        }
    }

    fn forget_gone(&mut self, pods: &[Arc<Pod>]) {
        let there: BTreeSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.memory.said.retain(|uid, _| there.contains(uid));
        self.memory.done.retain(|uid| there.contains(uid));
        self.memory.doubts.retain(|uid, _| there.contains(uid));
        self.memory.held.retain(|_, since| since.elapsed() < HOLD);
    }

    /// Gives waiting tasks their pods. The order is what keeps `maxPods` and keeps tasks from running twice: make the pod,
    /// gated; renew the Lease, which fails if another has led since; take the task from its queue; lift the gate.
    /// `to_take` are pods with which a former leader, or a former round, did not get so far.
    async fn admit(
        &mut self,
        seen: &[Arc<Pod>],
        lines: &Lines,
        to_take: &BTreeSet<String>,
    ) -> Result<(), KubeError> {
        let look = self.look(lines).await?;
        let chosen = match &look {
            None => self.choose(seen, lines),
            Some(look) => {
                let decided = self.decide(look, seen, lines)?;
                self.settle(look, &decided, seen, lines).await?;
                self.admitted(&decided, seen, lines)
            }
        };
        if to_take.is_empty() && chosen.is_empty() || !self.leader.leads() {
            return Ok(());
        }
        // The watch may be late; a list says how it is.
        let mut there = self.list().await?;
        let surplus: BTreeSet<String> =
            surplus(&self.forge.file.queues, &there).into_iter().filter_map(ResourceExt::uid).collect();
        let (surplus, kept): (Vec<Pod>, Vec<Pod>) =
            there.drain(..).partition(|pod| pod.uid().is_some_and(|uid| surplus.contains(&uid)));
        let chosen = match &look {
            None => self.choose(&kept, lines),
            Some(look) => self.admitted(&self.decide(look, &kept, lines)?, &kept, lines),
        };
        let mut gated = self.make_chosen(chosen).await?;
        gated.extend(kept.into_iter().filter(|pod| {
            is_gated(pod)
                && pod.uid().is_some_and(|uid| to_take.contains(&uid) && !self.memory.done.contains(&uid))
        }));
        if gated.is_empty() && surplus.is_empty() || !self.leader.renew().await? {
            return Ok(());
        }
        let this = &*self;
        let taking = stream::iter(gated).map(|pod| async move {
            let outcome = this.take(&pod, lines).await;
            (pod.uid(), outcome)
        });
        let mut outcomes: Vec<_> = taking.buffered(AT_ONCE).collect().await;
        for pod in surplus {
            outcomes.push((pod.uid(), self.act(&pod, Step::Remove("its queue has no room")).await));
        }
        self.note(outcomes);
        Ok(())
    }

    /// Makes pods.
    async fn make_chosen(&mut self, chosen: Vec<Admission>) -> Result<Vec<Pod>, KubeError> {
        let ids: Vec<String> = chosen.iter().map(|admission| admission.task.clone()).collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let tasks = &self.server.whole(&ids).await?;
        let this = &*self;
        let making = stream::iter(chosen).map(|admission| async move {
            let made = match tasks.get(&admission.task) {
                Some(task) => this.make(task, &admission).await,
                None => Made::Later("it was deleted".to_owned()),
            };
            (admission.task, made)
        });
        let made: Vec<_> = making.buffered(AT_ONCE).collect().await;
        let mut pods = Vec::new();
        for (task, made) in made {
            match made {
                Made::Pod(pod) => pods.push(*pod),
                Made::Never => {}
                Made::Later(why) => {
                    tracing::warn!(task, "no pod yet: {why}");
                    self.memory.held.insert(task, Instant::now());
                }
            }
        }
        Ok(pods)
    }

    /// Is it known that a task can't be given a pod just now?
    pub(super) fn is_held(&self, task: &str) -> bool {
        self.memory.held.contains_key(task)
    }

    /// Is nothing more to be done about this pod?
    pub(super) fn is_done(&self, uid: &str) -> bool {
        self.memory.done.contains(uid)
    }

    /// The first ones, where nobody has a quota.
    fn choose(&self, pods: &[impl Borrow<Pod>], lines: &Lines) -> Vec<Admission> {
        let held = self.memory.held.keys().cloned().collect();
        admissions(&self.forge.file.queues, &self.ids, lines, pods, &held)
    }
}
