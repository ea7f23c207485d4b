#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr, reason = "a test")]

//! The driver over the simulated GPUs, with the simulator's own truth as witness.

mod limits;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_driver::fault::{Call, Fault, FaultyDriver, gpu_is_lost};
use cantle_driver::{
    Activation, ContextCache, Driver, DriverError, GpuInstance, Installation, MIG_COMMAND,
    PROBE_CONTEXT_COMMAND, ProcessMemory, open_with_probe, simulated,
};
use cantle_model::{GRANULE_BYTES, GpuLink, GpuUuid, MigInstance, Milli, PciePath, Slice};
use tempfile::TempDir;

const SPEC: &str = "2xA100-40GB,1xT4-16GB";

/// Where `make build` puts the libraries; without them there is nothing to test against.
fn lib_dir() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dist/lib/cantle");
    let dir = std::env::var_os("CANTLE_LIB_DIR").map_or(built, PathBuf::from);
    let found = dir.join("sim/libnvidia-ml.so.1").exists();
    if !found {
        eprintln!("skipped: no simulated driver in {}; run `make build`", dir.display());
    }
    found.then_some(dir)
}

fn example() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.ancestors().nth(2).expect("target directory").join("examples/gpus")
}

/// One at a time: the simulated library has one directory per process, as the real one serves one machine.
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
        Self::with(SPEC)
    }

    fn with(spec: &str) -> Option<Self> {
        let lib_dir = lib_dir()?;
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let state = tempfile::tempdir().expect("temporary directory");
        simulated::create(state.path(), spec, &lib_dir).expect("simulated GPUs");
        let source = Installation::in_directory(state.path().to_owned(), lib_dir.clone());
        let driver = open_with_probe(&source, example()).expect("driver");
        Some(Self { driver, state, lib_dir, _one: one })
    }

    fn uuids(&self) -> Vec<GpuUuid> {
        self.driver.gpus().expect("gpus").into_iter().map(|gpu| gpu.uuid).collect()
    }

    fn faults(&self, script: &str) {
        std::fs::write(self.state.path().join("faults"), script).expect("faults");
    }

    /// A process that holds one context on `device` until it is dropped.
    fn holder(&self, device: &str) -> Holder {
        let libcuda = self.driver.libraries().expect("libraries").cuda.real;
        let mut command = Command::new(example());
        let args: [OsString; 3] = [PROBE_CONTEXT_COMMAND.into(), libcuda.into(), self.state.path().into()];
        command.args(args).env("CUDA_VISIBLE_DEVICES", device);
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
        // SIGKILL: the memory must come back in every way in which a process can end.
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
fn connections_are_those_of_the_machine() {
    let link = |node: &Node, one: usize, other: usize| {
        let uuids = node.uuids();
        let GpuLink { nvlinks, path } = node.driver.topology().link(&uuids[one], &uuids[other]);
        (nvlinks, path)
    };
    for (spec, pairs) in [
        ("4xA40-48GB,topology=nvlink-bridge", [(4, Some(PciePath::Pix)), (0, Some(PciePath::Node))]),
        ("8xH100-80GB", [(18, Some(PciePath::Node)), (18, Some(PciePath::Node))]),
        ("8xV100-16GB", [(1, Some(PciePath::Pix)), (2, Some(PciePath::Node))]),
        ("4xA40-48GB,topology=unknown", [(0, None), (0, None)]),
    ] {
        let Some(node) = Node::with(spec) else { return };
        assert_eq!([link(&node, 0, 1), link(&node, 1, 2)], pairs, "{spec}");
    }
    // Where a call fails, the other GPU's answer counts; the way to a GPU that fails is unknown from both ends.
    let Some(node) = Node::with("4xA40-48GB,topology=nvlink-bridge") else { return };
    node.faults(
        "nvmlDeviceGetNvLinkState gpu=0 error=15\nnvmlDeviceGetTopologyCommonAncestor gpu=2 error=15\n",
    );
    assert_eq!(link(&node, 0, 1), (4, Some(PciePath::Pix)));
    assert_eq!(link(&node, 2, 3), (4, None));
    assert_eq!(link(&node, 1, 3), (0, Some(PciePath::Node)));
}

/// What an H100 was seen to do: the driver takes more for a context than its process has in NVML's list.
#[test]
fn what_the_driver_takes_for_a_context_is_measured_too() {
    let Some(node) = Node::with("1xH100-80GB:reserved") else { return };
    let gpu = node.driver.gpus().unwrap().remove(0);
    assert_eq!(gpu.memory_bytes, (81559 - 480) << 20, "no process has the driver's reserve");
    let free = node.driver.memory(&gpu.uuid).unwrap();
    let context = node.driver.context_memory(&gpu.uuid, &gpu.uuid.0).unwrap();
    assert_eq!((context.own_bytes, context.unattributed_bytes), (518 << 20, 6 << 20));
    let _first = node.holder(&gpu.uuid.0);
    assert_eq!(node.driver.processes(&gpu.uuid).unwrap()[0].used_bytes, Some(context.own_bytes));
    assert_eq!(node.driver.memory(&gpu.uuid).unwrap().used_bytes, free.used_bytes + context.bytes());
    let next_to_it = node.driver.context_memory(&gpu.uuid, &gpu.uuid.0).unwrap();
    assert_eq!(next_to_it.unattributed_bytes, 10 << 20, "it may become the first one");
}

/// Memory that belongs to no process shrinks when a neighbor's context ends, and a measurement must not take that for
/// the end of its own context.
#[test]
fn neighbors_that_come_and_go_do_not_make_a_context_smaller() {
    let Some(node) = Node::with("1xH100-80GB:reserved") else { return };
    let gpu = node.driver.gpus().unwrap().remove(0);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for pause in [7, 23] {
            let (node, gpu, ended) = (&node, &gpu, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    let _holder = node.holder(&gpu.uuid.0);
                    std::thread::sleep(Duration::from_millis(pause));
                }
            });
        }
        let measured: Vec<_> =
            (0..20).map(|_| node.driver.context_memory(&gpu.uuid, &gpu.uuid.0).unwrap()).collect();
        ended.store(true, Ordering::Relaxed);
        for memory in measured {
            assert_eq!(memory.own_bytes, 518 << 20);
            assert!(memory.unattributed_bytes >= 6 << 20, "{memory:?}");
        }
    });
}

