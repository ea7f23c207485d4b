//! Tests of `cantle daemon`.

use cantle_model::{Bytes, GpuRequest, Milli, TaskStatus};
use serde_json::json;

use crate::Test;
use crate::cluster::Cluster;
use crate::place::{Place, eventually};

pub(crate) const TESTS: &[Test] = &[
    ("daemon_runs_the_documented_example", documented_example),
    ("daemon_reports_output_and_exit_codes", output_and_exit_codes),
    ("daemon_gives_each_task_what_it_asks_for", own_requests),
    ("daemon_stops_a_task_when_asked", abort),
    ("daemon_that_is_stopped_stops_its_tasks", stopped_daemon),
    ("daemon_killed_is_replaced_and_its_tasks_go_on", killed_daemon),
    ("daemon_delivers_results_after_the_server_was_away", server_away),
    ("daemon_shares_gpus_with_run", shares_with_run),
    ("daemon_refuses_what_cannot_be", refusals),
    ("daemon_fails_tasks_that_cannot_start_with_a_clear_line", cannot_start),
];

/// A script that runs until the file `name` appears in the place, or the place is gone: a test that fails leaves nothing.
pub(crate) fn until(place: &Place, name: &str) -> String {
    let dir = place.path().display();
    format!("while [ -d {dir} ] && [ ! -e {dir}/{name} ]; do sleep 0.05; done")
}

fn release(place: &Place, name: &str) {
    std::fs::write(place.path().join(name), "").unwrap();
}

fn has_reason(cluster: &Cluster<'_>, task: &str, reason: &str) -> bool {
    cluster.task(task).reason.is_some_and(|now| now.contains(reason))
}

fn documented_example(place: &Place) {
    let cluster = Cluster::new(place);
    let queues = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"];
    for queue in queues {
        cluster.make_queue(queue.split_once('=').unwrap().0);
    }
    let submit = |queue: &str, file: &str| cluster.submit(queue, queue, &until(place, file));
    let (dual, quarter) = (submit("dual_gpus", "dual"), submit("quarter_gpu", "rest"));
    let (half, single) = (submit("half_gpu", "rest"), submit("single_gpu", "rest"));
    let mut daemon = cluster.daemon("0-2", &queues);
    for task in [&dual, &quarter, &half] {
        cluster.wait(task, TaskStatus::InProgress);
    }
    let reason = "needs 1 GPU, free 0.25 of GPU 2 (2.75 of 3 in use)";
    eventually("the reason is known", || has_reason(&cluster, &single, reason));
    assert_eq!(cluster.task(&single).state, TaskStatus::Queued);
    let expected = [(&dual, vec![0, 1]), (&quarter, vec![2]), (&half, vec![2])];
    eventually("each is reported where it has to be", || {
        let placement = cluster.placement();
        expected.iter().all(|(task, gpus)| placement.get(*task) == Some(gpus))
    });
    release(place, "dual");
    cluster.wait(&dual, TaskStatus::Completed);
    cluster.wait(&single, TaskStatus::InProgress);
    release(place, "rest");
    for task in [&quarter, &half, &single] {
        assert_eq!(cluster.wait(task, TaskStatus::Completed).exit_code, Some(0));
    }
    assert_eq!(place.leases(), Vec::new());
    // The agent's notes about a task that was quick come after its end.
    let count = |kind: &str| cluster.events(&single).iter().filter(|event| event.kind == kind).count();
    eventually("its events are there", || {
        count("wait") > 0 && ["start", "run", "end"].map(&count) == [1, 1, 1]
    });
    daemon.terminate();
}

