//! Which place is best. Lower ranks win; equal ranks mean interchangeable places, so that renaming or shuffling
//! nodes and GPUs changes nothing but names.

use cantle_model::{Milli, Share};

use crate::cluster::{GpuFree, NodeFree};
use crate::{Cluster, Place, Placement, Shape};

/// Compared from the left.
pub(crate) type Rank = [i64; 6];

impl Cluster {
    /// The best place for `shape`, if there is room.
    #[must_use]
    pub fn find(&self, shape: &Shape, placement: Placement) -> Option<Place> {
        let ranked = |at: usize| {
            let gpus = choose(&self.nodes[at], shape, placement)?;
            Some((rank(&self.nodes[at], shape, &gpus, placement), at, gpus))
        };
        let best = (0..self.nodes.len()).filter_map(ranked).min_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        best.map(|(_, node, gpus)| Place { node, gpus, host: shape.host })
    }
}

/// The GPUs that `shape` would get on `node`; `None` if it does not fit.
pub(crate) fn choose(node: &NodeFree, shape: &Shape, placement: Placement) -> Option<Vec<(usize, Share)>> {
    let host_fits =
        shape.host.cpu_milli <= node.host.cpu_milli && shape.host.memory_bytes <= node.host.memory_bytes;
    if !host_fits {
        return None;
    }
    let fitting = node.gpus.iter().enumerate().filter_map(|(at, gpu)| {
        let share = shape.share(gpu.class)?;
        gpu.fits(share).then(|| (preference(gpu, share, placement), at, share))
    });
    let mut fitting: Vec<_> = fitting.collect();
    let (min, max) = (shape.min as usize, shape.max as usize);
    if fitting.len() < min {
        return None;
    }
    fitting.sort_unstable_by_key(|&(preference, at, _)| (preference, at));
    fitting.truncate(max);
    fitting.sort_unstable_by_key(|&(_, at, _)| at);
    Some(fitting.into_iter().map(|(_, at, share)| (at, share)).collect())
}

/// Order of the fitting GPUs of one node: cut ones before fresh ones and the smallest leftover first, or the reverse.
fn preference(gpu: &GpuFree, share: Share, placement: Placement) -> (bool, i64, i64, usize) {
    let left = i64::from(gpu.milli - share.milli.0);
    let left_bytes = (gpu.bytes - share.memory_limit_bytes).cast_signed();
    let fresh = gpu.milli == Milli::ONE.0;
    match placement {
        Placement::Binpack => (fresh, left, left_bytes, gpu.class),
        Placement::Spread => (!fresh, -left, -left_bytes, gpu.class),
    }
}

fn rank(node: &NodeFree, shape: &Shape, gpus: &[(usize, Share)], placement: Placement) -> Rank {
    let opened = gpus.iter().filter(|(at, share)| opens(&node.gpus[*at], *share)).count();
    let left = |(at, share): &(usize, Share)| i64::from(node.gpus[*at].milli - share.milli.0);
    let left: i64 = gpus.iter().map(left).sum();
    let free: i64 = node.gpus.iter().filter(|gpu| gpu.usable).map(|gpu| i64::from(gpu.milli)).sum();
    let short = i64::from(shape.max).saturating_sub_unsigned(gpus.len() as u64);
    let cpu_left = (node.host.cpu_milli - shape.host.cpu_milli).min(i64::MAX as u64).cast_signed();
    let opened = i64::try_from(opened).unwrap_or(i64::MAX);
    match placement {
        Placement::Binpack => [short, opened, left, free, cpu_left, digest(node)],
        Placement::Spread => [short, -opened, -left, -free, -cpu_left, digest(node)],
    }
}

/// Does the share cut a GPU that nobody has cut yet?
const fn opens(gpu: &GpuFree, share: Share) -> bool {
    gpu.milli == Milli::ONE.0 && share.milli.0 < Milli::ONE.0
}

/// FNV-1a over all that decides on a node, GPUs in sorted order: equal digests mean interchangeable nodes.
fn digest(node: &NodeFree) -> i64 {
    let mut gpus: Vec<_> = node.gpus.iter().map(|g| (g.class as u64, u64::from(g.milli), g.bytes)).collect();
    gpus.sort_unstable();
    let words = gpus.into_iter().flat_map(|(class, milli, bytes)| [class, milli, bytes]);
    let host = [node.host.cpu_milli, node.host.memory_bytes];
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    words.chain(host).fold(0xcbf2_9ce4_8422_2325, step).cast_signed()
}
