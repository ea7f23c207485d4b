//! From waiting tasks to started ones: plan, audit, lease, claim, start. In this order, so that a task is never taken
//! from its queue without a place, and no place is ever taken without a lease on disk.

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_clearml::{Error as WireError, Listing, TaskRequest, cantle, queues, tasks};
use cantle_model::{LeaseId, QueueId, TaskId};
use cantle_sched::{Plan, Queue, Reason, Start, Waiting, audit, plan};
use tokio::time::Instant;

use super::Agent;
use super::entry::{Entry, Stage};
use super::queues::Queued;
use crate::job::{Job, JobDir, Outcome};
use crate::launch::new_lease;
use crate::{AgentError, capacity, clock::now_ms, own_holder};

/// Tasks of one queue that a plan looks at: those behind them wait for them anyway.
const HEAD: usize = 64;

/// A plan is made anew at least so often while somebody waits: others' use of the GPUs changes unannounced.
const REPLAN_EVERY: Duration = Duration::from_secs(2);

type Waits = BTreeMap<QueueId, Vec<Queued>>;

/// What the last plan was made from, and what it said.
#[derive(Default)]
pub(crate) struct Planning {
    seen: Option<(Waits, Vec<LeaseId>)>,
    at: Option<Instant>,
    last_served: Option<String>,
    /// Something happened that a report should tell at once.
    pub(crate) changed: bool,
    /// Why which task waits.
    pub(crate) reasons: BTreeMap<TaskId, String>,
}

impl Planning {
    /// Has anything changed since the last plan that could change its result?
    fn is_stale(&mut self, waits: &Waits, leases: Vec<LeaseId>) -> bool {
        let now = (waits.clone(), leases);
        let fresh = self.seen.as_ref() == Some(&now) && self.at.is_some_and(|at| at.elapsed() < REPLAN_EVERY);
        self.seen = Some(now);
        !fresh
    }
}

impl Agent {
    /// Starts whatever can start now.
    pub(crate) async fn fill(&mut self) -> Result<(), WireError> {
        let waits = self.read_queues().await?;
        if waits.values().all(Vec::is_empty) {
            self.set_reasons(&Plan::default());
            return Ok(());
        }
        let leases = self.node.leases().map(|leases| leases.into_iter().map(|lease| lease.id).collect());
        if !self.planning.is_stale(&waits, leases.unwrap_or_default()) {
            return Ok(());
        }
        let wishes = self.read_wishes(&waits).await?;
        let placed = self.place(&waits, &wishes).unwrap_or_else(|error| {
            tracing::error!(%error, "nothing new is started");
            Vec::new()
        });
        let mut placed = placed.into_iter();
        while let Some(lease) = placed.next() {
            if let Err(error) = self.claim(&lease).await {
                // Of the others nobody has been told yet.
                placed.for_each(|lease| self.forget(&lease));
                return Err(error);
            }
        }
        self.begin_claimed().await
    }

    /// What the tasks at the heads of the queues ask for. How much counts in `NAME=task` queues only; on which kind of
    /// GPU, everywhere.
    async fn read_wishes(&self, waits: &Waits) -> Result<BTreeMap<String, TaskRequest>, WireError> {
        let heads = waits.values().flat_map(|waiting| waiting.iter().take(HEAD));
        let id: Vec<String> = heads.map(|queued| queued.task.clone()).collect();
        if id.is_empty() {
            return Ok(BTreeMap::new());
        }
        let list = Listing::fields(id, &["id", "hyperparams"]);
        let answer = self.link.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?;
        let wish = |task: tasks::Task| {
            // A request that can't be read is refused when the task is started; until then it is taken for none.
            let request = TaskRequest::from_hyperparams(&task.hyperparams).ok().flatten()?;
            Some((task.id, request))
        };
        Ok(answer.tasks.into_iter().filter_map(wish).collect())
    }

