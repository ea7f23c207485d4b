//! A node with eight simulated GPUs, the tasks on it, and the invariants that must hold.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use cantle_driver::{Driver as _, Installation, Mig as _, simulated};
use cantle_mig::Table;
use cantle_model::{Gpu, GpuRequest, GpuUuid, Holder, Lease, QueueSpec, QueueWant, TaskId};
use cantle_sched::{Policy, Waiting};
use serde::Deserialize;
use serde_json::Value;

use super::mortal::Mortal;
use crate::capacity::{self, Lent};
use crate::clock::now_ms;
use crate::launch::new_lease;
use crate::mig::{Adopt, Journal, Stages, make_instances, sweep};
use crate::{NodeError, NodeStore};

/// A process that has ended.
const NOBODY: Holder = Holder { pid: u32::MAX, start_ticks: 0 };

/// The outcome of a task that requested an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    Placed,
    NoPlace,
    /// The agent died over it.
    Killed,
}

/// An instance as the simulated driver has it, which is no part of what is tested.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Found {
    #[serde(skip)]
    gpu: String,
    profile: String,
    start: u32,
    size: u32,
    uuid: Option<String>,
    gi: u32,
}

/// A task that runs, and the id of its GPU instance.
pub(super) struct Held {
    lease: Lease,
    gi: u32,
}

pub(super) struct World {
    driver: Mortal,
    node: NodeStore,
    gpus: Vec<Gpu>,
    tables: Vec<Table>,
    lib_dir: PathBuf,
    state: tempfile::TempDir,
    stages: Stages,
    pub(super) running: Vec<Held>,
    /// Created by another program before the agent started.
    foreign: Vec<Found>,
    /// A GPU that does not answer.
    pub(super) lost: Option<usize>,
    /// Has a device node of an instance open, and so keeps it from being destroyed.
    monitor: Option<Child>,
    started: usize,
}

impl Drop for World {
    fn drop(&mut self) {
        self.end_monitor();
    }
}

impl World {
    /// MIG calls are made in this process, or where there is `exe` in processes of that program, as cantle makes them.
    pub(super) fn new(spec: &str, lib_dir: &Path, model: &str, exe: Option<&Path>) -> Self {
        let state = tempfile::tempdir().unwrap();
        simulated::create(state.path(), spec, lib_dir).unwrap();
        std::fs::write(state.path().join("model"), model).unwrap();
        let source = Installation::in_directory(state.path().to_owned(), lib_dir.to_owned());
        let opened = match exe {
            None => cantle_driver::open_in_process(&source),
            Some(exe) => cantle_driver::open_with_probe(&source, exe.to_owned()),
        };
        let driver = Mortal::new(opened.unwrap());
        let node = NodeStore::open(&NodeStore::dir_for(&source)).unwrap();
        let gpus = driver.gpus().unwrap();
        let table = |gpu: &Gpu| driver.mig_table(&gpu.uuid).unwrap().unwrap();
        let tables: Vec<Table> = gpus.iter().map(table).collect();
        let (last, profile) = (gpus.last().unwrap(), &tables.last().unwrap().profiles[0]);
        let gi = driver.create_gpu_instance(&last.uuid, profile.id, profile.starts[0], profile.size).unwrap();
        driver.create_compute_instance(&last.uuid, gi).unwrap();
        let mut world = Self {
            driver,
            node,
            gpus,
            tables,
            lib_dir: lib_dir.to_owned(),
            state,
            stages: Stages::default(),
            running: Vec::new(),
            foreign: Vec::new(),
            lost: None,
            monitor: None,
            started: 0,
        };
        world.foreign = world.truth();
        world
    }

    pub(super) fn gpus(&self) -> usize {
        self.gpus.len()
    }

    /// Names of the profiles that tasks may ask for.
    pub(super) fn profiles(&self) -> Vec<String> {
        self.tables[0].profiles.iter().map(|profile| profile.name.clone()).collect()
    }

    /// The number of open files of this node in the process.
    pub(super) fn open_files(&self) -> usize {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let names = descriptors.filter_map(|descriptor| descriptor.unwrap().path().read_link().ok());
        names.filter(|name| name.starts_with(self.state.path())).count()
    }

    /// The faults of the driver from now on. Without a file it need not read one at each call.
    pub(super) fn faults(&mut self, script: &str) {
        self.end_monitor();
        let path = self.state.path().join("faults");
        if !script.is_empty() {
            std::fs::write(path, script).unwrap();
        } else if path.exists() {
            std::fs::remove_file(path).unwrap();
        }
    }

    fn end_monitor(&mut self) {
        if let Some(mut monitor) = self.monitor.take() {
            monitor.kill().unwrap();
            monitor.wait().unwrap();
        }
    }