/// As two `cantle run` do on a node that has not measured yet.
#[test]
fn measurements_at_the_same_time_agree() {
    let Some(node) = Node::with("1xH100-80GB:reserved") else { return };
    let gpu = node.driver.gpus().unwrap().remove(0);
    for round in 0..10 {
        let file = node.state.path().join(format!("contexts-{round}.json"));
        let measured: Vec<_> = std::thread::scope(|scope| {
            let one = || {
                let (node, gpu, file) = (&node, &gpu, file.clone());
                scope.spawn(move || ContextCache::new(file).context_memory(&*node.driver, gpu, None).unwrap())
            };
            let all: Vec<_> = (0..4).map(|_| one()).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(measured.iter().all(|memory| memory.unattributed_bytes == 6 << 20), "{measured:?}");
    }
}

#[test]
fn a_context_is_measured_and_given_back() {
    let Some(node) = Node::new() else { return };
    let gpu = node.driver.gpus().unwrap().remove(1);
    let free = node.driver.memory(&gpu.uuid).unwrap();

    let context = node.driver.context_memory(&gpu.uuid, &gpu.uuid.0).unwrap();

    let context_bytes = context.bytes();
    assert!(context_bytes > 0 && context_bytes % GRANULE_BYTES == 0, "{context:?}");
    let holder = node.holder(&gpu.uuid.0);
    let expected = ProcessMemory { pid: holder.0.id(), used_bytes: Some(context_bytes), instance: None };
    assert_eq!(node.driver.processes(&gpu.uuid).unwrap(), [expected]);
    assert_eq!(node.driver.memory(&gpu.uuid).unwrap().used_bytes, free.used_bytes + context_bytes);
    assert_eq!(node.driver.processes(&node.uuids()[0]).unwrap(), [], "the neighbor has none");
    let truth = simulated::truth_json(node.state.path(), &node.lib_dir).unwrap();
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
    let holders: Vec<_> = (0..40).map(|_| node.holder(&gpu.0)).collect();
    let mut pids: Vec<u32> = holders.iter().map(|holder| holder.0.id()).collect();
    pids.sort_unstable();
    let found: Vec<u32> = node.driver.processes(&gpu).unwrap().iter().map(|process| process.pid).collect();
    assert_eq!(found, pids);
}

/// On a simulated GPU whose kernels take no time, each process with a context is busy.
#[test]
fn busy_processes_are_listed_where_the_driver_reports_them() {
    let Some(node) = Node::with("2xA100-40GB,1xA100-40GB:mig") else { return };
    let gpus = node.uuids();
    assert_eq!(node.driver.busy_processes(&gpus[0], 0), Ok(Vec::new()), "NVML: not found");
    // More than the buffer has room for at first.
    let holders: Vec<_> = (0..40).map(|_| node.holder(&gpus[0].0)).collect();
    let mut found = node.driver.busy_processes(&gpus[0], 0).unwrap();
    found.sort_unstable();
    let mut pids: Vec<u32> = holders.iter().map(|holder| holder.0.id()).collect();
    pids.sort_unstable();
    assert_eq!(found, pids);
    assert_eq!(node.driver.busy_processes(&gpus[1], 0), Ok(Vec::new()), "the neighbor");
    let refused = node.driver.busy_processes(&gpus[2], 0).unwrap_err();
    assert!(refused.is_not_supported(), "{refused}");
}

#[test]
fn the_cache_measures_once_per_model() {
    let Some(node) = Node::new() else { return };
    let file = node.state.path().join("contexts.json");
    let gpus = node.driver.gpus().unwrap();
    let faulty = FaultyDriver::new(Arc::clone(&node.driver));
    let measured = ContextCache::new(file.clone()).context_memory(&faulty, &gpus[0], None).unwrap();
    let broken = gpu_is_lost(&gpus[0].uuid);
    faulty.inject(Fault { call: Call::ContextMemory, gpu: None, after: 0, times: u32::MAX, error: broken });

    let cache = ContextCache::new(file);

    assert_eq!(cache.context_memory(&faulty, &gpus[0], None), Ok(measured));
    assert_eq!(cache.context_memory(&faulty, &gpus[1], None), Ok(measured), "the same model");
    assert!(cache.context_memory(&faulty, &gpus[2], None).is_err(), "another model must be measured");
}

#[test]
fn a_probe_that_fails_says_why() {
    let Some(node) = Node::new() else { return };
    let gpu = node.uuids().remove(0);
    let source = Installation::in_directory(node.state.path().to_owned(), node.lib_dir.clone());
    let measure = |probe: &str| {
        let driver = open_with_probe(&source, probe.into()).unwrap();
        driver.context_memory(&gpu, &gpu.0).unwrap_err().to_string()
    };
    assert!(measure("/bin/true").ends_with("the probe ended without a message"));
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
fn a_container_gets_the_nodes_of_its_own_instance() {
    let Some(node) = Node::with("2xA100-40GB:mig") else { return };
    let gpu = node.uuids().remove(1);
    let profile = node.driver.mig_table(&gpu).unwrap().unwrap().profiles.remove(0);
    let make = |start| {
        let id = node.driver.create_gpu_instance(&gpu, profile.id, start, profile.size).unwrap();
        (id, node.driver.create_compute_instance(&gpu, id).unwrap())
    };
    let ((first, name), _) = (make(profile.starts[0]), make(profile.starts[1]));
    let mig = MigInstance {
        profile: profile.name.clone(),
        start: profile.starts[0],
        size: profile.size,
        uuid: name,
    };
    let slice = Slice { gpu: gpu.clone(), milli: Milli(125), memory_limit_bytes: 0, mig: Some(mig) };

    let parts = node.driver.container_parts(&[slice]).unwrap();

    // NVIDIA's numbers: 135 for a GPU, 9 for an instance, the first after three others.
    let own = 3 + 135 + 9 * first;
    let nodes = [own, own + 1].map(|n| node.state.path().join(format!("dev/nvidia-caps/nvidia-cap{n}")));
    assert_eq!(parts.devices, nodes);
    let whole = Slice { gpu, milli: Milli::ONE, memory_limit_bytes: 0, mig: None };
    // In a directory the machine has no other nodes.
    assert_eq!(node.driver.container_parts(&[whole]).unwrap().devices, Vec::<PathBuf>::new());
}

#[test]
fn specs_that_are_refused_say_why() {
    let Some(lib_dir) = lib_dir() else { return };
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let state = tempfile::tempdir().unwrap();
    let says = |spec: &str| simulated::create(state.path(), spec, &lib_dir).unwrap_err().to_string();
    assert!(says("3xNoSuchGPU").contains("A100-40GB"), "{}", says("3xNoSuchGPU"));
    simulated::create(state.path(), "1xT4-16GB", &lib_dir).unwrap();
    simulated::create(state.path(), "1xT4-16GB", &lib_dir).unwrap();
    assert!(says("2xT4-16GB").contains("1xT4-16GB"), "{}", says("2xT4-16GB"));
    let empty = tempfile::tempdir().unwrap();
    let error = simulated::truth_json(empty.path(), &lib_dir).unwrap_err();
    assert_eq!(error.to_string(), format!("simulated GPUs: there are none in {}", empty.path().display()));
}

#[test]
fn a_gpu_in_mig_mode_says_what_it_offers() {
    let Some(node) = Node::with("1xA100-40GB:mig,1xRTX-PRO-6000-96GB:mig,1xT4-16GB") else { return };
    let gpus = node.uuids();
    let table = node.driver.mig_table(&gpus[0]).unwrap().unwrap();
    assert_eq!(table.units, 8);
    let profile = &table.profiles[table.position("2g.10gb").unwrap()];
    assert_eq!((profile.id, profile.size, profile.max_instances), (14, 2, 3));
    assert_eq!((profile.starts.as_slice(), profile.memory_bytes), (&[0, 2, 4][..], 9856 << 20));
    let fine = node.driver.mig_table(&gpus[1]).unwrap().unwrap();
    assert_eq!(
        (fine.units, &fine.profiles[fine.position("1g.24gb").unwrap()].starts),
        (12, &vec![0, 3, 6, 9])
    );
    assert_eq!(node.driver.mig_table(&gpus[2]), Ok(None));
    assert_eq!(node.driver.gpu_instances(&gpus[2]), Ok(Vec::new()));
}

#[test]
fn the_life_of_an_instance() {
    let Some(node) = Node::with("1xA100-40GB:mig") else { return };
    let gpu = node.uuids().remove(0);
    let id = node.driver.create_gpu_instance(&gpu, 14, 2, 2).unwrap();
    let half_made = GpuInstance { id, profile_id: 14, start: 2, size: 2, devices: Vec::new() };
    assert_eq!(node.driver.gpu_instances(&gpu), Ok(vec![half_made.clone()]));
    let taken = node.driver.create_gpu_instance(&gpu, 9, 0, 4).unwrap_err();
    assert!(taken.is_placement_taken(), "{taken}");
    let name = node.driver.create_compute_instance(&gpu, id).unwrap();
    let made = GpuInstance { devices: vec![name.clone()], ..half_made };
    assert_eq!(node.driver.gpu_instances(&gpu), Ok(vec![made]));

    let bytes = node.driver.context_memory(&gpu, &name).unwrap().bytes();
    let holder = node.holder(&name);
    let used = ProcessMemory { pid: holder.0.id(), used_bytes: Some(bytes), instance: Some(id) };
    assert_eq!(node.driver.processes(&gpu), Ok(vec![used]));
    let in_use = node.driver.destroy_compute_instances(&gpu, id).unwrap_err();
    assert!(in_use.is_in_use(), "{in_use}");
    drop(holder);
    node.driver.destroy_compute_instances(&gpu, id).unwrap();
    node.driver.destroy_gpu_instance(&gpu, id).unwrap();
    assert!(node.driver.destroy_gpu_instance(&gpu, id).unwrap_err().is_gone());
    assert_eq!(node.driver.gpu_instances(&gpu), Ok(Vec::new()));
}

#[test]
fn instances_of_one_profile_may_have_different_compute_profiles() {
    let Some(node) = Node::with("1xA100-40GB:mig") else { return };
    std::fs::write(node.state.path().join("model"), "rev1_compute=1\n").unwrap();
    let gpu = node.uuids().remove(0);
    let ids = [0, 1].map(|start| node.driver.create_gpu_instance(&gpu, 19, start, 1).unwrap());
    assert_ne!(ids[0] % 2, ids[1] % 2, "one has the usual profile, the other one has rev1");
    let names = ids.map(|id| node.driver.create_compute_instance(&gpu, id).unwrap());
    let devices = node.driver.gpu_instances(&gpu).unwrap().into_iter().flat_map(|found| found.devices);
    assert_eq!(devices.collect::<Vec<_>>(), names);
    ids.iter().for_each(|id| node.driver.destroy_compute_instances(&gpu, *id).unwrap());
    ids.iter().for_each(|id| node.driver.destroy_gpu_instance(&gpu, *id).unwrap());
}

/// An agent is killed between the start of the process and the line in which the process asks to die with its parent.
#[test]
fn a_call_whose_caller_has_ended_changes_nothing() {
    let Some(node) = Node::with("1xA100-40GB:mig") else { return };
    let gpu = node.uuids().remove(0);
    let create = r#"[{"CreateGpuInstance":{"profile":14,"start":2,"size":2}},null]"#;
    let call = |caller: u32| {
        let mut command = Command::new(example());
        command.args([MIG_COMMAND, &caller.to_string(), "0", &gpu.0, create]);
        command.arg(node.state.path()).arg(&node.lib_dir).output().unwrap()
    };
    let ended = call(std::process::id() + 1);
    assert_eq!((ended.status.success(), ended.stdout.len()), (false, 0));
    assert_eq!(node.driver.gpu_instances(&gpu), Ok(Vec::new()));
    assert!(call(std::process::id()).status.success());
    assert_eq!(node.driver.gpu_instances(&gpu).unwrap().len(), 1);
}

#[test]
fn mig_mode_is_changed_only_where_that_needs_no_reset() {
    let Some(node) = Node::with("1xA100-40GB,1xH100-80GB,1xT4-16GB") else { return };
    let gpus = node.uuids();
    assert_eq!(node.driver.set_mig_mode(&gpus[0], true), Ok(Activation::ResetRequired));
    let switches: Vec<bool> = gpus.iter().map(|gpu| node.driver.switches_mig(gpu).unwrap()).collect();
    assert_eq!(switches, [false, true, false]);
    let holder = node.holder(&gpus[1].0);
    assert_eq!(node.driver.set_mig_mode(&gpus[1], true), Ok(Activation::InUse));
    drop(holder);
    assert_eq!(node.driver.set_mig_mode(&gpus[1], true), Ok(Activation::Done));
    let modes: Vec<bool> = node.driver.gpus().unwrap().iter().map(|gpu| gpu.mig).collect();
    assert_eq!(modes, [false, true, false]);
    assert!(node.driver.set_mig_mode(&gpus[2], true).is_err());
}

#[test]
fn a_gpu_that_does_not_answer_holds_up_nobody() {
    let Some(node) = Node::with("8xA100-40GB:mig") else { return };
    let gpus = node.uuids();
    node.faults("nvmlDeviceGetComputeRunningProcesses_v3 gpu=3 delay_ms=20000 once\n");
    let first = node.driver.processes(&gpus[3]).unwrap_err();
    assert!(matches!(first, DriverError::Stalled { .. }), "{first}");
    assert!(node.driver.gpu_instances(&gpus[3]).is_err(), "not even asked while it is stuck");
    for (at, gpu) in gpus.iter().enumerate().filter(|(at, _)| *at != 3) {
        assert_eq!(node.driver.processes(gpu), Ok(Vec::new()), "GPU {at}");
        assert_eq!(node.driver.gpu_instances(gpu), Ok(Vec::new()), "GPU {at}");
    }
    assert_eq!(node.driver.gpus().unwrap().len(), 8);
    assert!(node.driver.processes(&gpus[3]).is_err(), "no call waited for GPU 3 to come back");
    let again = (0..1200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        node.driver.processes(&gpus[3]).is_ok()
    });
    assert!(again, "it is asked again once it has come back");
}
