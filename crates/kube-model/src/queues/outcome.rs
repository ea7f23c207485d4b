//! From what a pod and its task say to what is to be done. Pure.

use cantle_clearml::{ABORTED, StatusReason, StopRequest, tasks};
use cantle_model::TaskStatus;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;

use super::builder::{CONTAINER, GATE};
use crate::phase::{has_ended, phase};

/// What is to be done about a pod.
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
    /// Somebody wants it stopped.
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
    /// Somebody stopped it, for this reason.
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

/// What to do about a pod. `task` is what the server says of it, `None` if it has no such task.
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
        // The SDK says so a moment before its process ends.
        TaskStatus::Completed | TaskStatus::Publishing if !has_ended(pod) && !is_gone(pod) => {
            PodAction::Nothing
        }
        TaskStatus::Completed | TaskStatus::Publishing => PodAction::Remove("its task is done"),
        _ if node(pod).is_empty() => PodAction::Remove(STOPPED),
        _ => stopped_first(pod, PodAction::Remove(STOPPED)),
    }
}

const STOPPED: &str = "its task was stopped";

/// What is to be done once the pod has ended. Until then it has its time to end, and all of its log is to come.
fn stopped_first(pod: &Pod, then: PodAction) -> PodAction {
    if has_ended(pod) || is_gone(pod) {
        then
    } else if is_stopping(pod) || pod.metadata.deletion_timestamp.is_some() {
        PodAction::Nothing
    } else {
        PodAction::Stop
    }
}

/// How a pod is stopped on its node: its time is over. A pod that is deleted loses its log as soon as it has ended, whoever has
/// read it by then; one whose time is over stays until it is deleted.
pub const STOP_DEADLINE_S: i64 = 1;

fn is_stopping(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds) == Some(STOP_DEADLINE_S)
}

/// Is it on a node, whose kubelet can stop it?
pub fn is_on_node(pod: &Pod) -> bool {
    !node(pod).is_empty()
}

