//! Decides which GPUs may have slices, and when to reserve one more GPU or to return one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cantle_decide::Offer;
use cantle_model::{Gpu, GpuUuid, Slice};

use crate::classic::choose::choose;
use crate::classic::record::{NodeRecord, OfferedGpu, PlacedPod, PluginHolder, Reservation};
use crate::names::{GPU_RESOURCE, RESERVATION_NAMESPACE};
use crate::slice_name::SliceName;

/// A GPU that was reserved for a pod which did not come after all is given back then. Longer than the scheduler takes to try
/// again.
const UNUSED_MS: i64 = 60_000;
/// How long a pod that has failed stays: one that fails at once must not be created again without end.
const FAILED_MS: i64 = 5_000;

/// The result of a request for a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The pod has its place.
    Here,
    /// It can have one when the requested GPUs are available.
    Asked,
}

/// A reservation's pod, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenPod {
    /// It takes no GPU any more.
    pub ended: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// When it was made, in milliseconds since 1970.
    pub made_ms: i64,
}

/// The actions on pods, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationActions {
    /// And how many devices they take.
    pub create: Vec<(String, u32)>,
    /// Those that go.
    pub delete: Vec<String>,
}

/// A device of the other plugin that a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDevice {
    /// Its id.
    pub id: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
}

/// The resource of NVIDIA's device plugin.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// The ids of all.
    pub all: Vec<String>,
    /// Those that pods have.
    pub held: Vec<HeldDevice>,
}

/// Is this device of the other plugin (a part of) this GPU? With time-slicing a GPU has several ids: its UUID, `::`, and a number.
fn is_of(id: &str, gpu: &Gpu) -> bool {
    id.split_once("::").map_or(id, |(uuid, _)| uuid) == gpu.uuid.0
}

/// The holder of this GPU, where the other plugin allocates `devices`.
pub fn holder(gpu: &Gpu, devices: &Devices) -> PluginHolder {
    let held: Vec<&HeldDevice> = devices.held.iter().filter(|held| is_of(&held.id, gpu)).collect();
    let known = devices.all.iter().chain(held.iter().map(|held| &held.id));
    let ids: BTreeSet<&String> = known.filter(|id| is_of(id, gpu)).collect();
    let pods: BTreeSet<PluginHolder> =
        held.iter().map(|held| PluginHolder::Pod(format!("{}/{}", held.namespace, held.pod))).collect();
    if ids.is_empty() {
        return PluginHolder::Barred(format!(
            "NVIDIA's device plugin does not give it out as {GPU_RESOURCE}"
        ));
    }
    // Of several a stranger, if there is any.
    match pods.iter().min_by_key(|pod| pod.is_reservation()) {
        None => PluginHolder::Nobody,
        Some(pod) if pod.is_reservation() && (pods.len() > 1 || held.len() < ids.len()) => {
            // The plugin's configuration has changed, for one.
            PluginHolder::Barred(format!("{} of its {} replicas are reserved", held.len(), ids.len()))
        }
        Some(pod) => pod.clone(),
    }
}

/// The number of devices of the node's GPUs, where the other plugin allocates each GPU several times and this one is
/// among them.
pub fn together(gpu: &Gpu, devices: &Devices) -> Option<u32> {
    let is_shared = devices.all.iter().any(|id| id.contains("::"));
    let is_given = devices.all.iter().any(|id| is_of(id, gpu));
    (is_shared && is_given).then(|| u32::try_from(devices.all.len()).unwrap_or(u32::MAX))
}

/// The offers, with nothing left of the GPUs that pods other than cantle's keep it from.
pub fn left_by_others(offers: Vec<Offer>, devices: &Devices) -> Vec<Offer> {
    let is_left = |gpu: &Gpu| {
        let holder = holder(gpu, devices);
        holder == PluginHolder::Nobody || holder.is_reservation()
    };
    let is_together = |gpu: &Gpu| together(gpu, devices).is_some();
    let is_torn = offers.iter().any(|offer| is_together(&offer.gpu) && !is_left(&offer.gpu));
    let left = |offer: Offer| {
        let can_be_had = is_left(&offer.gpu) && !(is_torn && is_together(&offer.gpu));
        if can_be_had { offer } else { offer.exhausted() }
    };
    offers.into_iter().map(left).collect()
}

