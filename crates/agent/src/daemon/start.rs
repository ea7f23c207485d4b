//! From waiting tasks to started ones: plan, audit, lease, claim, start. In this order, so that a task is never taken
//! from its queue without a place, and no place is ever taken without a lease on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cantle_clearml::quotas::{Fleet, WaitingTask};
use cantle_clearml::{Error as WireError, Listing, TaskRequest, cantle, queues, subcode, tasks};
use cantle_model::{LeaseId, QueueId, TaskId, TaskStatus};
use cantle_sched::{Eviction, Plan, Queue, Reason, Start, Wait, Waiting};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument as _, info_span};

use super::Agent;
use super::entry::{Entry, Stage};
use super::meter::count;
use super::queues::{Lines, Queued};
use super::settle::PUT_BACK;
use crate::clock::now_ms;
use crate::job::{Job, JobDir, Outcome};
use crate::launch::new_lease;
use crate::{AgentError, capacity, mig, own_holder, quotas};

/// Tasks of one queue that a plan looks at: those behind them wait for them anyway.
pub(crate) const HEAD: usize = 64;

/// A plan is made anew at least so often while somebody waits: others' use of the GPUs changes unannounced.
const REPLAN_EVERY: Duration = Duration::from_secs(2);

/// What a plan is made from, as far as it is announced.
#[derive(PartialEq, Eq)]
struct Seen {
    lines: Lines,
    leases: Vec<LeaseId>,
    fleet: Fleet,
}

/// What the last plan was made from, and what it said.
#[derive(Default)]
pub(crate) struct Planning {
    seen: Option<Seen>,
    at: Option<Instant>,
    last_served: Option<String>,
    /// Something happened that a report should tell at once.
    pub(crate) changed: bool,
    /// Why those wait that no plan looks at, by task.
    held: BTreeMap<String, cantle::Waiting>,
    /// Why which task waits, by its id.
    pub(crate) waits: BTreeMap<String, cantle::Waiting>,
}

impl Planning {
    /// Has anything changed since the last plan that could change its result?
    fn is_stale(&mut self, now: Seen) -> bool {
        let fresh = self.seen.as_ref() == Some(&now) && self.at.is_some_and(|at| at.elapsed() < REPLAN_EVERY);
        self.seen = Some(now);
        !fresh
    }
}

impl Agent {
    /// Starts whatever can start now, and asks for room for what could start if others stopped.
    pub(crate) async fn fill(&mut self) -> Result<(), WireError> {
        let fleet = self.read_fleet().await?;
        self.heed_evictions(&fleet).await?;
        let mut lines = self.read_queues().await?;
        let is_empty = |lines: &Lines| lines.values().all(|line| line.waiting.is_empty());
        self.planning.held = if is_empty(&lines) { BTreeMap::new() } else { self.close(&mut lines).await? };
        if is_empty(&lines) {
            self.set_waits(&Plan::default());
            return Ok(());
        }
        let leases = self.node.leases().map(|leases| leases.into_iter().map(|lease| lease.id).collect());
        let leases = leases.unwrap_or_default();
        if !self.planning.is_stale(Seen { lines: lines.clone(), leases, fleet: fleet.clone() }) {
            return Ok(());
        }
        let heads = heads(lines, &fleet);
        let wishes = self.read_wishes(&heads).await?;
        let (placed, evictions) = self.place(&heads, &wishes, &fleet).unwrap_or_else(|error| {
            tracing::error!(%error, "nothing new is started");
            Default::default()
        });
        let mut placed = placed.into_iter();
        while let Some(lease) = placed.next() {
            let span = info_span!("claim", task = self.task_of(&lease), %lease);
            if let Err(error) = self.claim(&lease).instrument(span).await {
                // Of the others nobody has been told yet.
                placed.for_each(|lease| self.forget(&lease));
                return Err(error);
            }
        }
        self.begin_claimed().await?;
        self.evict(evictions, &fleet).await
    }

