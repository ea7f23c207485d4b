//! Daemons killed at random instants: no task is lost, none runs twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cantle_model::TaskStatus;

use crate::Test;
use crate::cluster::Cluster;
use crate::daemon::until;
use crate::place::{Place, eventually};

pub(crate) const TESTS: &[Test] = &[
    ("daemons_killed_again_and_again_lose_and_repeat_nothing", killed_again_and_again),
    ("a_restarted_daemon_adopts_its_tasks_within_a_second", adopted),
    ("a_task_starts_soon_after_it_is_queued", soon),
];

const TASKS: usize = 16;
const KILLS: u64 = 12;

fn killed_again_and_again(place: &Place) {
    let cluster = Cluster::new(place);
    let runs = place.path().join("runs");
    let script = format!("echo $CLEARML_TASK_ID >> {}; sleep 0.3; exit 9", runs.display());
    let queues = ["half=0.5"];
    cluster.make_queue("half");
    let tasks: Vec<String> = (0..TASKS).map(|i| cluster.submit("half", &format!("t{i}"), &script)).collect();
    // Delays that look random and are the same each time.
    let mut delay_ms: u64 = 7;
    for _ in 0..KILLS {
        let mut daemon = cluster.daemon_that_may_fail("0-2", &queues);
        delay_ms = (delay_ms * 181 + 97) % 613;
        std::thread::sleep(Duration::from_millis(60 + delay_ms));
        daemon.kill();
    }
    let _last = cluster.daemon("0-2", &queues);
    for task in &tasks {
        // One that is given back is stopped before it is queued again.
        eventually(&format!("task {task} has run; it was {:?}", cluster.task(task)), || {
            cluster.task(task).exit_code == Some(9)
        });
    }
    let mut started: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(&runs).unwrap().lines() {
        *started.entry(line.to_owned()).or_default() += 1;
    }
    let expected: BTreeMap<String, usize> = tasks.into_iter().map(|task| (task, 1)).collect();
    assert_eq!(started, expected, "each task once");
    eventually("nothing is held", || place.leases().is_empty());
}

fn adopted(place: &Place) {
    let cluster = Cluster::new(place);
    let mut daemon = cluster.daemon("0-2", &["half=0.5"]);
    let task = cluster.submit("half", "long", &until(place, "go"));
    eventually("it runs", || place.leases().iter().any(|lease| lease.leader.is_some()));
    let adoptions = || cluster.events(&task).iter().filter(|event| event.kind == "adopt").count();
    let mut took: Vec<Duration> = Vec::new();
    let mut controls: Vec<Duration> = Vec::new();
    for round in 1..=5 {
        controls.push(control(place));
        daemon.kill();
        assert_eq!(place.leases().len(), 1, "its slice is still taken");
        let restarted = Instant::now();
        daemon = cluster.daemon_that_may_fail("0-2", &["half=0.5"]);
        eventually("it is adopted, and the server knows", || adoptions() == round);
        took.push(restarted.elapsed());
    }
    took.sort_unstable();
    controls.sort_unstable();
    println!(
        "5 restarts, from start to adoption: median {:?}, slowest {:?}; control {:?}",
        took[2], took[4], controls[2]
    );
    assert!(took[0] < a_second(controls[0]), "{took:?}, control {controls:?}");
    std::fs::write(place.path().join("go"), "").unwrap();
    cluster.wait(&task, TaskStatus::Completed);
}

/// How long a `cantle run` takes from its start to its end now: a program that starts, decides and starts a task, as a daemon does.
fn control(place: &Place) -> Duration {
    let began = Instant::now();
    assert!(place.run("0.125", 0, "true").output().unwrap().status.success());
    began.elapsed()
}

/// A second, or longer where other programs have the cores: the control takes a tenth of it on a quiet machine.
fn a_second(control: Duration) -> Duration {
    Duration::from_secs(1).max(control * 10)
}

fn soon(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0-2", &["eighth=0.125"]);
    let mut waits: Vec<Duration> = Vec::new();
    let mut controls: Vec<Duration> = Vec::new();
    for i in 0..50 {
        if i % 10 == 0 {
            controls.push(control(place));
        }
        let mark = place.path().join(format!("mark{i}"));
        let queued = Instant::now();
        cluster.submit("eighth", &format!("t{i}"), &format!("touch {}", mark.display()));
        eventually("it has started", || mark.exists());
        waits.push(queued.elapsed());
    }
    waits.sort_unstable();
    controls.sort_unstable();
    println!(
        "50 tasks, from queue to main: median {:?}, slowest {:?}; control {:?}",
        waits[25], waits[49], controls[2]
    );
    assert!(waits[25] < a_second(controls[2]), "{waits:?}, control {controls:?}");
}
