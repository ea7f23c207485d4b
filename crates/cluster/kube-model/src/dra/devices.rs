//! The devices of a node, as a cluster's scheduler sees them.
//!
//! A GPU is one device, which many claims share or one claim has entirely (a whole GPU). Where it serves MIG instances,
//! every placement of an instance is a device too. All of these draw on the same counters, one per unit of the GPU, so the
//! scheduler itself prevents overlaps. Other GPUs have no counters: up to 1.36 the scheduler's cost with counters grows with
//! the square of the number of nodes (ADR 0010). The scheduler takes the first device that fits, so their order is the
//! packing policy: shares and whole GPUs from the first one on, MIG instances from the last one, an instance where it blocks
//! the fewest others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cantle_decide::Offer;
use cantle_mig::Table;
use cantle_model::{GpuUuid, PciePath, Topology};

use crate::Version;
use crate::names::{FOREIGN_PART, KIND_MIG, KIND_SHARED};

/// The slice that a claim on a device gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Memory of it: some, or all and so the GPU alone.
    Shared,
    /// A MIG instance.
    Mig {
        /// Name of its profile.
        profile: String,
        /// Its first unit.
        start: u32,
    },
}

impl DeviceKind {
    /// As in the attribute `kind`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Shared => KIND_SHARED,
            Self::Mig { .. } => KIND_MIG,
        }
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDevice {
    /// Unique on the node.
    pub name: String,
    /// The GPU that it is part of.
    pub gpu: GpuUuid,
    /// Index of that GPU.
    pub index: u32,
    /// Model of that GPU.
    pub model: String,
    /// The slice that a claim gets.
    pub kind: DeviceKind,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Its use of the GPU's counters, if the GPU has any.
    pub takes: BTreeMap<String, u32>,
    /// The GPU does not answer: no new pod may come here.
    pub lost: bool,
    /// Processes outside of slices hold much of the GPU's memory: no new pod may come here.
    pub foreign: bool,
    /// The groups of that GPU.
    pub connected: ConnectedGroups,
}

/// The GPUs of its node that a GPU is well connected with: each group has the index of its first GPU as its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectedGroups {
    /// Those that NVLink joins, directly or over others.
    pub nvlink: Option<u32>,
    /// Those of the same NUMA node.
    pub numa: Option<u32>,
}

/// Counters of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Name of the set.
    pub name: String,
    /// Name and value of each.
    pub values: BTreeMap<String, u32>,
}

/// All devices of a node in the order in which they are to be taken, and the counters they draw on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// A set for each GPU that is more than one device.
    pub counters: Vec<Counters>,
    /// The devices.
    pub devices: Vec<NodeDevice>,
}

impl Inventory {
    /// Of these GPUs, as far as the scheduler of this version can keep devices apart.
    pub fn of(offers: &[Offer], version: Version) -> Self {
        let mut counters = Vec::new();
        let mut shared = Vec::new();
        let mut last_first = Vec::new();
        // Where taints cannot mark a lost GPU, its devices are not published.
        for offer in offers.iter().filter(|offer| !offer.closed || version >= Version::TAINTS) {
            let kinds = PublishedKinds::of(offer, version);
            if kinds.shared {
                shared.push(shared_gpu(offer));
            }
            if let (Some(table), true) = (&offer.table, kinds.mig) {
                counters.push(counters_of(offer, table));
                last_first.push(partitions(offer, table));
            }
        }
        let devices = shared.into_iter().chain(last_first.into_iter().rev().flatten()).collect();
        Self { counters, devices }
    }

