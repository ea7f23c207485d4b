//! Turns the end of a process into a result on the server.

use std::time::Duration;

use cantle_clearml::events::ReportedEvent;
use cantle_clearml::leases::{EndFenced, LeaseRenewal, RenewLeases};
use cantle_clearml::quotas::GiveBack;
use cantle_clearml::{ABORTED, DONE, WireError, accept_refusal, tasks};
use cantle_node::clock::now_ms;
use tokio::time::Instant;

use super::output_limit::{self, OutputPosition};
use super::{Reporter, children, logs};
use crate::entry::LeasedTask;
use crate::environment::Environment;
use crate::task_record::{Outcome, Stop};

/// How long the output of ended tasks may keep the agent from everything else.
const OUTPUT_TIME: Duration = Duration::from_millis(300);
/// ClearML's words for the end of a task that went with its agent.
const SHUT_DOWN: &str = "user abort";

/// The report to the server about a task that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Report {
    Completed,
    Stopped(&'static str),
    Failed(String),
    /// Back to the front of its queue, unless the task itself has reported that it is done.
    GivenBack(String),
    /// The server has put the task into another state meanwhile: that state stays.
    Nothing,
}

fn report_of(exit: &Outcome, stop: Option<&Stop>) -> Report {
    match (stop, exit.code, &exit.message) {
        (Some(Stop::Superseded), _, _) => Report::Nothing,
        (Some(Stop::Enforced(why)), _, _) => Report::Failed(why.clone()),
        // With any exit code: a program that cleans up after SIGTERM may well return 0.
        (Some(Stop::Preempted(why)), _, _) => Report::GivenBack(why.clone()),
        (Some(Stop::Aborted), _, _) => Report::Stopped(ABORTED),
        (Some(Stop::Shutdown), _, _) => Report::Stopped(SHUT_DOWN),
        (None, Some(0), _) => Report::Completed,
        (None, Some(code), None) => Report::Failed(format!("worker execution exit code {code}")),
        (None, _, Some(why)) => Report::Failed(why.clone()),
        (None, None, None) => Report::Failed("nobody saw how it ended".to_owned()),
    }
}

impl Reporter {
    /// Sends on what these tasks print: they run, or wait for their image. In [`OUTPUT_TIME`] that may be a piece of some of them; the
    /// others are next.
    pub(crate) async fn forward_logs(
        &mut self,
        env: &Environment,
        mut busy: Vec<&LeasedTask>,
    ) -> Result<(), WireError> {
        let until = Instant::now() + OUTPUT_TIME;
        let first = self.forwarded.checked_rem(busy.len()).unwrap_or(0);
        busy.rotate_left(first);
        for entry in busy {
            forward_piece(env, entry, false).await?;
            self.forwarded = self.forwarded.wrapping_add(1);
            if Instant::now() >= until {
                break;
            }
        }
        Ok(())
    }

    /// Tells the server about every task that has ended; a result that the server has is forgotten here. A task with
    /// more output than can be sent in [`OUTPUT_TIME`] is reported later ([`Reporter::is_behind`]): meanwhile other
    /// tasks start, are stopped and end.
    pub(crate) async fn deliver(&mut self, env: &Environment) -> Result<(), WireError> {
        let until = Instant::now() + OUTPUT_TIME;
        self.behind = false;
        for lease in self.ended.leases_where(|_| true) {
            let Some(found) = self.ended.find(&lease) else { continue };
            let entry = found.get();
            if is_held(env, entry).await? {
                if !forward_rest(env, entry, until).await? {
                    self.behind = true;
                    continue;
                }
                deliver_result(env, entry).await?;
            } else {
                let task = &entry.job.task.0;
                tracing::warn!(%task, %lease, "the task was given to another node; nothing of this run is reported");
            }
            children::dismiss(env, entry).await?;
            found.remove().remove_files();
        }
        Ok(())
    }
}