    /// Plans, audits, and writes a lease and a job for each task that gets a place.
    fn place(
        &mut self,
        waits: &Waits,
        wishes: &BTreeMap<String, TaskRequest>,
    ) -> Result<Vec<LeaseId>, AgentError> {
        let queue = |served: &super::queues::Served| {
            let heads = waits.get(&served.id).into_iter().flatten().take(HEAD);
            let waiting = heads.map(|queued| {
                let mut waiting = Waiting::new(TaskId(queued.task.clone()), queued.added_ms);
                if let Some(wish) = wishes.get(&queued.task) {
                    waiting.request.clone_from(&wish.gpu);
                    waiting.isolation = wish.isolation;
                }
                waiting
            });
            Queue::new(served.spec.clone(), waiting.collect())
        };
        let queues = self.queues.iter().map(queue).collect();
        let node = self.node.clone();
        let locked = node.lock()?;
        let leases = locked.sweep()?;
        let mut state =
            capacity::state(self.driver.as_ref(), &self.node, &self.config.name, &self.gpus, &leases, queues);
        state.last_served.clone_from(&self.planning.last_served);
        let decided = plan(&state, &self.config.policy, now_ms());
        if let Some(violation) = audit(&state, &decided).first() {
            return Err(AgentError::Audit(violation.to_string()));
        }
        self.planning.at = Some(Instant::now());
        if let Some(queue) = decided.last_served() {
            self.planning.last_served = Some(queue.to_owned());
        }
        self.set_reasons(&decided);
        decided.evictions.iter().for_each(|eviction| self.evict(eviction));
        let mut placed = Vec::new();
        for start in decided.starts {
            placed.push(self.write_down(&locked, start)?);
        }
        Ok(placed)
    }

    fn write_down(&mut self, locked: &crate::Locked<'_>, start: Start) -> Result<LeaseId, AgentError> {
        let served = self.queues.iter().find(|queue| queue.spec.name == start.queue);
        let queue = served.map_or_else(|| QueueId(start.queue.clone()), |queue| queue.id.clone());
        let lease = new_lease(start.task.clone(), String::new(), Some(start.queue), start.slices.clone());
        locked.put(&lease)?;
        let job = Job {
            lease: lease.id.clone(),
            task: start.task,
            name: String::new(),
            queue,
            server: self.config.server.clone(),
            daemon: own_holder(),
            slices: start.slices,
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
            self.begin(&lease).await?;
        }
        Ok(())
    }

    async fn begin(&mut self, lease: &LeaseId) -> Result<(), WireError> {
        let Some(entry) = self.entries.get(lease) else { return Ok(()) };
        let task = entry.job.task.0.clone();
        let found = self.link.call(&tasks::GetById { task: task.clone() }).await;
        let Some(found) = self.unless_refused(lease, found)? else { return Ok(()) };
        let report = self.task_report(lease, None);
        let reported = self.link.call_extended(&report).await;
        if self.unless_refused(lease, reported)?.is_none() {
            return Ok(());
        }
        let words = Some("pulled by agent".to_owned());
        let started =
            tasks::Started { task, force: true, status_reason: words.clone(), status_message: words };
        let started = self.link.call(&started).await;
        if self.unless_refused(lease, started)?.is_some() {
            self.execute(lease, &found.task);
        }
        Ok(())
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
            node: self.config.name.clone(),
            lease: lease.0.clone(),
            slices: job.map(|job| job.slices.clone()).unwrap_or_default(),
            exit_code: outcome.and_then(|outcome| outcome.code),
            message: outcome.and_then(|outcome| outcome.message.clone()),
        }
    }

    fn set_reasons(&mut self, decided: &Plan) {
        let reasons: BTreeMap<TaskId, String> =
            decided.waits.iter().map(|wait| (wait.task.clone(), wait.reason.to_string())).collect();
        if reasons == self.planning.reasons {
            return;
        }
        for wait in &decided.waits {
            let known = self.planning.reasons.get(&wait.task);
            // Whom a task stands behind changes with every start; that it waits, and what heads lack, is news.
            let news = known.is_none() || !matches!(wait.reason, Reason::Behind { .. });
            if news && known != reasons.get(&wait.task) {
                self.note("wait", Some(&wait.task.0), Some(&wait.queue), format!("waits: {}", wait.reason));
            }
        }
        self.planning.reasons = reasons;
        self.planning.changed = true;
    }
}
