//! The compute units of tasks with a strict share on GPUs without a filter: a mask of units is all that there is. No two such tasks on a GPU
//! have a unit in common. Tasks without a share compute on all units.

use std::collections::BTreeSet;

use cantle_driver::Driver;
use cantle_model::{ComputeMode, ComputeShare, Lease, Milli};

use crate::NodeError;
use crate::store::NodeStore;

/// Selects the units of a lease with a strict share, and notes them in it.
///
/// # Errors
/// If there is no mask that keeps this share, or not enough units are left.
pub(crate) fn select(
    (driver, node): (&dyn Driver, &NodeStore),
    lease: &mut Lease,
    share: ComputeShare,
) -> Result<(), NodeError> {
    let Some(gpu) = lease.slices.first().map(|slice| slice.gpu.clone()) else { return Ok(()) };
    let total = driver.compute_units(&gpu)?;
    if share.mode != ComputeMode::Strict || total == 0 {
        return Err(NodeError::NoFilter(format!("--compute {}", share.mode)));
    }
    let locked = node.lock()?;
    let others = locked.leases()?.into_iter().chain(node.neighbors()).filter(|other| other.id != lease.id);
    let on_it = others.filter(|other| other.slices.iter().any(|slice| slice.gpu == gpu));
    let taken = on_it.flat_map(|other| other.compute_units).flat_map(|(first, last)| first..=last).collect();
    lease.compute_units =
        free_ranges(total, &taken, share.request_milli).ok_or(NodeError::NoComputeUnits { gpu })?;
    locked.put(lease)
}

/// This part of all units, but at least one, of those that are not taken; `None` if there are fewer.
fn free_ranges(total: u32, taken: &BTreeSet<u32>, part: Milli) -> Option<Vec<(u32, u32)>> {
    let wanted = usize::try_from((u64::from(total) * u64::from(part.0) / 1000).max(1)).ok()?;
    let units: Vec<u32> = (0..total).filter(|unit| !taken.contains(unit)).take(wanted).collect();
    if units.len() < wanted {
        return None;
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for unit in units {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == unit => *last = unit,
            _ => ranges.push((unit, unit)),
        }
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_no_unit_in_common() {
        let taken = |ranges: &[(u32, u32)]| ranges.iter().flat_map(|(first, last)| *first..=*last).collect();
        assert_eq!(free_ranges(304, &taken(&[]), Milli(500)), Some(vec![(0, 151)]));
        assert_eq!(free_ranges(304, &taken(&[(0, 151)]), Milli(500)), Some(vec![(152, 303)]));
        // The first has ended.
        assert_eq!(free_ranges(304, &taken(&[(76, 151)]), Milli(500)), Some(vec![(0, 75), (152, 227)]));
        assert_eq!(free_ranges(304, &taken(&[(0, 151)]), Milli(501)), Some(vec![(152, 303)]), "152.3 units");
        assert_eq!(free_ranges(304, &taken(&[(0, 152)]), Milli(500)), None);
        assert_eq!(free_ranges(304, &taken(&[]), Milli(1)), Some(vec![(0, 0)]));
    }
}
