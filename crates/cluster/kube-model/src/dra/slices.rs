//! Builds ResourceSlices from an inventory: counters in slices of their own, devices in their order in the others.

use std::collections::BTreeMap;

use cantle_model::{GRANULE_BYTES, whole_granules};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device, DeviceAttribute,
    DeviceCapacity, DeviceCounterConsumption, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::devices::{Counters, DeviceKind, Inventory, NodeDevice};
use crate::names::{
    COMPUTE_MARKER, DRIVER, NUMA_GROUP, NVLINK_GROUP, TAINT_FOREIGN, TAINT_LOST, size_marker,
};
use crate::object::node_owner;

/// The API server takes no more devices that draw on counters, or have taints, in one slice.
const DEVICES_MAX: usize = 64;
/// Nor more sets of counters.
const COUNTER_SETS_MAX: usize = 8;

/// The contents of one slice: devices, or the counters that they draw on.
type Part = (Option<Vec<Device>>, Option<Vec<CounterSet>>);

/// The slices of a node, all of generation 0: the publisher numbers them.
pub fn slices(inventory: &Inventory, node: &Node) -> Vec<ResourceSlice> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let counters = inventory.counters.chunks(COUNTER_SETS_MAX);
    let counters = counters.map(|sets| (None, Some(sets.iter().map(counter_set).collect())));
    let devices = inventory
        .devices
        .chunks(DEVICES_MAX)
        .map(|devices| (Some(devices.iter().map(|device| published(inventory, device)).collect()), None));
    let parts: Vec<Part> = counters.chain(devices).collect();
    let count = i64::try_from(parts.len()).unwrap_or(i64::MAX);
    let slice = |(at, (devices, shared_counters))| ResourceSlice {
        metadata: ObjectMeta {
            // The scheduler goes through a pool in the order of names.
            name: Some(format!("{name}-{DRIVER}-{at:02}")),
            owner_references: Some(vec![node_owner(node)]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            node_name: Some(name.clone()),
            pool: ResourcePool { name: name.clone(), generation: 0, resource_slice_count: count },
            devices,
            shared_counters,
            ..ResourceSliceSpec::default()
        },
    };
    parts.into_iter().enumerate().map(slice).collect()
}

fn counter_set(counters: &Counters) -> CounterSet {
    CounterSet { name: counters.name.clone(), counters: amounts(&counters.values) }
}

fn amounts(values: &BTreeMap<String, u32>) -> BTreeMap<String, Counter> {
    let counter = |value: &u32| Counter { value: Quantity(value.to_string()) };
    values.iter().map(|(name, value)| (name.clone(), counter(value))).collect()
}

fn published(inventory: &Inventory, device: &NodeDevice) -> Device {
    let text = |text: &str| DeviceAttribute { string: Some(text.to_owned()), ..DeviceAttribute::default() };
    let number = |int: u32| DeviceAttribute { int: Some(int.into()), ..DeviceAttribute::default() };
    let mut attributes = BTreeMap::from([
        ("kind".to_owned(), text(device.kind.word())),
        ("uuid".to_owned(), text(&device.gpu.0)),
        ("index".to_owned(), number(device.index)),
        ("model".to_owned(), text(&device.model)),
    ]);
    if let DeviceKind::Mig { profile, start } = &device.kind {
        attributes.insert("profile".to_owned(), text(profile));
        attributes.insert("start".to_owned(), number(*start));
    }
    let groups = [(NVLINK_GROUP, device.connected.nvlink), (NUMA_GROUP, device.connected.numa)];
    attributes.extend(groups.into_iter().filter_map(|(name, group)| Some((name.to_owned(), number(group?)))));
    let shared = device.kind == DeviceKind::Shared;
    let consumes = inventory.counters_of(device).map(|set| {
        vec![DeviceCounterConsumption { counter_set: set.name.clone(), counters: amounts(&device.takes) }]
    });
    Device {
        name: device.name.clone(),
        attributes: Some(attributes),
        capacity: Some(capacity(device.memory_bytes, shared)),
        allow_multiple_allocations: shared.then_some(true),
        consumes_counters: consumes,
        taints: taints(device),
        ..Device::default()
    }
}

