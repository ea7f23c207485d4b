//! A cut: the part of one GPU that a task takes, as a share or as an instance on a GPU in MIG mode.

use cantle_mig::{GpuGeometry, Planner};
use cantle_model::{Milli, Share};

use crate::{GpuFree, NodeFree, Obstacle, Shape};

/// The part that is taken of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    /// Its count: for an instance the part of the memory slices that it holds.
    pub milli: Milli,
    /// Memory in bytes.
    pub memory_limit_bytes: u64,
    /// The instance, on a GPU in MIG mode.
    pub mig: Option<InstanceCut>,
}

/// A MIG instance to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceCut {
    /// Position of its profile in the GPU's table.
    pub profile: usize,
    /// First unit of its place; none while any place will do.
    pub start: Option<u32>,
}

impl From<Share> for Cut {
    fn from(share: Share) -> Self {
        Self { milli: share.milli, memory_limit_bytes: share.memory_limit_bytes, mig: None }
    }
}

impl Cut {
    /// The same at a place.
    #[must_use]
    pub fn at(self, start: u32) -> Self {
        Self { mig: self.mig.map(|instance| InstanceCut { start: Some(start), ..instance }), ..self }
    }

    /// The same wherever there is room.
    #[must_use]
    pub fn anywhere(self) -> Self {
        Self { mig: self.mig.map(|instance| InstanceCut { start: None, ..instance }), ..self }
    }
}

impl GpuFree {
    /// Is there room for `cut`?
    #[must_use]
    pub fn fits(&self, cut: Cut) -> bool {
        match (&self.mig, cut.mig) {
            (None, None) => self.usable && cut.milli.0 <= self.milli && cut.memory_limit_bytes <= self.bytes,
            (Some(geometry), Some(instance)) => {
                self.usable && geometry.has_place(instance.profile, instance.start)
            }
            _ => false,
        }
    }

    /// `cut` at each of its places, the highest first; on a shared GPU as it is.
    pub(crate) fn places(&self, cut: Cut) -> Vec<Cut> {
        let (Some(geometry), Some(instance)) = (&self.mig, cut.mig) else { return vec![cut] };
        geometry.table.profiles[instance.profile].starts.iter().rev().map(|start| cut.at(*start)).collect()
    }

    /// `cut` at the best place of this GPU; `None` if it does not fit.
    pub(crate) fn placed(&self, cut: Cut, planner: &Planner) -> Option<Cut> {
        if !self.fits(cut) {
            return None;
        }
        let (Some(geometry), Some(instance)) = (&self.mig, cut.mig) else { return Some(cut) };
        let name = &geometry.table.profiles[instance.profile].name;
        let decision = planner.decide(std::slice::from_ref(geometry), name)?;
        Some(cut.at(decision.start))
    }

    /// The obstacle to an instance that is not too large.
    pub(crate) fn obstacle_to(&self, cut: Cut) -> Option<Obstacle> {
        let (geometry, instance) = (self.mig.as_ref()?, cut.mig?);
        let name = geometry.table.profiles[instance.profile].name.clone();
        Some(if geometry.has_engines(instance.profile) {
            Obstacle::Place(name)
        } else {
            Obstacle::Engines(name)
        })
    }

    /// Takes a cut. An excess (foreign use may grow under a slice) leaves zero free.
    pub(crate) fn take(&mut self, cut: Cut, total_bytes: u64) {
        self.milli = self.milli.saturating_sub(cut.milli.0);
        self.bytes = self.bytes.saturating_sub(cut.memory_limit_bytes);
        if let (Some(geometry), Some(InstanceCut { profile, start: Some(start) })) = (&mut self.mig, cut.mig)
        {
            geometry.occupy(profile, start);
        }
        self.measure(total_bytes);
    }

    /// Gives a taken cut back.
    pub(crate) fn give_back(&mut self, cut: Cut, total_bytes: u64) {
        self.put_back(cut);
        self.measure(total_bytes);
    }

    /// The same, without measuring again: enough to learn what fits.
    pub(crate) fn put_back(&mut self, cut: Cut) {
        self.milli = self.milli.saturating_add(cut.milli.0);
        self.bytes = self.bytes.saturating_add(cut.memory_limit_bytes);
        if let (Some(geometry), Some(InstanceCut { profile, start: Some(start) })) = (&mut self.mig, cut.mig)
        {
            geometry.release(profile, start);
        }
    }

    /// The place that the fewest units in use keep `cut` from.
    pub(crate) fn nearest(&self, cut: Cut) -> Cut {
        let (Some(geometry), Some(instance)) = (&self.mig, cut.mig) else { return cut };
        let wanted = &geometry.table.profiles[instance.profile];
        let busy = geometry.busy_units();
        let in_the_way = |start| (geometry.table.units_at(instance.profile, start) & busy).count_ones();
        let nearest = wanted.starts.iter().min_by_key(|start| (in_the_way(**start), u32::MAX - **start));
        nearest.map_or(cut, |start| cut.at(*start))
    }
}

/// Do these two instances on a GPU like `gpu` need the same units, or count towards the same greatest number?
pub(crate) fn rivals(gpu: &GpuFree, one: Cut, other: Cut) -> bool {
    let (Some(geometry), Some(one), Some(other)) = (&gpu.mig, one.mig, other.mig) else { return false };
    let units = |cut: InstanceCut| cut.start.map_or(0, |start| geometry.table.units_at(cut.profile, start));
    let crowded = |cut: InstanceCut| {
        let same = geometry.instances.iter().filter(|known| known.busy && known.profile == cut.profile);
        same.count() >= geometry.table.profiles[cut.profile].max_instances as usize
    };
    units(one) & units(other) != 0 || one.profile == other.profile && crowded(one)
}

/// The placements of instances for `shape` on a node: at most one per GPU and `most` of each profile, the best places
/// first. Room is measured over the whole node (see [`Planner`]).
pub(crate) fn instances(node: &NodeFree, shape: &Shape, most: usize) -> Vec<(usize, Cut)> {
    let wanted = |at: usize| {
        let gpu = &node.gpus[at];
        let cut = shape.share(gpu.class).filter(|cut| cut.mig.is_some() && gpu.usable)?;
        Some((gpu.mig.as_ref()?, cut))
    };
    let mut names: Vec<&str> = (0..node.gpus.len())
        .filter_map(wanted)
        .filter_map(|(geometry, cut)| Some(geometry.table.profiles[cut.mig?.profile].name.as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    let mut found = Vec::new();
    for name in names {
        let mut at: Vec<usize> = (0..node.gpus.len()).filter(|at| wanted(*at).is_some()).collect();
        let mut left: Vec<GpuGeometry> = at.iter().filter_map(|at| node.gpus[*at].mig.clone()).collect();
        for _ in 0..most {
            let Some(decision) = node.planner.decide(&left, name) else { break };
            left.remove(decision.gpu);
            let gpu = at.remove(decision.gpu);
            found.extend(shape.share(node.gpus[gpu].class).map(|cut| (gpu, cut.at(decision.start))));
        }
    }
    found
}