    /// What the tasks at the heads of the queues ask for. How much GPU counts in `NAME=task` queues only; on which kind,
    /// and what is counted beside it, everywhere.
    async fn read_wishes(&self, heads: &Lines) -> Result<BTreeMap<String, TaskRequest>, WireError> {
        let id: Vec<String> =
            heads.values().flat_map(|line| &line.waiting).map(|queued| queued.task.clone()).collect();
        if id.is_empty() {
            return Ok(BTreeMap::new());
        }
        let list = Listing::fields(id, &["id", "hyperparams"]);
        let answer = self.link.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?;
        let wish = |task: tasks::Task| {
            // A request that can't be read is refused when the task is started; until then it is taken for none.
            Some((task.id, TaskRequest::from_hyperparams(&task.hyperparams).ok().flatten()?))
        };
        Ok(answer.tasks.into_iter().filter_map(wish).collect())
    }

    /// Plans, audits, and writes a lease and a job for each task that gets a place; gives those, and who has to stop.
    fn place(
        &mut self,
        heads: &Lines,
        wishes: &BTreeMap<String, TaskRequest>,
        fleet: &Fleet,
    ) -> Result<(Vec<LeaseId>, Vec<Eviction>), AgentError> {
        let waiting_count = heads.values().map(|line| line.waiting.len()).sum::<usize>();
        let span = info_span!("plan", waiting = waiting_count, placed = Empty, evictions = Empty).entered();
        let told: BTreeMap<&str, &WaitingTask> =
            fleet.waiting.iter().map(|told| (told.task.as_str(), told)).collect();
        let queue = |served: &super::queues::Served| {
            let waiting = heads.get(&served.id).into_iter().flat_map(|line| &line.waiting).map(|queued| {
                let told = told.get(queued.task.as_str()).copied();
                let mut waiting = waiting(queued, wishes.get(&queued.task), told);
                if let Some(request) = served.spec.want.request_for(waiting.request.as_ref()) {
                    waiting.isolation = self.config.whole_gpu.isolation(&request, waiting.isolation);
                }
                waiting
            });
            Queue::new(served.spec.clone(), waiting.collect())
        };
        let queues = self.queues.iter().map(queue).collect();
        let node = self.node.clone();
        let locked = node.lock()?;
        let mut leases = locked.sweep()?;
        if self.config.gives.is_gpuless() {
            // What another agent runs takes nothing from us.
            leases.retain(|lease| self.entries.contains_key(&lease.id));
        }
        let mut state =
            capacity::state(self.driver.as_ref(), &self.node, &self.node_name, &self.gpus, &leases, queues);
        state.at_once = self.config.gives.at_once();
        state.last_served.clone_from(&self.planning.last_served);
        state.expected = self.history.mix();
        quotas::enter(&mut state, fleet, &self.ending());
        let began = Instant::now();
        let decided = capacity::decide(&state, &quotas::policy(&self.config.policy, fleet), now_ms())?;
        self.meter.counts().decisions.observe(began.elapsed().as_secs_f64());
        self.planning.at = Some(Instant::now());
        if let Some(queue) = decided.last_served() {
            self.planning.last_served = Some(queue.to_owned());
        }
        span.record("placed", decided.starts.len()).record("evictions", decided.evictions.len());
        self.set_waits(&decided);
        self.history.count(&state, &decided.starts);
        let mut placed = Vec::new();
        for start in decided.starts {
            placed.push(self.write_down(&locked, start)?);
        }
        Ok((placed, decided.evictions))
    }