    /// Another program uses a free instance for a moment.
    pub(super) fn monitor(&mut self) {
        self.faults("");
        let in_use = self.in_use();
        let idle = self.truth().into_iter().find(|found| {
            !in_use.iter().any(|(gpu, gi)| gpu.0 == found.gpu && *gi == found.gi) && found.uuid.is_some()
        });
        let Some(idle) = idle else { return };
        let gpu = self.gpus.iter().position(|gpu| gpu.uuid.0 == idle.gpu).unwrap();
        let minors = self.state.path().join("proc/driver/nvidia-caps/mig-minors");
        let minors = std::fs::read_to_string(minors).unwrap();
        let name = format!("gpu{gpu}/gi{}/access ", idle.gi);
        let minor = minors.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
        let node = self.state.path().join(format!("dev/nvidia-caps/nvidia-cap{minor}"));
        let node = std::fs::File::open(node).unwrap();
        self.monitor = Some(Command::new("sleep").arg("0.3").stdin(node).spawn().unwrap());
    }

    /// One task: planned and given its instance as the agent does it. The agent dies at step `dies_at` of that, if it comes
    /// so far; 0: never.
    pub(super) fn arrive(&mut self, profile: &str, dies_at: u32) -> Result<Arrival, NodeError> {
        self.started += 1;
        let task = Waiting::new(TaskId(self.started.to_string()), 0);
        let task = task.wanting(GpuRequest::MigProfile(profile.to_owned()));
        let spec = QueueSpec { name: "q".to_owned(), want: QueueWant::Task };
        let locked = self.node.lock()?;
        let leases = locked.sweep()?;
        let world = capacity::describe(&self.driver, &self.node, "here", (&self.gpus, Lent::Taken), &leases);
        let decided =
            cantle_decide::decide(&world.queue(spec, vec![task]).build(), &Policy::default(), now_ms())?;
        let Some(start) = decided.starts.into_iter().next() else { return Ok(Arrival::NoPlace) };
        let mut lease = new_lease(start.task, String::new(), None, start.slices);
        locked.put(&lease)?;
        drop(locked);
        let make = || make_instances(&self.driver, &self.node, &self.gpus, &mut lease, &self.stages);
        match self.driver.dying_at(dies_at, make) {
            None => {
                self.bury(&lease)?;
                Ok(Arrival::Killed)
            }
            Some(Err(error)) => {
                self.node.lock()?.retire(&lease)?;
                Err(error)
            }
            Some(Ok(())) => {
                let gi = self.gi_of(&lease);
                self.running.push(Held { lease, gi });
                Ok(Arrival::Placed)
            }
        }
    }

    /// The lease's owner is dead, and the next reader of the leases detects that.
    fn bury(&self, lease: &Lease) -> Result<(), NodeError> {
        let locked = self.node.lock()?;
        if let Some(standing) = locked.lease(&lease.id)? {
            locked.put(&Lease { owner: NOBODY, ..standing })?;
        }
        locked.sweep().map(drop)
    }

    fn gi_of(&self, lease: &Lease) -> u32 {
        let mig = lease.slices[0].mig.as_ref().unwrap();
        let found = self.truth().into_iter().find(|found| found.uuid.as_ref() == Some(&mig.uuid));
        found.unwrap_or_else(|| panic!("{mig:?} is not there")).gi
    }

    pub(super) fn leave(&mut self, at: usize) {
        let held = self.running.swap_remove(at);
        self.node.lock().unwrap().retire(&held.lease).unwrap();
    }

    /// The agent starts again, dies at step `dies_at` of that, and starts once more: then only what tasks hold is there, and
    /// the journal knows of nothing else.
    pub(super) fn restart(&mut self, dies_at: u32) {
        self.faults("");
        self.lost = None;
        let sweep = || sweep(&self.driver, &self.node, &self.gpus, Adopt::Busy, &self.stages);
        self.driver.dying_at(dies_at, sweep);
        sweep();
        let mut left: Vec<(String, u32)> =
            self.truth().into_iter().map(|found| (found.gpu, found.start)).collect();
        let mut ours = self.held_places();
        assert_eq!(self.journalled(), ours, "the journal");
        ours.extend(self.foreign.iter().map(|found| (found.gpu.clone(), found.start)));
        left.sort_unstable();
        ours.sort_unstable();
        assert_eq!(left, ours, "nothing leaks");
    }

    fn held_places(&self) -> Vec<(String, u32)> {
        let slices = self.running.iter().flat_map(|held| &held.lease.slices);
        let mut places: Vec<_> =
            slices.map(|slice| (slice.gpu.0.clone(), slice.mig.as_ref().unwrap().start)).collect();
        places.sort_unstable();
        places
    }

