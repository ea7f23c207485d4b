//! The processors and main memory of this node, and the part of them that slices have.

use std::fs;
use std::num::NonZero;

use cantle_driver::{Driver, DriverError};
use cantle_model::{Bytes, HostLimit, Slice};

/// The processors and main memory of this node, and how many GPUs share them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeHost {
    /// All of it; no main memory if the kernel does not report it.
    pub all: HostLimit,
    /// The GPUs of the node, whether this agent serves them or not.
    pub gpus: usize,
}

impl NodeHost {
    /// That of this machine. The processors are those that this process may use.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn read(driver: &dyn Driver) -> Result<Self, DriverError> {
        let gpus = driver.gpus()?.len() + driver.lost_gpus().len();
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let cpu_milli = 1000 * u64::try_from(cpus).unwrap_or(1);
        let memory_bytes = main_memory("MemTotal").unwrap_or(0);
        Ok(Self { all: HostLimit { cpu_milli, memory_bytes }, gpus })
    }

    /// The part of slices of so much of a GPU, in thousandths over all their GPUs, or this much memory if it is not zero.
    #[must_use]
    pub fn part(&self, milli: u64, memory_bytes: u64) -> HostLimit {
        let part = self.all.part(milli, self.gpus);
        if memory_bytes > 0 { HostLimit { memory_bytes, ..part } } else { part }
    }

    /// Why a task with these slices cannot have this part; `None` if it can.
    #[must_use]
    pub fn refuses(&self, slices: &[Slice], part: HostLimit) -> Option<String> {
        if slices.is_empty() {
            return Some(
                "cpu auto is a part of the node as large as that of its GPUs, and the task has no GPU"
                    .to_owned(),
            );
        }
        let (wanted, all) = (Bytes(part.memory_bytes), Bytes(self.all.memory_bytes));
        (wanted > all).then(|| format!("memory {wanted} is more than this node has, which is {all}"))
    }
}

/// A field of `/proc/meminfo` in bytes; `None` if the kernel does not report it.
pub(crate) fn main_memory(field: &str) -> Option<u64> {
    bytes_of(&fs::read_to_string("/proc/meminfo").ok()?, field)
}

fn bytes_of(meminfo: &str, field: &str) -> Option<u64> {
    let amount = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    amount.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use cantle_model::Milli;

    use super::*;

    #[test]
    fn the_memory_that_a_task_names_replaces_that_of_its_part() {
        let memory_bytes = bytes_of("MemFree: 1 kB\nMemTotal: 65536 kB\n", "MemTotal").unwrap();
        let all = HostLimit { cpu_milli: 8_000, memory_bytes };
        let node = NodeHost { all, gpus: 2 };
        assert_eq!(node.part(500, 0), HostLimit { cpu_milli: 2_000, memory_bytes: 16 << 20 });
        assert_eq!(node.part(500, 1 << 20), HostLimit { cpu_milli: 2_000, memory_bytes: 1 << 20 });
        let slice = Slice { gpu: "GPU-a".into(), milli: Milli(500), memory_limit_bytes: 1, mig: None };
        assert_eq!(node.refuses(std::slice::from_ref(&slice), node.part(500, 64 << 20)), None);
        let refused = node.refuses(&[slice], node.part(500, 65 << 20)).unwrap();
        assert_eq!(refused, "memory 65 MiB is more than this node has, which is 64 MiB");
        assert!(node.refuses(&[], node.part(0, 0)).unwrap().contains("has no GPU"));
    }
}
