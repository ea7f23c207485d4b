//! Daemons killed at random instants: no task is forgotten, none is run twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Test;
use crate::cluster::Cluster;
use crate::place::{Place, eventually};

pub(crate) const TESTS: &[Test] = &[
    ("daemons_killed_again_and_again_lose_and_repeat_nothing", killed_again_and_again),
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
        eventually(&format!("task {task} has ended; it is {:?}", cluster.task(task)), || {
            cluster.task(task).state.is_final()
        });
        assert_eq!(cluster.task(task).exit_code, Some(9), "{:?}", cluster.task(task));
    }
    let mut started: BTreeMap<String, usize> = BTreeMap::new();
    for line in std::fs::read_to_string(&runs).unwrap().lines() {
        *started.entry(line.to_owned()).or_default() += 1;
    }
    let expected: BTreeMap<String, usize> = tasks.into_iter().map(|task| (task, 1)).collect();
    assert_eq!(started, expected, "each task once");
    eventually("nothing is held", || place.leases().is_empty());
}

fn soon(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0-2", &["eighth=0.125"]);
    let mut waits: Vec<Duration> = Vec::new();
    for i in 0..50 {
        let mark = place.path().join(format!("mark{i}"));
        let queued = Instant::now();
        cluster.submit("eighth", &format!("t{i}"), &format!("touch {}", mark.display()));
        eventually("it has started", || mark.exists());
        waits.push(queued.elapsed());
    }
    waits.sort_unstable();
    println!("50 tasks, from queue to main: median {:?}, slowest {:?}", waits[25], waits[49]);
    assert!(waits[25] < Duration::from_secs(1));
}
