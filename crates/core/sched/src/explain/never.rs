//! Detects requests that could never run here, and finds the largest that could.

use cantle_mig::grant;
use cantle_model::{Bytes, ComputeMode, GpuRequest, Isolation};

use crate::{Cluster, Demand, GpuDemand};

const NO_MIG: &str = "no GPU here is in MIG mode";
const ALL_MIG: &str = "its GPUs are in MIG mode, which this request cannot use";

impl Cluster {
    /// The largest amount that an idle cluster has of the resource of which `demand` requests too much, as text.
    pub(crate) fn largest(&self, demand: &Demand) -> String {
        let fits_model = |class: usize| {
            let class = &self.classes()[class];
            (demand.models.is_empty() || demand.models.contains(&class.model))
                && class.is_allowed(&demand.pools)
        };
        let eligible = |class: usize| fits_model(class) && self.classes()[class].serves(demand.isolation);
        let gpus = || self.nodes().iter().flat_map(|node| &node.gpus).map(|gpu| gpu.class);
        if !gpus().any(fits_model) {
            if demand.models.is_empty() {
                return "there is no GPU on the nodes that it may use".to_owned();
            }
            return format!("there is no GPU of model {}", demand.models.join(" or "));
        }
        let tables = || gpus().filter_map(|class| self.classes()[class].table.as_deref());
        if let GpuDemand::Part { request: request @ GpuRequest::MigProfile(_), .. } = &demand.gpus {
            let refused = tables().find_map(|table| grant(table, request).err());
            return refused.map_or_else(|| NO_MIG.to_owned(), |refused| refused.to_string());
        }
        if !gpus().any(eligible) {
            return match (demand.isolation, demand.compute) {
                (Isolation::Mig, _) => NO_MIG.to_owned(),
                (_, ComputeMode::Even) => ALL_MIG.to_owned(),
                (_, mode) => {
                    format!("its GPUs are in MIG mode, and compute {mode} is kept on GPUs without MIG only")
                }
            };
        }
        let memory = gpus().filter(|class| eligible(*class)).map(|class| self.classes()[class].most_bytes());
        match &demand.gpus {
            GpuDemand::Part { request: GpuRequest::Memory(asked), .. }
                if memory.clone().max().is_some_and(|largest| largest < asked.0) =>
            {
                format!("the largest GPU has {}", Bytes(memory.max().unwrap_or(0)))
            }
            ask if ask.devices().0 > self.most_on_a_node(&eligible) => {
                format!("the largest node has {}", GpuRequest::Gpus(self.most_on_a_node(&eligible)))
            }
            GpuDemand::Part { request, .. }
                if gpus().filter(|class| eligible(*class)).all(|class| self.has_none(class, request)) =>
            {
                let refused = tables().find_map(|table| grant(table, request).err());
                refused.map_or_else(String::new, |refused| refused.to_string())
            }
            _ => "no node with such GPUs has that much CPU and memory".to_owned(),
        }
    }

    /// Is this a kind of GPU in MIG mode that has no instance for `request`?
    fn has_none(&self, class: usize, request: &GpuRequest) -> bool {
        self.classes()[class].table.as_deref().is_some_and(|table| grant(table, request).is_err())
    }

    fn most_on_a_node(&self, eligible: &dyn Fn(usize) -> bool) -> u32 {
        let count = |node: &crate::NodeFree| node.gpus.iter().filter(|gpu| eligible(gpu.class)).count();
        u32::try_from(self.nodes().iter().map(count).max().unwrap_or(0)).unwrap_or(u32::MAX)
    }
}
