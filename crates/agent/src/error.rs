//! What can go wrong on a node, in one line each: what is wrong, what was given, what would be right.

use std::io;
use std::path::{Path, PathBuf};

use cantle_model::{GpuListError, LeaseId, MigName};

/// An error of the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A file of ours can't be read or written.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The node directory was made by another user.
    #[error("{} belongs to user {owner}; cantle keeps leases only in a directory of its own: remove it", dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// Its owner's uid.
        owner: u32,
    },
    /// An address for metrics that is not one, or not free.
    #[error("--metrics-listen {listen}: {reason}; give a free address, e.g. 127.0.0.1:9401")]
    Listen {
        /// As given.
        listen: String,
        /// What the system says.
        reason: String,
    },
    /// Another daemon answers for the GPU.
    #[error(
        "GPU {index} is taken by agent {worker} (pid {pid}); stop it first or choose other GPUs with --gpus"
    )]
    GpuTaken {
        /// NVML index of the GPU.
        index: u32,
        /// Worker id of the other daemon.
        worker: String,
        /// Its pid.
        pid: u32,
    },
    /// Two daemons under one name.
    #[error(
        "agent {worker} runs here already (pid {pid}); stop it first or give this one another --worker-id"
    )]
    WorkerTaken {
        /// Worker id of both.
        worker: String,
        /// Pid of the other one.
        pid: u32,
    },
    /// There is nothing to share.
    #[error("this machine has no GPU; try --sim-gpus 3xA100-40GB")]
    NoGpu,
    /// `--gpus` names what is not there.
    #[error(transparent)]
    Gpus(#[from] GpuListError),
    /// `--gpus` names an instance that is not there.
    #[error("--gpus {name}: there is no such MIG instance{}", instances_there(there))]
    NoInstance {
        /// As given.
        name: MigName,
        /// Those that there are.
        there: String,
    },
    /// `--gpus` names one of several compute instances of a GPU instance.
    #[error(
        "--gpus {name}: is one of {count} compute instances that share the memory of one GPU instance; nothing keeps their \
         tasks apart, give instances of their own"
    )]
    SharedInstance {
        /// As given.
        name: MigName,
        /// So many share it.
        count: usize,
    },
    /// Several instances for one task.
    #[error(
        "--gpus names {count} MIG instances of GPU {index}, and a program can use only one; add --dynamic-gpus to give each \
         task one of them, or name one"
    )]
    SeveralInstances {
        /// NVML index of the GPU.
        index: u32,
        /// So many.
        count: usize,
    },
    /// A queue that the GPUs can't serve.
    #[error(transparent)]
    Queues(#[from] cantle_sched::DemandError),
    /// A queue that the server does not have.
    #[error(
        "there is no queue \"{queue}\" on the server{}; create it with --create-queue",
        known_queues(known)
    )]
    UnknownQueue {
        /// As given.
        queue: String,
        /// The queues that there are.
        known: String,
    },
    /// One queue under its name and its id.
    #[error("--queue {0}: names a queue that is listed already; give each queue once")]
    QueueTwice(String),
    /// More than any GPU here has.
    #[error("{0}")]
    Never(String),
    /// A division of compute time that nothing here enforces.
    #[error(
        "--compute {0} is not enforced by this version, only even is (the driver's own time-slicing); leave it out"
    )]
    Compute(String),
    /// No room within the time given.
    #[error("no room: {0} (cantle explain no-capacity)")]
    NoRoom(String),
    /// A cluster's decision that this machine can't carry out.
    #[error("the cluster gave out what is not free here: {0}")]
    NotFree(String),
    /// A plan that must not be executed.
    #[error("refusing to execute a plan that breaks a rule ({0}); please report this")]
    Audit(String),
    /// A task that can't be run as it is.
    #[error("task \"{name}\": {why}")]
    Task {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The place for a MIG instance that a plan counted on can't be had now; another may.
    #[error("MIG instance {profile} at {start} of GPU {index} can't be had: {why}")]
    PlaceLost {
        /// Name of the profile.
        profile: String,
        /// First unit of the place.
        start: u32,
        /// NVML index of the GPU.
        index: u32,
        /// What is in the way.
        why: String,
    },
    /// An instance that the driver's own list of profiles does not explain.
    #[error("GPU {0} has a MIG instance of profile {1}, which the driver does not list")]
    UnknownProfile(u32, u32),
    /// A GPU that can't be put into MIG mode, or out of it, from here.
    #[error("--mig: GPU {index}: {why}")]
    MigMode {
        /// NVML index of the GPU.
        index: u32,
        /// What stands against it, and what to do.
        why: String,
    },
    /// Somebody took a lease back before its task could start.
    #[error("lease {0} is gone; the task was not started")]
    LeaseGone(LeaseId),
    /// A GPU whose name is not a UUID.
    #[error("GPU {0} has no usable UUID; cantle keys its accounting by it")]
    BadUuid(String),
    /// The driver, or the lack of one.
    #[error(transparent)]
    Driver(#[from] cantle_driver::DriverError),
    /// The accounting region.
    #[error("accounting region: {0} (cantle explain accounting-region)")]
    Region(#[from] cantle_ledger::host::HostError),
    /// The task did not start.
    #[error(transparent)]
    Start(#[from] cantle_runtime::StartError),
    /// The container engine.
    #[error(transparent)]
    Engine(#[from] cantle_runtime::EngineError),
    /// The server.
    #[error(transparent)]
    Server(#[from] cantle_clearml::Error),
}

impl AgentError {
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Self::File { path: path.to_owned(), reason: error.to_string() }
    }

    /// The exit code that belongs to it (see the list in the README).
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Gpus(_)
            | Self::NoInstance { .. }
            | Self::SharedInstance { .. }
            | Self::SeveralInstances { .. }
            | Self::Queues(_)
            | Self::UnknownQueue { .. }
            | Self::QueueTwice(_)
            | Self::Never(_)
            | Self::Compute(_) => 2,
            Self::Server(cantle_clearml::Error::Address { .. }) => 2,
            Self::Server(cantle_clearml::Error::Unauthorized { .. }) => 4,
            Self::NoRoom(_) => 6,
            Self::PlaceLost { .. } | Self::UnknownProfile(..) | Self::MigMode { .. } => 7,
            Self::NoGpu | Self::Driver(_) | Self::BadUuid(_) | Self::Region(_) | Self::Engine(_) => 7,
            Self::GpuTaken { .. } | Self::WorkerTaken { .. } | Self::NotFree(_) => 8,
            Self::Start(error) => error.exit_code(),
            Self::File { .. }
            | Self::Listen { .. }
            | Self::NotOurs { .. }
            | Self::Audit(_)
            | Self::Task { .. }
            | Self::LeaseGone(_)
            | Self::Server(_) => 1,
        }
    }
}

fn instances_there(there: &str) -> String {
    if there.is_empty() {
        "; none is there (nvidia-smi -L lists them)".to_owned()
    } else {
        format!("; there are {there}")
    }
}

fn known_queues(known: &str) -> String {
    if known.is_empty() { " (it has none)".to_owned() } else { format!(" (it has: {known})") }
}
