//! Offers: a GPU and its free capacity.

use std::sync::Arc;

use cantle_mig::{GpuGeometry, Instance, Table};
use cantle_model::{Gpu, GpuMode, Milli, Slice};
use cantle_sched::GpuState;

/// A GPU and its free capacity, as a node describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The GPU, in the mode that it is in now.
    pub gpu: Gpu,
    /// Its MIG profiles and their placements, if it is in MIG mode or can change into it; none if they are not known.
    pub table: Option<Arc<Table>>,
    /// Does it switch between shares and MIG instances automatically, when it is idle?
    pub switches: bool,
    /// MIG instances that exist and that no lease holds. Busy ones belong to other programs.
    pub instances: Vec<Instance>,
    /// Memory in bytes that is held by processes that cantle did not start.
    pub foreign_bytes: u64,
    /// Nothing new may start on it: it does not answer, its node is drained, or another program has it.
    pub closed: bool,
}

impl Offer {
    /// A GPU without foreign use, in its present mode.
    #[must_use]
    pub const fn new(gpu: Gpu) -> Self {
        Self { gpu, table: None, switches: false, instances: Vec::new(), foreign_bytes: 0, closed: false }
    }

    /// Can it be allocated in shares, or as a whole?
    #[must_use]
    pub const fn has_shares(&self) -> bool {
        !self.gpu.mig || self.switches
    }

    /// Can MIG instances of it be allocated?
    #[must_use]
    pub const fn has_instances(&self) -> bool {
        self.table.is_some() && (self.gpu.mig || self.switches)
    }

    /// The same GPU once it is in MIG mode, or out of it.
    #[must_use]
    pub fn in_mode(mut self, mig: bool) -> Self {
        self.gpu.mig = mig;
        self
    }

    /// The same GPU with nothing left of it: its present use excludes the request.
    #[must_use]
    pub fn exhausted(mut self) -> Self {
        self.foreign_bytes = self.gpu.memory_bytes;
        if let Some(table) = &self.table {
            let mut geometry = GpuGeometry { table: Arc::clone(table), instances: Vec::new() };
            for (profile, known) in table.profiles.iter().enumerate() {
                known.starts.iter().for_each(|start| geometry.occupy(profile, *start));
            }
            self.instances = geometry.instances;
        }
        self
    }

    /// The mode that its slices give it.
    #[must_use]
    pub fn mode(&self, slices: &[&Slice]) -> GpuMode {
        match slices {
            _ if !self.has_shares() || slices.iter().any(|slice| slice.mig.is_some()) => GpuMode::Mig,
            [] => GpuMode::Idle,
            [one] if one.milli == Milli::ONE => GpuMode::Whole,
            _ => GpuMode::Shared,
        }
    }

    /// Does this slice of the GPU take anything of the offer? If only some instances are offered ([`Table::fixed`]),
    /// the others do not count against it.
    #[must_use]
    pub fn counts(&self, slice: &Slice) -> bool {
        let (Some(table), Some(mig)) = (self.table.as_ref().filter(|_| self.gpu.mig), &slice.mig) else {
            return true;
        };
        let is_offered = || {
            let profile = table.profiles.iter().find(|profile| profile.name == mig.profile);
            profile.is_some_and(|profile| profile.starts.contains(&mig.start))
        };
        !table.fixed || is_offered()
    }

    /// As the scheduler counts it, in the mode that it is in.
    pub(crate) fn into_state(self) -> GpuState {
        let Self { gpu, table, instances, foreign_bytes, closed, .. } = self;
        let table = table.filter(|_| gpu.mig);
        let mut state = GpuState::new(gpu);
        state.mig = table.map(|table| GpuGeometry { table, instances });
        state.foreign_bytes = foreign_bytes;
        state.usable = !closed;
        state
    }
}
