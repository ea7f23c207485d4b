//! From the end of a process to a result on the server.

use cantle_clearml::events::Event;
use cantle_clearml::quotas::GiveBack;
use cantle_clearml::{ABORTED, DONE, Error as WireError, accept_refusal, tasks};
use cantle_model::LeaseId;

use super::entry::Entry;
use super::{Agent, logs};
use crate::clock::now_ms;
use crate::job::{Outcome, Stop};

/// ClearML's words for the end of a task that went with its agent.
const SHUT_DOWN: &str = "user abort";

/// What the server is told about a task that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Completed,
    Stopped(&'static str),
    Failed(String),
    /// Back to the front of its queue, unless the task itself has said that it is done.
    GivenBack(String),
    /// The server has put the task into another state meanwhile; that stands.
    Nothing,
}

fn verdict(exit: &Outcome, stop: Option<&Stop>) -> Verdict {
    match (stop, exit.code, &exit.message) {
        (Some(Stop::Superseded), _, _) => Verdict::Nothing,
        (Some(Stop::Enforced(why)), _, _) => Verdict::Failed(why.clone()),
        // Whatever code these ended with: a program that cleans up after SIGTERM may well return 0.
        (Some(Stop::Preempted(why)), _, _) => Verdict::GivenBack(why.clone()),
        (Some(Stop::Aborted), _, _) => Verdict::Stopped(ABORTED),
        (Some(Stop::Shutdown), _, _) => Verdict::Stopped(SHUT_DOWN),
        (None, Some(0), _) => Verdict::Completed,
        (None, Some(code), None) => Verdict::Failed(format!("worker execution exit code {code}")),
        (None, _, Some(why)) => Verdict::Failed(why.clone()),
        (None, None, None) => Verdict::Failed("nobody saw how it ended".to_owned()),
    }
}

impl Agent {
    /// Sends on what tasks printed that run, or that wait for their image.
    pub(crate) async fn forward_logs(&mut self) -> Result<(), WireError> {
        for lease in self.leases_where(Entry::is_busy) {
            self.forward_log(&lease, false).await?;
        }
        Ok(())
    }

