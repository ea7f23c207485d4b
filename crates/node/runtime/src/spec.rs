use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use cantle_ledger::{GRANT_FILE, LAUNCHES_FILE, LIMITS_FILE, MEMORY_FILE, USAGE_FILE};
use cantle_model::{DirectAccess, Enforcement, HostLimit, LeaseId, Slice};
use serde::{Deserialize, Serialize};

use crate::{Cgroup, Privileges, TaskUser};

/// A command line with its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments, at least one.
    pub argv: Vec<OsString>,
    /// Set on top of this process's environment.
    pub env: BTreeMap<String, OsString>,
    /// Working directory; this process's if none, or the home directory of `user`.
    pub cwd: Option<PathBuf>,
    /// The user that it runs as; this process's if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<TaskUser>,
    /// See [`TaskSpec::secrets`].
    #[serde(skip)]
    pub secrets: BTreeMap<String, String>,
}

/// A task to start: what runs, on which slices, and what enforces them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskSpec {
    /// The lease it runs under.
    pub lease: LeaseId,
    /// Its slices. None: a task without GPUs, which gets no shim and sees no GPU.
    pub slices: Vec<Slice>,
    /// Program and arguments.
    pub argv: Vec<OsString>,
    /// Added to the environment of this process, or replacing it: see `clear_env`.
    pub env: BTreeMap<String, OsString>,
    /// Start with an empty environment instead of this process's.
    #[serde(default)]
    pub clear_env: bool,
    /// Working directory; this process's if none, or the home directory of `user`.
    pub cwd: Option<PathBuf>,
    /// The user that it runs as; this process's if none.
    #[serde(default)]
    pub user: Option<TaskUser>,
    /// The confinement of the task.
    pub confinement: Confinement,
    /// A directory of the task's own, whose path is in [`crate::WORKSPACE`].
    #[serde(default)]
    pub workspace: Option<Workspace>,
    /// A file with the authorities that its programs trust, in [`crate::AUTHORITIES`] unless the task has that variable.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// The control group that was made for it, with the driver's limits; without one, the start makes one.
    #[serde(default)]
    pub cgroup: Option<Cgroup>,
    /// The processor time and main memory that its control group is limited to; in a container they are options of the container.
    #[serde(default)]
    pub host: Option<HostLimit>,
    /// It is no task but the client of a container engine, to which it brings the task.
    #[serde(default)]
    pub is_client: bool,
    /// Variables of the task's environment that are written to no disk, and that no process of cantle's has in its own.
    #[serde(skip)]
    pub secrets: BTreeMap<String, String>,
}

/// A directory of a task's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// Where it is on the machine.
    pub directory: PathBuf,
    /// In its sandbox the task has it at the path that all tasks have. Without a sandbox it is where it is.
    pub is_mounted: bool,
}

/// The confinement of a task to its slices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Confinement {
    /// Directory of the filter libraries and `libcantle-preload.so` (`<lib>/shim`).
    pub shim_dir: PathBuf,
    /// Directory of the slice's accounting: `limits` and `usage`; with a gate also `grant` and `launches`.
    pub slice_dir: PathBuf,
    /// Launches wait for the slice's part of the GPU's time.
    #[serde(default)]
    pub gate: bool,
    /// The slice may get more memory than its request, and the task can read how much.
    #[serde(default)]
    pub burst: bool,
    /// The driver's libraries and all their names on this machine.
    pub libraries: DriverLibraries,
    /// The accepted backends.
    #[serde(default, rename = "wish")]
    pub backend: BackendChoice,
    /// Directories and files that the task finds empty: the accounting of all tasks, the state of server and agent, keys.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Extra privileges of the task.
    #[serde(default)]
    pub privileges: Privileges,
    /// The nodes and variables of GPUs for which there is no filter. With these, the driver's libraries are as they are.
    #[serde(default)]
    pub direct: Option<DirectAccess>,
}

impl Confinement {
    /// The filter that replaces the driver's library of this name, `libcuda.so` or `libnvidia-ml.so`.
    pub(crate) fn filter(&self, stem: &str) -> PathBuf {
        let file = format!("{stem}.1");
        if self.gate && stem == "libcuda.so" {
            self.shim_dir.join("gate").join(file)
        } else {
            self.shim_dir.join(file)
        }
    }

    /// The files of the slice's accounting that the task needs, and whether each is read-only to it.
    pub(crate) fn slice_files(&self) -> Vec<(&'static str, bool)> {
        let mut files = vec![(LIMITS_FILE, true), (USAGE_FILE, false)];
        if self.gate {
            files.extend([(GRANT_FILE, true), (LAUNCHES_FILE, false)]);
        }
        if self.burst {
            files.push((MEMORY_FILE, true));
        }
        files
    }
}

/// The two libraries through which programs reach the driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverLibraries {
    /// CUDA's driver API, `libcuda.so.1`.
    pub cuda: DriverLibrary,
    /// NVML, `libnvidia-ml.so.1`.
    pub nvml: DriverLibrary,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverLibrary {
    /// The file itself.
    pub real: PathBuf,
    /// Every path under which a program may open it.
    pub names: Vec<PathBuf>,
}

/// The backends that the caller accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendChoice {
    /// The mount namespace where it is possible, preload where it is not.
    #[default]
    Auto,
    /// Nothing weaker than the mount namespace.
    MountNamespace,
    /// Preload, even where the mount namespace is possible.
    Preload,
}

/// The way in which the shim is installed between a task and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// There is no shim: a task without GPUs. Its sandbox is the same.
    None,
    /// The driver's libraries are replaced in the task's own mount namespace: however they are loaded, the task gets the shim.
    MountNamespace,
    /// The same for a task that was given the machine's privileges: of root, it can evade it.
    PrivilegedMountNamespace,
    /// `LD_PRELOAD`: a program that cleans its environment or walks ELF tables itself gets past it.
    Preload {
        /// Why nothing stronger is in force.
        why: String,
    },
    /// A container whose driver libraries are replaced by mounts.
    Container,
}

impl Backend {
    /// The backend that enforces the task's slices; `None` for a task without slices.
    #[must_use]
    pub const fn enforcement(&self) -> Option<Enforcement> {
        match self {
            Self::None => None,
            Self::MountNamespace => Some(Enforcement::MountNamespace),
            Self::PrivilegedMountNamespace => Some(Enforcement::PrivilegedMountNamespace),
            Self::Preload { .. } => Some(Enforcement::Preload),
            Self::Container => Some(Enforcement::Container),
        }
    }
}
