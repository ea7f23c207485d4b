//! Prepares the start of a task from its lease: the accounting region, and the task's description for the runtime.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use cantle_driver::{ContextCache, Driver};
use cantle_ledger::compute::{GrantTerms, create_grant};
use cantle_ledger::host::{self, GpuLimit, Observer};
use cantle_model::{Bytes, EnforceMode, Gpu, Lease, LeaseId, LimitBackend, Milli, Slice, TaskId};
use cantle_runtime::{
    Backend, BackendChoice, Command, Confinement, DriverLibraries, DriverLibrary, Engine, Privileges,
    RunningTask, StartError, TaskSpec, check_filters, filter_files,
};

use crate::NodeError;
use crate::burst;
use crate::native_limit::{self, GroupPlace};
use crate::store::NodeStore;
use crate::uuid::gpu_uuid_bytes;

/// An engine that is in another container, or a runtime that starts a virtual machine, does not use the group.
pub const OUTSIDE: &str =
    "the container engine did not start the container in the group with the driver's limit";

/// The settings with which every task of a node is started.
#[derive(Debug)]
pub struct Launcher {
    shim_dir: PathBuf,
    libraries: DriverLibraries,
    contexts: ContextCache,
    backend: BackendChoice,
    privileges: Privileges,
    enforce: EnforceMode,
    groups: GroupPlace,
    /// The libraries as they were when they were found.
    installed: Vec<(PathBuf, Option<Identity>)>,
    /// cantle's own as they were when they were checked: what has not changed is not read again.
    filters: Vec<Option<Identity>>,
}

/// The identity of the file that a path leads to, and its modification time.
type Identity = (u64, u64, i64, i64);

fn identity(path: &Path) -> Option<Identity> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
}

fn filters(shim_dir: &Path) -> Vec<Option<Identity>> {
    filter_files(shim_dir).map(|file| identity(&file)).collect()
}

impl Launcher {
    /// # Errors
    /// If the driver's libraries cannot be found, or cantle's own are missing or of another version.
    pub fn new(
        driver: &dyn Driver,
        lib_dir: &Path,
        node: &NodeStore,
        backend: BackendChoice,
    ) -> Result<Self, NodeError> {
        if !driver.has_filter() && backend == BackendChoice::Preload {
            return Err(NodeError::NoFilter("LD_PRELOAD".to_owned()));
        }
        let shim_dir = lib_dir.join("shim");
        let filters = filters(&shim_dir);
        check_filters(&shim_dir, false)?;
        let libraries = driver.libraries()?;
        let library =
            |library: cantle_driver::Library| DriverLibrary { real: library.real, names: library.names };
        let files = [&libraries.cuda.real, &libraries.nvml.real];
        Ok(Self {
            installed: files.map(|file| (file.clone(), identity(file))).into(),
            shim_dir,
            filters,
            libraries: DriverLibraries { cuda: library(libraries.cuda), nvml: library(libraries.nvml) },
            contexts: context_cache(node),
            backend,
            privileges: Privileges::default(),
            enforce: EnforceMode::default(),
            groups: GroupPlace::default(),
        })
    }

    /// Extra privileges of tasks.
    #[must_use]
    pub fn with_privileges(self, privileges: Privileges) -> Self {
        Self { privileges, ..self }
    }

    /// The wanted backend of memory limits.
    #[must_use]
    pub fn with_enforce(self, enforce: EnforceMode) -> Self {
        Self { enforce, ..self }
    }