/// The name of a reservation's pod as the kubelet reports it.
fn full(name: &str) -> String {
    format!("{RESERVATION_NAMESPACE}/{name}")
}

impl NodeRecord {
    /// With those GPUs only that may have slices now.
    fn held(&self) -> Self {
        self.only(|offered| offered.holder.is_none() || self.is_reserved(offered))
    }

    /// With those that can have slices, now or once they are reserved.
    fn reachable(&self) -> Self {
        let is_torn = self.is_torn();
        self.only(|of| self.can_be_had(of) && !(is_torn && of.together.is_some()))
    }

    fn can_be_had(&self, of: &OfferedGpu) -> bool {
        matches!(of.holder, None | Some(PluginHolder::Nobody)) || self.is_reserved(of)
    }

    /// Does another pod hold a part of the devices that can be requested only together?
    pub fn is_torn(&self) -> bool {
        self.gpus.iter().any(|of| of.together.is_some() && !self.can_be_had(of))
    }

    fn only(&self, keep: impl Fn(&OfferedGpu) -> bool) -> Self {
        let gpus = self.gpus.iter().filter(|offered| keep(offered)).cloned().collect();
        Self { gpus, ..self.clone() }
    }

    fn is_reserved(&self, offered: &OfferedGpu) -> bool {
        let mut staying = self.reservations.iter().filter(|(_, reservation)| !reservation.leaving);
        staying.any(|(name, _)| offered.holder == Some(PluginHolder::Pod(full(name))))
    }

    /// The GPUs that this reservation has.
    fn gpus_of(&self, name: &str) -> impl Iterator<Item = &GpuUuid> {
        let holder = Some(PluginHolder::Pod(full(name)));
        self.gpus.iter().filter(move |offered| offered.holder == holder).map(|offered| &offered.gpu.uuid)
    }

    /// Has this reservation got what it asked for?
    fn has_come(&self, name: &str) -> bool {
        self.gpus_of(name).next().is_some()
    }

    /// Reservations that wait for their GPUs.
    fn waiting(&self) -> usize {
        let waits = |(name, of): &(&String, &Reservation)| !of.leaving && !self.has_come(name);
        self.reservations.iter().filter(waits).count()
    }

    fn has_slices(&self, gpu: &GpuUuid) -> bool {
        self.placements.values().flat_map(|placement| &placement.slices).any(|slice| slice.gpu == *gpu)
    }

    /// Slices on a GPU that other pods could take: its reservation was deleted, or failed.
    fn is_exposed(&self) -> bool {
        let exposed =
            |of: &OfferedGpu| of.holder == Some(PluginHolder::Nobody) && self.has_slices(&of.gpu.uuid);
        self.gpus.iter().any(exposed)
    }

    /// All devices of the node, where only all of them can be requested.
    fn together(&self) -> Option<u32> {
        self.gpus.iter().find_map(|offered| offered.together)
    }

    /// One more: the first name that is free.
    fn reserve(&mut self, now_ms: i64) {
        let names = (0_u32..).map(|at| format!("gpu-{at}.{}", self.node));
        if let Some(name) = names.into_iter().find(|name| !self.reservations.contains_key(name)) {
            self.reservations.insert(name, Reservation { asked_ms: now_ms, used: false, leaving: false });
        }
    }

    /// Why GPUs are out of reach, after why the others will not do.
    fn explained(&self, mut why: String) -> String {
        for OfferedGpu { gpu, holder, .. } in self.gpus.iter().filter(|offered| !self.is_reserved(offered)) {
            match holder {
                Some(PluginHolder::Barred(barred)) => why += &format!("; GPU {}: {barred}", gpu.index),
                Some(PluginHolder::Pod(_)) => {
                    why += &format!("; GPU {} is another pod's {GPU_RESOURCE}", gpu.index)
                }
                Some(PluginHolder::Nobody) | None => {}
            }
        }
        if let Some(devices) = self.together().filter(|_| self.is_torn()) {
            why += &format!(
                "; NVIDIA's device plugin shares the GPUs of this node (time-slicing): cantle can have all {devices} replicas or none"
            );
        }
        why
    }
}

/// Can the pod be placed on this node, now or when a GPU has been reserved for it?
///
/// # Errors
/// Says why not.
pub fn has_room(record: &NodeRecord, slice_name: &SliceName, uid: &str) -> Result<(), String> {
    choose(&[&record.reachable()], slice_name, uid).map(drop).map_err(|why| record.explained(why))
}

