//! Tasks come and go at random on eight simulated GPUs of each family, through the agent's own steps: plan, lease, journal,
//! driver. The driver fails as scripted, the agent dies at any step; the simulated driver is the witness.

mod mortal;
mod world;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use world::{Arrival, World};

use crate::NodeError;

/// Arrivals and departures per family; `CANTLE_STRESS_MIG` and `CANTLE_STRESS_MIG_PROCESSES` set the long forms.
const EVENTS: usize = 40;

/// The same where each call is a process: that takes longer.
const EVENTS_OF_PROCESSES: usize = 12;

const FAMILIES: [&str; 17] = [
    "A30-24GB",
    "A100-40GB",
    "A100-80GB",
    "H100-80GB",
    "H100-94GB",
    "GH200-96GB",
    "GH200-144GB",
    "H200-141GB",
    "B200-180GB",
    "GB200-186GB",
    "RTX-PRO-6000-96GB",
    "H100-80GB-PCIe",
    "H20-96GB",
    "B300-269GB",
    "GB300-278GB",
    "RTX-PRO-5000-48GB",
    "INVENTED-60GB",
];

/// The faults that may happen while a task gets its instance. It is over when the task is tried again.
const FAULTS: [&str; 12] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement error=23 once\n",
    "nvmlDeviceCreateGpuInstanceWithPlacement error=15 once\n",
    "nvmlDeviceCreateGpuInstanceWithPlacement error=10 once\n",
    "nvmlDeviceGetGpuInstances error=4 once\n",
    "nvmlGpuInstanceCreateComputeInstance error=20 once\n",
    "nvmlGpuInstanceCreateComputeInstance delay_ms=20 once\n",
    "nvmlComputeInstanceGetInfo_v2 error=999 once\n",
    "nvmlComputeInstanceDestroy error=19 once\n",
    "nvmlGpuInstanceDestroy error=19 once\n",
    "nvmlGpuInstanceDestroy error=999 once\n",
    "nvmlDeviceGetGpuInstances error=999 once\n",
    "xid gpu=0 code=79 once\nnvmlDeviceGetComputeRunningProcesses_v3 error=16 once\n",
];

/// Rows by which drivers differ (crates/sim/simgpu/src/nvml/settings.rs).
const ROWS: [&str; 5] = ["mig_lock", "remembered_instances", "ids_by_gpu", "uuid_by_pipe", "open_capability"];

/// A driver with each row on or off at random, whose calls take up to `most_ms`.
fn some_driver(random: &mut Random, most_ms: usize) -> String {
    let rows: Vec<String> = ROWS.iter().map(|row| format!("{row}={}\n", random.below(2))).collect();
    rows.concat() + &format!("mig_latency_ms={}\n", random.below(most_ms + 1))
}

const FAULTS_END: usize = FAULTS.len();

/// An instance without a known user that cannot be destroyed: seconds until it is given up.
const STUCK: &str = "nvmlGpuInstanceDestroy error=19\n";

/// How long a planner believes that a driver fails, and does not ask it again.
const FAILED_COUNTS: Duration = Duration::from_millis(1_050);

/// The steps of making an instance, each call before and after, and some to live on.
const STEPS: usize = 20;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap()
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn step(&mut self) -> u32 {
        1 + u32::try_from(self.below(STEPS)).unwrap()
    }
}

/// The counts of all outcomes.
#[derive(Debug, Default)]
struct Tally {
    arrivals: usize,
    placed: usize,
    waited: usize,
    faults: usize,
    kills: usize,
    restarts: usize,
}

/// The faults, each once in this number of events.
struct Run<'a> {
    world: &'a mut World,
    random: &'a mut Random,
    tally: Tally,
    trouble_every: usize,
    /// When the driver last ceased to fail.
    failed: Instant,
}