    /// One task's output from where the server has it: a piece while it runs, all of it once it has ended.
    async fn forward_log(&mut self, lease: &LeaseId, ended: bool) -> Result<(), WireError> {
        let Some(entry) = self.entries.get(lease) else { return Ok(()) };
        let path = entry.dir.output_path();
        loop {
            let sent = entry.dir.sent_bytes();
            let piece = match logs::next_piece(&path, sent, ended) {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "can't read a task's output");
                    return Ok(());
                }
            };
            let (task, speaker) = (entry.job.task.0.as_str(), self.speaker(entry));
            let event = |text| Event::log(task, &speaker, now_ms(), text);
            let events: Vec<Event> = piece.texts.into_iter().map(event).collect();
            match self.link.client().add_batch(&events).await {
                // The server may refuse a part (a deleted task's log); sending it again would not help.
                Ok(_) => {}
                Err(error) if error.is_temporary() => return Err(error),
                Err(error) => tracing::warn!(%task, %error, "a piece of log was refused"),
            }
            if let Err(error) = entry.dir.set_sent_bytes(piece.end_bytes) {
                tracing::warn!(%error, "a piece of log may be sent twice");
            }
            if !ended {
                return Ok(());
            }
        }
    }

    /// Tells the server about every task that has ended; what it knows is forgotten here.
    pub(crate) async fn deliver_ended(&mut self) -> Result<(), WireError> {
        for lease in self.leases_where(Entry::is_ended) {
            self.forward_log(&lease, true).await?;
            self.deliver_result(&lease).await?;
            self.dismiss_child(&lease).await?;
            if let Some(entry) = self.entries.remove(&lease)
                && let Err(error) = entry.dir.remove()
            {
                tracing::error!(%error, "a delivered task stays on disk");
            }
        }
        Ok(())
    }

    async fn deliver_result(&mut self, lease: &LeaseId) -> Result<(), WireError> {
        let Some(entry) = self.entries.get(lease) else { return Ok(()) };
        let outcome = match entry.dir.outcome() {
            Ok(outcome) => outcome.unwrap_or(Outcome { code: None, message: None }),
            Err(error) => Outcome { code: None, message: Some(error.to_string()) },
        };
        let stop = entry.stop.clone().or_else(|| entry.dir.stop().ok().flatten());
        let verdict = verdict(&outcome, stop.as_ref());
        let (task, name) = (entry.job.task.0.clone(), entry.job.name.clone());
        if let Verdict::GivenBack(reason) = verdict {
            // One call, and the server notes what came of it: there is no moment in which the task is nowhere.
            let request = GiveBack { task, lease: lease.0.clone(), reason };
            return accept_refusal(self.link.call_extended(&request).await.map(|_| ()));
        }
        let report = self.task_report(lease, Some(&outcome));
        accept_refusal(self.link.call_extended(&report).await.map(|_| ()))?;
        accept_refusal(self.tell(&task, &verdict).await)?;
        let message = match &verdict {
            Verdict::Completed => format!("task {name} completed"),
            Verdict::Stopped(why) => format!("task {name} stopped: {why}"),
            Verdict::Failed(why) => format!("task {name} failed: {why}"),
            Verdict::GivenBack(_) | Verdict::Nothing => {
                format!("task {name} ended after the server had taken it back")
            }
        };
        // The server has noted the end itself.
        tracing::info!(%task, "{message}");
        Ok(())
    }

    async fn tell(&self, task: &str, verdict: &Verdict) -> Result<(), WireError> {
        let (task, force) = (task.to_owned(), true);
        let words = |text: &str| (Some(text.to_owned()), Some(text.to_owned()));
        match verdict {
            Verdict::Completed => {
                let (status_reason, status_message) = words(DONE);
                let publish = false;
                let done = tasks::Completed { task, force, publish, status_reason, status_message };
                self.link.call(&done).await.map(|_| ())
            }
            Verdict::Stopped(why) => {
                let (status_reason, status_message) = words(why);
                let stopped = tasks::Stopped { task, force, status_reason, status_message };
                self.link.call(&stopped).await.map(|_| ())
            }
            Verdict::Failed(why) => {
                let (status_reason, status_message) = words(why);
                let failed = tasks::Failed { task, force, status_reason, status_message };
                self.link.call(&failed).await.map(|_| ())
            }
            Verdict::GivenBack(_) | Verdict::Nothing => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> Outcome {
        Outcome { code: Some(code), message: None }
    }

    #[test]
    fn ends_are_told_in_clearmls_words() {
        assert_eq!(verdict(&exit(0), None), Verdict::Completed);
        assert_eq!(verdict(&exit(3), None), Verdict::Failed("worker execution exit code 3".into()));
        assert_eq!(verdict(&exit(143), Some(&Stop::Aborted)), Verdict::Stopped(ABORTED));
        assert_eq!(verdict(&exit(143), Some(&Stop::Shutdown)), Verdict::Stopped(SHUT_DOWN));
        assert_eq!(verdict(&exit(0), Some(&Stop::Aborted)), Verdict::Stopped(ABORTED), "it cleaned up");
        assert_eq!(verdict(&exit(0), Some(&Stop::Superseded)), Verdict::Nothing);
        let lost = Outcome { code: None, message: Some("its supervisor was killed".into()) };
        assert_eq!(verdict(&lost, None), Verdict::Failed("its supervisor was killed".into()));
        let (why, preempted) = ("needed".to_owned(), Stop::Preempted("needed".into()));
        assert_eq!(verdict(&exit(143), Some(&preempted)), Verdict::GivenBack(why.clone()));
        assert_eq!(
            verdict(&exit(0), Some(&preempted)),
            Verdict::GivenBack(why),
            "it saved its work, it is not done"
        );
        let enforced = Stop::Enforced("it held 3 GiB outside its slice".into());
        assert!(
            matches!(verdict(&exit(137), Some(&enforced)), Verdict::Failed(why) if why.contains("3 GiB"))
        );
    }
}
