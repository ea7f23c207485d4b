//! Tasks come and go at random on simulated GPUs of each family; they are planned, their instances made and freed as the
//! agent does it. The simulated driver is the witness.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_driver::{Driver, Source, sim};
use cantle_model::{Gpu, GpuRequest, Lease, QueueSpec, QueueWant, TaskId};
use cantle_sched::{Policy, Queue, Waiting, audit, plan};
use serde_json::Value;

use super::{Adopt, make_instances, sweep};
use crate::clock::now_ms;
use crate::launch::new_lease;
use crate::{AgentError, Node, capacity};

/// `CANTLE_STRESS_MIG` sets the long form.
const STEPS: usize = 60;

const FAMILIES: [&str; 6] = [
    "8xA100-40GB:mig",
    "8xH100-80GB:mig",
    "8xA30-24GB:mig",
    "8xRTX-PRO-6000-96GB:mig",
    "8xH200-141GB:mig",
    "8xB200-180GB:mig",
];

const FAULTS: [&str; 3] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement error=23 once\n",
    "nvmlGpuInstanceCreateComputeInstance error=20 once\n",
    "nvmlGpuInstanceDestroy error=19 once\n",
];

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
}

struct World {
    driver: Arc<dyn Driver>,
    node: Node,
    gpus: Vec<Gpu>,
    lib_dir: PathBuf,
    running: Vec<Lease>,
    started: usize,
    state: tempfile::TempDir,
}

impl World {
    fn new(spec: &str, lib_dir: &Path) -> Self {
        let state = tempfile::tempdir().unwrap();
        sim::create(state.path(), spec, lib_dir).unwrap();
        let source = Source::Sim { dir: state.path().to_owned(), lib_dir: lib_dir.to_owned() };
        let driver = cantle_driver::open(&source).unwrap();
        let node = Node::open(&Node::dir_for(&source)).unwrap();
        let gpus = driver.gpus().unwrap();
        Self { driver, node, gpus, lib_dir: lib_dir.to_owned(), running: Vec::new(), started: 0, state }
    }

    fn faults(&self, script: &str) {
        std::fs::write(self.state.path().join("faults"), script).unwrap();
    }

    /// One task: it gets its instance, or there is no place for it, or the driver failed.
    fn arrive(&mut self, profile: &str) -> Result<bool, AgentError> {
        self.started += 1;
        let task = Waiting::new(TaskId(self.started.to_string()), 0);
        let task = task.wanting(GpuRequest::MigProfile(profile.to_owned()));
        let spec = QueueSpec { name: "q".to_owned(), want: QueueWant::Task };
        let locked = self.node.lock()?;
        let (leases, queue) = (locked.sweep()?, Queue::new(spec, vec![task]));
        let driver = self.driver.as_ref();
        let state = capacity::state(driver, &self.node, "here", &self.gpus, &leases, vec![queue]);
        let decided = plan(&state, &Policy::default(), now_ms());
        assert_eq!(audit(&state, &decided), []);
        let Some(start) = decided.starts.into_iter().next() else { return Ok(false) };
        let mut lease = new_lease(start.task, String::new(), None, start.slices);
        locked.put(&lease)?;
        drop(locked);
        match make_instances(driver, &self.node, &self.gpus, &mut lease) {
            Ok(()) => self.running.push(lease),
            Err(error) => {
                self.node.lock()?.retire(&lease)?;
                return Err(error);
            }
        }
        Ok(true)
    }

    fn leave(&mut self, at: usize) {
        let lease = self.running.swap_remove(at);
        self.node.lock().unwrap().retire(&lease).unwrap();
    }

    /// Exhaustive: is there a place for `profile` beside what tasks hold?
    fn has_place(&self, profile: &str) -> bool {
        self.gpus.iter().any(|gpu| {
            let table = self.driver.mig_table(&gpu.uuid).unwrap().unwrap();
            let wanted = &table.profiles[table.position(profile).unwrap()];
            let slices = self.running.iter().flat_map(|lease| &lease.slices);
            let held: Vec<_> = slices.filter(|s| s.gpu == gpu.uuid).filter_map(|s| s.mig.as_ref()).collect();
            let apart = |start: &u32| {
                held.iter().all(|mig| mig.start + mig.size <= *start || start + wanted.size <= mig.start)
            };
            let same = held.iter().filter(|mig| mig.profile == wanted.name).count();
            same < wanted.max_instances as usize && wanted.starts.iter().any(apart)
        })
    }

    /// What the driver itself has: (GPU, profile, start, MIG device).
    fn truth(&self) -> Vec<[Value; 4]> {
        let truth = sim::truth_json(self.state.path(), &self.lib_dir).unwrap();
        let truth: Value = serde_json::from_str(&truth).unwrap();
        let of_gpu = |gpu: &Value| -> Vec<[Value; 4]> {
            let all = gpu["mig"].as_array().unwrap().iter();
            let row =
                |mig: &Value| [&gpu["uuid"], &mig["profile"], &mig["start"], &mig["uuid"]].map(Value::clone);
            all.map(row).collect()
        };
        truth["gpus"].as_array().unwrap().iter().flat_map(of_gpu).collect()
    }

    /// Each task has its own instance, at its place.
    fn check(&self) {
        let truth = self.truth();
        for slice in self.running.iter().flat_map(|lease| &lease.slices) {
            let mig = slice.mig.as_ref().unwrap();
            let held = [
                Value::from(slice.gpu.0.as_str()),
                mig.profile.as_str().into(),
                mig.start.into(),
                mig.uuid.as_str().into(),
            ];
            assert!(truth.contains(&held), "{held:?} is not among {truth:?}");
        }
    }

    fn come_and_go(&mut self, random: &mut Random, steps: usize, faulty: bool) {
        let table = self.driver.mig_table(&self.gpus[0].uuid).unwrap().unwrap();
        for step in 0..steps {
            if !self.running.is_empty() && random.below(100) < 45 {
                self.leave(random.below(self.running.len()));
            }
            let profile = table.profiles[random.below(table.profiles.len())].name.clone();
            if faulty && step % 10 == 0 {
                self.faults(FAULTS[random.below(FAULTS.len())]);
            }
            match self.arrive(&profile) {
                Ok(placed) => {
                    assert!(placed || faulty || !self.has_place(&profile), "{profile} waits with room")
                }
                Err(AgentError::PlaceLost { .. }) if faulty => {}
                Err(error) => panic!("{profile}: {error}"),
            }
            self.check();
        }
    }
}

#[test]
fn tasks_come_and_go_and_nothing_leaks() {
    let lib_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/lib/cantle");
    if !lib_dir.join("sim/libnvidia-ml.so.1").exists() {
        eprintln!("skipped: no simulated driver in {}; run `make build`", lib_dir.display());
        return;
    }
    let wished = std::env::var_os("CANTLE_STRESS_MIG").and_then(|steps| steps.to_str()?.parse().ok());
    let steps: usize = wished.unwrap_or(STEPS);
    for (seed, family) in (1..).zip(FAMILIES) {
        let mut world = World::new(family, &lib_dir);
        let mut random = Random(seed);
        world.come_and_go(&mut random, steps, false);
        world.come_and_go(&mut random, steps / 3, true);
        world.faults("");
        while !world.running.is_empty() {
            world.leave(0);
        }
        assert_ne!(world.truth(), Vec::<[Value; 4]>::new(), "free ones are kept");
        sweep(world.driver.as_ref(), &world.node, &world.gpus, Adopt::Busy);
        assert_eq!(world.truth(), Vec::<[Value; 4]>::new(), "{family}");
    }
}