    /// The same, with the connections of the GPUs.
    #[must_use]
    pub fn connected(mut self, topology: &Topology) -> Self {
        let nvlink = topology.groups(|link| link.nvlinks > 0);
        let numa = topology.groups(|link| link.path.is_some_and(|path| path < PciePath::Sys));
        let index: BTreeMap<&GpuUuid, u32> =
            self.devices.iter().map(|device| (&device.gpu, device.index)).collect();
        let group = |groups: &[(GpuUuid, usize)], gpu: &GpuUuid| {
            let (_, at) = groups.iter().find(|(of, _)| of == gpu)?;
            let of_group = groups.iter().filter(|(_, of)| of == at).filter_map(|(gpu, _)| index.get(gpu));
            of_group.min().copied()
        };
        let found = |device: &NodeDevice| ConnectedGroups {
            nvlink: group(&nvlink, &device.gpu),
            numa: group(&numa, &device.gpu),
        };
        let all: Vec<ConnectedGroups> = self.devices.iter().map(found).collect();
        for (device, connected) in self.devices.iter_mut().zip(all) {
            device.connected = connected;
        }
        self
    }

    /// The devices without those of lost GPUs, and without other taints.
    pub fn without_taints(&self) -> Self {
        let working = self.devices.iter().filter(|device| !device.lost);
        let devices: Vec<NodeDevice> =
            working.map(|device| NodeDevice { foreign: false, ..device.clone() }).collect();
        let is_used = |set: &&Counters| devices.iter().any(|device| gpu_name(device.index) == set.name);
        Self { counters: self.counters.iter().filter(is_used).cloned().collect(), devices }
    }

    /// The counters that this device draws on.
    pub fn counters_of(&self, device: &NodeDevice) -> Option<&Counters> {
        self.counters.iter().find(|set| set.name == gpu_name(device.index))
    }

    /// The device of that name.
    pub fn find(&self, name: &str) -> Option<&NodeDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}

/// The kinds of device as which a GPU is published.
struct PublishedKinds {
    shared: bool,
    mig: bool,
}

impl PublishedKinds {
    fn of(offer: &Offer, version: Version) -> Self {
        let in_mig = offer.gpu.mig;
        if version < Version::MIXED {
            // The scheduler may allocate two devices of one GPU that exclude each other, so there is only one kind.
            return Self { shared: !in_mig, mig: in_mig };
        }
        Self { shared: !in_mig || offer.switches, mig: in_mig || offer.switches }
    }
}

/// Name of a GPU's counters; that of its devices begins so.
fn gpu_name(index: u32) -> String {
    format!("gpu-{index}")
}

fn unit(at: u32) -> String {
    format!("unit-{at}")
}

/// The counter of a profile of which a GPU can have fewer instances than there are places for.
fn limit_of(table: &Table, at: usize) -> Option<(String, u32)> {
    let profile = &table.profiles[at];
    let mut starts = profile.starts.clone();
    starts.sort_unstable();
    let (mut fit, mut free) = (0, 0);
    for start in starts {
        if start >= free {
            fit += 1;
            free = start + profile.size;
        }
    }
    (profile.max_instances < fit).then(|| (label(&profile.name), profile.max_instances))
}

/// A profile's name where neither dots nor `+` may be.
fn label(profile: &str) -> String {
    profile.replace(['.', '+'], "-")
}

fn counters_of(offer: &Offer, table: &Table) -> Counters {
    let mut values: BTreeMap<String, u32> = (0..table.units).map(|at| (unit(at), 1)).collect();
    values.extend((0..table.profiles.len()).filter_map(|at| limit_of(table, at)));
    Counters { name: gpu_name(offer.gpu.index), values }
}

fn shared_gpu(offer: &Offer) -> NodeDevice {
    let units = offer.table.as_ref().map_or(0, |table| table.units);
    NodeDevice {
        name: format!("{}-shared", gpu_name(offer.gpu.index)),
        gpu: offer.gpu.uuid.clone(),
        index: offer.gpu.index,
        model: offer.gpu.model.clone(),
        kind: DeviceKind::Shared,
        memory_bytes: offer.gpu.memory_bytes,
        takes: (0..units).map(|at| (unit(at), 1)).collect(),
        lost: offer.closed,
        foreign: is_foreign(offer),
        connected: ConnectedGroups::default(),
    }
}

/// Do processes outside of slices hold so much of the GPU's memory that new pods go elsewhere?
pub(crate) const fn is_foreign(offer: &Offer) -> bool {
    offer.foreign_bytes > offer.gpu.memory_bytes / FOREIGN_PART
}

