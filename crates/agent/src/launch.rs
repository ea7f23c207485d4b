//! From a lease to a task that can be started: its accounting region, and what the runtime has to know.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cantle_driver::{ContextCache, Driver};
use cantle_ledger::host::{self, GpuLimit};
use cantle_model::{Bytes, Gpu, Lease, LeaseId, Milli, Slice, TaskId};
use cantle_runtime::{Backend, BackendWish, Confinement, DriverLibraries, DriverLibrary, TaskSpec};

use crate::AgentError;
use crate::node::Node;
use crate::uuid::gpu_uuid_bytes;

/// A command line with its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Command {
    /// Program and arguments, at least one.
    pub argv: Vec<OsString>,
    /// Set on top of our own environment.
    pub env: BTreeMap<String, OsString>,
    /// Working directory; our own if none.
    pub cwd: Option<PathBuf>,
}

/// What every task of a node is started with.
#[derive(Debug)]
pub(crate) struct Launcher {
    shim_dir: PathBuf,
    libraries: DriverLibraries,
    contexts: ContextCache,
    wish: BackendWish,
}

impl Launcher {
    /// # Errors
    /// If the driver's libraries can't be found.
    pub(crate) fn new(
        driver: &dyn Driver,
        lib_dir: &Path,
        node: &Node,
        wish: BackendWish,
    ) -> Result<Self, AgentError> {
        let libraries = driver.libraries()?;
        let library =
            |library: cantle_driver::Library| DriverLibrary { real: library.real, names: library.names };
        Ok(Self {
            shim_dir: lib_dir.join("shim"),
            libraries: DriverLibraries { cuda: library(libraries.cuda), nvml: library(libraries.nvml) },
            contexts: ContextCache::new(node.dir().join("contexts.json")),
            wish,
        })
    }

    /// Learns what contexts cost on these GPUs, so that no task has to wait for it.
    ///
    /// # Errors
    /// If a GPU can't be measured: without the figure a slice would not hold what it promises.
    pub(crate) fn measure(&self, driver: &dyn Driver, gpus: &[Gpu]) -> Result<(), AgentError> {
        // Of a GPU in MIG mode only the instances have contexts.
        for gpu in gpus.iter().filter(|gpu| !gpu.mig) {
            self.contexts.context_bytes(driver, gpu, None)?;
        }
        Ok(())
    }

    /// Makes the accounting region of a lease that is on disk; without a slice there is nothing to account.
    ///
    /// # Errors
    /// If a file can't be written.
    pub(crate) fn make_region(
        &self,
        driver: &dyn Driver,
        node: &Node,
        lease: &Lease,
        gpus: &[Gpu],
    ) -> Result<(), AgentError> {
        let dir = node.slice_dir(&lease.id);
        // Searchable by all: a task may change its user. Who can reach it at all is decided by the node directory.
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(|e| AgentError::file(&dir, &e))?;
        if lease.slices.is_empty() {
            return Ok(());
        }
        let limit = |slice: &Slice| -> Result<GpuLimit, AgentError> {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
            let gpu = gpu.ok_or_else(|| cantle_driver::DriverError::NoSuchGpu(slice.gpu.clone()))?;
            let name = slice.device();
            Ok(GpuLimit {
                uuid: gpu_uuid_bytes(name).ok_or_else(|| AgentError::BadUuid(name.to_owned()))?,
                limit_bytes: slice.memory_limit_bytes,
                context_bytes: self.contexts.context_bytes(driver, gpu, slice.mig.as_ref())?,
            })
        };
        let limits: Vec<GpuLimit> = lease.slices.iter().map(limit).collect::<Result<_, _>>()?;
        Ok(host::create(&dir, &lease.id.0, &limits)?)
    }

    /// What the runtime has to know to start `command` under `lease`.
    pub(crate) fn spec(&self, node: &Node, lease: &LeaseId, slices: &[Slice], command: &Command) -> TaskSpec {
        TaskSpec {
            lease: lease.clone(),
            slices: slices.to_vec(),
            argv: command.argv.clone(),
            env: command.env.clone(),
            clear_env: false,
            cwd: command.cwd.clone(),
            confinement: Confinement {
                shim_dir: self.shim_dir.clone(),
                slice_dir: node.slice_dir(lease),
                libraries: self.libraries.clone(),
                wish: self.wish,
            },
        }
    }
}

/// A new lease on `slices`, ours until the task has a process of its own.
pub(crate) fn new_lease(task: TaskId, name: String, queue: Option<String>, slices: Vec<Slice>) -> Lease {
    let id = LeaseId(uuid::Uuid::new_v4().simple().to_string());
    let (placed_ms, owner) = (crate::clock::now_ms(), crate::own_holder());
    Lease { id, task, name, queue, slices, placed_ms, owner, leader: None, kept: false, enforcement: None }
}

/// How a slice is enforced, for people.
pub(crate) fn enforced_by(backend: &Backend) -> String {
    match backend {
        Backend::None => "nothing to enforce".to_owned(),
        Backend::MountNamespace => "enforced by mount namespace".to_owned(),
        Backend::Preload { why } => {
            format!("enforced by LD_PRELOAD, which a program can evade ({why}; cantle explain preload)")
        }
        Backend::Container => "enforced by container mounts".to_owned(),
    }
}

/// `0.5 of GPU 0 (NVIDIA A100-SXM4-40GB), 20 GiB limit`, `MIG instance 3g.20gb, 4 memory slices from 4, counted as 0.5 of
/// GPU 0 (NVIDIA A100-SXM4-40GB), 19.5 GiB limit`
pub(crate) fn got(slices: &[Slice], gpus: &[Gpu]) -> String {
    let one = |slice: &Slice| {
        let gpu = gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
        let (index, model) = gpu.map_or((0, ""), |gpu| (gpu.index, gpu.model.as_str()));
        let limit = Bytes(slice.memory_limit_bytes);
        if let Some(mig) = &slice.mig {
            let (profile, size, start, milli) = (&mig.profile, mig.size, mig.start, slice.milli);
            let slices = if size == 1 { "slice" } else { "slices" };
            format!(
                "MIG instance {profile}, {size} memory {slices} from {start}, counted as {milli} of GPU {index} ({model}), \
                 {limit} limit"
            )
        } else if slice.milli == Milli::ONE {
            format!("GPU {index} ({model}), {limit} limit")
        } else {
            format!("{} of GPU {index} ({model}), {limit} limit", slice.milli)
        }
    };
    if slices.is_empty() {
        return "no GPU".to_owned();
    }
    slices.iter().map(one).collect::<Vec<_>>().join(" and ")
}
