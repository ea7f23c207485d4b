//! The controller's calls to the ClearML server.

use std::collections::BTreeMap;

use cantle_clearml::cantle::{ReportNode, ReportTask};
use cantle_clearml::events::{GetTaskLog, ReportedEvent};
use cantle_clearml::quotas::{Evict, Fleet, GetFleet, GiveBack};
use cantle_clearml::{
    Client, DONE, Listing, StatusReason, TaskRequest, WireError, accept_refusal, queues, subcode, tasks,
    workers,
};
use cantle_decide::victims;
use cantle_metrics::Fallback;
use cantle_model::{Slice, TaskStatus};
use cantle_sched::Eviction;

use super::metrics::FALLBACKS;
use crate::KubeError;
use cantle_kube_model::queues::outcome::TaskOutcome;
use cantle_kube_model::queues::{QueueConfig, QueueFile};

/// Tasks by id.
pub(super) type Tasks = BTreeMap<String, tasks::Task>;

/// Limit of ids in one call.
const BATCH: usize = 500;

/// The server, for one controller.
pub(super) struct Server {
    pub(super) client: Client,
}

impl Server {
    /// Ids of the queues, in the file's order.
    pub(super) async fn queue_ids(&self, file: &QueueFile) -> Result<Vec<String>, KubeError> {
        if file.create {
            self.create_missing(file).await?;
        }
        let all = self.client.call(&queues::GetAll::default()).await?.queues;
        let id = |wanted: &QueueConfig| {
            let known = all.iter().find(|queue| is_called(queue, &wanted.name));
            known.map(|queue| queue.id.clone()).ok_or_else(|| KubeError::NoSuchQueue(wanted.name.clone()))
        };
        file.queues.iter().map(id).collect()
    }

    async fn create_missing(&self, file: &QueueFile) -> Result<(), WireError> {
        let all = self.client.call(&queues::GetAll::default()).await?.queues;
        let missing =
            file.queues.iter().filter(|wanted| !all.iter().any(|queue| is_called(queue, &wanted.name)));
        for wanted in missing {
            let request = queues::Create { name: wanted.name.clone(), ..queues::Create::default() };
            match self.client.call(&request).await {
                // Another replica starts, too.
                Err(error) if error.is_subcode(subcode::NAME_TAKEN) => {}
                made => drop(made?),
            }
        }
        Ok(())
    }

    /// Reports that this worker serves these queues.
    pub(super) async fn report(&self, worker: &str, queues: &[String]) -> Result<(), WireError> {
        let report = workers::StatusReport {
            worker: worker.to_owned(),
            timestamp: jiff::Timestamp::now().as_millisecond(),
            queues: queues.to_vec(),
            is_daemon: Some(true),
            ..workers::StatusReport::default()
        };
        self.client.call(&report).await.map(drop)
    }

    /// The waiting tasks of each queue.
    pub(super) async fn backlog(&self, ids: &[String]) -> Result<BTreeMap<String, Vec<String>>, WireError> {
        let list = Listing::fields(ids.to_vec(), &["id", "entries"]);
        let found = self.client.call(&queues::GetAll { list }).await?.queues;
        let entries = |entries: Vec<queues::Entry>| entries.into_iter().map(|entry| entry.task).collect();
        Ok(found.into_iter().map(|queue| (queue.id, entries(queue.entries))).collect())
    }

    /// In which state tasks are.
    pub(super) async fn states(&self, ids: &[String]) -> Result<Tasks, WireError> {
        self.tasks(ids, &["id", "status", "status_message", "status_reason"]).await
    }

    /// The requests of waiting tasks; an unreadable one counts as none until the creation of the pod refuses it.
    pub(super) async fn requests(&self, ids: &[String]) -> Result<BTreeMap<String, TaskRequest>, WireError> {
        let tasks = self.tasks(ids, &["id", "hyperparams"]).await?;
        let request = |task: &tasks::Task| {
            let request = TaskRequest::from_hyperparams(&task.hyperparams).unwrap_or_else(|error| {
                if FALLBACKS.count(Fallback::UnreadableRequest, &format!("{} {error}", task.id)) {
                    tracing::warn!(task = task.id, %error, "a request cannot be read; it counts as none until the task is refused");
                }
                None
            });
            request.unwrap_or_default()
        };
        Ok(tasks.into_iter().map(|(id, task)| (id, request(&task))).collect())
    }

