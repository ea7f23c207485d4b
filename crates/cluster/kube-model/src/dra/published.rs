//! Compares a node's ResourceSlices on the API server with the ones that were sent.

use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};

use crate::{DroppedError, ObjectExt as _, Version};

/// Do the existing slices, of this generation, equal the wanted ones?
#[must_use]
pub fn is_as_wanted(there: &[ResourceSlice], wanted: &[ResourceSlice], generation: i64) -> bool {
    let same = |slice: &ResourceSlice| {
        wanted.iter().any(|wanted| {
            let mut spec = wanted.spec.clone();
            spec.pool.generation = generation;
            wanted.name_any() == slice.name_any()
                && spec.into_canonical() == slice.spec.clone().into_canonical()
                && wanted.owner_references() == slice.owner_references()
        })
    };
    there.len() == wanted.len() && there.iter().all(same)
}

/// The API server writes quantities its own way, `40960Mi` comes back as `40Gi`, and when a taint came.
trait Canonical {
    fn into_canonical(self) -> Self;
}

impl Canonical for ResourceSliceSpec {
    fn into_canonical(mut self) -> Self {
        for taint in self.devices.iter_mut().flatten().filter_map(|device| device.taints.as_mut()).flatten() {
            // The API server's, as everything that was not sent.
            taint.time_added = None;
        }
        let devices = self.devices.iter_mut().flatten();
        for capacity in devices.filter_map(|device| device.capacity.as_mut()).flat_map(|c| c.values_mut()) {
            let policy = capacity.request_policy.as_mut();
            let range = policy.map(|policy| (policy.default.as_mut(), policy.valid_range.as_mut()));
            let (default, range) = range.unwrap_or_default();
            let range = range.into_iter().flat_map(|range| {
                [Some(&mut range.min), range.max.as_mut(), range.step.as_mut()].into_iter().flatten()
            });
            for quantity in [&mut capacity.value].into_iter().chain(default).chain(range) {
                if let Some(bytes) = super::bytes(quantity) {
                    quantity.0 = bytes.to_string();
                }
            }
        }
        self
    }
}

fn tainted(spec: &ResourceSliceSpec) -> usize {
    spec.devices.iter().flatten().filter(|device| device.taints.is_some()).count()
}

/// An API server may keep no taints of devices.
///
/// # Errors
/// [`DroppedError`] if it has dropped one.
pub fn refuse_dropped_taints(
    sent: &ResourceSliceSpec,
    stored: &ResourceSliceSpec,
) -> Result<(), DroppedError> {
    if tainted(stored) == tainted(sent) {
        return Ok(());
    }
    Err(DroppedError { gate: "DRADeviceTaints", since: Version::TAINTS })
}

/// An API server whose feature gates are off drops fields, and the scheduler would allocate whole GPUs as shares.
///
/// # Errors
/// [`DroppedError`] if it has dropped shares or counters.
pub fn refuse_dropped(sent: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> Result<(), DroppedError> {
    let of = |spec: &ResourceSliceSpec| {
        let devices = spec.devices.iter().flatten();
        let shared = devices.clone().filter(|device| device.allow_multiple_allocations == Some(true)).count();
        let counted = devices.filter(|device| device.consumes_counters.is_some()).count();
        (shared, counted, spec.shared_counters.as_ref().map_or(0, Vec::len))
    };
    let ((shared, counted, sets), kept) = (of(sent), of(stored));
    if kept.0 != shared {
        return Err(DroppedError { gate: "DRAConsumableCapacity", since: Version::MIXED });
    }
    if (kept.1, kept.2) != (counted, sets) {
        return Err(DroppedError { gate: "DRAPartitionableDevices", since: Version::MIXED });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::devices::tests::offers;
    use k8s_openapi::api::core::v1::Node;

    use super::super::devices::Inventory;
    use super::super::slices::slices;
    use super::*;

    fn wanted() -> Vec<ResourceSlice> {
        slices(&Inventory::of(&offers(1, true, true), Version::MIXED), &Node::default())
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let mut there = wanted();
        for slice in &mut there {
            slice.spec.pool.generation = 7;
            for device in slice.spec.devices.iter_mut().flatten() {
                for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
                    capacity.value.0 = capacity.value.0.replace("81920Mi", "80Gi");
                }
            }
        }
        assert!(is_as_wanted(&there, &wanted(), 7));
        assert!(!is_as_wanted(&there[1..], &wanted(), 7), "one was removed");
        there[0].spec.pool.generation = 6;
        assert!(!is_as_wanted(&there, &wanted(), 7), "they belong to two generations");
    }

    #[test]
    fn gates_that_are_off_are_noticed() {
        let sent = wanted().remove(1).spec;
        assert!(refuse_dropped(&sent, &sent).is_ok());
        let mut stored = sent.clone();
        stored.devices.iter_mut().flatten().for_each(|device| device.allow_multiple_allocations = None);
        let said = refuse_dropped(&sent, &stored).unwrap_err().to_string();
        assert!(said.contains("DRAConsumableCapacity"), "{said}");
        let mut stored = sent.clone();
        stored.devices.iter_mut().flatten().for_each(|device| device.consumes_counters = None);
        assert!(refuse_dropped(&sent, &stored).is_err());
    }
}