/// Does this agent still hold the task? After this answer the agent holds it until the end is reported: the server
/// gives a task to another node only after a renewal has reported that this one has ended it.
async fn is_held(env: &Environment, entry: &LeasedTask) -> Result<bool, WireError> {
    let (task, lease) = (entry.job.task.0.clone(), entry.job.lease.0.clone());
    let leases = vec![LeaseRenewal { task, lease, fence_ms: None }];
    let request = RenewLeases { node: env.node_name.clone(), leases };
    let answer = env.server.call_extended(&request).await?;
    Ok(answer.and_then(|answer| answer.leases.first().map(|lease| lease.held)).unwrap_or(true))
}

/// All output of a task that has ended, as far as the time allows; true if nothing is left.
async fn forward_rest(env: &Environment, entry: &LeasedTask, until: Instant) -> Result<bool, WireError> {
    // A piece of each, so that no task waits for another one's output.
    while forward_piece(env, entry, true).await? {
        if Instant::now() >= until {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A piece of one task's output from where the server has it; false if there was none.
async fn forward_piece(env: &Environment, entry: &LeasedTask, ended: bool) -> Result<bool, WireError> {
    let path = entry.dir.output_path();
    let all_bytes = std::fs::metadata(&path).map_or(0, |output| output.len());
    let (sent_bytes, limit_bytes) = (entry.sent_bytes(), env.config.output_limit_bytes);
    let Some(OutputPosition { from_bytes, note }) =
        output_limit::place(all_bytes, sent_bytes, limit_bytes, ended)
    else {
        output_limit::free_left_out(&path, all_bytes);
        return Ok(false);
    };
    // Nothing new: most tasks print nothing for a long time, and are looked at twice a second.
    if all_bytes <= from_bytes {
        return Ok(false);
    }
    let piece = match logs::next_piece(&path, from_bytes, ended) {
        Ok(Some(piece)) => piece,
        Ok(None) => return Ok(false),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read a task's output");
            return Ok(false);
        }
    };
    let (task, worker) = (entry.job.task.0.as_str(), env.worker_of(&entry.job));
    let is_cantle = !env.server.lacks::<RenewLeases>();
    let end_bytes = piece.end_bytes;
    let event = |text| {
        let event = ReportedEvent::log(task, worker, now_ms(), text);
        if is_cantle { event.of_run(&entry.job.lease.0).of_output(from_bytes, end_bytes) } else { event }
    };
    let limit_note = output_limit::note_at_limit(sent_bytes, end_bytes, limit_bytes).filter(|_| !ended);
    let texts = note.into_iter().chain(piece.texts).chain(limit_note);
    let events: Vec<ReportedEvent> = texts.map(event).collect();
    // A piece whose answer was lost, or whose agent was killed before it noted the answer, comes again. The server says then what it has.
    let mut sent_to_bytes = end_bytes;
    match env.server.add_batch(&events).await {
        // The server may refuse a part (a deleted task's log); sending it again would not help.
        Ok(answer) => sent_to_bytes = answer.output_bytes.unwrap_or(end_bytes),
        Err(error) if error.is_temporary() => return Err(error),
        Err(error) => tracing::warn!(%task, %error, "a piece of log was refused"),
    }
    if let Err(error) = entry.set_sent_bytes(sent_to_bytes) {
        tracing::warn!(%error, "a piece of log is sent twice after a restart of the agent");
    }
    output_limit::free_sent(&path, sent_bytes, sent_to_bytes);
    Ok(true)
}

async fn deliver_result(env: &Environment, entry: &LeasedTask) -> Result<(), WireError> {
    let outcome = match entry.outcome.clone().map_or_else(|| entry.dir.outcome(), |outcome| Ok(Some(outcome)))
    {
        Ok(outcome) => outcome.unwrap_or_default(),
        Err(error) => Outcome { message: Some(error.to_string()), ..Outcome::default() },
    };
    let stop = entry.stop.clone().or_else(|| {
        entry.dir.stop().unwrap_or_else(|error| {
            let task = &entry.job.task.0;
            tracing::error!(%task, %error, "why the task was stopped cannot be read; its exit code is reported alone");
            None
        })
    });
    let report = report_of(&outcome, stop.as_ref());
    let (task, name) = (&entry.job.task.0, &entry.job.name);
    if stop.is_none() && entry.dir.task_directory().is_fenced() {
        let message =
            format!("task {name} was ended: its lease could not be renewed in time; it is queued again");
        env.note("fence", Some(task), None, message);
        let request = EndFenced { task: task.clone(), lease: entry.job.lease.0.clone() };
        return accept_refusal(env.server.call_extended(&request).await.map(|_| ()));
    }
    if let Report::GivenBack(reason) = report {
        // One call, and the server notes the outcome: there is no moment in which the task is nowhere.
        let request = GiveBack { task: task.clone(), lease: entry.job.lease.0.clone(), reason };
        return accept_refusal(env.server.call_extended(&request).await.map(|_| ()));
    }
    let details = entry.report(env, Some(&outcome));
    accept_refusal(env.server.call_extended(&details).await.map(|_| ()))?;
    accept_refusal(send(env, task, entry.job.run, &report).await)?;
    let message = match &report {
        Report::Completed => format!("task {name} completed"),
        Report::Stopped(why) => format!("task {name} stopped: {why}"),
        Report::Failed(why) => format!("task {name} failed: {why}"),
        Report::GivenBack(_) | Report::Nothing => {
            format!("task {name} ended after the server had taken it back")
        }
    };
    // The server has noted the end itself.
    tracing::info!(%task, "{message}");
    Ok(())
}

async fn send(env: &Environment, task: &str, run: Option<i64>, report: &Report) -> Result<(), WireError> {
    let (task, force) = (task.to_owned(), true);
    let texts = |text: &str| (Some(text.to_owned()), Some(text.to_owned()));
    match report {
        Report::Completed => {
            let (status_reason, status_message) = texts(DONE);
            let publish = false;
            let done = tasks::Completed { task, force, publish, status_reason, status_message, run };
            env.server.call(&done).await.map(|_| ())
        }
        Report::Stopped(why) => {
            let (status_reason, status_message) = texts(why);
            let stopped = tasks::Stopped { task, force, status_reason, status_message, run };
            env.server.call(&stopped).await.map(|_| ())
        }
        Report::Failed(why) => {
            let (status_reason, status_message) = texts(why);
            let failed = tasks::Failed { task, force, status_reason, status_message, run };
            env.server.call(&failed).await.map(|_| ())
        }
        Report::GivenBack(_) | Report::Nothing => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> Outcome {
        Outcome { code: Some(code), ..Outcome::default() }
    }

    #[test]
    fn ends_are_reported_in_clearmls_words() {
        assert_eq!(report_of(&exit(0), None), Report::Completed);
        assert_eq!(report_of(&exit(3), None), Report::Failed("worker execution exit code 3".into()));
        assert_eq!(report_of(&exit(143), Some(&Stop::Aborted)), Report::Stopped(ABORTED));
        assert_eq!(report_of(&exit(143), Some(&Stop::Shutdown)), Report::Stopped(SHUT_DOWN));
        assert_eq!(report_of(&exit(0), Some(&Stop::Aborted)), Report::Stopped(ABORTED), "it cleaned up");
        assert_eq!(report_of(&exit(0), Some(&Stop::Superseded)), Report::Nothing);
        let lost = Outcome { message: Some("its supervisor was killed".into()), ..Outcome::default() };
        assert_eq!(report_of(&lost, None), Report::Failed("its supervisor was killed".into()));
        let (why, preempted) = ("needed".to_owned(), Stop::Preempted("needed".into()));
        assert_eq!(report_of(&exit(143), Some(&preempted)), Report::GivenBack(why.clone()));
        assert_eq!(
            report_of(&exit(0), Some(&preempted)),
            Report::GivenBack(why),
            "it saved its work, it is not done"
        );
        let enforced = Stop::Enforced("it held 3 GiB outside its slice".into());
        assert!(
            matches!(report_of(&exit(137), Some(&enforced)), Report::Failed(why) if why.contains("3 GiB"))
        );
    }
}