    /// For tasks that are containers of this engine. Only a driver with limits of its own makes it ask the engine.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub async fn in_containers(
        mut self,
        engine: &Engine,
        driver: &dyn Driver,
        gpus: &[Gpu],
    ) -> Result<Self, NodeError> {
        if !driver.has_filter() {
            return Err(NodeError::NoFilter("a task in a container".to_owned()));
        }
        self.groups = GroupPlace::AboveContainers;
        let is_wanted = self.enforce != EnforceMode::Filter && !gpus.iter().all(|gpu| gpu.mig);
        if is_wanted && native_limit::driver_limits(driver, gpus).is_ok() {
            let info = engine.info().await.map_err(StartError::from)?;
            self.groups = info.takes_groups().map_or_else(GroupPlace::None, |()| GroupPlace::AboveContainers);
        }
        Ok(self)
    }

    /// Whether tasks on these GPUs get the driver's own limits.
    ///
    /// # Errors
    /// If the limits are required and there are none.
    pub fn check_enforce(&self, driver: &dyn Driver, gpus: &[Gpu]) -> Result<bool, NodeError> {
        let has_filter = driver.has_filter();
        if !has_filter && self.enforce == EnforceMode::Filter {
            return Err(NodeError::NoFilter("--enforce filter".to_owned()));
        }
        if self.enforce == EnforceMode::Filter || gpus.iter().all(|gpu| gpu.mig) {
            return Ok(false);
        }
        match native_limit::driver_limits(driver, gpus).and_then(|_| self.groups.check()) {
            Err(why) if !has_filter => Err(NodeError::NoLimit(why)),
            Err(why) if self.enforce == EnforceMode::Driver => Err(NodeError::NoDriverLimit(why)),
            possible => Ok(possible.is_ok()),
        }
    }

    /// Gives the task of a lease the driver's own limits, where there are some, as the last step before its start.
    ///
    /// # Errors
    /// If they are required and there are none, or one cannot be set; then nothing of them is left.
    pub fn hold_by_driver(
        &self,
        (driver, node): (&dyn Driver, &NodeStore),
        lease: &mut Lease,
        spec: &mut TaskSpec,
        gpus: &[Gpu],
    ) -> Result<(), NodeError> {
        native_limit::hold((driver, node), lease, spec, (gpus, self.enforce, &self.groups))
    }

    /// Ends a task that was started outside of the group that was made for it in `spec`, if the driver's limits are required.
    ///
    /// # Errors
    /// If it has ended the task.
    pub async fn require_group(&self, spec: &TaskSpec, running: &mut RunningTask) -> Result<(), NodeError> {
        let made = spec.cgroup.as_ref().map(|group| group.dir().to_owned());
        if self.enforce != EnforceMode::Driver || made.is_none() || running.cgroup() == made {
            return Ok(());
        }
        running.stopper().kill().await;
        running.wait().await;
        Err(NodeError::NoDriverLimit(OUTSIDE.to_owned()))
    }

    /// A library of the driver that is not what it was: another driver has been installed. New tasks would have the
    /// libraries of one driver and the kernel modules of another.
    #[must_use]
    pub fn replaced_library(&self) -> Option<&Path> {
        let mut replaced = self.installed.iter().filter(|(path, was)| identity(path) != *was);
        replaced.next().map(|(path, _)| path.as_path())
    }

    /// Measures the memory of a context on each of these GPUs, so that no task has to wait for it.
    ///
    /// # Errors
    /// If a GPU cannot be measured: without the figure a slice would not hold what it promises.
    pub fn measure(&self, driver: &dyn Driver, gpus: &[Gpu]) -> Result<(), NodeError> {
        // Of a GPU in MIG mode only the instances have contexts.
        for gpu in gpus.iter().filter(|gpu| !gpu.mig) {
            self.contexts.context_memory(driver, gpu, None)?;
        }
        Ok(())
    }

    /// Makes the accounting region of a lease that is on disk; without a slice there is nothing to account.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn make_region(
        &self,
        driver: &dyn Driver,
        node: &NodeStore,
        lease: &Lease,
        gpus: &[Gpu],
    ) -> Result<(), NodeError> {
        let dir = node.slice_dir(&lease.id);
        // Searchable by all: a task may change its user. The permissions of the node directory decide who can reach it
        // at all.
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(|e| NodeError::file(&dir, e))?;
        if lease.slices.is_empty() {
            return Ok(());
        }
        // They may be replaced under a running agent.
        if lease.compute.is_some() || filters(&self.shim_dir) != self.filters {
            check_filters(&self.shim_dir, lease.compute.is_some())?;
        }
        let limit = |slice: &Slice| -> Result<GpuLimit, NodeError> {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
            let gpu = gpu.ok_or_else(|| cantle_driver::DriverError::NoSuchGpu(slice.gpu.clone()))?;
            let name = slice.device();
            Ok(GpuLimit {
                uuid: gpu_uuid_bytes(name).ok_or_else(|| NodeError::BadUuid(name.to_owned()))?,
                limit_bytes: slice.memory_limit_bytes,
                context_bytes: self.contexts.context_memory(driver, gpu, slice.mig.as_ref())?.bytes(),
            })
        };
        let limits: Vec<GpuLimit> = lease.slices.iter().map(limit).collect::<Result<_, _>>()?;
        if let Some(terms) = grant_terms(lease) {
            create_grant(&dir, &terms)?;
        }
        host::create(&dir, &lease.id.0, &limits)?;
        burst::note(node, lease)?;
        keep_for_modules(&dir, lease, &limits)
    }

    /// The spec with which the runtime starts `command` under `lease`.
    pub fn spec(&self, node: &NodeStore, lease: &Lease, command: &Command) -> TaskSpec {
        TaskSpec {
            lease: lease.id.clone(),
            slices: lease.slices.clone(),
            argv: command.argv.clone(),
            env: command.env.clone(),
            clear_env: false,
            cwd: command.cwd.clone(),
            user: command.user.clone(),
            confinement: Confinement {
                shim_dir: self.shim_dir.clone(),
                slice_dir: node.slice_dir(&lease.id),
                gate: lease.compute.is_some(),
                burst: lease.burst.is_some(),
                libraries: self.libraries.clone(),
                // A preloaded library is no gate: what it does not hook launches as it likes.
                backend: if lease.compute.is_some() { BackendChoice::MountNamespace } else { self.backend },
                hidden: node.hidden_from_tasks(),
                privileges: self.privileges,
                direct: None,
            },
            workspace: None,
            authorities: None,
            cgroup: None,
            host: lease.host,
            is_client: false,
            secrets: command.secrets.clone(),
        }
    }
}

