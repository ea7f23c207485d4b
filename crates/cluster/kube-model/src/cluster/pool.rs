//! Reads a node's GPUs from its devices, which [`crate::dra`] publishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_decide::Offer;
use cantle_mig::{Profile, Table};
use cantle_model::{Bytes, Gpu, GpuRequest, GpuUuid, MigInstance, Milli, Slice};
use k8s_openapi::api::resource::v1::{Device, DeviceRequestAllocationResult, ResourceSlice};

use super::ViewGpu;
use crate::dra::bytes;
use crate::names::{KIND_MIG, KIND_SHARED, TAINT_FOREIGN, TAINT_LOST};

/// Counters of a unit of a GPU begin so.
const UNIT: &str = "unit-";

/// The devices of one node.
#[derive(Default)]
pub(super) struct NodeDevices {
    gpus: BTreeMap<u32, Draft>,
    devices: BTreeMap<String, Part>,
}

/// A GPU, as far as its devices describe it.
#[derive(Default)]
struct Draft {
    uuid: String,
    model: String,
    memory_bytes: u64,
    shares: bool,
    /// It takes no new pod.
    is_shut: bool,
    units: u32,
    profiles: BTreeMap<String, Profile>,
}

/// The kind of a device.
struct Part {
    index: u32,
    /// The instance, and its memory.
    mig: Option<(MigInstance, u64)>,
}

impl NodeDevices {
    /// Of the slices of one node; while they change those of the newest generation count.
    pub(super) fn of(slices: &[&ResourceSlice]) -> Self {
        let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
        let slices = || slices.iter().filter(|slice| Some(slice.spec.pool.generation) == newest);
        let mut sets: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
        for set in slices().flat_map(|slice| &slice.spec.shared_counters).flatten() {
            let counters =
                set.counters.iter().map(|(name, counter)| (name.as_str(), number(&counter.value.0)));
            sets.insert(&set.name, counters.collect());
        }
        let mut pool = Self::default();
        for device in slices().flat_map(|slice| &slice.spec.devices).flatten() {
            pool.add(device, &sets);
        }
        pool
    }

    fn add(&mut self, device: &Device, sets: &BTreeMap<&str, BTreeMap<&str, u32>>) {
        let Some(index) = int(device, "index") else { return };
        let memory = device.capacity.as_ref().and_then(|all| all.get("memory"));
        let memory_bytes = memory.and_then(|memory| bytes(&memory.value)).unwrap_or(0);
        let draft = self.gpus.entry(index).or_default();
        draft.uuid = text(device, "uuid").to_owned();
        draft.model = text(device, "model").to_owned();
        let kind = text(device, "kind");
        let is_shut = |key: &str| matches!(key, TAINT_LOST | TAINT_FOREIGN);
        draft.is_shut |= device.taints.iter().flatten().any(|taint| is_shut(&taint.key));
        let mut part = Part { index, mig: None };
        match kind {
            KIND_SHARED => {
                draft.shares = true;
                draft.memory_bytes = memory_bytes;
            }
            KIND_MIG => {
                let Some(start) = int(device, "start") else { return };
                let size = draft.add_instance(device, start, memory_bytes, sets);
                let profile = text(device, "profile").to_owned();
                part.mig = Some((MigInstance { profile, start, size, uuid: String::new() }, memory_bytes));
            }
            _ => return,
        }
        self.devices.insert(device.name.clone(), part);
    }

    /// In the order of their indices.
    pub(super) fn gpus(&self) -> Vec<ViewGpu> {
        self.gpus.iter().map(|(index, draft)| draft.view(*index)).collect()
    }

    /// The slices of a claim; none if this node has no such device now.
    pub(super) fn slice(&self, result: &DeviceRequestAllocationResult) -> Option<Slice> {
        let part = self.devices.get(&result.device)?;
        let draft = &self.gpus[&part.index];
        let gpu = GpuUuid(draft.uuid.clone());
        if let Some((mig, memory_limit_bytes)) = &part.mig {
            let milli = Milli((mig.size * Milli::ONE.0).div_ceil(draft.units.max(1)));
            let memory_limit_bytes = *memory_limit_bytes;
            return Some(Slice { gpu, milli, memory_limit_bytes, mig: Some(mig.clone()) });
        }
        let consumed = result.consumed_capacity.as_ref().and_then(|all| all.get("memory"));
        let share = GpuRequest::Memory(Bytes(consumed.and_then(bytes)?)).share_of(draft.memory_bytes)?;
        Some(Slice { gpu, milli: share.milli, memory_limit_bytes: share.memory_limit_bytes, mig: None })
    }
}

