//! The errors of a node, one line each: what is wrong and the value that was given. [`NodeError::hints`] has the remedies.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use cantle_model::{AllocatedPart, ComputeError, GpuListError, LeaseId, MigName};
use cantle_runtime::files::{FileError, is_no_room};
use cantle_sched::Reason;

/// An error of a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The node directory was made by another user.
    #[error("{} belongs to user {owner}; cantle keeps leases only in a directory of its own", dir.display())]
    NotOurs {
        /// The directory.
        dir: PathBuf,
        /// Its owner's uid.
        owner: u32,
    },
    /// Another agent has the GPU.
    #[error("GPU {index} is taken by agent {worker} (pid {pid})")]
    GpuTaken {
        /// NVML index of the GPU.
        index: u32,
        /// Worker id of the other agent.
        worker: String,
        /// Its pid.
        pid: u32,
    },
    /// Two agents under one name.
    #[error("agent {worker} runs here already (pid {pid})")]
    WorkerTaken {
        /// Worker id of both.
        worker: String,
        /// Pid of the other one.
        pid: u32,
    },
    /// There is nothing to share.
    #[error("this machine has no GPU")]
    NoGpu,
    /// `--gpus` names what is not there.
    #[error(transparent)]
    Gpus(#[from] GpuListError),
    /// `--gpus` names a GPU that cannot be opened.
    #[error("GPU {index} is lost to the driver: {why}")]
    LostGpu {
        /// NVML index of the GPU.
        index: u32,
        /// The error of NVML.
        why: cantle_driver::DriverError,
    },
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
        "--gpus {name}: is one of {count} compute instances that share the memory of one GPU instance; nothing isolates \
         their tasks from each other"
    )]
    SharedInstance {
        /// As given.
        name: MigName,
        /// The number of slices that share it.
        count: usize,
    },
    /// Several instances for one task.
    #[error("--gpus names {count} MIG instances of GPU {index}, and a program can use only one")]
    SeveralInstances {
        /// NVML index of the GPU.
        index: u32,
        /// How many.
        count: usize,
    },
    /// A queue that the GPUs cannot serve.
    #[error(transparent)]
    Queues(#[from] cantle_sched::DemandError),
    /// More than any GPU here has.
    #[error("{0}")]
    Never(Box<Reason>),
    /// A division of compute time that nothing here enforces.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// No capacity within the time given.
    #[error("no room: {0}")]
    NoRoom(Box<Reason>),
    /// The capacity is lent to others, which did not give it back within the time given.
    #[error("no room: {0}")]
    Lent(String),
    /// An allocation of a cluster that this node cannot carry out.
    #[error("the cluster allocated a slice that is not free here: {why}")]
    NotFree {
        /// The reason.
        why: String,
        /// The underlying error, if there is one.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A slice that is more than the scheduler allocated.
    #[error("the cluster allocated {allocated} of GPU {index}, and the request would make it {made}")]
    BeyondAllocation {
        /// NVML index of the GPU.
        index: u32,
        /// The scheduler's allocation.
        allocated: String,
        /// The slice that the request would make.
        made: AllocatedPart,
    },
    /// Host paths of a slice that the container engine would not find.
    #[error("the node does not have what a pod with a slice gets: {}", cantle_runtime::listed(.0))]
    NotOnNode(Vec<PathBuf>),
    /// The node's files cannot be checked.
    #[error("cannot see the node's files: {0}")]
    NodeUnseen(io::Error),
    /// A plan that must not be executed.
    #[error("refusing to execute a plan that breaks a rule ({0}); please report this")]
    Audit(#[from] cantle_decide::BrokenPlan),
    /// A task that cannot be run as it is.
    #[error("task \"{name}\": {why}")]
    Task {
        /// Its name.
        name: String,
        /// The fault.
        why: String,
    },
    /// The planned placement of a MIG instance is not available now; another one may be.
    #[error("MIG instance {profile} at {start} of GPU {index} cannot be had: {why}")]
    PlacementLost {
        /// Name of the profile.
        profile: String,
        /// The placement: its first memory slice.
        start: u32,
        /// NVML index of the GPU.
        index: u32,
        /// The reason.
        why: String,
    },
    /// An instance that the driver's own list of profiles does not explain.
    #[error("GPU {0} has a MIG instance of profile {1}, which the driver does not list")]
    UnknownProfile(u32, u32),
    /// A GPU that cannot be put into MIG mode, or out of it, from here.
    #[error("--mig: GPU {index}: {why}")]
    MigMode {
        /// NVML index of the GPU.
        index: u32,
        /// The reason, and the action that solves it.
        why: String,
    },
    /// A lease was removed before its task could start.
    #[error("lease {0} is gone; the task was not started")]
    LeaseGone(LeaseId),
    /// A GPU whose name is not a UUID.
    #[error("GPU {0} has no usable UUID; cantle keys its accounting by it")]
    BadUuid(String),
    /// These GPUs have no filter, which this needs.
    #[error("{0} needs cantle's filter, which there is for GPUs of NVIDIA only (docs/amd.md)")]
    NoFilter(String),
    /// Tasks with strict shares have all others.
    #[error("GPU {gpu} has too few free compute units for --compute strict")]
    NoComputeUnits {
        /// The GPU.
        gpu: cantle_model::GpuUuid,
    },
    /// GPUs without a filter, and nothing else that limits memory.
    #[error("nothing would enforce the memory limit of a task: {0}")]
    NoLimit(String),
    /// The driver's own limit was required, and there is none.
    #[error("the driver's own memory limit cannot be used: {0}")]
    NoDriverLimit(String),
    /// A task that was not suspended, resumed, moved or resized.
    #[error(transparent)]
    Suspend(#[from] crate::suspend::SuspendError),
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
}

impl NodeError {
    /// Is it the machine that has no room: too many processes or open files, a full disk or memory? Then nothing is wrong with the task.
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        match self {
            Self::Start(error) => error.is_out_of_room(),
            Self::File(error) => error.is_out_of_room(),
            Self::Region(error) => error.system().is_some_and(|why| is_no_room(&why)),
            _ => false,
        }
    }

    /// `error` at `path`.
    #[must_use]
    pub fn file(path: &Path, error: io::Error) -> Self {
        FileError::new(path, error).into()
    }

    /// A cluster's decision that this machine cannot carry out, without an error below it.
    pub(crate) fn not_free(why: impl Into<String>) -> Self {
        Self::NotFree { why: why.into(), source: None }
    }

    /// Hints for the user.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::NotOurs { .. } => "remove it",
            Self::GpuTaken { .. } => "stop it first or choose other GPUs with --gpus",
            Self::WorkerTaken { .. } => "stop it first or give this one another --worker-id",
            Self::NoGpu => "try --sim-gpus 3xA100-40GB",
            Self::LostGpu { .. } => {
                "see dmesg for its Xid; it may need a reset (nvidia-smi --gpu-reset) or a restart of the machine"
            }
            Self::NoInstance { .. } => "nvidia-smi -L lists them",
            Self::SharedInstance { .. } => "give instances of their own",
            Self::SeveralInstances { .. } => "add --dynamic-gpus to give each task one of them, or name one",
            Self::NotOnNode(_) => {
                "give --driver-files-dir a directory that the node has under the same path (docs/kubernetes.md)"
            }
            Self::NodeUnseen(_) => "the pod needs hostPID: true and root",
            Self::NoRoom(_) | Self::Lent(_) => "see cantle explain no-capacity",
            Self::NoLimit(_) => {
                "tasks on GPUs of AMD need root and Linux 6.14 or newer with CONFIG_CGROUP_DMEM (docs/amd.md)"
            }
            Self::NoDriverLimit(_) => {
                "give --enforce auto to use the filter alone where there is no such limit"
            }
            Self::Suspend(error) => return error.hint().map(str::to_owned).into_iter().collect(),
            Self::Start(error) => return error.hint().map(str::to_owned).into_iter().collect(),
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }

    /// The exit code that belongs to it (docs/reference/layout.md lists them).
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Gpus(_)
            | Self::NoInstance { .. }
            | Self::SharedInstance { .. }
            | Self::SeveralInstances { .. }
            | Self::Queues(_)
            | Self::Never(_)
            | Self::Compute(_) => 2,
            Self::NoRoom(_) | Self::Lent(_) | Self::NoComputeUnits { .. } => 6,
            Self::PlacementLost { .. } | Self::UnknownProfile(..) | Self::MigMode { .. } => 7,
            Self::NoGpu
            | Self::NoDriverLimit(_)
            | Self::NoFilter(_)
            | Self::NoLimit(_)
            | Self::NotOnNode(_)
            | Self::NodeUnseen(_)
            | Self::LostGpu { .. }
            | Self::Driver(_)
            | Self::BadUuid(_)
            | Self::Region(_)
            | Self::Engine(_) => 7,
            Self::GpuTaken { .. } | Self::WorkerTaken { .. } | Self::NotFree { .. } => 8,
            Self::Suspend(error) => error.exit_code(),
            Self::Start(error) => error.exit_code(),
            Self::File(_)
            | Self::NotOurs { .. }
            | Self::Audit(_)
            | Self::BeyondAllocation { .. }
            | Self::Task { .. }
            | Self::LeaseGone(_) => 1,
        }
    }
}

fn instances_there(there: &str) -> String {
    if there.is_empty() { "; none is there".to_owned() } else { format!("; there are {there}") }
}
