//! Tasks between a queue and a start, where an answer of the server got lost or a former daemon died.

use std::time::Duration;

use cantle_clearml::{Error as WireError, Listing, cantle, queues, tasks};
use cantle_model::{LeaseId, TaskStatus};

use super::Agent;
use super::entry::{Entry, Stage};

/// A task that is in no queue and not started: so long another agent may still be about to start it.
const DOUBT: Duration = Duration::from_secs(10);

/// How the server's reason begins for a task that an agent gives back.
pub(super) const PUT_BACK: &str = "put back: ";

impl Agent {
    pub(crate) async fn settle_unsettled(&mut self) -> Result<(), WireError> {
        for lease in self.leases_where(Entry::is_unsettled) {
            let Some(entry) = self.entries.get(&lease) else { continue };
            let (queue, task) = (entry.job.queue.0.clone(), entry.job.task.0.clone());
            match &entry.stage {
                Stage::Returning(why) => {
                    let why = why.clone();
                    self.return_task(&lease, &queue, &task, &why).await?;
                }
                Stage::Unsure(since) if self.is_settled(&queue, &task, since.elapsed()).await? => {
                    self.forget(&lease);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Was the task really taken out of its queue when no answer came? If so it goes back to the front.
    async fn is_settled(&self, queue: &str, task: &str, doubt: Duration) -> Result<bool, WireError> {
        let is_queued = self
            .read_queues()
            .await?
            .values()
            .flat_map(|line| &line.waiting)
            .any(|queued| queued.task == task);
        let taken = matches!(self.state(task).await?, Some((TaskStatus::Queued, _)));
        if is_queued || !taken {
            return Ok(true);
        }
        if doubt < DOUBT {
            return Ok(false);
        }
        self.put_in_front(queue, task).await?;
        Ok(true)
    }

    /// Claimed and not started: back to where it came from, unless somebody has decided otherwise.
    pub(crate) async fn return_task(
        &mut self,
        lease: &LeaseId,
        queue: &str,
        task: &str,
        why: &str,
    ) -> Result<(), WireError> {
        let Some(entry) = self.entries.get(lease) else { return Ok(()) };
        match entry.dir.disarm() {
            Ok(true) => {}
            Ok(false) => {
                self.readopt(lease);
                return Ok(());
            }
            Err(error) => {
                tracing::error!(%error, "a job can't be taken back yet");
                return Ok(());
            }
        }
        let why = format!("{PUT_BACK}{why}");
        match self.state(task).await? {
            Some((TaskStatus::Queued, _)) => self.put_in_front(queue, task).await?,
            Some((TaskStatus::InProgress, _)) if !self.is_elsewhere(lease, task).await? => {
                self.requeue(queue, task, &why).await?;
            }
            // A former agent died between the two steps of it.
            Some((TaskStatus::Stopped, reason)) if reason.starts_with(PUT_BACK) => {
                self.enqueue_in_front(queue, task, &why).await?;
            }
            _ => {}
        }
        self.note("requeue", Some(task), None, why);
        self.forget(lease);
        Ok(())
    }

    /// Has another node started the task, after the server gave it back? A server without `cantle.*` can't say.
    async fn is_elsewhere(&self, lease: &LeaseId, task: &str) -> Result<bool, WireError> {
        let request = cantle::GetTasks { id: vec![task.to_owned()], ..cantle::GetTasks::default() };
        let found = self.link.call_extended(&request).await?;
        let node = found.and_then(|found| found.tasks.into_iter().next()?.node);
        // An agent that is gone may have taken it under another name.
        let ours = self.entries.get(lease).map(|entry| entry.job.node.as_str());
        Ok(node.is_some_and(|node| Some(node.as_str()) != ours))
    }

    /// Back into its queue, although the server has it as running already.
    pub(crate) async fn requeue(&self, queue: &str, task: &str, why: &str) -> Result<(), WireError> {
        let words = Some(why.to_owned());
        let stopped = tasks::Stopped {
            task: task.to_owned(),
            force: true,
            status_reason: words.clone(),
            status_message: words,
        };
        self.link.call(&stopped).await?;
        self.enqueue_in_front(queue, task, why).await
    }

    async fn enqueue_in_front(&self, queue: &str, task: &str, why: &str) -> Result<(), WireError> {
        let words = Some(why.to_owned());
        let enqueue = tasks::Enqueue {
            task: task.to_owned(),
            queue: Some(queue.to_owned()),
            status_reason: words.clone(),
            status_message: words,
            ..tasks::Enqueue::default()
        };
        self.link.call(&enqueue).await?;
        self.move_to_front(queue, task).await
    }

    /// A task's state, and why it has it.
    async fn state(&self, task: &str) -> Result<Option<(TaskStatus, String)>, WireError> {
        let list = Listing::fields(vec![task.to_owned()], &["id", "status", "status_reason"]);
        let found = self.link.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?.tasks;
        let found = found.into_iter().find(|found| found.id == task);
        Ok(found.and_then(|found| Some((found.status?, found.status_reason))))
    }

    /// Puts a task that was taken out of `queue` back as the next one.
    pub(crate) async fn put_in_front(&self, queue: &str, task: &str) -> Result<(), WireError> {
        let add = queues::AddTask { queue: queue.to_owned(), task: task.to_owned() };
        match self.link.call(&add).await {
            Err(error) if error.is_temporary() => return Err(error),
            // It is in a queue already, or gone: then somebody has decided.
            Err(error) => tracing::info!(%task, %error, "not put back"),
            Ok(_) => self.move_to_front(queue, task).await?,
        }
        Ok(())
    }

    async fn move_to_front(&self, queue: &str, task: &str) -> Result<(), WireError> {
        let front = queues::MoveTaskToFront { queue: queue.to_owned(), task: task.to_owned() };
        self.link.call(&front).await.map(|_| ())
    }
}
