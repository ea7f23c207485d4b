//! How the GPUs of a task are connected, in one line.

use cantle_model::{Gpu, GpuLink, Milli, Slice, Topology};

use crate::shape::fabric::{MOST_GPUS, pairs, positions, subsets};

/// How the GPUs of these slices are connected: `GPUs 0 and 1: NVLink (NV12)`. For whole GPUs it also says if a better connected set of the
/// node's GPUs of this model exists: none was free then. `None` for one GPU, MIG instances, or an unknown topology. `gpus` are all
/// GPUs of the node.
#[must_use]
pub fn connection(topology: &Topology, gpus: &[Gpu], slices: &[Slice]) -> Option<String> {
    let of = |slice: &Slice| gpus.iter().find(|gpu| gpu.uuid == slice.gpu && slice.mig.is_none());
    let taken: Vec<&Gpu> = slices.iter().map(of).collect::<Option<_>>()?;
    let (worst, is_same) = worst(topology, &taken)?;
    let indices: Vec<String> = taken.iter().map(|gpu| gpu.index.to_string()).collect();
    let (last, others) = indices.split_last()?;
    let kind = if worst.nvlinks > 0 { "NVLink" } else { "PCIe" };
    let least = if is_same { "" } else { "at least " };
    let said = format!("GPUs {} and {last}: {least}{kind} ({worst})", others.join(", "));
    let is_whole = slices.iter().all(|slice| slice.milli == Milli::ONE);
    if !is_whole || !has_better(topology, gpus, &taken, worst) {
        return Some(said);
    }
    Some(match taken.len() {
        2 => format!("{said}; no better connected pair was free"),
        count => format!("{said}; no better connected {count} GPUs were free"),
    })
}

/// The worst connection among these GPUs, and whether all are as good; `None` if there is none, or one is unknown.
fn worst(topology: &Topology, gpus: &[&Gpu]) -> Option<(GpuLink, bool)> {
    let link = |(one, other): (usize, usize)| topology.link(&gpus[one].uuid, &gpus[other].uuid);
    let links: Vec<GpuLink> = pairs(gpus.len()).map(link).collect();
    let worst = *links.iter().min_by_key(|link| link.rank())?;
    let is_same = links.iter().all(|link| link.to_string() == worst.to_string());
    (worst.rank() > 0).then_some((worst, is_same))
}

/// Has the node as many GPUs like these that are connected better?
fn has_better(topology: &Topology, gpus: &[Gpu], taken: &[&Gpu], than: GpuLink) -> bool {
    let alike: Vec<&Gpu> = gpus.iter().filter(|gpu| gpu.model == taken[0].model && !gpu.mig).collect();
    if alike.len() > MOST_GPUS {
        return false;
    }
    let all = (0..alike.len()).fold(0, |mask, at| mask | 1 << at);
    let mut sets = subsets(all, u32::try_from(taken.len()).unwrap_or(u32::MAX));
    sets.any(|set| {
        let members: Vec<&Gpu> = positions(set).map(|at| alike[at]).collect();
        worst(topology, &members).is_some_and(|(worst, _)| worst.rank() > than.rank())
    })
}

#[cfg(test)]
mod tests {
    use cantle_model::{GpuUuid, MigInstance, PciePath};

    use super::*;

    fn gpus(count: u32) -> Vec<Gpu> {
        let gpu = |index| {
            let uuid = GpuUuid(format!("GPU-{index}"));
            Gpu { uuid, index, model: "A40".to_owned(), memory_bytes: 48 << 30, mig: false }
        };
        (0..count).map(gpu).collect()
    }

    fn said(link: fn(usize, usize) -> GpuLink, taken: &[u32], milli: u32) -> Option<String> {
        let gpus = gpus(8);
        let topology = Topology::new(gpus.iter().map(|gpu| gpu.uuid.clone()).collect(), link);
        let slice = |index: &u32| {
            let gpu = GpuUuid(format!("GPU-{index}"));
            Slice { gpu, milli: Milli(milli), memory_limit_bytes: 1 << 30, mig: None }
        };
        connection(&topology, &gpus, &taken.iter().map(slice).collect::<Vec<_>>())
    }

    fn bridges(one: usize, other: usize) -> GpuLink {
        let is_pair = one / 2 == other / 2;
        let path = if one / 4 == other / 4 { PciePath::Node } else { PciePath::Sys };
        GpuLink { nvlinks: if is_pair { 4 } else { 0 }, path: Some(path) }
    }

    #[test]
    fn the_worst_connection_is_named() {
        assert_eq!(said(bridges, &[2, 3], 1000).unwrap(), "GPUs 2 and 3: NVLink (NV4)");
        let unlinked = "GPUs 1 and 2: PCIe (NODE); no better connected pair was free";
        assert_eq!(said(bridges, &[1, 2], 1000).unwrap(), unlinked);
        assert_eq!(said(bridges, &[1, 2], 500).unwrap(), "GPUs 1 and 2: PCIe (NODE)", "packing came first");
        let quad = "GPUs 0, 1, 2 and 3: at least PCIe (NODE)";
        assert_eq!(said(bridges, &[0, 1, 2, 3], 1000).unwrap(), quad);
        let spread = "GPUs 0, 1, 4 and 5: at least PCIe (SYS); no better connected 4 GPUs were free";
        assert_eq!(said(bridges, &[0, 1, 4, 5], 1000).unwrap(), spread);
        let switched = |_, _| GpuLink { nvlinks: 18, path: Some(PciePath::Sys) };
        assert_eq!(said(switched, &[0, 1, 2], 1000).unwrap(), "GPUs 0, 1 and 2: NVLink (NV18)");
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing_to_say() {
        assert_eq!(said(bridges, &[1], 1000), None);
        assert_eq!(said(bridges, &[], 1000), None);
        assert_eq!(said(|_, _| GpuLink::default(), &[0, 1], 1000), None);
        assert_eq!(said(bridges, &[0, 9], 1000), None, "a GPU of another node");
        let gpus = gpus(2);
        let topology = Topology::new(gpus.iter().map(|gpu| gpu.uuid.clone()).collect(), bridges);
        let mig = |gpu: &Gpu| Slice {
            gpu: gpu.uuid.clone(),
            milli: Milli(250),
            memory_limit_bytes: 1 << 30,
            mig: Some(MigInstance { profile: "1g".into(), start: 0, size: 1, uuid: String::new() }),
        };
        assert_eq!(connection(&topology, &gpus, &gpus.iter().map(mig).collect::<Vec<_>>()), None);
    }
}