    /// The use under quotas; empty without quotas, or if the server has none.
    pub(super) async fn fleet(&self, node: &str, queues: &[String]) -> Result<Fleet, WireError> {
        let request = GetFleet { node: node.to_owned(), queues: queues.to_vec() };
        Ok(self.client.call_extended(&request).await?.unwrap_or_default())
    }

    /// The server counts what the pod `lease` of a task holds.
    pub(super) async fn hold(
        &self,
        node: &str,
        task: &str,
        lease: &str,
        slices: Vec<Slice>,
        quota_milli: Option<u64>,
    ) -> Result<(), WireError> {
        let (task, node, lease) = (task.to_owned(), node.to_owned(), lease.to_owned());
        let report = ReportTask { task, node, lease, slices, quota_milli, ..ReportTask::default() };
        self.client.call_extended(&report).await.map(drop)
    }

    /// The server decides which tasks have to stop. A decision about a state that has changed meanwhile evicts nothing;
    /// the next look sees the new state.
    pub(super) async fn evict(
        &self,
        node: &str,
        evictions: Vec<Eviction>,
        seen: &Fleet,
    ) -> Result<(), WireError> {
        if evictions.is_empty() {
            return Ok(());
        }
        for eviction in &evictions {
            let (task, for_task) = (&eviction.task, &eviction.for_task);
            tracing::info!(%task, %for_task, cause = ?eviction.cause, "task is to be stopped for another one");
        }
        match self
            .client
            .call_extended(&Evict {
                node: node.to_owned(),
                victims: victims(evictions),
                evictions: seen.evictions,
                can_suspend: false,
            })
            .await
        {
            Err(error) if !error.is_temporary() => {
                tracing::info!("no task is stopped: {error}");
                Ok(())
            }
            evicted => evicted.map(drop),
        }
    }

    /// A task that has made room goes back to the front of its queue.
    pub(super) async fn give_back(&self, task: &str, lease: &str, why: &str) -> Result<(), WireError> {
        let (task, lease, reason) = (task.to_owned(), lease.to_owned(), why.to_owned());
        self.client.call_extended(&GiveBack { task, lease, reason }).await.map(drop)
    }

    /// Shows the cluster.
    pub(super) async fn report_node(&self, report: &ReportNode) -> Result<(), WireError> {
        self.client.call_extended(report).await.map(drop)
    }

    /// All that pods are made of.
    pub(super) async fn whole(&self, ids: &[String]) -> Result<Tasks, WireError> {
        self.tasks(ids, &["id", "name", "status", "script", "container", "hyperparams"]).await
    }

    async fn tasks(&self, ids: &[String], fields: &[&str]) -> Result<Tasks, WireError> {
        let mut found = Tasks::new();
        for ids in ids.chunks(BATCH) {
            let list = Listing::fields(ids.to_vec(), fields);
            let answer = self.client.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?;
            found.extend(answer.tasks.into_iter().map(|task| (task.id.clone(), task)));
        }
        Ok(found)
    }

    /// Takes a task from its queue for the pod that `claim` names. `false` if it is not there to be taken.
    pub(super) async fn take(
        &self,
        queue: &str,
        task: &str,
        claim: &str,
        words: &str,
    ) -> Result<bool, WireError> {
        let next = queues::GetNextTask {
            queue: queue.to_owned(),
            task: Some(task.to_owned()),
            get_task_info: None,
            wait_ms: None,
        };
        match self.client.call(&next).await?.entry {
            None => return Ok(false),
            Some(entry) if entry.task == task => {}
            Some(other) => {
                // ClearML's own server returns the first one, which may have changed.
                self.put_in_front(queue, &other.task).await?;
                return Ok(false);
            }
        }
        // Only from here on its owner is known; the call changes nothing if the task was stopped meanwhile.
        let dequeue = tasks::Dequeue {
            task: task.to_owned(),
            new_status: Some(TaskStatus::InProgress),
            status_reason: Some(claim.to_owned()),
            status_message: Some(words.to_owned()),
        };
        Ok(self.client.call(&dequeue).await?.dequeued > 0)
    }