impl Run<'_> {
    fn events(&mut self, events: usize) {
        let profiles = self.world.profiles();
        for event in 1..=events {
            let before = self.world.in_use();
            if !self.world.running.is_empty() && self.random.below(100) < 48 {
                let leaves = self.random.below(self.world.running.len());
                self.world.leave(leaves);
            } else {
                self.tally.arrivals += 1;
                let profile = &profiles[self.random.below(profiles.len())];
                self.arrival(profile);
            }
            self.world.check(&before);
            if self.random.one_in(8 * self.trouble_every) {
                self.restart();
            }
            if event % 1000 == 0 {
                println!("{event} arrivals and departures, {:?}", self.tally);
            }
        }
    }

    fn restart(&mut self) {
        let before = self.world.in_use();
        self.tally.restarts += 1;
        if self.world.lost.is_some() {
            self.failed = Instant::now();
        }
        let dies_at = self.random.step();
        self.world.restart(dies_at);
        self.world.check(&before);
    }

    /// One task comes, and something may go wrong.
    fn arrival(&mut self, profile: &str) {
        let faulty = self.trouble();
        self.served(profile, faulty);
        if faulty {
            self.failed = Instant::now();
        }
    }

    /// One task, until it has its instance or rightly waits.
    fn served(&mut self, profile: &str, mut faulty: bool) {
        let mut dies_at = if self.random.one_in(self.trouble_every) { self.random.step() } else { 0 };
        for _ in 0..5 {
            let feasible = self.world.has_place(profile);
            // Before the query, which looks at what it knows in a moment of its own.
            let rest = FAILED_COUNTS.saturating_sub(self.failed.elapsed());
            match self.world.arrive(profile, dies_at) {
                Ok(Arrival::Placed) => {
                    self.tally.placed += 1;
                    return;
                }
                Ok(Arrival::NoPlace) if !feasible => {
                    self.tally.waited += 1;
                    return;
                }
                // One query of a failing driver, whose result counts for a second.
                Ok(Arrival::NoPlace) => {
                    assert!(faulty || !rest.is_zero(), "{profile} waits with room");
                    std::thread::sleep(if faulty { FAILED_COUNTS } else { rest });
                }
                Ok(Arrival::Killed) => {
                    self.tally.kills += 1;
                    if self.random.one_in(2) {
                        self.restart();
                    }
                }
                Err(NodeError::PlacementLost { .. }) if faulty => {}
                Err(error) => panic!("{profile}: {error}"),
            }
            (faulty, dies_at) = (false, 0);
            if self.world.lost.is_none() {
                self.world.faults("");
            }
        }
        panic!("{profile} was tried again and again");
    }

    /// Something may go wrong from now on; will it?
    fn trouble(&mut self) -> bool {
        if self.world.lost.is_some() {
            // A GPU that is lost stays so for a while, and that is trouble enough.
            if self.random.one_in(8) {
                self.world.lost = None;
                self.failed = Instant::now();
                self.world.faults("");
            }
            return false;
        }
        if !self.random.one_in(self.trouble_every) {
            self.world.faults("");
            return false;
        }
        self.tally.faults += 1;
        if self.random.one_in(16) {
            let lost = self.random.below(self.world.gpus());
            self.world.lost = Some(lost);
            self.world.faults(&format!("* gpu={lost} error=15\n"));
            return false;
        }
        let stuck = self.trouble_every > SHORT && self.random.one_in(200);
        match self.random.below(FAULTS.len() + 1) {
            _ if stuck => self.world.faults(STUCK),
            FAULTS_END => self.world.monitor(),
            fault => self.world.faults(FAULTS[fault]),
        }
        true
    }
}

/// One failure in this number of events, in the short form and in the long one.
const SHORT: usize = 3;
const LONG: usize = 12;

/// The output of `make build`; the tests need its simulated driver, and the second one the program.
fn built() -> Option<PathBuf> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dist");
    let is_built =
        ["lib/cantle/sim/libnvidia-ml.so.1", "bin/cantle"].iter().all(|file| dist.join(file).exists());
    if !is_built {
        eprintln!("skipped: no simulated driver or program in {}; run `make build`", dist.display());
    }
    is_built.then_some(dist)
}