/// No new pod comes here. Pods that run already stay: only its owner knows whether a pod can continue without its GPU, and a
/// driver that does not answer for a moment must not end a day's work.
fn taints(device: &NodeDevice) -> Option<Vec<DeviceTaint>> {
    let all = [(device.lost, TAINT_LOST), (device.foreign, TAINT_FOREIGN)];
    let taint = |key: &str| DeviceTaint {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..DeviceTaint::default()
    };
    let taints: Vec<DeviceTaint> = all.into_iter().filter(|(is, _)| *is).map(|(_, key)| taint(key)).collect();
    (!taints.is_empty()).then_some(taints)
}

fn capacity(bytes: u64, shared: bool) -> BTreeMap<String, DeviceCapacity> {
    let mut all = BTreeMap::from([("memory".to_owned(), memory(bytes, shared))]);
    if shared {
        all.insert(size_marker(whole_granules(bytes) >> 20), marker());
        all.insert(COMPUTE_MARKER.to_owned(), marker());
    }
    all
}

/// All can have it, and nothing of it is used up.
fn marker() -> DeviceCapacity {
    let amount = |amount: &str| Quantity(amount.to_owned());
    let range = CapacityRequestPolicyRange { min: amount("0"), max: Some(amount("1")), step: None };
    let policy = CapacityRequestPolicy {
        default: Some(amount("0")),
        valid_range: Some(range),
        ..CapacityRequestPolicy::default()
    };
    DeviceCapacity { value: amount("1"), request_policy: Some(policy) }
}

/// Memory in MiB; that of a shared device is allocated in granules.
fn memory(bytes: u64, shared: bool) -> DeviceCapacity {
    let mebi = |bytes: u64| Quantity(format!("{}Mi", bytes >> 20));
    if !shared {
        return DeviceCapacity { value: mebi(bytes), request_policy: None };
    }
    let whole = whole_granules(bytes);
    let range = CapacityRequestPolicyRange {
        min: mebi(GRANULE_BYTES),
        max: Some(mebi(whole)),
        step: Some(mebi(GRANULE_BYTES)),
    };
    let policy = CapacityRequestPolicy {
        default: Some(mebi(whole)),
        valid_range: Some(range),
        ..CapacityRequestPolicy::default()
    };
    DeviceCapacity { value: mebi(whole), request_policy: Some(policy) }
}

#[cfg(test)]
pub(crate) mod tests {
    use cantle_model::{GpuLink, PciePath, Topology};

    use super::super::devices::tests::offers;
    use super::*;
    use crate::Version;

    fn of(gpus: u32, mig: bool) -> Vec<ResourceSlice> {
        let metadata = ObjectMeta { name: Some("n1".into()), uid: Some("u".into()), ..ObjectMeta::default() };
        slices(
            &Inventory::of(&offers(gpus, mig, true), Version::MIXED),
            &Node { metadata, ..Node::default() },
        )
    }

