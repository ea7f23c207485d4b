//! Why a task is not suspended, resumed, moved or resized.

use cantle_model::{Bytes, TaskId};

/// Why a task is not suspended, resumed, moved or resized. Unless it says that the task was ended, the task is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SuspendError {
    /// Nothing of that name holds a slice here.
    #[error("no task {0} has a slice on this machine")]
    NotHere(String),
    /// Several tasks of one name.
    #[error("{count} tasks on this machine are named {name}; give the id of one")]
    Ambiguous {
        /// The name.
        name: String,
        /// How many.
        count: usize,
    },
    /// It cannot be done to this task.
    #[error("task {task} cannot be {what}: {why}")]
    Refused {
        /// The task.
        task: TaskId,
        /// `suspended`, `moved`.
        what: &'static str,
        /// The call, the library or the kind of task that prevents it.
        why: String,
    },
    /// It is out already.
    #[error("task {0} is suspended already")]
    Already(TaskId),
    /// It is not out.
    #[error("task {0} is not suspended")]
    NotSuspended(TaskId),
    /// A resized slice that is impossible now.
    #[error("task {task} cannot have {wanted}: {why}")]
    Size {
        /// The task.
        task: TaskId,
        /// The size that was requested.
        wanted: Bytes,
        /// The reason.
        why: String,
    },
    /// The budget is full.
    #[error("task {task} holds {needed} of GPU memory, and {free} of {budget} for parked memory are free")]
    Budget {
        /// The task.
        task: TaskId,
        /// The memory that it would park.
        needed: Bytes,
        /// The memory that is left.
        free: Bytes,
        /// All of it.
        budget: Bytes,
    },
    /// The host has not enough memory.
    #[error("task {task} holds {needed} of GPU memory, and the host has {free} of memory available")]
    HostMemory {
        /// The task.
        task: TaskId,
        /// The memory that it would park.
        needed: Bytes,
        /// The memory that the kernel reports as available.
        free: Bytes,
    },
    /// No GPU has room for it.
    #[error("no room for task {task}: {why}")]
    NoRoom {
        /// The task.
        task: TaskId,
        /// The reason.
        why: String,
    },
    /// It was undone, and the task runs on.
    #[error("task {task} runs on: {why}")]
    Undone {
        /// The task.
        task: TaskId,
        /// The failure.
        why: String,
    },
    /// It is undone once the driver answers again.
    #[error("task {task}: {why}; what was begun is undone as soon as the driver answers")]
    Unfinished {
        /// The task.
        task: TaskId,
        /// The failure.
        why: String,
    },
    /// The driver lost the task's GPU memory.
    #[error("task {task} was ended: {why}")]
    Lost {
        /// The task.
        task: TaskId,
        /// The driver's report.
        why: String,
    },
}

impl SuspendError {
    /// A hint for the user.
    #[must_use]
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotHere(_) => Some("cantle ps lists the tasks of this machine"),
            Self::Budget { .. } => Some("resume or stop another suspended task, or raise --parked-memory"),
            Self::Refused { .. } => Some("docs/guide/suspend.md lists what the driver can suspend"),
            Self::Undone { .. } => Some("a lock waits for the work in flight; --timeout gives it longer"),
            _ => None,
        }
    }

    /// The exit code that belongs to it.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NotHere(_) => 3,
            Self::Size { .. } | Self::NoRoom { .. } | Self::Budget { .. } | Self::HostMemory { .. } => 6,
            Self::Unfinished { .. } => 7,
            Self::Lost { .. } => 1,
            Self::Ambiguous { .. } => 2,
            Self::Refused { .. } | Self::Already(_) | Self::NotSuspended(_) | Self::Undone { .. } => 8,
        }
    }
}