/// The number of events in `variable`; then faults are as rare as in the long form.
fn length(variable: &str, short: usize) -> (usize, usize) {
    let wished = std::env::var_os(variable).and_then(|events| events.to_str()?.parse().ok());
    wished.map_or((short, SHORT), |events| (events, LONG))
}

/// The simulated library of a process has one machine at a time.
static TURN: Mutex<()> = Mutex::new(());

/// One family: tasks come and go, then all of them leave.
fn run_family(
    family: &str,
    seed: u64,
    (events, trouble_every): (usize, usize),
    dist: &Path,
    exe: Option<&Path>,
) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    let mut random = Random(seed);
    // In a test that makes one call after the other, the duration of a call reveals nothing; some rounds have a latency
    // anyway.
    let model = some_driver(&mut random, if exe.is_some() && trouble_every == SHORT { 2 } else { 0 });
    let mut world = World::new(&format!("8x{family}:mig"), &dist.join("lib/cantle"), &model, exe);
    let open_files = world.open_files();
    let tally = Tally::default();
    let mut run =
        Run { world: &mut world, random: &mut random, tally, trouble_every, failed: Instant::now() };
    run.events(events);
    run.restart();
    let took = Duration::from_secs(began.elapsed().as_secs());
    let model = model.replace('\n', " ");
    println!("8 {family} {model}, seed {seed}: {events} arrivals and departures, {:?}, {took:?}", run.tally);
    while !world.running.is_empty() {
        world.leave(0);
    }
    world.restart(0);
    assert_eq!(world.open_files(), open_files, "files are left open");
}

#[test]
fn tasks_come_and_go_and_nothing_leaks() {
    let Some(dist) = built() else { return };
    let length = length("CANTLE_STRESS_MIG", EVENTS);
    for (seed, family) in (1..).zip(FAMILIES) {
        run_family(family, seed, length, &dist, None);
    }
}

/// The long form shares its events among the families; the short one takes two of them.
#[test]
fn nor_do_instances_that_processes_of_cantle_make() {
    let Some(dist) = built() else { return };
    let (events, trouble_every) = length("CANTLE_STRESS_MIG_PROCESSES", 2 * EVENTS_OF_PROCESSES);
    let families = if trouble_every == SHORT { &FAMILIES[1..3] } else { &FAMILIES };
    let length = (events.div_ceil(families.len()), trouble_every);
    let one = |seed: usize| {
        run_family(families[seed - 101], seed as u64, length, &dist, Some(&dist.join("bin/cantle")));
    };
    let seeds = 101..101 + families.len();
    match std::env::var_os("CANTLE_STRESS_MIG_SEED") {
        Some(seed) => one(seed.to_str().unwrap().parse().unwrap()),
        None if trouble_every == SHORT => seeds.for_each(one),
        None => side_by_side(seeds),
    }
}

/// Runs a test process for each seed, all at once: they wait for their driver more than they compute.
fn side_by_side(seeds: impl Iterator<Item = usize>) {
    const NAME: &str = "mig::tests::nor_do_instances_that_processes_of_cantle_make";
    let start = |seed: usize| {
        let mut family = Command::new(std::env::current_exe().unwrap());
        family.args([NAME, "--exact", "--nocapture"]).env("CANTLE_STRESS_MIG_SEED", seed.to_string());
        (seed, family.spawn().unwrap())
    };
    let families: Vec<(usize, Child)> = seeds.map(start).collect();
    let ended = families.into_iter().map(|(seed, mut family)| (seed, family.wait().unwrap()));
    let failed: Vec<usize> = ended.filter(|(_, status)| !status.success()).map(|(seed, _)| seed).collect();
    assert!(failed.is_empty(), "seeds {failed:?} fail");
}
