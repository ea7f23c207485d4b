//! A directory with simulated GPUs of its own, and the processes that use them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cantle_driver::Installation;
use cantle_model::Lease;
use cantle_node::NodeStore;

/// Three GPUs that no other test uses.
pub(crate) struct Place {
    root: tempfile::TempDir,
}

impl Place {
    /// `None` if there is no simulated driver.
    pub(crate) fn new() -> Option<Self> {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../dist/lib/cantle/sim");
        if !dist.join("libcuda.so.1").is_file() {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let lib = root.path().join("lib");
        fs::create_dir_all(lib.join("shim")).unwrap();
        symlink(dist.canonicalize().unwrap(), lib.join("sim")).unwrap();
        // The shim is tested elsewhere; the tasks here never open it. It only reports its version.
        let note: Vec<u8> = cantle_ledger::NOTE.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libcantle-preload.so"] {
            fs::write(lib.join("shim").join(name), &note).unwrap();
        }
        let place = Self { root };
        cantle_driver::simulated::create(&place.sim_dir(), "3xA100-40GB", &place.lib_dir()).unwrap();
        Some(place)
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn lib_dir(&self) -> PathBuf {
        self.path().join("lib")
    }

    pub(crate) fn sim_dir(&self) -> PathBuf {
        self.path().join("sim")
    }

    pub(crate) fn source(&self) -> Installation {
        Installation::in_directory(self.sim_dir(), self.lib_dir())
    }

    pub(crate) fn node(&self) -> NodeStore {
        NodeStore::open(&NodeStore::dir_for(&self.source())).unwrap()
    }

    pub(crate) fn leases(&self) -> Vec<Lease> {
        self.node().leases().unwrap()
    }

    /// This program in another role.
    pub(crate) fn role(&self, role: &str) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg(role).arg(self.path()).stdin(Stdio::null());
        command
    }

    /// `cantle run --gpu SPEC [--timeout S] -- sh -c SCRIPT`
    pub(crate) fn run(&self, gpu: &str, timeout_s: u64, script: &str) -> Command {
        let mut command = self.role(crate::role::RUN);
        command.args([gpu, &timeout_s.to_string(), script]);
        command
    }
}

/// Waits until something becomes true.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
