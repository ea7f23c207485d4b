//! The leader's turns: makes the calls that [`next_call`] decides on, in order.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::queues::START_GRACE;
use cantle_kube_model::phase::has_ended;
use cantle_kube_model::queues::admit::{Admission, admissions, surplus, task_of};
use cantle_kube_model::queues::outcome::{PodAction, has_log, is_gated, next_action};
use cantle_kube_model::queues::turn::{
    LeaseState, QuotaState, TurnCall, TurnFacts, WatchState, Work, next_call,
};
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use tokio::time::Instant;

use super::act::PodCreation;
use super::controller::{Backlog, Controller};
use super::quotas::QuotaInput;
use super::server::Tasks;
use crate::KubeError;
use cantle_kube_model::queues::plan::ClusterDecision;

/// Maximum number of concurrent calls.
const AT_ONCE: usize = 16;
/// A task that cannot be given a pod is tried again after this.
const HOLD: Duration = Duration::from_secs(5);
/// Interval of reports to the server that the queues are served.
const REPORT: Duration = Duration::from_secs(30);

/// The facts and decisions of one turn.
#[derive(Default)]
struct Turn {
    known: TurnFacts,
    /// The Lease was renewed at the start.
    is_renewed: bool,
    /// Pods by the watch.
    pods: Vec<Arc<Pod>>,
    backlog: Backlog,
    tasks: Tasks,
    /// Gated pods, by uid, whose tasks a former leader or a former turn has not taken.
    to_take: BTreeSet<String>,
    /// Quotas and the cluster, where projects have quotas.
    look: Option<QuotaInput>,
    decision: Option<ClusterDecision>,
    /// Tasks that get a pod.
    chosen: Vec<Admission>,
    /// Pods by the list that are to be taken.
    gated: Vec<Pod>,
    /// Pods by the list that are too many.
    surplus: Vec<Pod>,
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
        let mut turn = Turn::default();
        loop {
            self.look_around(&mut turn);
            match next_call(&turn.known) {
                TurnCall::Finish => return Ok(()),
                call => self.carry_out(call, &mut turn).await?,
            }
        }
    }

    /// The facts that are known without a call.
    fn look_around(&self, turn: &mut Turn) {
        let begins = turn.known.watch == WatchState::Starting;
        let is_asked = || self.memory.asked_at.is_some_and(|at| at.elapsed() < self.leader.pace());
        turn.known.lease = if begins && !turn.is_renewed && self.leader.is_due() {
            LeaseState::Due
        } else if self.leader.leads() {
            LeaseState::Held
        } else if begins && !is_asked() {
            LeaseState::Free
        } else {
            // Work that began under this leadership ends with it.
            LeaseState::Asked
        };
        let is_due = self.memory.reported_at.is_none_or(|at| at.elapsed() >= REPORT);
        turn.known.is_report_due = is_due && !turn.known.has_read;
    }

    async fn carry_out(&mut self, call: TurnCall, turn: &mut Turn) -> Result<(), KubeError> {
        match call {
            TurnCall::Finish => {}
            TurnCall::RenewLease => {
                turn.is_renewed = true;
                self.leader.renew().await?;
            }
            TurnCall::AcquireLease => {
                self.memory.asked_at = Some(Instant::now());
                if self.leader.acquire().await? {
                    self.memory.is_compared = false;
                }
            }
            TurnCall::AwaitWatch => {
                // Before the first list has come nothing is known of any pod.
                if self.known.wait_until_ready().await.is_err() {
                    return Err(KubeError::Interrupted("the watch of pods has ended".to_owned()));
                }
                let is_compared = self.memory.is_compared;
                turn.known.watch = if is_compared { WatchState::Compared } else { WatchState::Shown };
            }
            TurnCall::CompareWatch => {
                self.compare().await?;
                self.memory.is_compared = true;
                turn.known.watch = WatchState::Compared;
            }
            TurnCall::ReportWorker => {
                self.server.report(&self.builder.owner, &self.ids).await?;
                self.memory.reported_at = Some(Instant::now());
            }
            TurnCall::ReadTasks => self.read(turn).await?,
            TurnCall::HandlePods => self.handle_pods(turn).await,
            TurnCall::ReadQuotas => {
                turn.look = self.look(&turn.backlog).await?;
                turn.known.quotas = if turn.look.is_some() { QuotaState::Read } else { QuotaState::Absent };
            }
            TurnCall::DecideByWatch => {
                (turn.chosen, turn.decision) = self.choose(turn, &turn.pods)?;
                let (to_create, to_take) = (turn.chosen.len(), turn.to_take.len());
                turn.known.by_watch = Some(Work { to_create, to_take, to_remove: 0 });
            }
            TurnCall::Settle => {
                if let (Some(look), Some(decision)) = (&turn.look, &turn.decision) {
                    self.settle(look, decision, &turn.pods, &turn.backlog).await?;
                }
                turn.known.quotas = QuotaState::Settled;
            }
            TurnCall::DecideByList => self.decide_by_list(turn).await?,
            TurnCall::CreatePods => {
                let chosen = std::mem::take(&mut turn.chosen);
                let mut created = self.make_chosen(chosen).await?;
                created.append(&mut turn.gated);
                turn.gated = created;
                turn.known.by_list = Some(turn.work());
            }
            TurnCall::Fence => turn.known.fence = Some(self.leader.renew().await?),
            TurnCall::TakeTasks => {
                self.take_tasks(turn).await;
                turn.known.has_taken = true;
            }
        }
        Ok(())
    }

    /// Others may have led since, and the watch may be late: a pod that it still shows and that is gone must not be judged by
    /// what its task does now, in another pod.
    async fn compare(&mut self) -> Result<(), KubeError> {
        let there = self.list().await?;
        let there: BTreeSet<String> = there.iter().filter_map(kube::ResourceExt::uid).collect();
        let shown = self.known.state();
        let gone = shown.iter().filter_map(|pod| pod.uid()).filter(|uid| !there.contains(uid));
        self.memory.finished = gone.collect();
        self.memory.messages.clear();
        self.memory.orphaned_at.clear();
        self.memory.held_at.clear();
        self.quotas.forget();
        Ok(())
    }

    /// Lets another replica continue.
    pub(super) async fn leave(&mut self) {
        self.leader.release().await;
    }

    async fn read(&mut self, turn: &mut Turn) -> Result<(), KubeError> {
        turn.pods = self.known.state();
        self.forget_gone(&turn.pods);
        turn.backlog = self.server.backlog(&self.ids).await?;
        let tasks: Vec<String> = turn.pods.iter().filter_map(|pod| task_of(pod)).map(str::to_owned).collect();
        turn.tasks = self.server.states(&tasks).await?;
        turn.known.has_read = true;
        Ok(())
    }

    fn forget_gone(&mut self, pods: &[Arc<Pod>]) {
        let there: BTreeSet<String> = pods.iter().filter_map(|pod| pod.uid()).collect();
        self.memory.messages.retain(|uid, _| there.contains(uid));
        self.memory.finished.retain(|uid| there.contains(uid));
        self.memory.orphaned_at.retain(|uid, _| there.contains(uid));
        self.memory.held_at.retain(|_, since| since.elapsed() < HOLD);
    }

    async fn handle_pods(&mut self, turn: &mut Turn) {
        let actions = self.actions(&turn.pods, &turn.tasks, &turn.backlog);
        let (to_take, actions): (Vec<_>, Vec<_>) =
            actions.into_iter().partition(|(_, action)| *action == PodAction::Claim);
        let this = &*self;
        let acts = stream::iter(actions).map(|(pod, action)| async move {
            let result = this.act(&pod, action).await;
            (pod.uid(), result)
        });
        let results: Vec<_> = acts.buffer_unordered(AT_ONCE).collect().await;
        self.note(results);
        turn.to_take = to_take.iter().filter_map(|(pod, _)| pod.uid()).collect();
        turn.known.has_handled_pods = true;
    }

    /// The actions for each pod that are not done yet.
    fn actions(&mut self, pods: &[Arc<Pod>], tasks: &Tasks, backlog: &Backlog) -> Vec<(Arc<Pod>, PodAction)> {
        let grace_s = i64::try_from(self.image_grace.as_secs()).unwrap_or(i64::MAX);
        let mut actions = Vec::new();
        for pod in pods {
            let (Some(task), Some(uid)) = (task_of(pod), pod.uid()) else { continue };
            if self.memory.finished.contains(&uid) {
                continue;
            }
            if has_log(pod) {
                self.logs.follow(&uid, &pod.name_any(), task, self.builder.worker(task));
            }
            let action = next_action(pod, tasks.get(task), Timestamp::now(), grace_s);
            let waits = match &action {
                PodAction::Nothing => true,
                PodAction::Report(message) => self.memory.messages.get(&uid) == Some(message),
                // A task that leaves its pod has all of its log.
                PodAction::End(_) | PodAction::Remove(_) | PodAction::GiveBack(_) | PodAction::Requeue(_) => {
                    has_ended(pod) && !self.logs.is_done(&uid)
                }
                PodAction::Claim => !self.is_to_be_taken(&uid, pod, task, backlog),
                PodAction::LiftGate | PodAction::Stop => false,
            };
            if !waits {
                actions.push((Arc::clone(pod), action));
            }
        }
        actions
    }

    /// A task that is in no queue may be about to be started by another agent; this controller may act on it only after
    /// the grace period.
    fn is_to_be_taken(&mut self, uid: &str, pod: &Pod, task: &str, backlog: &Backlog) -> bool {
        let waits = backlog.values().flatten().any(|waiting| waiting == task);
        if waits || self.queue_at(pod).is_none() {
            self.memory.orphaned_at.remove(uid);
            return true;
        }
        self.memory.orphaned_at.entry(uid.to_owned()).or_insert_with(Instant::now).elapsed() > START_GRACE
    }

    /// The tasks that may get a pod next to these, and what quotas decide, if there are any.
    fn choose(
        &self,
        turn: &Turn,
        pods: &[impl Borrow<Pod>],
    ) -> Result<(Vec<Admission>, Option<ClusterDecision>), KubeError> {
        let Some(look) = &turn.look else {
            let held = self.memory.held_at.keys().cloned().collect();
            let queues = &self.builder.file.queues;
            return Ok((admissions(queues, &self.ids, &turn.backlog, pods, &held), None));
        };
        let decision = self.decide(look, pods, &turn.backlog)?;
        Ok((self.queues(&turn.backlog).admitted(&decision, pods), Some(decision)))
    }

    /// The watch may be late; a list has the current state.
    async fn decide_by_list(&mut self, turn: &mut Turn) -> Result<(), KubeError> {
        let there = self.list().await?;
        let surplus: BTreeSet<String> = surplus(&self.builder.file.queues, &there)
            .into_iter()
            .filter_map(kube::ResourceExt::uid)
            .collect();
        let (surplus, kept): (Vec<Pod>, Vec<Pod>) =
            there.into_iter().partition(|pod| pod.uid().is_some_and(|uid| surplus.contains(&uid)));
        (turn.chosen, _) = self.choose(turn, &kept)?;
        let is_left = |uid: &String| turn.to_take.contains(uid) && !self.memory.finished.contains(uid);
        let is_to_take = |pod: &Pod| is_gated(pod) && pod.uid().as_ref().is_some_and(is_left);
        turn.gated = kept.into_iter().filter(is_to_take).collect();
        turn.surplus = surplus;
        turn.known.by_list = Some(turn.work());
        Ok(())
    }

    /// Takes the tasks of gated pods, and removes pods that are too many.
    async fn take_tasks(&mut self, turn: &mut Turn) {
        let (this, backlog) = (&*self, &turn.backlog);
        let taking = stream::iter(std::mem::take(&mut turn.gated)).map(|pod| async move {
            let result = this.take(&pod, backlog).await;
            (pod.uid(), result)
        });
        let mut results: Vec<_> = taking.buffered(AT_ONCE).collect().await;
        for pod in &turn.surplus {
            results
                .push((pod.uid(), self.act(pod, PodAction::Remove("its queue has reached maxPods")).await));
        }
        self.note(results);
    }

    /// Creates pods.
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
                None => PodCreation::Later("it was deleted".to_owned()),
            };
            (admission.task, made)
        });
        let made: Vec<_> = making.buffered(AT_ONCE).collect().await;
        let mut pods = Vec::new();
        for (task, made) in made {
            match made {
                PodCreation::Pod(pod) => pods.push(*pod),
                PodCreation::Never => {}
                PodCreation::Later(why) => {
                    tracing::warn!(task, "no pod yet: {why}");
                    self.memory.held_at.insert(task, Instant::now());
                }
            }
        }
        Ok(pods)
    }
}

impl Turn {
    /// The work according to the list.
    fn work(&self) -> Work {
        Work { to_create: self.chosen.len(), to_take: self.gated.len(), to_remove: self.surplus.len() }
    }
}