impl Draft {
    /// Notes a place of a profile; returns how many units it takes.
    fn add_instance(
        &mut self,
        device: &Device,
        start: u32,
        memory_bytes: u64,
        sets: &BTreeMap<&str, BTreeMap<&str, u32>>,
    ) -> u32 {
        let takes = device.consumes_counters.iter().flatten().next();
        let set = takes.and_then(|takes| sets.get(takes.counter_set.as_str()));
        let counters = || takes.into_iter().flat_map(|takes| takes.counters.keys());
        let is_unit = |name: &str| name.starts_with(UNIT);
        let size = u32::try_from(counters().filter(|name| is_unit(name)).count()).unwrap_or(1).max(1);
        let units = set.map_or(0, |set| set.keys().filter(|name| is_unit(name)).count());
        self.units = self.units.max(u32::try_from(units).unwrap_or(0)).max(start + size);
        // A profile of which there may be fewer than there are places has a counter of its own.
        let limit = counters().find(|name| !is_unit(name)).and_then(|name| set?.get(name.as_str()));
        let name = text(device, "profile").to_owned();
        let id = u32::try_from(self.profiles.len()).unwrap_or(u32::MAX);
        let compute = name.split_once("g.").and_then(|(compute, _)| compute.parse().ok());
        let profile = self.profiles.entry(name.clone()).or_insert_with(|| Profile {
            name,
            id,
            compute_slices: compute.unwrap_or(1),
            size,
            starts: Vec::new(),
            max_instances: limit.copied().unwrap_or(u32::MAX),
            engines: cantle_mig::Engines::default(),
            memory_bytes,
        });
        profile.starts.push(start);
        profile.starts.sort_unstable();
        size
    }

    fn view(&self, index: u32) -> ViewGpu {
        let profiles: Vec<Profile> = self.profiles.values().cloned().collect();
        let largest = profiles.iter().map(|profile| profile.memory_bytes).max().unwrap_or(0);
        let table = Table { units: self.units, profiles, fixed: false };
        let gpu = Gpu {
            uuid: GpuUuid(self.uuid.clone()),
            index,
            model: self.model.clone(),
            memory_bytes: if self.shares { self.memory_bytes } else { largest },
            mig: !self.shares,
        };
        let table = (!self.profiles.is_empty()).then(|| Arc::new(table));
        // A GPU that has devices of both kinds switches between them automatically.
        let switches = self.shares && table.is_some();
        let offer = Offer { table, switches, closed: self.is_shut, ..Offer::new(gpu) };
        ViewGpu { offer, by_plugin: false }
    }
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or(0)
}

fn text<'a>(device: &'a Device, name: &str) -> &'a str {
    let attribute = device.attributes.as_ref().and_then(|all| all.get(name));
    attribute.and_then(|attribute| attribute.string.as_deref()).unwrap_or_default()
}

fn int(device: &Device, name: &str) -> Option<u32> {
    u32::try_from(device.attributes.as_ref()?.get(name)?.int?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dra::node_slices;

    fn read(slices: &[ResourceSlice]) -> NodeDevices {
        NodeDevices::of(&slices.iter().collect::<Vec<_>>())
    }

    fn result(device: &str, memory: Option<&str>) -> DeviceRequestAllocationResult {
        let consumed = memory.map(|memory| json!({"memory": memory}));
        let result = json!({
            "device": device, "driver": "gpu.cantle.dev", "pool": "n", "request": "gpu", "consumedCapacity": consumed,
        });
        serde_json::from_value(result).unwrap()
    }

    #[test]
    fn what_was_published_is_read_back() {
        let pool = read(&node_slices("n", 2, false, false));
        let gpus = pool.gpus();
        assert_eq!(gpus.len(), 2);
        assert!(
            gpus.iter().all(|gpu| gpu.offer.has_shares() && gpu.offer.table.is_none() && !gpu.offer.gpu.mig)
        );
        let total = gpus[0].offer.gpu.memory_bytes;
        let half = pool.slice(&result("gpu-0-shared", Some(&(total / 2).to_string()))).unwrap();
        assert_eq!((half.milli, &half.gpu), (Milli(500), &gpus[0].offer.gpu.uuid));
        let all = pool.slice(&result("gpu-1-shared", Some(&total.to_string()))).unwrap();
        assert_eq!((all.milli, all.memory_limit_bytes), (Milli::ONE, total));
        assert_eq!(pool.slice(&result("gpu-7-shared", Some("1Gi"))), None);
    }

    #[test]
    fn mig_tables_are_read_back_from_devices() {
        for switches in [false, true] {
            let pool = read(&node_slices("n", 1, true, switches));
            let gpus = pool.gpus();
            let table = gpus[0].offer.table.as_ref().unwrap();
            assert_eq!((gpus[0].offer.has_shares(), table.units), (switches, 8));
            let small = table.profiles.iter().find(|profile| profile.name == "1g.10gb").unwrap();
            assert_eq!((small.size, small.starts.len()), (1, 7));
            let slice = pool.slice(&result("gpu-0-mig-3g-40gb-4", None)).unwrap();
            assert_eq!((slice.milli, slice.mig.unwrap().start), (Milli(500), 4), "counted by memory slices");
        }
    }
}
