#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test")]

//! The driver over the simulated GPUs, with the simulator's own truth as witness.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantle_driver::fault::{Call, Fault, FaultyDriver, gpu_is_lost};
use cantle_driver::{
    ContextCache, Driver, DriverError, PROBE_CONTEXT_COMMAND, ProcessMemory, Source, open_with_probe, sim,
};
use cantle_model::{GRANULE_BYTES, GpuUuid};
use tempfile::TempDir;

const SPEC: &str = "2xA100-40GB,1xT4-16GB";

/// Where `make build` puts the libraries; without them there is nothing to test against.
fn lib_dir() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/lib/cantle");
    let dir = std::env::var_os("CANTLE_LIB_DIR").map_or(built, PathBuf::from);
    let found = dir.join("sim/libnvidia-ml.so.1").exists();
    if !found {
        eprintln!("skipped: no simulated driver in {}; run `make build`", dir.display());
    }
    found.then_some(dir)
}

fn example() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.ancestors().nth(2).expect("target folder").join("examples/gpus")
}

/// One at a time: the simulated library is told its folder per process, as the real one serves one machine.
static ONE: Mutex<()> = Mutex::new(());

struct Node {
    driver: Arc<dyn Driver>,
    state: TempDir,
    lib_dir: PathBuf,
    /// Last, because fields are dropped in this order: the next test may begin only when this driver is closed.
    _one: MutexGuard<'static, ()>,
}

impl Node {
    fn new() -> Option<Self> {
        let lib_dir = lib_dir()?;
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let state = tempfile::tempdir().expect("temporary folder");
        sim::create(state.path(), SPEC, &lib_dir).expect("simulated GPUs");
        let source = Source::Sim { dir: state.path().to_owned(), lib_dir: lib_dir.clone() };
        let driver = open_with_probe(&source, example()).expect("driver");
        Some(Self { driver, state, lib_dir, _one: one })
    }

    fn uuids(&self) -> Vec<GpuUuid> {
        self.driver.gpus().expect("gpus").into_iter().map(|gpu| gpu.uuid).collect()
    }

    /// A process that holds one context on `gpu` until it is dropped.
    fn holder(&self, gpu: &GpuUuid) -> Holder {
        let libcuda = self.driver.libraries().expect("libraries").cuda.real;
        let mut command = Command::new(example());
        let args: [OsString; 3] = [PROBE_CONTEXT_COMMAND.into(), libcuda.into(), self.state.path().into()];
        command.args(args).env("CUDA_VISIBLE_DEVICES", &gpu.0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("probe");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Holder(child)
    }
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // SIGKILL: the memory must come back whatever way a process ends.
        self.0.kill().and_then(|()| self.0.wait()).expect("the holder was alive");
    }
}

