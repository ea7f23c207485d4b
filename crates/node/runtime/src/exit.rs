use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use cantle_model::Bytes;
use serde::{Deserialize, Serialize};

/// The exit code after the kernel's SIGKILL.
const KILLED: i32 = 137;

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// Its container failed with this code, and the kernel had killed a process of it for want of main memory.
    OutOfMemory {
        /// The container's exit code.
        code: i32,
        /// The container's memory limit, if it has one.
        limit_bytes: Option<u64>,
    },
    /// SIGKILL ended its container, which has this memory limit. Docker overlooks some of the kernel's kills, so this may be one.
    PerhapsOutOfMemory {
        /// The container's memory limit.
        limit_bytes: u64,
    },
    /// It is gone, and its end was not observed: its supervisor was killed.
    Lost,
}

impl Exit {
    /// The end of a container with this exit code; `limit_bytes` is its memory limit, and `out_of_memory` the engine's word on
    /// whether the kernel has killed one of its processes.
    pub(crate) const fn of_container(code: i32, limit_bytes: Option<u64>, out_of_memory: bool) -> Self {
        match (code, limit_bytes) {
            // A helper of the program may have been killed, and the program went on without it.
            (0, _) => Self::Code(0),
            (code, limit_bytes) if out_of_memory => Self::OutOfMemory { code, limit_bytes },
            (KILLED, Some(limit_bytes)) => Self::PerhapsOutOfMemory { limit_bytes },
            (code, _) => Self::Code(code),
        }
    }

    /// Of a child of this process.
    pub(crate) fn of_status(status: ExitStatus) -> Self {
        status.code().map(Self::Code).or_else(|| status.signal().map(Self::Signal)).unwrap_or(Self::Lost)
    }

    /// As a shell reports it: the code, 128+N for a signal; 125 if unknown.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Code(code) | Self::OutOfMemory { code, .. } => code,
            Self::Signal(signal) => 128 + signal,
            Self::PerhapsOutOfMemory { .. } => KILLED,
            Self::Lost => 125,
        }
    }

    /// The reason that the exit code does not contain, as one line.
    #[must_use]
    pub fn reason(self) -> Option<String> {
        match self {
            Self::OutOfMemory { code, limit_bytes: Some(limit) } => Some(format!(
                "out of memory: a process was killed at the container's limit of {} of main memory (exit code {code})",
                Bytes(limit)
            )),
            Self::OutOfMemory { code, limit_bytes: None } => Some(format!(
                "out of memory: a process was killed, as the machine had no main memory left (exit code {code})"
            )),
            Self::PerhapsOutOfMemory { limit_bytes } => Some(format!(
                "worker execution exit code {KILLED} (killed, perhaps at the container's limit of {} of main memory)",
                Bytes(limit_bytes)
            )),
            Self::Lost => Some(
                "its supervisor was killed, or the machine restarted: nobody saw how it ended".to_owned(),
            ),
            Self::Code(_) | Self::Signal(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_the_memory_limit_only_where_it_has_a_part() {
        let limit = Some(64 << 20);
        let reason = |code, limit, out_of_memory| Exit::of_container(code, limit, out_of_memory).reason();
        let killed = "out of memory: a process was killed at the container's limit of 64 MiB of main memory (exit code 137)";
        assert_eq!(reason(137, limit, true).as_deref(), Some(killed));
        let helper = "out of memory: a process was killed at the container's limit of 64 MiB of main memory (exit code 3)";
        assert_eq!(reason(3, limit, true).as_deref(), Some(helper));
        let machine =
            "out of memory: a process was killed, as the machine had no main memory left (exit code 137)";
        assert_eq!(reason(137, None, true).as_deref(), Some(machine));
        let perhaps = "worker execution exit code 137 (killed, perhaps at the container's limit of 64 MiB of main memory)";
        assert_eq!(reason(137, limit, false).as_deref(), Some(perhaps));
        for (code, limit, out_of_memory) in [(0, limit, true), (3, limit, false), (137, None, false)] {
            assert_eq!(Exit::of_container(code, limit, out_of_memory), Exit::Code(code));
        }
    }
}
