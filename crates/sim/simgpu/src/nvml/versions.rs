//! The functions that a driver of the machine's version lacks, or implements differently.

use super::{NvmlError, NvmlResult};
use crate::state::Sim;

/// The third versions of the process lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThirdLists {
    /// No such symbol: library 470; 535.98, where NVIDIA took them back (nvitop 89).
    Missing,
    /// Rows of 32 bytes, with a figure for confidential computing (nvitop 79, go-nvml 75).
    Long,
    /// Rows of 24 bytes.
    Short,
}

fn numbers(driver: &str) -> (u32, u32) {
    let mut numbers = driver.split('.').map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn third_lists_of(driver: &str) -> ThirdLists {
    match numbers(driver) {
        (branch, _) if branch < 510 => ThirdLists::Missing,
        (535, 98) => ThirdLists::Missing,
        (535, 43..=86) => ThirdLists::Long,
        _ => ThirdLists::Short,
    }
}

pub(super) fn third_lists(sim: &'static Sim) -> ThirdLists {
    third_lists_of(sim.lock().driver())
}

/// `nvmlDeviceGetGpuInstanceProfileInfoV` is not in the library of 470.
pub(super) fn needs_profile_names(sim: &'static Sim) -> NvmlResult {
    if numbers(sim.lock().driver()).0 < 510 { Err(NvmlError::FUNCTION_NOT_FOUND) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_the_version() {
        assert_eq!(third_lists_of("470.256.02"), ThirdLists::Missing);
        assert_eq!(third_lists_of("535.54.03"), ThirdLists::Long);
        assert_eq!(third_lists_of("535.98"), ThirdLists::Missing);
        assert_eq!(third_lists_of("535.104.05"), ThirdLists::Short);
        assert_eq!(third_lists_of("550.163.01"), ThirdLists::Short);
    }
}