#[test]
fn gpus_are_as_specified() {
    let Some(node) = Node::new() else { return };
    let gpus = node.driver.gpus().unwrap();
    assert_eq!(gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(gpus[0].model, "NVIDIA A100-SXM4-40GB");
    assert_eq!(gpus[0].memory_bytes, 40 << 30);
    assert!(!gpus[0].mig);
    assert_ne!(gpus[0].uuid, gpus[1].uuid);
    let locations: Vec<_> = gpus.iter().map(|gpu| node.driver.location(&gpu.uuid).unwrap()).collect();
    assert_eq!(locations.iter().map(|location| location.minor).collect::<Vec<_>>(), [0, 1, 2]);
    assert_ne!(locations[0].pci_bus_id, locations[1].pci_bus_id);
    assert!(node.driver.versions().driver.contains('.'));
    let error = node.driver.memory(&GpuUuid::from("GPU-none")).unwrap_err();
    assert_eq!(error, DriverError::NoSuchGpu("GPU-none".into()));
}

#[test]
fn a_context_is_measured_and_given_back() {
    let Some(node) = Node::new() else { return };
    let gpu = node.driver.gpus().unwrap().remove(1);
    let free = node.driver.memory(&gpu.uuid).unwrap();

    let context_bytes = node.driver.context_bytes(&gpu.uuid).unwrap();

    assert!(context_bytes > 0 && context_bytes % GRANULE_BYTES == 0, "{context_bytes}");
    let holder = node.holder(&gpu.uuid);
    let expected = ProcessMemory { pid: holder.0.id(), used_bytes: Some(context_bytes) };
    assert_eq!(node.driver.processes(&gpu.uuid).unwrap(), [expected]);
    assert_eq!(node.driver.memory(&gpu.uuid).unwrap().used_bytes, free.used_bytes + context_bytes);
    assert_eq!(node.driver.processes(&node.uuids()[0]).unwrap(), [], "the neighbour has none");
    let truth = sim::truth_json(node.state.path(), &node.lib_dir).unwrap();
    let truth: serde_json::Value = serde_json::from_str(&truth).unwrap();
    let witness = &truth["gpus"][1]["processes"][0];
    assert_eq!(witness["pid"], holder.0.id());
    assert_eq!(witness["used_bytes"], context_bytes);
    drop(holder);
    assert_eq!(node.driver.processes(&gpu.uuid).unwrap(), []);
    assert_eq!(node.driver.memory(&gpu.uuid).unwrap(), free);
}

#[test]
fn more_processes_than_fit_the_first_buffer() {
    let Some(node) = Node::new() else { return };
    let gpu = node.uuids().remove(0);
    let holders: Vec<_> = (0..40).map(|_| node.holder(&gpu)).collect();
    let mut pids: Vec<u32> = holders.iter().map(|holder| holder.0.id()).collect();
    pids.sort_unstable();
    let seen: Vec<u32> = node.driver.processes(&gpu).unwrap().iter().map(|process| process.pid).collect();
    assert_eq!(seen, pids);
}

#[test]
fn the_cache_measures_once_per_model() {
    let Some(node) = Node::new() else { return };
    let file = node.state.path().join("contexts.json");
    let gpus = node.driver.gpus().unwrap();
    let faulty = FaultyDriver::new(Arc::clone(&node.driver));
    let measured = ContextCache::new(file.clone()).context_bytes(&faulty, &gpus[0]).unwrap();
    let broken = gpu_is_lost(&gpus[0].uuid);
    faulty.inject(Fault { call: Call::ContextBytes, gpu: None, after: 0, times: u32::MAX, error: broken });

    let cache = ContextCache::new(file);

    assert_eq!(cache.context_bytes(&faulty, &gpus[0]), Ok(measured));
    assert_eq!(cache.context_bytes(&faulty, &gpus[1]), Ok(measured), "the same model");
    assert!(cache.context_bytes(&faulty, &gpus[2]).is_err(), "another model must be measured");
}

#[test]
fn a_probe_that_fails_says_why() {
    let Some(node) = Node::new() else { return };
    let gpu = node.uuids().remove(0);
    let source = Source::Sim { dir: node.state.path().to_owned(), lib_dir: node.lib_dir.clone() };
    let measure = |probe: &str| {
        let driver = open_with_probe(&source, probe.into()).unwrap();
        driver.context_bytes(&gpu).unwrap_err().to_string()
    };
    assert!(measure("/bin/true").ends_with("the probe ended without a word"));
    assert!(measure("/no/such/probe").contains("cannot start /no/such/probe"));
}

#[test]
fn faults_come_as_scripted() {
    let Some(node) = Node::new() else { return };
    let uuids = node.uuids();
    let faulty = FaultyDriver::new(Arc::clone(&node.driver));
    let error = gpu_is_lost(&uuids[1]);
    faulty.inject(Fault {
        call: Call::Memory,
        gpu: Some(uuids[1].clone()),
        after: 1,
        times: 2,
        error: error.clone(),
    });
    assert!(error.is_gpu_lost());
    assert!(faulty.memory(&uuids[0]).is_ok(), "another GPU");
    assert!(faulty.memory(&uuids[1]).is_ok(), "the first passes");
    assert_eq!(faulty.memory(&uuids[1]), Err(error.clone()));
    assert_eq!(faulty.memory(&uuids[1]), Err(error));
    assert!(faulty.memory(&uuids[1]).is_ok(), "the script is over");
}

#[test]
fn specs_that_are_refused_say_why() {
    let Some(lib_dir) = lib_dir() else { return };
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let state = tempfile::tempdir().unwrap();
    let says = |spec: &str| sim::create(state.path(), spec, &lib_dir).unwrap_err().to_string();
    assert!(says("3xNoSuchGPU").contains("A100-40GB"), "{}", says("3xNoSuchGPU"));
    sim::create(state.path(), "1xT4-16GB", &lib_dir).unwrap();
    sim::create(state.path(), "1xT4-16GB", &lib_dir).unwrap();
    assert!(says("2xT4-16GB").contains("1xT4-16GB"), "{}", says("2xT4-16GB"));
    let empty = tempfile::tempdir().unwrap();
    let error = sim::truth_json(empty.path(), &lib_dir).unwrap_err();
    assert_eq!(error.to_string(), format!("simulated GPUs: there are none in {}", empty.path().display()));
}
