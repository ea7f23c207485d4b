//! The real shim over the driver of a machine with GPUs in real containers, with the driver's truth as witness:
//! `tests/docker/run.sh` makes the machine, starts an engine on it and runs this. Without them, a skip.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use cantle_runtime::{ContainerSpec, Exit, RunningTask, TaskSpec, cdi, image_hook, slice_edits};
use common::docker::{Docker, lease, output, spec};
use common::{Bench, eventually, stdout};

/// A slice of the machine's first GPU with the real shim: `make build` makes it.
struct GpuSlice {
    bench: Bench,
    spec: TaskSpec,
}

const LIMIT_MIB: u64 = 8 << 10;
const CARD_MIB: u64 = 40 << 10;
const NODES: [&str; 3] = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

fn nodes() -> Vec<PathBuf> {
    NODES.map(PathBuf::from).into()
}

impl GpuSlice {
    fn new() -> Option<Self> {
        let shim_dir = repository().join("dist/lib/cantle/shim");
        if !shim_dir.join("libcuda.so.1").exists() {
            eprintln!("skipped: no shim; run `make build`");
            return None;
        }
        let folder = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let installed = ["libcuda.so.1", "libnvidia-ml.so.1"]
            .map(|name| Path::new(&folder).join(name).canonicalize().ok())
            .into_iter()
            .collect::<Option<Vec<_>>>();
        let has_nodes = NODES.iter().all(|node| Path::new(node).exists());
        let (Some([cuda, nvml]), true) = (installed.as_deref(), has_nodes) else {
            eprintln!(
                "skipped: this machine has no GPU and no driver; tests/docker/run.sh makes one that has"
            );
            return None;
        };
        let bench = Bench::new();
        let uuid = truth()[0]["uuid"].as_str().unwrap().to_owned();
        let limit = cantle_ledger::host::GpuLimit {
            uuid: cantle_ledger::host::parse_uuid(&uuid).unwrap(),
            limit_bytes: LIMIT_MIB << 20,
            context_bytes: context_bytes(),
        };
        let lease = lease(&bench);
        cantle_ledger::host::create(&bench.path("slice"), &lease.0, &[limit]).unwrap();
        let mut spec = spec(&bench, &[]);
        spec.slices[0].gpu = cantle_model::GpuUuid(uuid);
        spec.confinement.shim_dir = shim_dir;
        spec.confinement.libraries.cuda.real.clone_from(cuda);
        spec.confinement.libraries.nvml.real.clone_from(nvml);
        Some(Self { bench, spec })
    }

    async fn start(&self, docker: &Docker, script: &str) -> RunningTask {
        let spec = TaskSpec { argv: ["sh", "-c", script].map(Into::into).into(), ..self.spec.clone() };
        let tools = format!("{}:/tools:ro", repository().join("tests/docker").display());
        let container = ContainerSpec { devices: nodes(), ..docker.container(&["-v", &tools]) };
        docker.engine.start(&spec, &container, self.bench.container_output()).await.unwrap()
    }
}

