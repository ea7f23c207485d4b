//! A reservation for a blocked task: the place that is likely to be free soonest is kept for it, so that tasks that
//! start past it cannot keep it waiting forever. Nothing new lands on a reserved place. So from one round to the next,
//! the place only gets closer to being free, and a new choice is always a closer one.

use cantle_model::Milli;

use super::binpack::digest;
use crate::{Cluster, Place, Shape, Snapshot};

/// The distance of a GPU from having room: the end of the last task on it (the greatest number if unknown), then how
/// much of it is in use. Zero if it has room now.
type Distance = (i64, u32);

/// Holds a place for `shape` in `cluster` and returns when it will be free at the latest, if that is known.
/// `None` if no place would do even when all that runs has ended.
pub(crate) fn hold(cluster: &mut Cluster, state: &Snapshot, shape: &Shape) -> Option<i64> {
    let ends = ends(cluster, state);
    let offers = (0..cluster.len()).filter_map(|node| nearest_on(cluster, &ends[node], node, shape));
    let (distance, _, node, gpus) = offers.min()?;
    let share = |gpu: usize| Some((gpu, shape.share(cluster.node(node).gpus[gpu].class)?));
    let gpus = gpus.into_iter().filter_map(share).collect();
    cluster.hold(&Place { node, gpus, host: shape.host() });
    Some(distance.0)
}

/// For each GPU of each node: when the last task on it ends.
fn ends(cluster: &Cluster, state: &Snapshot) -> Vec<Vec<i64>> {
    let mut ends: Vec<Vec<i64>> =
        cluster.nodes().iter().map(|node| vec![i64::MIN; node.gpus.len()]).collect();
    let by_name = cluster.by_name();
    for running in &state.running {
        let Some(place) = cluster.place_of(&by_name, running) else { continue };
        for (gpu, _) in place.gpus {
            let end = &mut ends[place.node][gpu];
            *end = (*end).max(running.ends_at_ms.unwrap_or(i64::MAX));
        }
    }
    ends
}

/// The GPUs of one node that will have room for `shape` first: how far they are, what makes the node what it is, the
/// node and the GPUs. Among equals names and positions decide nothing but names.
fn nearest_on(
    cluster: &Cluster,
    ends: &[i64],
    node: usize,
    shape: &Shape,
) -> Option<(Distance, i64, usize, Vec<usize>)> {
    let free = cluster.node(node);
    let gpus = free.gpus.iter().enumerate().filter_map(|(at, gpu)| {
        let share = shape.share(gpu.class)?;
        let distance = if gpu.fits(share) { (i64::MIN, 0) } else { (ends[at], Milli::ONE.0 - gpu.milli) };
        gpu.usable.then_some((distance, (gpu.class, gpu.milli, gpu.bytes), at))
    });
    let mut gpus: Vec<_> = gpus.collect();
    let wanted = shape.devices().0 as usize;
    if gpus.len() < wanted {
        return None;
    }
    gpus.sort_unstable();
    gpus.truncate(wanted);
    let end = gpus.iter().map(|(distance, ..)| distance.0).max().unwrap_or(i64::MIN);
    let used = gpus.iter().map(|(distance, ..)| distance.1).sum();
    Some(((end, used), digest(free), node, gpus.into_iter().map(|(.., at)| at).collect()))
}
