//! Combines NVML's lists of processes.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;

use super::{NO_INSTANCE, VALUE_NOT_AVAILABLE};
use crate::ProcessMemory;

/// One figure for each process (in a GPU instance). Several copies of the driver in one process have a row each in one list: they add
/// up. A process that is in several lists has the same figure in each: it counts once.
pub(super) fn by_process(lists: impl Iterator<Item = Vec<nvmlProcessInfo_t>>) -> Vec<ProcessMemory> {
    let mut most: BTreeMap<(u32, Option<u32>), Option<u64>> = BTreeMap::new();
    for list in lists {
        let mut sums: BTreeMap<(u32, Option<u32>), Option<u64>> = BTreeMap::new();
        for info in list {
            let used_bytes = Some(info.usedGpuMemory).filter(|bytes| *bytes != VALUE_NOT_AVAILABLE);
            let instance = Some(info.gpuInstanceId).filter(|id| *id != NO_INSTANCE);
            let sum = sums.entry((info.pid, instance)).or_default();
            *sum = match (*sum, used_bytes) {
                (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
                (known, None) | (None, known) => known,
            };
        }
        for (process, sum) in sums {
            let known = most.entry(process).or_default();
            *known = (*known).max(sum);
        }
    }
    let process = |((pid, instance), used_bytes)| ProcessMemory { pid, used_bytes, instance };
    most.into_iter().map(process).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_list_add_up_and_lists_do_not() {
        let row = |pid, used, instance| nvmlProcessInfo_t {
            pid,
            usedGpuMemory: used,
            gpuInstanceId: instance,
            computeInstanceId: NO_INSTANCE,
        };
        let of = |lists: Vec<Vec<nvmlProcessInfo_t>>| -> Vec<_> {
            let found = by_process(lists.into_iter()).into_iter();
            found.map(|process| (process.pid, process.used_bytes, process.instance)).collect()
        };
        let none = NO_INSTANCE;
        let compute = vec![row(7, 9, none), row(8, 5, none), row(7, 10, none)];
        assert_eq!(of(vec![compute.clone(), vec![]]), [(7, Some(19), None), (8, Some(5), None)]);
        assert_eq!(
            of(vec![compute, vec![row(7, 19, none), row(9, 1, none)]]),
            [(7, Some(19), None), (8, Some(5), None), (9, Some(1), None)]
        );
        let unknown = row(7, VALUE_NOT_AVAILABLE, none);
        assert_eq!(of(vec![vec![unknown]]), [(7, None, None)]);
        assert_eq!(of(vec![vec![unknown, row(7, 3, none)], vec![unknown]]), [(7, Some(3), None)]);
        assert_eq!(
            of(vec![vec![row(7, 3, 1), row(7, 4, 2)]]),
            [(7, Some(3), Some(1)), (7, Some(4), Some(2))]
        );
        assert_eq!(of(vec![vec![row(7, u64::MAX - 1, none), row(7, 4, none)]]), [(7, Some(u64::MAX), None)]);
    }
}