    /// Puts a task that is in no queue into this one, as the next.
    pub(super) async fn put_in_front(&self, queue: &str, task: &str) -> Result<(), WireError> {
        let (queue, task) = (queue.to_owned(), task.to_owned());
        let add = queues::AddTask { queue: queue.clone(), task: task.clone(), run: None };
        match self.client.call(&add).await {
            // Another replica has done so.
            Err(error) if error.is_subcode(subcode::TASK_ALREADY_QUEUED) => return Ok(()),
            added => added?,
        };
        self.client.call(&queues::MoveTaskToFront { queue, task }).await.map(drop)
    }

    /// A task whose pod was lost goes back to where it came from.
    pub(super) async fn requeue(&self, queue: &str, task: &str, why: &str) -> Result<(), WireError> {
        let words = Some(StatusReason::PutBack(why).to_string());
        let enqueue = tasks::Enqueue {
            task: task.to_owned(),
            queue: Some(queue.to_owned()),
            status_reason: words.clone(),
            status_message: words.clone(),
            force: Some(true),
            ..tasks::Enqueue::default()
        };
        match self.client.call(&enqueue).await {
            Err(error) if error.is_subcode(subcode::INVALID_TASK_STATUS) => {
                // ClearML's own server takes only tasks that do not run.
                let (task, force) = (task.to_owned(), true);
                let stopped = tasks::Stopped {
                    task,
                    force,
                    status_reason: words.clone(),
                    status_message: words,
                    run: None,
                };
                self.client.call(&stopped).await?;
                self.client.call(&enqueue).await?;
            }
            Err(error) if error.is_subcode(subcode::TASK_ALREADY_QUEUED) => {}
            queued => drop(queued?),
        }
        let front = queues::MoveTaskToFront { queue: queue.to_owned(), task: task.to_owned() };
        self.client.call(&front).await.map(drop)
    }

    /// Shows on the task what its pod waits for, or where it runs.
    pub(super) async fn report_message(&self, task: &str, words: &str) -> Result<(), WireError> {
        let body = serde_json::json!({"task": task, "status_message": words});
        accept_refusal(self.client.call_value("tasks.update", &body).await.map(drop))
    }

    /// Tells how a task ended.
    pub(super) async fn end(&self, task: &str, end: &TaskOutcome) -> Result<(), WireError> {
        let (task, force) = (task.to_owned(), true);
        let words = |text: &str| (Some(text.to_owned()), Some(text.to_owned()));
        accept_refusal(match end {
            TaskOutcome::Completed => {
                let (status_reason, status_message) = words(DONE);
                let done = tasks::Completed {
                    task,
                    force,
                    publish: false,
                    status_reason,
                    status_message,
                    run: None,
                };
                self.client.call(&done).await.map(drop)
            }
            TaskOutcome::Failed(why) => {
                let (status_reason, status_message) = words(why);
                self.client
                    .call(&tasks::Failed { task, force, status_reason, status_message, run: None })
                    .await
                    .map(drop)
            }
            TaskOutcome::Stopped(why) => {
                let (status_reason, status_message) = words(why);
                self.client
                    .call(&tasks::Stopped { task, force, status_reason, status_message, run: None })
                    .await
                    .map(drop)
            }
        })
    }

    /// Sends a piece of a task's output.
    pub(super) async fn log(&self, event: ReportedEvent) -> Result<(), WireError> {
        accept_refusal(self.client.add_batch(&[event]).await.map(drop))
    }

    /// The last piece of output that this worker sent of a task: time in milliseconds, and text.
    pub(super) async fn last_log(
        &self,
        task: &str,
        worker: &str,
    ) -> Result<Option<(i64, String)>, WireError> {
        let request = GetTaskLog {
            task: task.to_owned(),
            batch_size: Some(100),
            navigate_earlier: Some(true),
            order: Some("desc".to_owned()),
            ..GetTaskLog::default()
        };
        let events = match self.client.call(&request).await {
            Err(error) if !error.is_temporary() => return Ok(None),
            log => log?.events,
        };
        let ours = events.into_iter().filter(|event| event.worker.as_deref() == Some(worker));
        Ok(ours.filter_map(|event| Some((event.timestamp?, event.msg?))).max_by_key(|(ms, _)| *ms))
    }
}

fn is_called(queue: &queues::QueueRecord, name: &str) -> bool {
    queue.name == name || queue.id == name
}