/// Every place of every profile, those first that leave the most to others.
fn partitions(offer: &Offer, table: &Table) -> Vec<NodeDevice> {
    let places = || {
        let of = |at: usize| table.profiles[at].starts.iter().map(move |start| (at, *start));
        (0..table.profiles.len()).flat_map(of)
    };
    let mut all: Vec<(usize, u32)> = places().collect();
    let blocked = |(at, start): (usize, u32)| {
        let taken = table.units_at(at, start);
        places().filter(|&(at, start)| table.units_at(at, start) & taken != 0).count()
    };
    all.sort_by_key(|&place| (blocked(place), Reverse(place.1)));
    all.into_iter().map(|(at, start)| partition(offer, table, at, start)).collect()
}

fn partition(offer: &Offer, table: &Table, at: usize, start: u32) -> NodeDevice {
    let profile = &table.profiles[at];
    let mut takes: BTreeMap<String, u32> = (start..start + profile.size).map(|at| (unit(at), 1)).collect();
    takes.extend(limit_of(table, at).map(|(name, _)| (name, 1)));
    NodeDevice {
        name: format!("{}-mig-{}-{start}", gpu_name(offer.gpu.index), label(&profile.name)),
        gpu: offer.gpu.uuid.clone(),
        index: offer.gpu.index,
        model: offer.gpu.model.clone(),
        kind: DeviceKind::Mig { profile: profile.name.clone(), start },
        memory_bytes: profile.memory_bytes,
        takes,
        lost: offer.closed,
        foreign: is_foreign(offer),
        connected: ConnectedGroups::default(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use cantle_mig::Profile;
    use cantle_model::Gpu;

    use super::*;

    fn profile(name: &str, compute_slices: u32, size: u32, starts: &[u32], max_instances: u32) -> Profile {
        let (name, starts) = (name.to_owned(), starts.to_vec());
        Profile {
            name,
            id: 0,
            compute_slices,
            size,
            starts,
            max_instances,
            engines: cantle_mig::Engines::default(),
            memory_bytes: u64::from(size) * (10 << 30),
        }
    }

    pub(crate) fn offers(count: u32, mig: bool, switches: bool) -> Vec<Offer> {
        let table = Table {
            units: 8,
            fixed: false,
            profiles: vec![
                profile("1g.10gb", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
                profile("1g.10gb+me", 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
                profile("3g.40gb", 3, 4, &[0, 4], 2),
                profile("7g.80gb", 7, 8, &[0], 1),
            ],
        };
        let offer = |index: u32| {
            let (uuid, model) = (GpuUuid(format!("GPU-{index}")), "H100".to_owned());
            let table = mig.then(|| Arc::new(table.clone()));
            Offer { table, switches, ..Offer::new(Gpu { uuid, index, model, memory_bytes: 80 << 30, mig }) }
        };
        (0..count).map(offer).collect()
    }

    fn names(inventory: &Inventory) -> Vec<&str> {
        inventory.devices.iter().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn shares_from_the_first_gpu_and_instances_from_the_last() {
        let names: Vec<String> = Inventory::of(&offers(2, true, true), Version::MIXED)
            .devices
            .into_iter()
            .map(|device| device.name)
            .collect();
        assert_eq!(names[..2], ["gpu-0-shared", "gpu-1-shared"]);
        let first_of_gpu_0 = names.iter().position(|name| name.starts_with("gpu-0-mig")).unwrap();
        assert!(names[2..first_of_gpu_0].iter().all(|name| name.starts_with("gpu-1-mig")));
    }

    /// Counters of one node are work for the scheduler on every other node.
    #[test]
    fn a_gpu_that_is_one_device_has_no_counters() {
        let mut offers = offers(2, true, true);
        offers[0].table = None;
        let inventory = Inventory::of(&offers, Version::MIXED);
        assert_eq!(inventory.counters.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["gpu-1"]);
        assert_eq!(inventory.counters_of(&inventory.devices[0]), None);
        assert!(inventory.counters_of(&inventory.devices[1]).is_some());
    }

    #[test]
    fn a_lost_gpu_stays_where_a_taint_can_say_so() {
        let mut offers = offers(2, false, false);
        offers[0].closed = true;
        let inventory = Inventory::of(&offers, Version::MIXED);
        assert_eq!(names(&inventory), ["gpu-0-shared", "gpu-1-shared"]);
        assert_eq!(inventory.devices.iter().map(|device| device.lost).collect::<Vec<_>>(), [true, false]);
        assert_eq!(names(&inventory.without_taints()), ["gpu-1-shared"]);
        assert_eq!(names(&Inventory::of(&offers, Version::FLOOR)), ["gpu-1-shared"]);
    }

    #[test]
    fn a_gpu_with_much_foreign_use_is_marked() {
        let mut offers = offers(3, false, false);
        let part = offers[0].gpu.memory_bytes / FOREIGN_PART;
        (offers[0].foreign_bytes, offers[1].foreign_bytes) = (part + 1, part);
        let inventory = Inventory::of(&offers, Version::MIXED);
        let marked: Vec<bool> = inventory.devices.iter().map(|device| device.foreign).collect();
        assert_eq!(marked, [true, false, false], "a display server is no reason");
        let plain = inventory.without_taints();
        assert!(plain.devices.len() == 3 && !plain.devices.iter().any(|device| device.foreign));
    }

    #[test]
    fn an_instance_goes_where_it_blocks_the_fewest_others() {
        let inventory = Inventory::of(&offers(1, true, true), Version::MIXED);
        let small: Vec<&str> =
            names(&inventory).into_iter().filter(|name| name.contains("1g-10gb-me")).collect();
        assert_eq!(small[0], "gpu-0-mig-1g-10gb-me-6");
        assert_eq!(inventory.devices.len(), 1 + 7 + 7 + 2 + 1);
        let unique: std::collections::BTreeSet<&str> = names(&inventory).into_iter().collect();
        assert_eq!(unique.len(), inventory.devices.len());
    }

    /// Any two devices that the scheduler can allocate together can exist together on the hardware.
    #[test]
    fn what_excludes_each_other_draws_on_one_counter() {
        let inventory = Inventory::of(&offers(1, true, true), Version::MIXED);
        let fits = |names: &[&str]| {
            inventory.counters[0].values.iter().all(|(counter, value)| {
                let devices = names.iter().map(|name| inventory.find(name).unwrap());
                devices.map(|device| device.takes.get(counter).copied().unwrap_or(0)).sum::<u32>() <= *value
            })
        };
        assert!(fits(&["gpu-0-mig-3g-40gb-0", "gpu-0-mig-3g-40gb-4"]));
        assert!(fits(&["gpu-0-mig-1g-10gb-0", "gpu-0-mig-1g-10gb-me-1", "gpu-0-mig-3g-40gb-4"]));
        assert!(!fits(&["gpu-0-mig-1g-10gb-5", "gpu-0-mig-3g-40gb-4"]));
        assert!(
            !fits(&["gpu-0-mig-1g-10gb-me-0", "gpu-0-mig-1g-10gb-me-1"]),
            "one with media engines per GPU"
        );
        assert!(!fits(&["gpu-0-shared", "gpu-0-mig-1g-10gb-6"]));
    }

    #[test]
    fn a_gpu_that_needs_a_reset_is_one_kind_or_the_other() {
        let mig = Inventory::of(&offers(1, true, false), Version::MIXED);
        assert!(mig.devices.iter().all(|device| matches!(device.kind, DeviceKind::Mig { .. })));
        let old = Version { major: 1, minor: 36, patch: 1 };
        assert_eq!(names(&Inventory::of(&offers(2, false, false), old)), ["gpu-0-shared", "gpu-1-shared"]);
        assert!(Inventory::of(&offers(1, true, true), old).devices.iter().all(|d| d.kind.word() == KIND_MIG));
    }
}
