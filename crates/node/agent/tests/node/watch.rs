//! Tasks that take more than their slice.

use std::process::{Child, Command, Stdio};

use cantle_model::TaskStatus;

use crate::Test;
use crate::cluster::Cluster;
use crate::daemon::until;
use crate::place::{Place, eventually};

pub(crate) const TESTS: &[Test] = &[
    ("watchdog_kills_a_task_that_goes_past_the_shim_and_nobody_else", evader),
    ("watchdog_of_run_kills_too", evader_under_run),
    ("foreign_memory_is_counted_and_its_owner_left_alone", foreign),
];

fn script(place: &Place, mebibytes: u64) -> String {
    let copy = place.path().join("private-copy.so");
    std::fs::copy(place.lib_dir().join("sim/libcuda.so.1"), &copy).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/evader.py");
    // The simulated driver of these tests is in a directory that its programs get by a variable.
    let (copy, state) = (copy.display(), place.sim_dir());
    format!("CANTLE_SIM_DIR={} exec python3 {program} {copy} {mebibytes}", state.display())
}

fn evader(place: &Place) {
    let cluster = Cluster::new(place);
    let _daemon = cluster.daemon("0", &["half=0.5"]);
    let honest = cluster.submit("half", "honest", &until(place, "never"));
    cluster.wait(&honest, TaskStatus::InProgress);
    let evader = cluster.submit("half", "evader", &script(place, 24 << 10));
    let failed = cluster.wait(&evader, TaskStatus::Failed);
    let reason = failed.reason.unwrap();
    assert!(reason.contains("reached GPU 0 past the slice's accounting and holds 24."), "{reason}");
    let has = |kind: &str| cluster.events(&evader).iter().any(|event| event.kind == kind);
    eventually("both are noted", || has("watch") && has("kill"));
    assert_eq!(cluster.task(&honest).state, TaskStatus::InProgress);
    assert_eq!(place.leases().len(), 1);
}

fn evader_under_run(place: &Place) {
    let out = place.run("0.5", 0, &script(place, 24 << 10)).output().unwrap();
    assert_eq!(out.status.code(), Some(137), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("the task is killed: process "), "{said}");
    assert_eq!(place.leases(), Vec::new());
}

fn foreign(place: &Place) {
    let mut command = Command::new("sh");
    command.args(["-c", &script(place, 30 << 10)]);
    let mut foreign = EndedAtLast(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let driver = cantle_driver::open(&place.source()).unwrap();
    let uuid = driver.gpus().unwrap()[0].uuid.clone();
    eventually("it has its memory", || driver.memory(&uuid).unwrap().used_bytes > 30 << 30);
    let held: Vec<_> = (0..4).map(|_| place.run("0.5", 0, &until(place, "end")).spawn().unwrap()).collect();
    eventually("four halves on the other two", || place.leases().len() == 4);
    assert!(place.leases().iter().flat_map(|lease| &lease.slices).all(|slice| slice.gpu != uuid));
    let refused = place.run("0.5", 0, "true").output().unwrap();
    assert_eq!(refused.status.code(), Some(6));
    assert_eq!(
        place.run("0.125", 0, "true").status().unwrap().code(),
        Some(0),
        "an eighth is left next to it"
    );
    std::fs::write(place.path().join("end"), "").unwrap();
    held.into_iter().for_each(|mut run| drop(run.wait()));
    assert!(foreign.0.try_wait().unwrap().is_none(), "cantle did not start it, so cantle does not end it");
}

/// A process that goes with the test, also when the test fails.
struct EndedAtLast(Child);

impl Drop for EndedAtLast {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