    fn write_down(&mut self, locked: &crate::Locked<'_>, mut start: Start) -> Result<LeaseId, AgentError> {
        mig::name_given(self.driver.as_ref(), &mut start.slices)?;
        let served = self.queues.iter().find(|queue| queue.spec.name == start.queue);
        let queue = served.map_or_else(|| QueueId(start.queue.clone()), |queue| queue.id.clone());
        let lease = new_lease(start.task.clone(), String::new(), Some(start.queue), start.slices.clone());
        locked.put(&lease)?;
        let worker = self.child_worker(&start.slices, &start.task);
        let job = Job {
            lease: lease.id.clone(),
            task: start.task,
            name: String::new(),
            queue,
            server: self.config.server.clone(),
            node: self.node_name.clone(),
            worker,
            daemon: own_holder(),
            slices: start.slices,
            claimed: false,
            command: None,
        };
        let dir = JobDir::create(&self.jobs_dir, &job)?;
        self.entries.insert(lease.id.clone(), Entry::new(dir, job, Stage::Unsure(Instant::now())));
        Ok(lease.id)
    }

    /// Takes the planned task from its queue. Nobody else gets it then.
    async fn claim(&mut self, lease: &LeaseId) -> Result<(), WireError> {
        let Some(entry) = self.entries.get_mut(lease) else { return Ok(()) };
        let (queue, task) = (entry.job.queue.0.clone(), entry.job.task.0.clone());
        let request =
            queues::GetNextTask { queue: queue.clone(), task: Some(task.clone()), get_task_info: None };
        match self.link.call(&request).await {
            Ok(queues::NextTask { entry: Some(got), .. }) if got.task == task => {
                entry.stage = Stage::Claimed;
                // Before the server hears that it is started: who finds it so later must know that it was for us.
                entry.job.claimed = true;
                if let Err(error) = entry.dir.write(&entry.job) {
                    tracing::error!(%error, "that a task is ours is not on disk");
                }
                let served = self.queues.iter().find(|served| served.id.0 == queue);
                let name = served.map_or(queue, |served| served.spec.name.clone());
                count(&mut self.meter.counts().placements, name);
                Ok(())
            }
            Ok(queues::NextTask { entry: Some(other), .. }) => {
                // ClearML's own server gives the first one, whichever that is by now. The plan was not made for it.
                self.forget(lease);
                self.put_in_front(&queue, &other.task).await
            }
            Ok(queues::NextTask { entry: None, .. }) => {
                self.forget(lease);
                Ok(())
            }
            Err(error) if error.is_temporary() => Err(error),
            Err(error) => {
                tracing::warn!(%task, %error, "not claimed");
                self.forget(lease);
                Ok(())
            }
        }
    }

    /// Drops a lease under which nothing was started.
    pub(crate) fn forget(&mut self, lease: &LeaseId) {
        if let Some(entry) = self.entries.remove(lease)
            && let Err(error) = entry.dir.remove()
        {
            tracing::error!(%error, "a dropped job stays on disk");
        }
        self.give_back(lease);
    }

    /// Starts what is claimed: freshly, or again after the server was away.
    pub(crate) async fn begin_claimed(&mut self) -> Result<(), WireError> {
        for lease in self.leases_where(Entry::is_claimed) {
            let span = info_span!("start", task = self.task_of(&lease), %lease);
            self.begin(&lease).instrument(span).await?;
        }
        Ok(())
    }

    async fn begin(&mut self, lease: &LeaseId) -> Result<(), WireError> {
        let Some(entry) = self.entries.get(lease) else { return Ok(()) };
        let task = entry.job.task.0.clone();
        let report = self.task_report(lease, None);
        let reported = self.link.call_extended(&report).await;
        if let Err(error) = &reported
            && error.is_subcode(subcode::OVER_QUOTA)
        {
            // Others of the project were faster, on another node.
            let (queue, why) = (self.queue_of(lease), error.to_string());
            return self.return_task(lease, &queue, &task, &why).await;
        }
        if self.unless_refused(lease, reported)?.is_none() {
            return Ok(());
        }
        // As late as can be: the server lets a stopped task be started, so a wish to stop it would be lost.
        let found = self.link.call(&tasks::GetById { task: task.clone() }).await;
        let Some(found) = self.unless_refused(lease, found)? else { return Ok(()) };
        let is_ended = found.task.status.is_some_and(TaskStatus::is_final);
        if is_ended && !found.task.status_reason.starts_with(PUT_BACK) {
            tracing::info!(%task, "not started: it was stopped meanwhile");
            self.forget(lease);
            return Ok(());
        }
        let command = self.write_command(lease, &found.task);
        let words = Some("pulled by agent".to_owned());
        let started =
            tasks::Started { task, force: true, status_reason: words.clone(), status_message: words };
        let started = self.link.call(&started).await;
        if self.unless_refused(lease, started)?.is_some() {
            if let Ok(command) = &command {
                self.write_back(&found.task, command).await;
            }
            self.execute(lease, &found.task, command);
        }
        Ok(())
    }