/// The server has decided that it makes room for another task, and why: `status_reason` says it.
fn judge_evicted(pod: &Pod, task: &tasks::Task) -> PodAction {
    let deleted = pod.metadata.deletion_timestamp.is_some();
    match phase(pod) {
        "Succeeded" if !deleted => PodAction::End(TaskOutcome::Completed),
        "Failed" if !deleted && lost(pod).is_none() => PodAction::End(TaskOutcome::Failed(failure(pod))),
        // What programs say about their end when they were asked to stop does not matter.
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
        // It has its time to end. On a node that is lost it may go on, so nobody may run the task a second time yet.
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

/// Will nothing more be heard of a deleted pod?
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

/// Why a pod that failed is not to blame: its node went, or somebody needed its place.
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

fn failure(pod: &Pod) -> String {
    for status in statuses(pod) {
        let Some(end) = status.state.as_ref().and_then(|state| state.terminated.as_ref()) else { continue };
        if end.exit_code == 0 {
            continue;
        }
        let place =
            if status.name == CONTAINER { String::new() } else { format!("container {}: ", status.name) };
        let code = end.exit_code;
        return match (end.reason.as_deref(), &end.message) {
            (Some("OOMKilled"), _) => {
                let limit =
                    memory_limit(pod, &status.name).map_or_else(String::new, |limit| format!(" of {limit}"));
                format!(
                    "{place}out of memory: it was killed at its limit{limit} (OOMKilled, exit code {code})"
                )
            }
            (Some("Error" | "Completed") | None, _) => format!("{place}worker execution exit code {code}"),
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
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GRACE_S: i64 = 120;
    const NOW: i64 = 1_000_000;

    fn pod(spec: Value, status: Value) -> Value {
        json!({"metadata": {"name": "p", "uid": "u1"}, "spec": spec, "status": status})
    }

    fn on_node(status: Value) -> Value {
        pod(json!({"containers": [], "nodeName": "n1"}), status)
    }

    fn gated() -> Value {
        pod(json!({"containers": [], "schedulingGates": [{"name": GATE}]}), json!({"phase": "Pending"}))
    }

    fn deleted(mut pod: Value, grace_s: i64) -> Value {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace_s);
        pod
    }

    /// As the leader has left it that wanted it stopped.
    fn stopping(phase: &str) -> Value {
        let mut pod = ended(phase, json!({"exitCode": 0, "reason": "Completed"}));
        pod["spec"]["activeDeadlineSeconds"] = json!(STOP_DEADLINE_S);
        if phase == "Failed" {
            pod["status"]["reason"] = json!("DeadlineExceeded");
        }
        pod
    }

    fn container(state: Value) -> Value {
        json!([{"name": CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
    }

    fn ended(phase: &str, state: Value) -> Value {
        on_node(json!({"phase": phase, "containerStatuses": container(json!({"terminated": state}))}))
    }

    fn waiting(reason: &str, since_s: i64) -> Value {
        let since = Timestamp::from_second(NOW - since_s).unwrap();
        let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": since});
        let state = json!({"waiting": {"reason": reason, "message": "cannot"}});
        on_node(json!({"phase": "Pending", "conditions": [scheduled], "containerStatuses": container(state)}))
    }

    fn task(status: TaskStatus, message: &str, reason: &str) -> tasks::Task {
        let (status_message, status_reason) = (message.to_owned(), reason.to_owned());
        tasks::Task { status: Some(status), status_message, status_reason, ..tasks::Task::default() }
    }

    fn with(pod: &Value, task: &tasks::Task) -> PodAction {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        next_action(&pod, Some(task), Timestamp::from_second(NOW).unwrap(), GRACE_S)
    }

    fn running(pod: &Value) -> PodAction {
        with(pod, &task(TaskStatus::InProgress, "", ""))
    }

    fn failed(why: &str) -> PodAction {
        PodAction::End(TaskOutcome::Failed(why.to_owned()))
    }

    fn requeue(why: &str) -> PodAction {
        PodAction::Requeue(why.to_owned())
    }

    #[test]
    fn a_crash_at_any_point_leaves_a_pod_that_says_what_is_left_to_do() {
        let ours = task(TaskStatus::InProgress, "", "kubernetes pod u1");
        let anothers = task(TaskStatus::InProgress, "", "pulled by agent");
        assert_eq!(with(&gated(), &task(TaskStatus::Queued, "", "")), PodAction::Claim);
        assert_eq!(with(&gated(), &ours), PodAction::LiftGate);
        assert!(matches!(with(&gated(), &anothers), PodAction::Remove(_)));
        assert!(matches!(with(&gated(), &task(TaskStatus::Stopped, "", "")), PodAction::Remove(_)));
        assert_eq!(with(&deleted(gated(), 0), &ours), requeue("its pod was deleted"));
        assert!(matches!(
            with(&deleted(gated(), 0), &task(TaskStatus::Queued, "", "")),
            PodAction::Remove(_)
        ));
        let typed: Pod = serde_json::from_value(gated()).unwrap();
        assert!(matches!(next_action(&typed, None, Timestamp::UNIX_EPOCH, 0), PodAction::Remove(_)));
    }

    #[test]
    fn who_makes_room_ends_in_its_grace_and_is_given_back() {
        let evicted = task(TaskStatus::InProgress, StopRequest::Evict.as_str(), "reclaimed");
        let back = PodAction::GiveBack("reclaimed".to_owned());
        let alive = on_node(json!({"phase": "Running"}));
        assert_eq!(with(&alive, &evicted), PodAction::Stop);
        assert_eq!(with(&gated(), &evicted), PodAction::Stop, "it had not begun");
        assert_eq!(with(&deleted(gated(), 0), &evicted), back);
        assert_eq!(with(&deleted(alive.clone(), 30), &evicted), PodAction::Nothing, "it has its time to end");
        assert_eq!(with(&deleted(alive, 0), &evicted), back);
        for (phase, code) in [("Failed", 143), ("Succeeded", 0)] {
            let ended = ended(phase, json!({"exitCode": code}));
            assert_eq!(with(&deleted(ended, 30), &evicted), back, "whatever it said");
        }
        assert_eq!(with(&stopping("Running"), &evicted), PodAction::Nothing, "it has its time to end");
        assert_eq!(with(&stopping("Failed"), &evicted), back, "its log is there until it is deleted");
        let done = ended("Succeeded", json!({"exitCode": 0}));
        assert_eq!(with(&done, &evicted), PodAction::End(TaskOutcome::Completed), "it was quicker");
        let failed_itself = ended("Failed", json!({"exitCode": 3, "reason": "Error"}));
        assert_eq!(with(&failed_itself, &evicted), failed("worker execution exit code 3"));
    }

    #[test]
    fn ends_are_told_with_their_cause() {
        assert_eq!(
            running(&ended("Succeeded", json!({"exitCode": 0}))),
            PodAction::End(TaskOutcome::Completed)
        );
        let exit = json!({"exitCode": 3, "reason": "Error"});
        assert_eq!(running(&ended("Failed", exit)), failed("worker execution exit code 3"));
        let mut oom = ended("Failed", json!({"exitCode": 137, "reason": "OOMKilled"}));
        oom["spec"]["containers"] = json!([{"name": CONTAINER, "resources": {"limits": {"memory": "64Mi"}}}]);
        let told = "out of memory: it was killed at its limit of 64Mi (OOMKilled, exit code 137)";
        assert_eq!(running(&oom), failed(told));
        let late = on_node(json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"}));
        assert_eq!(running(&late), failed("DeadlineExceeded: too long"), "somebody else's deadline");
        assert_eq!(
            running(&stopping("Failed")),
            requeue("its pod was stopped"),
            "nobody wants that any more"
        );
    }

    #[test]
    fn what_is_lost_runs_again() {
        let exit = json!({"exitCode": 137, "reason": "Error"});
        let mut drained = ended("Failed", exit.clone());
        let target =
            json!({"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"});
        drained["status"]["conditions"] = json!([target]);
        assert_eq!(running(&drained), requeue("its pod was lost: Eviction API: evicting"));
        let evicted = on_node(json!({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}));
        assert_eq!(running(&evicted), requeue("its pod was lost: low on disk"));
        assert_eq!(running(&deleted(ended("Failed", exit), 1)), requeue("its pod was deleted"));
        let done = deleted(ended("Succeeded", json!({"exitCode": 0})), 1);
        assert_eq!(running(&done), PodAction::End(TaskOutcome::Completed), "it was quicker");
        let alive = on_node(json!({"phase": "Running"}));
        let ends = "its pod was deleted; it runs again when node n1 has ended it or is gone itself";
        assert_eq!(
            running(&deleted(alive.clone(), 30)),
            PodAction::Report(ends.to_owned()),
            "it has its time to end"
        );
        assert_eq!(running(&deleted(alive, 0)), requeue("its pod was deleted"));
        let nowhere = pod(json!({"containers": []}), json!({"phase": "Pending"}));
        assert_eq!(running(&deleted(nowhere, 30)), requeue("its pod was deleted"));
    }

    #[test]
    fn why_it_waits() {
        let unschedulable = json!({"type": "PodScheduled", "status": "False", "message": "0/1 nodes"});
        let nowhere =
            pod(json!({"containers": []}), json!({"phase": "Pending", "conditions": [unschedulable]}));
        assert_eq!(running(&nowhere), PodAction::Report("waiting for a place: 0/1 nodes".to_owned()));
        let told = "ImagePullBackOff: cannot";
        assert_eq!(running(&waiting("ImagePullBackOff", GRACE_S - 1)), PodAction::Report(told.to_owned()));
        assert_eq!(running(&waiting("ImagePullBackOff", GRACE_S)), failed(told));
        assert_eq!(running(&waiting("InvalidImageName", 0)), failed("InvalidImageName: cannot"));
        let starting = PodAction::Report("starting on node n1".to_owned());
        assert_eq!(running(&waiting("ContainerCreating", GRACE_S)), starting);
    }

    #[test]
    fn what_the_server_decides_stands() {
        let alive = on_node(json!({"phase": "Running"}));
        let aborted = task(TaskStatus::InProgress, StopRequest::Abort.as_str(), "");
        let end = PodAction::End(TaskOutcome::Stopped(ABORTED));
        assert_eq!(with(&alive, &aborted), PodAction::Stop);
        assert_eq!(with(&stopping("Running"), &aborted), PodAction::Nothing);
        assert_eq!(with(&stopping("Failed"), &aborted), end);
        assert_eq!(with(&deleted(alive.clone(), 30), &aborted), PodAction::Nothing);
        let killed = deleted(ended("Failed", json!({"exitCode": 137})), 30);
        assert_eq!(with(&killed, &aborted), end);
        let nowhere = pod(json!({"containers": []}), json!({"phase": "Pending"}));
        assert_eq!(with(&nowhere, &aborted), PodAction::Stop);
        for status in [TaskStatus::Stopped, TaskStatus::Queued, TaskStatus::Created, TaskStatus::Failed] {
            let over = task(status, "", "");
            assert_eq!(with(&alive, &over), PodAction::Stop, "{status}: its log comes first");
            assert_eq!(with(&stopping("Running"), &over), PodAction::Nothing, "{status}");
            assert!(matches!(with(&stopping("Failed"), &over), PodAction::Remove(_)), "{status}");
            assert!(matches!(with(&nowhere, &over), PodAction::Remove(_)), "{status}");
        }
        let completed = task(TaskStatus::Completed, "", "");
        assert_eq!(with(&alive, &completed), PodAction::Nothing, "its process is just ending");
        assert!(matches!(
            with(&ended("Succeeded", json!({"exitCode": 0})), &completed),
            PodAction::Remove(_)
        ));
    }
}