/// Charges what the slices keep for modules, so that no allocation takes it. The watchdog charges what they really take beyond that.
fn keep_for_modules(dir: &Path, lease: &Lease, limits: &[GpuLimit]) -> Result<(), NodeError> {
    if lease.module_reserve_bytes == 0 {
        return Ok(());
    }
    let region = Observer::open(dir)?;
    let mut slices = limits.iter().zip(&lease.slices);
    slices.try_for_each(|(limit, slice)| Ok(region.set_hidden(&limit.uuid, lease.module_reserve(slice))?))
}

/// The terms on which the lease's slice gets compute time; none if that is not enforced.
pub(crate) fn grant_terms(lease: &Lease) -> Option<GrantTerms> {
    let share = lease.compute?;
    Some(GrantTerms {
        uuid: gpu_uuid_bytes(lease.slices.first()?.device())?,
        mode: share.mode.number(),
        request_milli: share.request_milli.0,
        limit_milli: share.limit_milli.map(|limit| limit.0),
    })
}

/// The figures of contexts that this node has measured.
pub(crate) fn context_cache(node: &NodeStore) -> ContextCache {
    ContextCache::new(node.dir().join("contexts.json"))
}

/// A new lease on `slices`. This process holds it until the task has a process of its own.
pub fn new_lease(task: TaskId, name: String, queue: Option<String>, slices: Vec<Slice>) -> Lease {
    let id = LeaseId(uuid::Uuid::new_v4().simple().to_string());
    let placed_ms = crate::clock::now_ms();
    Lease { name, queue, placed_ms, ..Lease::new(id, task, slices, crate::own_holder()) }
}

/// The backends of a slice, as text; `limited_by` is what enforces the limits of its control group.
pub fn enforced_by(backend: &Backend, limited_by: Option<LimitBackend>) -> String {
    let by_filter = by_filter(backend);
    match limited_by {
        Some(LimitBackend::Dmem) => by_filter.replacen("enforced by ", "enforced by kernel (dmem) + ", 1),
        Some(_) => by_filter.replacen("enforced by ", "enforced by driver + ", 1),
        None => by_filter,
    }
}

fn by_filter(backend: &Backend) -> String {
    match backend {
        Backend::None => "nothing to enforce".to_owned(),
        Backend::MountNamespace => "enforced by mount namespace".to_owned(),
        Backend::PrivilegedMountNamespace => {
            "enforced by mount namespace, which a privileged task of root can evade \
             (cantle explain privileged-task)"
                .to_owned()
        }
        Backend::Preload { why } => {
            format!("enforced by LD_PRELOAD, which a program can evade ({why}; cantle explain preload)")
        }
        Backend::Container => "enforced by container mounts".to_owned(),
    }
}

/// `0.5 of GPU 0 (NVIDIA A100-SXM4-40GB), 20 GiB limit`, `MIG instance 3g.20gb, 4 memory slices from 4, counted as 0.5 of
/// GPU 0 (NVIDIA A100-SXM4-40GB), 19.5 GiB limit`
pub fn got(slices: &[Slice], gpus: &[Gpu]) -> String {
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