    fn task_of(&self, lease: &LeaseId) -> Option<&str> {
        self.entries.get(lease).map(|entry| entry.job.task.0.as_str())
    }

    fn queue_of(&self, lease: &LeaseId) -> String {
        self.entries.get(lease).map(|entry| entry.job.queue.0.clone()).unwrap_or_default()
    }

    /// A task that the server refuses to hand over (deleted, or another agent has it) is dropped.
    fn unless_refused<T>(
        &mut self,
        lease: &LeaseId,
        answer: Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_temporary() => Err(error),
            Err(error) => {
                tracing::warn!(%lease, %error, "not started");
                self.forget(lease);
                Ok(None)
            }
        }
    }

    /// What `cantle.report_task` says about one of our tasks.
    pub(crate) fn task_report(&self, lease: &LeaseId, outcome: Option<&Outcome>) -> cantle::ReportTask {
        let job = self.entries.get(lease).map(|entry| &entry.job);
        cantle::ReportTask {
            task: job.map(|job| job.task.0.clone()).unwrap_or_default(),
            node: self.node_name.clone(),
            lease: lease.0.clone(),
            slices: job.map(|job| job.slices.clone()).unwrap_or_default(),
            quota_milli: None,
            exit_code: outcome.and_then(|outcome| outcome.code),
            message: outcome.and_then(|outcome| outcome.message.clone()),
        }
    }

    fn set_waits(&mut self, decided: &Plan) {
        let said = |wait: &Wait| cantle::Waiting {
            task: wait.task.0.clone(),
            reason: wait.reason.to_string(),
            remedy: Some(wait.reason.remedy()),
        };
        let mut waits: BTreeMap<_, _> =
            decided.waits.iter().map(|wait| (wait.task.0.clone(), said(wait))).collect();
        waits.extend(self.planning.held.clone());
        if waits == self.planning.waits {
            return;
        }
        for wait in &decided.waits {
            let known = self.planning.waits.get(&wait.task.0);
            // Whom a task stands behind changes with every start; that it waits, and what heads lack, is news.
            let news = known.is_none() || !matches!(wait.reason, Reason::Behind { .. });
            if news && known != waits.get(&wait.task.0) {
                self.note("wait", Some(&wait.task.0), Some(&wait.queue), format!("waits: {}", wait.reason));
            }
        }
        self.planning.waits = waits;
        self.planning.changed = true;
    }
}

/// Those that a plan looks at; under quotas, those that the server names: the first of each project.
fn heads(mut lines: Lines, fleet: &Fleet) -> Lines {
    let told: BTreeSet<&str> = fleet.waiting.iter().map(|told| told.task.as_str()).collect();
    for waiting in lines.values_mut().map(|line| &mut line.waiting) {
        if fleet.projects.is_empty() {
            waiting.truncate(HEAD);
        } else {
            waiting.retain(|queued| told.contains(queued.task.as_str()));
        }
    }
    lines
}

fn waiting(queued: &Queued, wish: Option<&TaskRequest>, told: Option<&WaitingTask>) -> Waiting {
    let mut waiting = Waiting::new(TaskId(queued.task.clone()), queued.added_ms);
    if let Some(wish) = wish {
        waiting.request.clone_from(&wish.gpu);
        waiting.isolation = wish.isolation;
    }
    if let Some(told) = told {
        quotas::enter_waiting(&mut waiting, told, wish);
    }
    waiting
}