    /// The slices that a node publishes.
    pub(crate) fn node_slices(node: &str, gpus: u32, mig: bool, switches: bool) -> Vec<ResourceSlice> {
        let metadata = ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() };
        slices(
            &Inventory::of(&offers(gpus, mig, switches), Version::MIXED),
            &Node { metadata, ..Node::default() },
        )
    }

    #[test]
    fn no_slice_is_larger_than_the_api_server_takes() {
        let slices = of(16, true);
        assert!(slices.iter().all(|slice| slice.spec.devices.as_ref().is_none_or(|all| all.len() <= 64)));
        let sets = |slice: &ResourceSlice| slice.spec.shared_counters.as_ref().map_or(0, Vec::len);
        assert_eq!(slices.iter().map(sets).collect::<Vec<_>>()[..3], [8, 8, 0]);
        let count = i64::try_from(slices.len()).unwrap();
        assert!(slices.iter().all(|slice| slice.spec.pool.resource_slice_count == count));
        let mut names: Vec<_> = slices.iter().filter_map(|slice| slice.metadata.name.clone()).collect();
        let published = names.clone();
        names.sort();
        assert_eq!(names, published, "the order of names is that of the devices");
    }

    /// An older scheduler gets only devices that it can distinguish, in a format that it can read.
    #[test]
    fn older_versions_are_shown_one_kind_of_device() {
        let kinds = |version: &str, mig: bool| {
            let version: Version = version.parse().unwrap();
            let slices = slices(&Inventory::of(&offers(2, mig, true), version), &Node::default());
            let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
            let kind = |device: &Device| device.attributes.as_ref()?.get("kind")?.string.clone();
            let kinds: std::collections::BTreeSet<String> = devices.filter_map(kind).collect();
            let counted = slices.iter().any(|slice| slice.spec.shared_counters.is_some());
            (kinds.into_iter().collect::<Vec<_>>().join(" "), counted)
        };
        for (version, mig, shown, counted) in [
            ("v1.35.0", false, "shared", false),
            ("v1.36.1", false, "shared", false),
            ("v1.35.0", true, "mig", true),
            ("v1.36.1", true, "mig", true),
            ("v1.36.2", true, "mig shared", true),
            ("v1.36.2", false, "shared", false),
        ] {
            assert_eq!(kinds(version, mig), (shown.to_owned(), counted), "{version} mig={mig}");
        }
    }

    #[test]
    fn taints_say_why_no_pod_comes() {
        let mut offers = offers(4, false, false);
        (offers[0].closed, offers[2].closed) = (true, true);
        (offers[1].foreign_bytes, offers[2].foreign_bytes) = (40 << 30, 40 << 30);
        let slices = slices(&Inventory::of(&offers, Version::MIXED), &Node::default());
        let keys = |device: &Device| {
            let taints = device.taints.iter().flatten();
            taints.map(|taint| (taint.key.clone(), taint.effect.clone())).collect::<Vec<_>>()
        };
        let all: Vec<_> =
            slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).map(keys).collect();
        let taint = |key: &str| (key.to_owned(), "NoSchedule".to_owned());
        let (lost, foreign) = (taint(TAINT_LOST), taint(TAINT_FOREIGN));
        assert_eq!(all, [vec![lost.clone()], vec![foreign.clone()], vec![lost, foreign], vec![]]);
    }

    #[test]
    fn devices_name_the_groups_of_their_gpus() {
        let offers = offers(4, false, false);
        let uuids: Vec<_> = offers.iter().map(|offer| offer.gpu.uuid.clone()).collect();
        let link = |one: usize, other: usize| {
            let path = if one / 2 == other / 2 { PciePath::Node } else { PciePath::Sys };
            GpuLink { nvlinks: u32::from((one, other) == (1, 3)), path: Some(path) }
        };
        let inventory = Inventory::of(&offers, Version::MIXED).connected(&Topology::new(uuids, link));
        let slices = slices(&inventory, &Node::default());
        let group = |device: &Device, name: &str| device.attributes.as_ref()?.get(name)?.int;
        let devices = slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        let groups: Vec<_> =
            devices.map(|device| (group(device, NVLINK_GROUP), group(device, NUMA_GROUP))).collect();
        assert_eq!(groups, [(None, Some(0)), (Some(1), Some(0)), (None, Some(2)), (Some(1), Some(2))]);
    }

    #[test]
    fn an_odd_mebibyte_is_given_to_nobody() {
        let capacity = memory(81_559 << 20, true);
        assert_eq!(capacity.value.0, "81558Mi");
        assert_eq!(capacity.request_policy.unwrap().default.unwrap().0, "81558Mi");
        assert_eq!(memory(81_559 << 20, false).value.0, "81559Mi");
    }
}
