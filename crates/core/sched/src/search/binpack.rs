//! The policies binpack and spread: fullest first, or emptiest first, by free capacity only.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cantle_mig::GpuGeometry;
use cantle_model::Milli;

use super::ranking::{NodeOffer, Rank};
use crate::shape::cut::instances;
use crate::{Cluster, Cut, GpuFree, NodeFree, Place, Ranking, Shape};

/// Nodes tried for the members of a gang before it counts as one that does not fit, in addition to four times all nodes.
const WAYS: usize = 2_000;

/// Fullest first: cut GPUs before fresh ones and the smallest leftover first; whole GPUs where the fewest are left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Binpack;

/// Emptiest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread;

impl Ranking for Binpack {
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer> {
        let node = cluster.node(node);
        let gpus = choose(node, shape, fullest_first)?;
        Some(NodeOffer { group: 0, rank: fullness(node, shape, &gpus), gpus })
    }
}

impl Ranking for Spread {
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer> {
        let node = cluster.node(node);
        let gpus = choose(node, shape, |gpu, share| fullest_first(gpu, share).map(|number| -number))?;
        let [short, opened, left, free, cpu_left, digest] = fullness(node, shape, &gpus);
        Some(NodeOffer { group: 0, rank: [short, -opened, -left, -free, -cpu_left, digest], gpus })
    }
}

/// Order of preference among the GPUs of one node; the lowest is taken first.
pub(crate) type Preference = [i64; 4];

pub(crate) fn fullest_first(gpu: &GpuFree, share: Cut) -> Preference {
    let fresh = i64::from(gpu.milli == Milli::ONE.0);
    let left = i64::from(gpu.milli.saturating_sub(share.milli.0));
    let left_bytes = gpu.bytes.saturating_sub(share.memory_limit_bytes).cast_signed();
    [fresh, left, left_bytes, i64::try_from(gpu.class).unwrap_or(i64::MAX)]
}

/// The GPUs of `node` that `shape` would get, those with the lowest preference, then the lowest position; `None` if
/// it does not fit.
pub(crate) fn choose<P: Ord>(
    node: &NodeFree,
    shape: &Shape,
    preference: impl Fn(&GpuFree, Cut) -> P,
) -> Option<Vec<(usize, Cut)>> {
    if !shape.host().fits_in(node.host) {
        return None;
    }
    let (min, max) = shape.devices();
    let shared = node.gpus.iter().enumerate().filter_map(|(at, gpu)| {
        let share = shape.share(gpu.class)?;
        (share.mig.is_none() && gpu.fits(share)).then_some((at, share))
    });
    let all = shared.chain(instances(node, shape, max as usize));
    let least = shape.least_milli();
    let ranked =
        all.map(|(at, share)| ((instance_costs(share, least), preference(&node.gpus[at], share)), at, share));
    let mut fitting: Vec<_> = ranked.collect();
    if fitting.len() < min as usize {
        return None;
    }
    fitting.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    fitting.truncate(max as usize);
    fitting.sort_unstable_by_key(|&(_, at, _)| at);
    Some(fitting.into_iter().map(|(_, at, share)| (at, share)).collect())
}

/// The penalty of an instance where a shared GPU would do: it may be larger than what was asked for (then the same on a
/// shared GPU costs less), and an instance of all of a GPU has less memory than the GPU.
fn instance_costs(share: Cut, least_milli: u32) -> (u32, bool) {
    share.mig.map_or((0, false), |_| (share.milli.0 - least_milli, share.milli == Milli::ONE))
}

impl Cluster {
    /// The GPUs of a node that `shape` gets where its place is found without a ranking; `None` if it does not fit.
    pub(crate) fn fullest_on(&self, node: usize, shape: &Shape) -> Option<Vec<(usize, Cut)>> {
        Some(self.best_connected(node, choose(self.node(node), shape, fullest_first)?))
    }

    /// Takes places for all shapes: the first that fit, else any, see [`Self::fill_in_some_way`]. `None`, and nothing taken, if
    /// they do not fit together.
    pub(crate) fn fill_places(&mut self, shapes: &[Shape]) -> Option<Vec<Place>> {
        let mut places: Vec<Place> = Vec::new();
        for shape in shapes {
            let fits = |at| Some((at, self.fullest_on(at, shape)?));
            let Some((node, gpus)) = (0..self.len()).find_map(fits) else {
                places.iter().for_each(|place| self.give_back(place));
                return if shapes.len() > 1 { self.fill_in_some_way(shapes) } else { None };
            };
            let place = Place { node, gpus, host: shape.host() };
            self.take(&place);
            places.push(place);
        }
        Some(places)
    }

