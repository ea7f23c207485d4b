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

/// As left by the leader that requested its stop.
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
    assert!(matches!(with(&deleted(gated(), 0), &task(TaskStatus::Queued, "", "")), PodAction::Remove(_)));
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
    assert_eq!(running(&ended("Succeeded", json!({"exitCode": 0}))), PodAction::End(TaskOutcome::Completed));
    let exit = json!({"exitCode": 3, "reason": "Error"});
    assert_eq!(running(&ended("Failed", exit)), failed("worker execution exit code 3"));
    let mut oom = ended("Failed", json!({"exitCode": 137, "reason": "OOMKilled"}));
    oom["spec"]["containers"] = json!([{"name": CONTAINER, "resources": {"limits": {"memory": "64Mi"}}}]);
    let told = "out of memory: it was killed at its limit of 64Mi (OOMKilled, exit code 137)";
    assert_eq!(running(&oom), failed(told));
    oom["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = json!("Error");
    let told = "worker execution exit code 137 (killed, perhaps at its memory limit of 64Mi)";
    assert_eq!(running(&oom), failed(told), "the runtime did not report it");
    let late = on_node(json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"}));
    assert_eq!(running(&late), failed("DeadlineExceeded: too long"), "the deadline is not cantle's");
    assert_eq!(running(&stopping("Failed")), requeue("its pod was stopped"), "the request is withdrawn");
}

#[test]
fn what_is_lost_runs_again() {
    let exit = json!({"exitCode": 137, "reason": "Error"});
    let mut drained = ended("Failed", exit.clone());
    let target = json!({"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"});
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
    let nowhere = pod(json!({"containers": []}), json!({"phase": "Pending", "conditions": [unschedulable]}));
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
    assert!(matches!(with(&ended("Succeeded", json!({"exitCode": 0})), &completed), PodAction::Remove(_)));
}
