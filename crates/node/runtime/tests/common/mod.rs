//! A fake installation: the "libraries" are text files with their own names, so `cat` shows what a task would load.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "test support; each test program uses its own part of it"
)]

pub mod docker;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use cantle_model::{GpuUuid, LeaseId, Milli, Slice};
use cantle_runtime::{
    BackendChoice, Confinement, ContainerOutput, DriverLibraries, DriverLibrary, Privileges, TaskDirectory,
    TaskSpec,
};
use tempfile::TempDir;

/// The example, which cargo builds before it runs the tests of a package.
pub fn start_program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("examples/start");
    assert!(program.exists(), "{} is not built", program.display());
    program
}

pub struct Bench {
    pub dir: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for directory in ["real", "compat", "shim", "slice"] {
            fs::create_dir(dir.path().join(directory)).unwrap();
        }
        let bench = Self { dir };
        bench.file("real/libcuda.so.550", "real cuda");
        bench.file("real/libnvidia-ml.so.550", "real nvml");
        bench.file("compat/libcuda.so.1", "compat cuda");
        bench.file("shim/libcuda.so.1", "shim cuda");
        bench.file("shim/libnvidia-ml.so.1", "shim nvml");
        bench.file("slice/limits", "limits");
        bench.file("slice/usage", "usage");
        // Really loaded by the programs under test: an empty list of hooks, made of nothing but a C file.
        let preload = bench.path("shim/libcantle-preload.so");
        let made = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&preload).status();
        assert!(made.unwrap().success());
        for (target, name) in
            [("libcuda.so.550", "libcuda.so.1"), ("libnvidia-ml.so.550", "libnvidia-ml.so.1")]
        {
            symlink(target, bench.path("real").join(name)).unwrap();
        }
        bench
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// The directory of the task of this bench.
    pub fn task(&self) -> TaskDirectory {
        TaskDirectory::new(self.path("task"))
    }

    pub fn container_output(&self) -> ContainerOutput {
        ContainerOutput::TaskDirectory(self.task())
    }

    pub fn spec(&self, argv: &[&str]) -> TaskSpec {
        let library = |real: &str, names: &[&str]| DriverLibrary {
            real: self.path(real),
            names: names.iter().map(|name| self.path(name)).collect(),
        };
        let cuda = ["real/libcuda.so.1", "real/libcuda.so.550", "compat/libcuda.so.1"];
        let nvml = ["real/libnvidia-ml.so.1", "real/libnvidia-ml.so.550"];
        TaskSpec {
            // Each test has its own; the control group of a task has this name.
            lease: LeaseId(self.dir.path().file_name().unwrap().to_string_lossy().into_owned()),
            slices: vec![Slice {
                gpu: GpuUuid::from("GPU-a"),
                milli: Milli(500),
                memory_limit_bytes: 20 << 30,
                mig: None,
            }],
            argv: argv.iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            clear_env: false,
            cwd: None,
            user: None,
            confinement: Confinement {
                gate: false,
                burst: false,
                shim_dir: self.path("shim"),
                slice_dir: self.path("slice"),
                libraries: DriverLibraries {
                    cuda: library("real/libcuda.so.550", &cuda),
                    nvml: library("real/libnvidia-ml.so.550", &nvml),
                },
                backend: BackendChoice::Auto,
                hidden: Vec::new(),
                privileges: Privileges::Own,
                direct: None,
            },
            workspace: None,
            authorities: None,
            cgroup: None,
            host: None,
            is_client: false,
            secrets: BTreeMap::new(),
        }
    }

    pub fn shell(&self, script: &str) -> TaskSpec {
        self.spec(&["sh", "-c", script])
    }

    /// The command line that starts `spec` attached.
    pub fn attached(&self, spec: &TaskSpec) -> Command {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let file = self.path(&format!("spec-{}.json", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::write(&file, serde_json::to_vec(spec).unwrap()).unwrap();
        let mut command = Command::new(start_program());
        command.arg("attached").arg(file);
        command
    }

    pub fn run(&self, spec: &TaskSpec) -> Output {
        self.attached(spec).output().unwrap()
    }
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// The pid on this machine of a process that wrote its own into the file `note`, which is among its words; `None` if it has ended. A
/// task has pids of its own.
pub fn pid_here(note: &Path) -> Option<u32> {
    let told = read(note);
    let is_it = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        pids.split_whitespace().next_back() == Some(told.trim())
    };
    with_word(note).into_iter().find(is_it)
}

/// The processes of this machine whose words contain this path.
pub fn with_word(path: &Path) -> Vec<u32> {
    let path = path.to_string_lossy();
    let has_it = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&*path)
    };
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(has_it).collect()
}

/// Mount namespaces need root; without it, the test is skipped with a message.
pub fn no_root() -> bool {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        eprintln!("skipped: mount namespaces need root");
    }
    !is_root
}

/// Generous, because a loaded machine is no failure.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not within 60 s: {what}");
}

pub fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
