//! `cantle daemon --docker`.

use cantle_model::TaskStatus;

use crate::Test;
use crate::cluster::Cluster;
use crate::place::{Place, eventually};

pub(crate) const TESTS: &[Test] = &[
    ("containers_run_side_by_side_in_their_slices", side_by_side),
    ("containers_are_stopped_when_asked", stopped),
    ("containers_outlive_a_killed_daemon", killed_daemon),
];

fn cluster(place: &Place) -> Cluster<'_> {
    Cluster::new(place).in_containers(std::env::var_os("CANTLE_TEST_ENGINE").unwrap())
}

fn side_by_side(place: &Place) {
    let cluster = cluster(place);
    let _daemon = cluster.daemon("0-1", &["half=0.5"]);
    let script = "echo slice $GPU_MEMORY_LIMIT; hostname >&2; sleep 4; exit 3";
    let tasks: Vec<String> = (0..4).map(|i| cluster.submit("half", &format!("t{i}"), script)).collect();
    eventually("four halves on two GPUs", || {
        place.leases().iter().filter(|l| l.leader.is_some()).count() == 4
    });
    for task in &tasks {
        assert_eq!(cluster.wait(task, TaskStatus::Failed).exit_code, Some(3));
        let log = cluster.log(task);
        assert!(log.contains(&format!("slice {}\n", 20u64 << 30)), "{log}");
        assert!(log.contains("docker run"), "the whole command is in the log: {log}");
        assert!(log.contains("CLEARML_API_SECRET_KEY='***'"), "but no secret: {log}");
    }
    assert_eq!(place.leases(), Vec::new());
}

fn stopped(place: &Place) {
    let cluster = cluster(place);
    let _daemon = cluster.daemon("0", &["one=1"]);
    let task = cluster.submit("one", "endless", "echo up; while :; do sleep 1; done");
    eventually("it is up", || cluster.log(&task).contains("up\n"));
    cluster.stop_task(&task);
    cluster.wait(&task, TaskStatus::Stopped);
    assert_eq!(place.leases(), Vec::new());
}

fn killed_daemon(place: &Place) {
    let cluster = cluster(place);
    let mut first = cluster.daemon("0", &["one=1"]);
    let task = cluster.submit("one", "long", "echo before; sleep 4; echo after; exit 7");
    eventually("it is up", || place.leases().iter().any(|lease| lease.leader.is_some()));
    first.kill();
    let _second = cluster.daemon("0", &["one=1"]);
    assert_eq!(cluster.wait(&task, TaskStatus::Failed).exit_code, Some(7));
    let log = cluster.log(&task);
    assert!(log.ends_with("before\nafter\n"), "{log}");
    assert_eq!(log.matches("\nbefore\n").count(), 1, "{log}");
}