/// The driver's own record of each GPU.
fn truth() -> serde_json::Value {
    let script = repository().join("tests/docker/truth.py");
    let output = Command::new("python3").arg(script).output().unwrap();
    assert!(output.status.success(), "{}", common::stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The memory of a context, seen from outside: what a process without a slice cannot get of 40 GiB. At the same time
/// the negative control: without cantle the same program takes the whole card.
fn context_bytes() -> u64 {
    let script = repository().join("tests/docker/fill.py");
    let output = Command::new("python3").arg(script).output().unwrap();
    let taken_mib: u64 = stdout(&output).split(' ').next().unwrap().parse().unwrap();
    assert!(taken_mib > CARD_MIB * 9 / 10, "{}", stdout(&output));
    (CARD_MIB - taken_mib) << 20
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_gets_its_slice_and_no_more() {
    let Some(docker) = Docker::new().await else { return };
    let Some(slice) = GpuSlice::new() else { return };
    // Four processes at once; together they get one slice.
    let script = "for i in 1 2 3 4; do python3 /tools/fill.py 300 4 & done; wait";
    let mut task = slice.start(&docker, script).await;
    eventually("all four have met the limit", || output(&slice.bench).lines().count() == 4);

    let lines = output(&slice.bench);
    let held = truth();
    let pids = task.pids();
    task.stopper().kill().await;
    task.wait().await;

    for line in lines.lines() {
        assert!(
            line.ends_with(&format!(" 2 {LIMIT_MIB}")),
            "out of memory, in a card as large as the slice: {line}"
        );
    }
    let used = held[0]["used_bytes"].as_u64().unwrap();
    assert_eq!(used, LIMIT_MIB << 20, "contexts included: {held}");
    let processes = held[0]["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 4);
    for process in processes {
        let pid = u32::try_from(process["pid"].as_u64().unwrap()).unwrap();
        assert!(pids.contains(&pid), "the driver and the runtime mean the same process: {pid} in {pids:?}");
    }
    assert_eq!(truth()[0]["used_bytes"], 0, "all of it came back");
}

/// Ways in which a task tries to get more than its slice. Each prints what it got.
const ATTEMPTS: [&str; 23] = [
    "python3 /tools/fill.py",
    "env -i /usr/bin/python3 /tools/fill.py",
    "unset CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES GPU_MEMORY_LIMIT CANTLE_SLICE; python3 /tools/fill.py",
    "GPU_MEMORY_LIMIT=99999999999 python3 /tools/fill.py",
    "mkdir /tmp/fake; CANTLE_SLICE_DIR=/tmp/fake python3 /tools/fill.py",
    "LD_LIBRARY_PATH=/usr/lib64 python3 /tools/fill.py",
    "LD_PRELOAD=/usr/lib64/libcuda.so.1 python3 /tools/fill.py",
    "umount /usr/lib64/libcuda.so.1; umount -l /usr/lib/*/libcuda.so.1; python3 /tools/fill.py",
    "mount --bind /run/cantle/real/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1; python3 /tools/fill.py",
    "cp /etc/passwd /run/cantle/slice/limits; truncate -s 0 /run/cantle/slice/limits; python3 /tools/fill.py",
    "chmod 777 /run/cantle/slice/limits; dd if=/dev/zero of=/run/cantle/slice/limits bs=64 count=1; python3 /tools/fill.py",
    "rm -rf /run/cantle/real /run/cantle/slice; mv /run/cantle /run/other; python3 /tools/fill.py",
    "rm -f /usr/lib64/libcuda.so.1 /usr/lib/*/libcuda.so.1; python3 /tools/fill.py",
    "unshare -m sh -c 'umount /usr/lib/*/libcuda.so.1; python3 /tools/fill.py' || python3 /tools/fill.py",
    "unshare -Urm sh -c 'umount /usr/lib/*/libcuda.so.1; python3 /tools/fill.py' || python3 /tools/fill.py",
    "nsenter --target 1 --mount --pid python3 /tools/fill.py || python3 /tools/fill.py",
    "mkdir /tmp/own; cp -L /usr/lib64/libcuda.so.1 /tmp/own/; LD_LIBRARY_PATH=/tmp/own python3 /tools/fill.py",
    "sed s:libcuda.so.1:/usr/lib64/libcuda.so: /tools/fill.py >/tmp/by_path.py; python3 /tmp/by_path.py",
    "LD_AUDIT=/usr/lib64/libcuda.so.1 python3 /tools/fill.py || python3 /tools/fill.py",
    "setsid --wait sh -c 'setsid --wait sh -c \"setsid --wait python3 /tools/fill.py\"'",
    "setpriv --reuid=65534 --clear-groups python3 /tools/fill.py",
    "mkdir /tmp/jail; mount --rbind / /tmp/jail; chroot / env -i python3 /tools/fill.py",
    // The last one: from here on no process gets memory any more.
    "dd if=/dev/zero of=/run/cantle/slice/usage bs=4096 count=1 conv=notrunc; python3 /tools/fill.py",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_cannot_lift_its_limit() {
    let Some(docker) = Docker::new().await else { return };
    let Some(slice) = GpuSlice::new() else { return };
    let script = ATTEMPTS.map(|attempt| format!("( {attempt} ) 2>/dev/null")).join("; ");

    let mut task = slice.start(&docker, &script).await;
    let exit = task.wait().await;

    let text = output(&slice.bench);
    assert_eq!(exit, Exit::Code(0), "{text}");
    assert_eq!(text.lines().count(), ATTEMPTS.len(), "{text}");
    for (line, attempt) in text.lines().zip(ATTEMPTS) {
        let taken_mib: u64 = line.split(' ').next().unwrap().parse().unwrap();
        assert!(taken_mib < LIMIT_MIB && line.contains(" 2 "), "{attempt}: {line}");
    }
}

/// The only directory in which Debian's Podman looks for specs of devices.
const CDI_DIR: &str = "/var/run/cdi";

/// Podman's own client, on the storage that `tests/docker/podman.sh` made.
fn podman_run(dir: &Path, options: &[&str]) -> std::process::Output {
    podman_says(
        dir,
        options,
        "test -b /dev/nvidia0 && test ! -e /dev/nvidia1 && echo nodes; env -i python3 /tools/fill.py",
    )
}

const VERSION_AND_FILL: &str = "python3 /tools/cuda_version.py; python3 /tools/fill.py";

/// A libcuda as CUDA's compatibility package has one, for a program of CUDA 13.
fn compatibility_package() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let script = "import sys; from copies import library; library('/usr/lib/x86_64-linux-gnu/libcuda.so.1', sys.argv[1], '580.65.06')";
    let file = dir.path().join("libcuda.so.580.65.06");
    let made = Command::new("python3")
        .env("PYTHONPATH", repository().join("tests/docker"))
        .args(["-c", script])
        .arg(&file)
        .status();
    assert!(made.unwrap().success());
    std::os::unix::fs::symlink("libcuda.so.580.65.06", dir.path().join("libcuda.so.1")).unwrap();
    dir
}

fn podman_says(dir: &Path, options: &[&str], script: &str) -> std::process::Output {
    let tools = format!("{}:/tools:ro", repository().join("tests/docker").display());
    Command::new("podman")
        .env("CONTAINERS_CONF", dir.join("containers.conf"))
        .env("CONTAINERS_STORAGE_CONF", dir.join("storage.conf"))
        .args(["run", "--rm", "-v", &tools])
        .args(options)
        .args(["localhost/cantle-test:base", "sh", "-c"])
        .arg(script)
        .output()
        .unwrap()
}

/// The result of the spec in an engine.
#[test]
fn a_slice_is_a_device_for_engines_that_take_devices_by_name() {
    let Some(podman) = std::env::var_os("CANTLE_TEST_PODMAN").map(PathBuf::from) else {
        eprintln!("skipped: no podman; run tests/docker/run.sh where it can be installed");
        return;
    };
    let Some(slice) = GpuSlice::new() else { return };
    let lease = slice.spec.lease.0.as_str();
    let is_new = !Path::new(CDI_DIR).exists();
    let mut container_edits = slice_edits(&slice.spec, &nodes(), &[]);
    let package = compatibility_package();
    let volume = format!("{}:/usr/local/cuda/compat", package.path().display());
    let name = cdi::qualified(lease);
    let brings =
        ["-v", &volume, "--env", "LD_LIBRARY_PATH=/usr/local/cuda/compat", "--device", name.as_str()];
    let write = |container_edits: &cdi::Edits| {
        let device = cdi::CdiDevice { name: lease.to_owned(), container_edits: container_edits.clone() };
        cdi::Spec::of_slices(vec![device]).write(Path::new(CDI_DIR), lease).unwrap();
    };
    write(&container_edits);
    let unhooked = podman_says(&podman, &brings, VERSION_AND_FILL);
    container_edits.hooks.push(image_hook(&slice.spec, &repository().join("dist/bin/cantle")));
    write(&container_edits);

    let with = podman_run(&podman, &["--device", &cdi::qualified(lease)]);
    let brought = podman_says(&podman, &brings, VERSION_AND_FILL);
    cdi::remove(Path::new(CDI_DIR), lease).unwrap();
    let after = podman_run(&podman, &["--device", &cdi::qualified(lease)]);
    let without = podman_run(&podman, &[]);
    if is_new {
        std::fs::remove_dir(CDI_DIR).unwrap();
    }

    let text = stdout(&with);
    let (seen, filled) =
        text.trim().split_once('\n').unwrap_or_else(|| panic!("{text}{}", common::stderr(&with)));
    assert_eq!(seen, "nodes");
    let taken_mib: u64 = filled.split(' ').next().unwrap().parse().unwrap();
    assert!(taken_mib < LIMIT_MIB && filled.ends_with(&format!(" 2 {LIMIT_MIB}")), "{filled}");
    let text = stdout(&unhooked);
    assert!(text.trim().ends_with(&format!(" 2 {CARD_MIB}")), "negative control, without the hook: {text}");
    let text = stdout(&brought);
    let (version, filled) =
        text.trim().split_once('\n').unwrap_or_else(|| panic!("{text}{}", common::stderr(&brought)));
    assert_eq!(version, "0 13000", "the newer libcuda is used");
    assert!(filled.ends_with(&format!(" 2 {LIMIT_MIB}")), "with the limit: {filled}");
    assert!(!after.status.success(), "a device that is gone is unknown to the engine");
    assert!(stdout(&without).is_empty() && !without.status.success(), "without it there is no GPU");
}