/// The node where the pod fits best: one where no GPU has to be reserved for it, if there is any. Empty if there is no room.
pub fn best(records: &[NodeRecord], slice_name: &SliceName, uid: &str) -> String {
    let best = |of: fn(&NodeRecord) -> NodeRecord| {
        let records: Vec<NodeRecord> = records.iter().map(of).collect();
        choose(&records.iter().collect::<Vec<_>>(), slice_name, uid)
    };
    best(NodeRecord::held).or_else(|_| best(NodeRecord::reachable)).map(|(node, _)| node).unwrap_or_default()
}

/// Gives the pod its place, or requests as many GPUs as it lacks.
///
/// # Errors
/// Says why there is no room.
pub fn place(
    record: &mut NodeRecord,
    uid: &str,
    pod: &str,
    slice_name: &SliceName,
    now_ms: i64,
) -> Result<Placed, String> {
    if record.placements.contains_key(uid) {
        return Ok(Placed::Here);
    }
    let held = record.held();
    if let Ok((_, slices)) = choose(&[&held], slice_name, uid) {
        mark_used(record, &slices);
        let placement =
            PlacedPod { pod: pod.to_owned(), slice_name: slice_name.to_string(), slices, placed_ms: now_ms };
        record.placements.insert(uid.to_owned(), placement);
        return Ok(Placed::Here);
    }
    let (_, slices) = choose(&[&record.reachable()], slice_name, uid).map_err(|why| record.explained(why))?;
    let is_held = |slice: &&Slice| held.gpus.iter().any(|offered| offered.gpu.uuid == slice.gpu);
    let lacking = slices.len() - slices.iter().filter(is_held).count();
    let lacking = if record.together().is_some() { lacking.min(1) } else { lacking };
    for _ in record.waiting()..lacking {
        record.reserve(now_ms);
    }
    Ok(Placed::Asked)
}

fn mark_used(record: &mut NodeRecord, slices: &[Slice]) {
    let names: Vec<String> = record.reservations.keys().cloned().collect();
    for name in names {
        let is_taken = record.gpus_of(&name).any(|gpu| slices.iter().any(|slice| slice.gpu == *gpu));
        if let Some(reservation) = record.reservations.get_mut(&name) {
            reservation.used |= is_taken;
        }
    }
}

/// Updates a node's reservations, and returns the actions on their pods. An action that was not carried out is found again
/// the next time.
pub fn settle(record: &mut NodeRecord, pods: &BTreeMap<String, SeenPod>, now_ms: i64) -> ReservationActions {
    let is_over = |(name, of): &(&String, &Reservation)| {
        of.leaving && !pods.contains_key(*name) && !record.has_come(name)
    };
    let over: Vec<String> =
        record.reservations.iter().filter(is_over).map(|(name, _)| name.clone()).collect();
    for name in over {
        record.reservations.remove(&name);
    }
    if record.is_exposed() {
        // The kubelet decides which GPU a new pod gets, so none is returned until it is this one.
        if record.waiting() == 0 {
            record.reserve(now_ms);
        }
    } else {
        give_back(record, now_ms);
    }
    let staying = |name: &String| record.reservations.get(name).is_some_and(|of| !of.leaving);
    let has_failed = |pod: &SeenPod| pod.ended && now_ms - pod.made_ms > FAILED_MS;
    let delete = pods.iter().filter(|(name, pod)| !pod.deleting && (!staying(name) || has_failed(pod)));
    let create = record.reservations.keys().filter(|name| staying(name) && !pods.contains_key(*name));
    let devices = record.together().unwrap_or(1);
    let create = create.map(|name| (name.clone(), devices)).collect();
    ReservationActions { create, delete: delete.map(|(name, _)| name.clone()).collect() }
}

fn give_back(record: &mut NodeRecord, now_ms: i64) {
    let is_idle = |(name, of): &(&String, &Reservation)| {
        let has_slices = record.gpus_of(name).any(|gpu| record.has_slices(gpu));
        !has_slices && (of.used || now_ms - of.asked_ms > UNUSED_MS)
    };
    let idle: Vec<String> =
        record.reservations.iter().filter(is_idle).map(|(name, _)| name.clone()).collect();
    for name in idle {
        if let Some(reservation) = record.reservations.get_mut(&name) {
            reservation.leaving = true;
        }
    }
}
