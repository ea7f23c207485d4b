//! Processes die at any instant: their memory is released, to the byte, and no other process waits for them.
//!
//! The workers are this test program itself, started again with one of the ignored tests below as its only test and the
//! machine's directory in the environment.

#![expect(clippy::unwrap_used, reason = "a test stops where its assumptions end")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cantle_simgpu::state::{ConsumeError, Sim, Site, WHOLE_GPU};
use cantle_simgpu::truth_json;

const SPEC: &str = "1xA100-40GB,1xT4-16GB";
const DIRECTORY: &str = "CANTLE_SIMGPU_TEST_DIR";

/// A small generator: the tests need variety that can be repeated, not quality.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn start(worker: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", worker, "--ignored", "--test-threads=1"])
        .env(DIRECTORY, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn worker_machine() -> Option<&'static Sim> {
    let dir = PathBuf::from(std::env::var_os(DIRECTORY)?);
    Some(Sim::open(&Site::Directory(dir), None).unwrap())
}

fn used(sim: &'static Sim) -> [u32; 2] {
    let state = sim.swept();
    [0, 1].map(|d| state.devices()[d].used_granules[WHOLE_GPU])
}

/// Under the lock, the totals are the sums and nothing exceeds what there is.
fn check(sim: &'static Sim) {
    let state = sim.lock();
    for (index, device) in state.devices().iter().enumerate() {
        let held: u32 = state.processes().map(|(_, slot)| slot.held_granules[index][WHOLE_GPU]).sum();
        assert_eq!(held, device.used_granules[WHOLE_GPU]);
        assert!(held <= device.capacity_granules[WHOLE_GPU]);
    }
}

#[test]
#[ignore = "a worker of the tests below"]
fn worker_allocates() {
    let Some(sim) = worker_machine() else { return };
    let mut random = Random(u64::from(std::process::id()));
    let me = sim.register().unwrap();
    let mut held = Vec::new();
    loop {
        let (device, granules) = (random.below(2) as usize, random.below(2000));
        match me.consume(device, WHOLE_GPU, granules) {
            Ok(()) => held.push((device, granules)),
            Err(error) => assert_eq!(error, ConsumeError::OutOfMemory),
        }
        if random.below(2) == 0 && !held.is_empty() {
            let (device, granules) = held.swap_remove(random.below(held.len() as u64) as usize);
            me.give_back(device, WHOLE_GPU, granules).unwrap();
        }
    }
}

#[test]
#[ignore = "a worker of the tests below"]
fn worker_dies_with_the_lock() {
    let Some(sim) = worker_machine() else { return };
    let me = sim.register().unwrap();
    me.consume(0, WHOLE_GPU, 7).unwrap();
    let mut state = sim.lock();
    // Torn as between two stores of an allocation, only worse.
    state.devices[0].used_granules[WHOLE_GPU] += 1000;
    state.devices[1].used_granules[WHOLE_GPU] = 0;
    std::process::abort();
}

#[test]
fn kills_at_random_instants_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::open(&Site::Directory(dir.path().to_owned()), Some(SPEC)).unwrap();
    let mut random = Random(1);
    let mut workers: Vec<Child> = (0..6).map(|_| start("worker_allocates", dir.path())).collect();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        let victim = random.below(6) as usize;
        workers[victim].kill().unwrap();
        workers[victim].wait().unwrap();
        check(sim);
        workers[victim] = start("worker_allocates", dir.path());
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    assert_eq!(used(sim), [0, 0]);
    check(sim);
}

#[test]
fn a_death_inside_the_lock_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::open(&Site::Directory(dir.path().to_owned()), Some(SPEC)).unwrap();
    let me = sim.register().unwrap();
    me.consume(1, WHOLE_GPU, 5).unwrap();
    for _ in 0..3 {
        start("worker_dies_with_the_lock", dir.path()).wait().unwrap();
        check(sim);
        assert_eq!(used(sim), [0, 5]);
    }
    assert!(truth_json(sim).contains(&format!(r#""pid":{},"used_bytes":10485760"#, std::process::id())));
}

#[test]
fn refusals_take_nothing_and_sweeping_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::open(&Site::Directory(dir.path().to_owned()), Some(SPEC)).unwrap();
    let capacity = u64::from(sim.lock().devices()[0].capacity_granules[WHOLE_GPU]);
    let me = sim.register().unwrap();
    assert_eq!(me.consume(0, WHOLE_GPU, capacity + 1), Err(ConsumeError::OutOfMemory));
    assert_eq!(used(sim), [0, 0]);
    me.consume(0, WHOLE_GPU, capacity).unwrap();
    assert_eq!(me.consume(0, WHOLE_GPU, 1), Err(ConsumeError::OutOfMemory));
    me.give_back(0, WHOLE_GPU, 1).unwrap();
    me.consume(0, WHOLE_GPU, 1).unwrap();
    check(sim);
}