fn output_and_exit_codes(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0-2", &["half=0.5"]);
    let good = cluster.submit("half", "good", "echo limit $GPU_MEMORY_LIMIT; echo oops >&2; printf end");
    let bad = cluster.submit("half", "bad", "exit 3");
    let killed = cluster.submit("half", "killed", "kill -9 $$");
    let chatty =
        cluster.submit("half", "chatty", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
    assert_eq!(cluster.wait(&good, TaskStatus::Completed).exit_code, Some(0));
    assert_eq!(cluster.log(&good), format!("limit {}\noops\nend", 20u64 << 30));
    let failed = cluster.wait(&bad, TaskStatus::Failed);
    assert_eq!((failed.exit_code, failed.reason.as_deref()), (Some(3), Some("worker execution exit code 3")));
    assert_eq!(cluster.wait(&killed, TaskStatus::Failed).exit_code, Some(137));
    cluster.wait(&chatty, TaskStatus::Completed);
    let expected: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    assert!(cluster.log(&chatty) == expected, "every line, once, in order");
}

fn own_requests(place: &Place) {
    let cluster = Cluster::new(place);
    cluster.make_queue("own");
    let hold = until(place, "go");
    let ask = |name: &str, gpu: Option<GpuRequest>| cluster.submit_with("own", name, &hold, gpu);
    let memory = ask("memory", Some(GpuRequest::Memory(Bytes(4 << 30))));
    let fraction = ask("fraction", Some(GpuRequest::Fraction(Milli(333).into())));
    let whole = ask("whole", None);
    let huge = ask("huge", Some(GpuRequest::Memory(Bytes(41 << 30))));
    let _daemon = cluster.daemon("0-2", &["own=task"]);
    let running = |task: &str| cluster.wait(task, TaskStatus::InProgress);
    assert_eq!(running(&memory).memory_limit_bytes, 4 << 30);
    assert_eq!(running(&fraction).milli, 333);
    assert_eq!((running(&whole).milli, running(&whole).memory_limit_bytes), (1000, 40 << 30));
    let reason = "needs 41 GiB of GPU memory, can never run here";
    eventually("the reason is known", || has_reason(&cluster, &huge, reason));
    release(place, "go");
    cluster.wait(&whole, TaskStatus::Completed);
}

fn abort(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0", &["one=1"]);
    let gentle = cluster.submit(
        "one",
        "gentle",
        &format!("trap 'echo stopping; exit 0' TERM; echo up; {}", until(place, "never")),
    );
    eventually("it is up", || cluster.log(&gentle).contains("up"));
    cluster.stop_task(&gentle);
    cluster.wait(&gentle, TaskStatus::Stopped);
    assert!(cluster.log(&gentle).contains("stopping"), "it was asked before it was killed");
    let stubborn =
        cluster.submit("one", "stubborn", &format!("trap '' TERM; echo up; {}", until(place, "never")));
    eventually("it is up", || cluster.log(&stubborn).contains("up"));
    cluster.stop_task(&stubborn);
    cluster.wait(&stubborn, TaskStatus::Stopped);
    assert_eq!(place.leases(), Vec::new());
}

fn stopped_daemon(place: &Place) {
    let cluster = Cluster::new(place);
    let mut daemon = cluster.daemon("0-2", &["one=1"]);
    let task = cluster.submit("one", "endless", "sleep 600");
    cluster.wait(&task, TaskStatus::InProgress);
    eventually("it runs", || place.leases().iter().any(|lease| lease.leader.is_some()));
    daemon.terminate();
    assert_eq!(cluster.task(&task).state, TaskStatus::Stopped);
    assert_eq!(place.leases(), Vec::new());
    let workers = cluster.call(&cantle_clearml::workers::GetAll::default()).workers;
    assert!(workers.is_empty(), "{workers:?}");
}

fn killed_daemon(place: &Place) {
    let cluster = Cluster::new(place);
    let queues = ["half=0.5"];
    let mut first = cluster.daemon("0-2", &queues);
    let hold = until(place, "go");
    let long = cluster.submit("half", "long", &format!("echo before; {hold}; echo after; exit 4"));
    let short = cluster.submit("half", "short", &format!("{}; exit 5", until(place, "short")));
    for task in [&long, &short] {
        cluster.wait(task, TaskStatus::InProgress);
    }
    eventually("both have processes", || {
        place.leases().iter().filter(|lease| lease.leader.is_some()).count() == 2
    });
    first.kill();
    // One ends while no daemon runs; the other continues.
    release(place, "short");
    let leases = place.leases();
    assert_eq!(leases.len(), 2, "a killed daemon frees nothing");
    let _second = cluster.daemon("0-2", &queues);
    assert_eq!(cluster.wait(&short, TaskStatus::Failed).exit_code, Some(5));
    let still = place.leases();
    assert_eq!(still.len(), 1);
    assert_eq!(still[0].leader, leases.iter().find(|lease| lease.id == still[0].id).unwrap().leader);
    release(place, "go");
    assert_eq!(cluster.wait(&long, TaskStatus::Failed).exit_code, Some(4));
    // Output that was in transit when the daemon was killed may arrive twice; nothing is lost or out of order.
    let log = cluster.log(&long);
    let mut lines: Vec<&str> = log.lines().collect();
    lines.dedup();
    assert_eq!(lines, ["before", "after"], "{log}");
}

fn server_away(place: &Place) {
    let mut cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0-2", &["half=0.5"]);
    let task = cluster.submit("half", "patient", &format!("{}; echo done; exit 6", until(place, "go")));
    cluster.wait(&task, TaskStatus::InProgress);
    eventually("it runs", || place.leases().iter().any(|lease| lease.leader.is_some()));
    cluster.stop_server();
    release(place, "go");
    eventually("the slice is free although the server could not be reached", || place.leases().is_empty());
    cluster.restart_server();
    assert_eq!(cluster.wait(&task, TaskStatus::Failed).exit_code, Some(6));
    assert_eq!(cluster.log(&task), "done\n");
}

fn shares_with_run(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0-2", &["one=1"]);
    let mut runs: Vec<_> =
        (0..3).map(|_| place.run("0.25", 20, &until(place, "run")).spawn().unwrap()).collect();
    eventually("three run", || place.leases().len() == 3);
    let tasks: Vec<String> =
        (0..3).map(|i| cluster.submit("one", &format!("t{i}"), &until(place, "go"))).collect();
    cluster.wait(&tasks[1], TaskStatus::InProgress);
    eventually("the third has a reason", || {
        has_reason(&cluster, &tasks[2], "needs 1 GPU, free 0.25 of GPU 0 (2.75 of 3 in use)")
    });
    release(place, "run");
    runs.iter_mut().for_each(|run| assert!(run.wait().unwrap().success()));
    cluster.wait(&tasks[2], TaskStatus::InProgress);
    release(place, "go");
    tasks.iter().for_each(|task| drop(cluster.wait(task, TaskStatus::Completed)));
}

fn refusals(place: &Place) {
    let cluster = Cluster::new(place);
    let fails = |gpus: &str, queues: &[&str]| cluster.daemon_that_may_fail(gpus, queues).failure();
    let (code, said) = fails("0-2", &["four=4"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("--queue four: needs 4 GPUs, but this agent has 3"), "{said}");
    let (code, said) = fails("7", &["one=1"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("there is no GPU 7 on this machine; it has 3"), "{said}");
    let first = cluster.daemon("0-1", &["one=1"]);
    let (code, said) = fails("1-2", &["one=1"]);
    assert_eq!(code, Some(8));
    let taken = format!("GPU 1 is taken by agent node:dgpu0-1 (pid {})", first.pid());
    assert!(said.contains(&taken), "{said}");
}

fn cannot_start(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0", &["one=1"]);
    let argv = |argv: &str| json!({"hyperparams": {"cantle": {"command": {"section": "cantle", "name": "command", "value": argv}}}});
    let missing = cluster.enqueue("one", "missing", &argv("[\"/nonexistent/program\"]"));
    let nothing = cluster.enqueue("one", "nothing", &json!({}));
    let garbled = cluster.enqueue("one", "garbled", &argv("python train.py"));
    let failed = cluster.wait(&missing, TaskStatus::Failed);
    assert_eq!(failed.exit_code, Some(127));
    assert!(failed.reason.unwrap().contains("/nonexistent/program: command not found"));
    let reason = |task: &str| cluster.wait(task, TaskStatus::Failed).reason.unwrap();
    assert!(reason(&nothing).contains("neither a command"));
    assert!(reason(&garbled).contains("write a JSON array"));
    eventually("nothing is held", || place.leases().is_empty());
}
