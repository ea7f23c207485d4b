//! The processor time and main memory of a task, and its part of a node's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Milli, Slice};

/// The least processor time that the kernel can limit to: 1 ms of each 100 ms.
const LEAST_CPU_MILLI: u64 = 10;

/// The most processor time and main memory that a task may use. Zero: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLimit {
    /// Thousandths of a CPU core.
    pub cpu_milli: u64,
    /// Main memory in bytes.
    pub memory_bytes: u64,
}

impl HostLimit {
    /// The part that slices have of a node with this much and this many GPUs: as large as their part of its GPUs, and never more than all
    /// of it.
    #[must_use]
    pub fn part(self, milli: u64, gpus: usize) -> Self {
        let all = 1000 * u64::try_from(gpus.max(1)).unwrap_or(u64::MAX);
        let milli = milli.min(all);
        let of = |amount: u64| {
            u64::try_from(u128::from(amount) * u128::from(milli) / u128::from(all)).unwrap_or(amount)
        };
        Self { cpu_milli: of(self.cpu_milli).max(LEAST_CPU_MILLI), memory_bytes: of(self.memory_bytes) }
    }

    /// The GPUs of slices, in thousandths.
    #[must_use]
    pub fn milli_of(slices: &[Slice]) -> u64 {
        slices.iter().map(|slice| u64::from(slice.milli.0)).sum()
    }
}

/// As a message names it: `1.5 CPU, 16 GiB`.
impl fmt::Display for HostLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = u32::try_from(self.cpu_milli).unwrap_or(u32::MAX);
        write!(f, "{} CPU, {}", Milli(cpu), Bytes(self.memory_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: HostLimit = HostLimit { cpu_milli: 64_000, memory_bytes: 256 << 30 };

    #[test]
    fn a_slice_has_its_part_and_never_more_than_the_node() {
        let quarter = HostLimit { cpu_milli: 2_000, memory_bytes: 8 << 30 };
        assert_eq!(NODE.part(250, 8), quarter);
        assert_eq!(NODE.part(8_000, 8), NODE);
        assert_eq!(NODE.part(9_000, 8), NODE);
        assert_eq!(NODE.part(1, 8).cpu_milli, LEAST_CPU_MILLI);
        assert_eq!(NODE.part(1000, 0), NODE, "no division by zero");
        assert_eq!(quarter.to_string(), "2 CPU, 8 GiB");
    }

    #[test]
    fn the_parts_of_a_full_node_are_no_more_than_the_node() {
        for (milli, gpus) in [(333, 1), (125, 3), (7, 1)] {
            let count = 1000 * gpus as u64 / milli;
            let part = HostLimit { cpu_milli: 7_000, memory_bytes: 1_000_003 }.part(milli, gpus);
            assert!(part.cpu_milli * count <= 7_000 && part.memory_bytes * count <= 1_000_003, "{milli}");
        }
    }
}
