//! The order of the controller's calls, against a cluster and a server in memory.

mod fake;

use cantle_clearml::StopRequest;
use fake::World;
use serde_json::json;

const POD: &str = "clearml-id-t1";

/// A replica that leads, knows all pods, and has nothing to do.
async fn leading(world: &World) -> fake::Replica {
    let mut replica = world.replica("a").await;
    replica.watch();
    assert_eq!(replica.turn().await, ["create lease", "list pods", "workers.status_report"]);
    replica
}

/// A task of this world that runs in its pod.
async fn running(world: &World) -> fake::Replica {
    let mut replica = leading(world).await;
    world.add_task("t1");
    replica.turn().await;
    world.change_pod(POD, |pod| {
        pod["spec"]["nodeName"] = json!("n1");
        pod["status"] = json!({"phase": "Running"});
    });
    replica
}

#[tokio::test]
async fn a_task_gets_a_pod() {
    let world = World::default();
    let mut replica = leading(&world).await;
    world.add_task("t1");
    let expected = [
        "list pods",
        "create pod clearml-id-t1",
        "renew lease",
        "queues.get_next_task t1",
        "tasks.dequeue t1",
        "cantle.report_task t1",
        "lift gate clearml-id-t1",
    ];
    assert_eq!(replica.turn().await, expected);
    assert_eq!(world.things().tasks["t1"]["status_reason"], format!("kubernetes pod uid-{POD}"));
    replica.watch();
    assert_eq!(replica.turn().await, [""; 0], "nothing is left to do");
}

/// A namespace that the injector leaves out: the pod would run with all GPUs of its node.
#[tokio::test]
async fn a_pod_without_the_slice_that_it_asks_for_is_never_let_go() {
    let world = World::default();
    world.things().asks_share = true;
    let mut replica = leading(&world).await;
    world.add_task("t1");
    let expected = [
        "list pods",
        "create pod clearml-id-t1",
        "event NoSlice",
        "tasks.update t1",
        "delete pod clearml-id-t1",
        "drop finalizer clearml-id-t1",
    ];
    assert_eq!(replica.turn().await[..6], expected);
    assert!(world.things().pods.is_empty());
    assert_eq!(world.things().tasks["t1"]["status"], "queued", "it runs once somebody has fixed that");
    assert_eq!(world.things().queue, ["t1"]);
}

/// As an older leader left it.
#[tokio::test]
async fn nor_is_one_that_was_there_before() {
    let world = World::default();
    world.things().asks_share = true;
    world.things().has_injector = true;
    let mut replica = leading(&world).await;
    world.add_task("t1");
    assert!(replica.turn().await.contains(&"lift gate clearml-id-t1".to_owned()), "with a claim it may run");
    world.change_pod(POD, |pod| {
        pod["spec"]["schedulingGates"] = json!([{"name": "cantle.dev/task-not-taken"}]);
        pod["spec"]["resourceClaims"] = json!([]);
    });
    replica.watch();
    let expected = [
        "event NoSlice",
        "tasks.enqueue t1",
        "queues.move_task_to_front t1",
        "delete pod clearml-id-t1",
        "drop finalizer clearml-id-t1",
    ];
    assert_eq!(replica.turn().await[..5], expected);
}

#[tokio::test]
async fn a_task_that_is_over_quota_goes_back_before_its_pod_goes() {
    let world = World::default();
    let mut replica = leading(&world).await;
    world.things().is_over_quota = true;
    world.add_task("t1");
    let expected = [
        "list pods",
        "create pod clearml-id-t1",
        "renew lease",
        "queues.get_next_task t1",
        "tasks.dequeue t1",
        "cantle.report_task t1",
        "tasks.enqueue t1",
        "queues.move_task_to_front t1",
        "delete pod clearml-id-t1",
        "drop finalizer clearml-id-t1",
    ];
    assert_eq!(replica.turn().await, expected);
    assert!(world.things().pods.is_empty());
}

#[tokio::test]
async fn the_task_of_a_pod_that_was_deleted_goes_back_before_the_pod_may_vanish() {
    let world = World::default();
    let mut replica = running(&world).await;
    replica.watch();
    assert_eq!(replica.turn().await, ["tasks.update t1"], "it says where it runs");
    world.change_pod(POD, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    });
    replica.watch();
    let calls = replica.turn().await;
    let expected = ["tasks.enqueue t1", "queues.move_task_to_front t1", "drop finalizer clearml-id-t1"];
    assert_eq!(calls[..3], expected, "{calls:?}");
    assert!(world.things().pods.is_empty());
}

/// A pod that is deleted loses its log when it has ended: a leader that comes then would find none.
#[tokio::test]
async fn a_pod_that_is_to_stop_ends_before_it_is_deleted() {
    let world = World::default();
    let mut replica = running(&world).await;
    world.things().tasks.get_mut("t1").unwrap()["status_message"] = json!(StopRequest::Abort.as_str());
    replica.watch();
    assert_eq!(replica.turn().await, ["stop pod clearml-id-t1"]);
    replica.watch();
    assert_eq!(replica.turn().await, [""; 0], "it has its time to end");
    world.change_pod(POD, |pod| pod["status"] = json!({"phase": "Failed", "reason": "DeadlineExceeded"}));
    replica.watch();
    let calls = replica.turn().await;
    let removed = ["delete pod clearml-id-t1", "drop finalizer clearml-id-t1"];
    assert_eq!(calls[calls.len() - 2..], removed, "{calls:?}");
    assert!(calls[0].starts_with("tasks.stopped t1"), "{calls:?}");
}

/// A new leader whose watch is late: the pod that it shows is gone, and its task runs elsewhere.
#[tokio::test]
async fn nothing_is_done_about_a_pod_that_only_the_watch_still_has() {
    let world = World::default();
    drop(running(&world).await);
    let mut next = world.replica("a").await;
    next.watch();
    world.things().pods.clear();
    let calls = next.turn().await;
    assert_eq!(calls, ["renew lease", "list pods", "workers.status_report"], "no message, no requeue");
}

#[tokio::test]
async fn of_two_replicas_only_the_one_with_the_lease_takes_the_task() {
    let world = World::default();
    let mut first = leading(&world).await;
    world.things().steals_lease = true;
    world.add_task("t1");
    let expected = ["list pods", "create pod clearml-id-t1", "renew lease: refused"];
    assert_eq!(first.turn().await, expected, "it creates a pod and does not take the task");
    assert_eq!(first.turn().await, [""; 0], "it leads no longer");
    let mut second = world.replica("b").await;
    second.watch();
    let expected = [
        "renew lease",
        "list pods",
        "workers.status_report",
        "list pods",
        "renew lease",
        "queues.get_next_task t1",
        "tasks.dequeue t1",
        "cantle.report_task t1",
        "lift gate clearml-id-t1",
    ];
    assert_eq!(second.turn().await, expected, "it takes the task for the pod that is there");
}