    /// Takes places for all shapes, the largest first; where that leads nowhere, other nodes are tried, up to [`WAYS`] of
    /// them. In a large cluster the first way nearly always leads somewhere, or none does.
    fn fill_in_some_way(&mut self, shapes: &[Shape]) -> Option<Vec<Place>> {
        let mut order: Vec<usize> = (0..shapes.len()).collect();
        order.sort_by_key(|&at| Reverse((shapes[at].devices().0, shapes[at].least_milli())));
        let largest_first: Vec<&Shape> = order.iter().map(|&at| &shapes[at]).collect();
        let (mut places, mut ways) = (Vec::new(), WAYS + 4 * self.len());
        if !self.fill_rest(&largest_first, &mut places, &mut ways) {
            return None;
        }
        let mut placed: Vec<(usize, Place)> =
            order.into_iter().zip(places.into_iter().map(|(_, place)| place)).collect();
        placed.sort_unstable_by_key(|(at, _)| *at);
        Some(placed.into_iter().map(|(_, place)| place).collect())
    }

    fn fill_rest<'a>(
        &mut self,
        shapes: &[&'a Shape],
        places: &mut Vec<(&'a Shape, Place)>,
        ways: &mut usize,
    ) -> bool {
        let Some((shape, rest)) = shapes.split_first() else { return true };
        // Equal nodes lead to the same, and so do equal shapes in another order.
        let mut tried = BTreeSet::new();
        let first = places
            .last()
            .map_or(0, |(last, place): &(&Shape, Place)| if last == shape { place.node } else { 0 });
        for node in first..self.len() {
            if *ways == 0 {
                return false;
            }
            *ways -= 1;
            let Some(gpus) = self.fullest_on(node, shape) else { continue };
            if !tried.insert(digest(self.node(node))) {
                continue;
            }
            let place = Place { node, gpus, host: shape.host() };
            self.take(&place);
            places.push((shape, place));
            if self.fill_rest(rest, places, ways) {
                return true;
            }
            places.pop().iter().for_each(|(_, place)| self.give_back(place));
        }
        false
    }

    /// The same; returns only whether all fit.
    pub(crate) fn fill(&mut self, shapes: &[Shape]) -> bool {
        self.fill_places(shapes).is_some()
    }

    /// Does `shape` fit anywhere?
    #[must_use]
    pub fn has_room(&self, shape: &Shape) -> bool {
        self.nodes().iter().any(|node| choose(node, shape, |_, _| ()).is_some())
    }
}

/// The emptiness of the node: GPUs short of the request, GPUs newly cut, thousandths left on the GPUs taken from,
/// thousandths free on the node, CPU left, and a digest of the whole node.
pub(crate) fn fullness(node: &NodeFree, shape: &Shape, gpus: &[(usize, Cut)]) -> Rank {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let cuts = |(at, share): &&(usize, Cut)| node.gpus[*at].milli == Milli::ONE.0 && share.milli < Milli::ONE;
    let left = |(at, share): &(usize, Cut)| i64::from(node.gpus[*at].milli.saturating_sub(share.milli.0));
    let free = node.gpus.iter().filter(|gpu| gpu.usable).map(|gpu| i64::from(gpu.milli)).sum();
    let cpu_left = node.host.cpu_milli - shape.host().cpu_milli;
    [
        i64::from(shape.devices().1) - number(gpus.len()),
        number(gpus.iter().filter(cuts).count()),
        gpus.iter().map(left).sum(),
        free,
        i64::try_from(cpu_left).unwrap_or(i64::MAX),
        digest(node),
    ]
}

/// FNV-1a over all that decides on a node, GPUs in sorted order: equal digests mean interchangeable nodes.
pub(crate) fn digest(node: &NodeFree) -> i64 {
    let units = |gpu: &GpuFree| gpu.mig.as_ref().map_or(0, GpuGeometry::busy_units);
    let words = |g: &GpuFree| [g.class as u64, u64::from(g.milli), g.bytes, u64::from(units(g))];
    let mut gpus: Vec<_> = node.gpus.iter().map(words).collect();
    gpus.sort_unstable();
    let words = gpus.into_iter().flatten();
    let host = [node.host.cpu_milli, node.host.memory_bytes];
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    words.chain(host).fold(0xcbf2_9ce4_8422_2325, step).cast_signed()
}
