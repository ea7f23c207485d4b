//! Decides the next action for a task from the states of the task and its pod. Pure.

use cantle_clearml::{ABORTED, StatusReason, StopRequest, tasks};
use cantle_model::TaskStatus;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;

use super::builder::{CONTAINER, GATE};
use crate::phase::{has_ended, phase};

/// The next action for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodAction {
    /// All is as it should be.
    Nothing,
    /// The task is still to be claimed from its queue.
    Claim,
    /// The task is this pod's: its gate is lifted, and the cluster's scheduler may have it.
    LiftGate,
    /// The task gets this status message.
    Report(String),
    /// Its stop was requested.
    Stop,
    /// The task has come to this end; then the pod goes.
    End(TaskOutcome),
    /// The task goes back to the front of its queue, for this reason; then the pod goes.
    Requeue(String),
    /// The same for one that has stopped for another task.
    GiveBack(String),
    /// The pod goes; its task is no longer its business.
    Remove(&'static str),
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// It came to its own end.
    Completed,
    /// It failed, for this reason.
    Failed(String),
    /// It was stopped, for this reason.
    Stopped(&'static str),
}

/// The task's `status_reason` while it belongs to this pod and is not yet known to run.
#[must_use]
pub fn claim(pod: &Pod) -> String {
    StatusReason::Pod(uid(pod)).to_string()
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Not yet for the scheduler?
pub fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
    gates.into_iter().any(|gate| gate.name == GATE)
}

/// Does the cluster's scheduler find no place for it?
pub fn is_unschedulable(pod: &Pod) -> bool {
    let scheduled = condition(pod, "PodScheduled");
    !is_gated(pod)
        && scheduled
            .is_some_and(|each| each.status == "False" && each.reason.as_deref() == Some("Unschedulable"))
}

/// Does it run?
pub fn runs(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

/// Did the container that the task runs in ever start? Then there is a log.
pub fn has_log(pod: &Pod) -> bool {
    let state = of_task(pod).and_then(|status| status.state.as_ref());
    state.is_some_and(|state| {
        state.running.is_some() || state.terminated.as_ref().is_some_and(|end| end.container_id.is_some())
    })
}

/// Decides the next action for a pod. `task` is the server's data of it, `None` if it has no such task.
pub fn next_action(pod: &Pod, task: Option<&tasks::Task>, now: Timestamp, image_grace_s: i64) -> PodAction {
    let Some((task, status)) = task.and_then(|task| Some((task, task.status?))) else {
        return PodAction::Remove("its task was deleted");
    };
    let stop = StopRequest::parse(&task.status_message).filter(|_| status == TaskStatus::InProgress);
    if stop == Some(StopRequest::Evict) {
        return judge_evicted(pod, task);
    }
    if is_gated(pod) {
        return judge_gated(pod, task, status);
    }
    match status {
        TaskStatus::InProgress if stop == Some(StopRequest::Abort) => {
            stopped_first(pod, PodAction::End(TaskOutcome::Stopped(ABORTED)))
        }
        TaskStatus::InProgress => judge_running(pod, now, image_grace_s),
        // The SDK reports that a moment before its process ends.
        TaskStatus::Completed | TaskStatus::Publishing if !has_ended(pod) && !is_gone(pod) => {
            PodAction::Nothing
        }
        TaskStatus::Completed | TaskStatus::Publishing => PodAction::Remove("its task is done"),
        _ if node(pod).is_empty() => PodAction::Remove(STOPPED),
        _ => stopped_first(pod, PodAction::Remove(STOPPED)),
    }
}

const STOPPED: &str = "its task was stopped";

/// The action once the pod has ended. Until then it has its time to end, and all of its log is to come.
fn stopped_first(pod: &Pod, then: PodAction) -> PodAction {
    if has_ended(pod) || is_gone(pod) {
        then
    } else if is_stopping(pod) || pod.metadata.deletion_timestamp.is_some() {
        PodAction::Nothing
    } else {
        PodAction::Stop
    }
}

/// The stop of a pod on its node: its time is over. A deleted pod loses its log as soon as it has ended, even if nobody
/// has read the log yet; one whose time is over stays until it is deleted.
pub const STOP_DEADLINE_S: i64 = 1;

fn is_stopping(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds) == Some(STOP_DEADLINE_S)
}

/// Is it on a node, whose kubelet can stop it?
pub fn is_on_node(pod: &Pod) -> bool {
    !node(pod).is_empty()
}

/// The server has decided that it makes room for another task, and why: `status_reason` has it.
fn judge_evicted(pod: &Pod, task: &tasks::Task) -> PodAction {
    let deleted = pod.metadata.deletion_timestamp.is_some();
    match phase(pod) {
        "Succeeded" if !deleted => PodAction::End(TaskOutcome::Completed),
        "Failed" if !deleted && lost(pod).is_none() => PodAction::End(TaskOutcome::Failed(failure(pod))),
        // The exit codes of programs that were asked to stop do not matter.
        _ => stopped_first(pod, PodAction::GiveBack(task.status_reason.clone())),
    }
}

fn judge_gated(pod: &Pod, task: &tasks::Task, status: TaskStatus) -> PodAction {
    let claimed = status == TaskStatus::InProgress
        && StatusReason::parse(&task.status_reason) == StatusReason::Pod(uid(pod));
    let deleted = pod.metadata.deletion_timestamp.is_some();
    match status {
        _ if claimed && deleted => PodAction::Requeue("its pod was deleted".to_owned()),
        _ if claimed => PodAction::LiftGate,
        TaskStatus::Queued if !deleted => PodAction::Claim,
        _ => PodAction::Remove("its task was never taken for it"),
    }
}

fn judge_running(pod: &Pod, now: Timestamp, image_grace_s: i64) -> PodAction {
    let deleted = pod.metadata.deletion_timestamp.is_some();
    match phase(pod) {
        "Succeeded" => PodAction::End(TaskOutcome::Completed),
        "Failed" => match lost(pod) {
            Some(why) => PodAction::Requeue(why),
            None if deleted => PodAction::Requeue("its pod was deleted".to_owned()),
            None => PodAction::End(TaskOutcome::Failed(failure(pod))),
        },
        _ if is_gone(pod) => PodAction::Requeue("its pod was deleted".to_owned()),
        // It has its time to end. On a lost node it may still run, so the task must not run a second time yet.
        _ if deleted => {
            let why = lost(pod).unwrap_or_else(|| "its pod was deleted".to_owned());
            PodAction::Report(format!(
                "{why}; it runs again when node {} has ended it or is gone itself",
                node(pod)
            ))
        }
        "Running" => PodAction::Report(format!("running on node {}", node(pod))),
        _ => judge_pending(pod, now, image_grace_s),
    }
}

/// Will no more reports about a deleted pod arrive?
fn is_gone(pod: &Pod) -> bool {
    let at_once = pod.metadata.deletion_grace_period_seconds == Some(0);
    pod.metadata.deletion_timestamp.is_some() && (at_once || node(pod).is_empty())
}

fn judge_pending(pod: &Pod, now: Timestamp, image_grace_s: i64) -> PodAction {
    let scheduled = condition(pod, "PodScheduled");
    if let Some(PodCondition { status, message: Some(message), .. }) = scheduled
        && status == "False"
    {
        return PodAction::Report(format!("waiting for a place: {message}"));
    }
    let since = scheduled.and_then(|condition| condition.last_transition_time.as_ref());
    let waited_s = since.map_or(0, |since| now.as_second() - since.0.as_second());
    for status in statuses(pod) {
        let Some(waiting) = status.state.as_ref().and_then(|state| state.waiting.as_ref()) else { continue };
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().unwrap_or_default();
        let told = || format!("{reason}: {message}").trim_end_matches([':', ' ']).to_owned();
        match reason {
            // Waiting does not help.
            "InvalidImageName" | "ErrImageNeverPull" => return PodAction::End(TaskOutcome::Failed(told())),
            // It may: a registry is away, a Secret comes late.
            "ErrImagePull"
            | "ImagePullBackOff"
            | "RegistryUnavailable"
            | "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError" => {
                let over = waited_s >= image_grace_s;
                return if over {
                    PodAction::End(TaskOutcome::Failed(told()))
                } else {
                    PodAction::Report(told())
                };
            }
            _ => {}
        }
    }
    if node(pod).is_empty() {
        PodAction::Nothing
    } else {
        PodAction::Report(format!("starting on node {}", node(pod)))
    }
}

/// Why a pod that failed is not to blame: its node is gone, or its place was needed.
fn lost(pod: &Pod) -> Option<String> {
    let reason = pod.status.as_ref()?.reason.as_deref().unwrap_or_default();
    if reason == "DeadlineExceeded" && is_stopping(pod) {
        return Some("its pod was stopped".to_owned());
    }
    let disrupted = condition(pod, "DisruptionTarget").filter(|condition| condition.status == "True");
    let by_kubelet = matches!(
        reason,
        "Evicted"
            | "NodeLost"
            | "Shutdown"
            | "NodeShutdown"
            | "Terminated"
            | "Preempting"
            | "UnexpectedAdmissionError"
            | "NodeAffinity"
            | "OutOfcpu"
            | "OutOfmemory"
            | "OutOfpods"
    );
    if disrupted.is_none() && !by_kubelet {
        return None;
    }
    let told = disrupted.and_then(|condition| condition.message.clone().or_else(|| condition.reason.clone()));
    let told = told.or_else(|| pod.status.as_ref()?.message.clone());
    Some(format!("its pod was lost: {}", told.unwrap_or_else(|| reason.to_owned())))
}

/// Exit code of what SIGKILL ended. The kubelet names a kill at a memory limit only if the runtime reports it. containerd does not
/// where it cannot load the container's cgroup.
const KILLED: i32 = 137;

fn failure(pod: &Pod) -> String {
    for status in statuses(pod) {
        let Some(end) = status.state.as_ref().and_then(|state| state.terminated.as_ref()) else { continue };
        if end.exit_code == 0 {
            continue;
        }
        let place =
            if status.name == CONTAINER { String::new() } else { format!("container {}: ", status.name) };
        let code = end.exit_code;
        let limit = memory_limit(pod, &status.name);
        return match (end.reason.as_deref(), &end.message) {
            (Some("OOMKilled"), _) => {
                let limit = limit.map_or_else(String::new, |limit| format!(" of {limit}"));
                format!(
                    "{place}out of memory: it was killed at its limit{limit} (OOMKilled, exit code {code})"
                )
            }
            (Some("Error" | "Completed") | None, _) => {
                let exit = format!("{place}worker execution exit code {code}");
                match limit.filter(|_| code == KILLED) {
                    Some(limit) => format!("{exit} (killed, perhaps at its memory limit of {limit})"),
                    None => exit,
                }
            }
            (Some(reason), None) => format!("{place}{reason} (exit code {code})"),
            (Some(reason), Some(message)) => format!("{place}{reason}: {message} (exit code {code})"),
        };
    }
    let status = pod.status.as_ref();
    let reason = status.and_then(|status| status.reason.as_deref()).unwrap_or("its pod failed");
    match status.and_then(|status| status.message.as_deref()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

fn memory_limit(pod: &Pod, container: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let found = spec.containers.iter().find(|each| each.name == container)?;
    Some(found.resources.as_ref()?.limits.as_ref()?.get("memory")?.0.clone())
}

fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Those that run before the task first.
fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status
        .flat_map(|status| [&status.init_container_statuses, &status.container_statuses])
        .flatten()
        .flatten()
}

fn of_task(pod: &Pod) -> Option<&ContainerStatus> {
    statuses(pod).find(|status| status.name == CONTAINER)
}

#[cfg(test)]
mod tests;