    /// Places that the journal's files call ours.
    fn journalled(&self) -> Vec<(String, u32)> {
        let mut places = Vec::new();
        for gpu in &self.gpus {
            let text =
                std::fs::read_to_string(self.node.mig_dir().join(format!("{}.json", gpu.uuid))).unwrap();
            let file: Value = serde_json::from_str(&text).unwrap();
            let ours = file["places"].as_array().unwrap().iter().filter(|place| place["ours"] == true);
            places.extend(
                ours.map(|place| {
                    (gpu.uuid.0.clone(), u32::try_from(place["start"].as_u64().unwrap()).unwrap())
                }),
            );
        }
        places.sort_unstable();
        places
    }

    /// Exhaustive: is there a place for `profile` next to what tasks and others hold, and what failed lately?
    pub(super) fn has_place(&self, profile: &str) -> bool {
        let now_ms = now_ms();
        let of_gpu = |(at, (gpu, table)): (usize, (&Gpu, &Table))| {
            let wanted = &table.profiles[table.position(profile).unwrap()];
            let slices = self.running.iter().flat_map(|held| &held.lease.slices);
            let held = slices.filter(|slice| slice.gpu == gpu.uuid).filter_map(|slice| slice.mig.as_ref());
            let mut taken: Vec<(String, u32, u32)> =
                held.map(|mig| (mig.profile.clone(), mig.start, mig.size)).collect();
            let foreign = self.foreign.iter().filter(|found| found.gpu == gpu.uuid.0);
            taken.extend(foreign.map(|found| (found.profile.clone(), found.start, found.size)));
            let journal = Journal::read(&self.node, &gpu.uuid).unwrap();
            for place in journal.avoided(now_ms) {
                let known = table.profiles.iter().find(|known| known.id == place.profile_id).unwrap();
                taken.push((known.name.clone(), place.start, known.size));
            }
            let apart = |start: &u32| {
                taken.iter().all(|(_, at, size)| at + size <= *start || start + wanted.size <= *at)
            };
            let same = taken.iter().filter(|(name, ..)| *name == wanted.name).count();
            let of = |name: &str| table.position(name).unwrap();
            let engines = table.has_engines_for(taken.iter().map(|(name, ..)| of(name)).chain([of(profile)]));
            self.lost != Some(at)
                && engines
                && same < wanted.max_instances as usize
                && wanted.starts.iter().any(apart)
        };
        self.gpus.iter().zip(&self.tables).enumerate().any(of_gpu)
    }

    fn truth(&self) -> Vec<Found> {
        let truth = simulated::truth_json(self.state.path(), &self.lib_dir).unwrap();
        let truth: Value = serde_json::from_str(&truth).unwrap();
        let of_gpu = |gpu: &Value| {
            let found: Vec<Found> = serde_json::from_value(gpu["mig"].clone()).unwrap();
            let gpu = gpu["uuid"].as_str().unwrap().to_owned();
            found.into_iter().map(move |found| Found { gpu: gpu.clone(), ..found }).collect::<Vec<_>>()
        };
        truth["gpus"].as_array().unwrap().iter().flat_map(of_gpu).collect()
    }

    /// Instances that must not change now.
    pub(super) fn in_use(&self) -> Vec<(GpuUuid, u32)> {
        let held = self.running.iter().map(|held| (held.lease.slices[0].gpu.clone(), held.gi));
        let foreign = self.foreign.iter().map(|found| (GpuUuid(found.gpu.clone()), found.gi));
        held.chain(foreign).collect()
    }

    /// Nothing overlaps; each task has its own instance, at its place; of those that were in use before the last step none
    /// was touched.
    pub(super) fn check(&self, in_use: &[(GpuUuid, u32)]) {
        let destroyed = self.driver.take_destroyed();
        let touched = destroyed.iter().find(|instance| in_use.contains(instance));
        assert_eq!(touched, None, "an instance in use was touched");
        let truth = self.truth();
        let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
        let mut by_place: Vec<&Found> = truth.iter().collect();
        by_place.sort_by_key(|found| found.start);
        for found in by_place {
            let end = ends.entry(&found.gpu).or_default();
            assert!(*end <= found.start, "{found:?} overlaps another of {truth:?}");
            *end = found.start + found.size;
        }
        for Held { lease, gi } in &self.running {
            let (slice, mig) = (&lease.slices[0], lease.slices[0].mig.as_ref().unwrap());
            let own = Found {
                gpu: slice.gpu.0.clone(),
                profile: mig.profile.clone(),
                start: mig.start,
                size: mig.size,
                uuid: Some(mig.uuid.clone()),
                gi: *gi,
            };
            assert!(truth.contains(&own), "{own:?} is not among {truth:?}");
        }
        assert!(self.foreign.iter().all(|found| truth.contains(found)), "what others made is gone");
    }
}
