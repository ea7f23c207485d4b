//! The connections of a node's GPUs, as the choice among equal GPUs needs them: which set is connected best, and which one leaves the
//! best sets for later tasks.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use cantle_model::{GpuUuid, Topology};

/// Nodes with more GPUs are placed without their topology: the number of sets would be too large.
pub(crate) const MOST_GPUS: usize = 16;
/// The sizes of the sets that are kept for later tasks, those of the first size before all others.
const KEPT: [usize; 2] = [4, 2];
/// Answers remembered at most; beyond it all are forgotten, which costs time and nothing else.
const ANSWERS: usize = 4_096;

/// GPUs of one node, by position: bit 0 is the first one.
pub(crate) type GpuMask = u32;

/// The rank of the worst connection in a set, and the sum over all its connections.
type Quality = (u32, u64);

/// For each rank, the best first: the sets whose worst connection has this rank.
type ByRank = Vec<Vec<GpuMask>>;

/// Fixed members, candidates, number of candidates to take, idle GPUs.
type Question = (GpuMask, GpuMask, u32, GpuMask);

/// The topology of one node, by positions of its GPUs.
#[derive(Debug)]
pub struct Fabric {
    /// Rank of each connection, by both positions.
    ranks: Vec<Vec<u32>>,
    /// The sets of each size in [`KEPT`]; made when first needed.
    kept: OnceLock<Vec<ByRank>>,
    /// Nodes with equal topologies share one `Fabric`, so questions come back.
    answers: Mutex<BTreeMap<Question, GpuMask>>,
}

impl PartialEq for Fabric {
    fn eq(&self, other: &Self) -> bool {
        self.ranks == other.ranks
    }
}

impl Fabric {
    /// The fabric of GPUs at these positions. `None` if the topology does not distinguish any two of them: nothing is known, or all
    /// connections are alike. Also `None` for more than 16 GPUs.
    #[must_use]
    pub fn of(topology: &Topology, gpus: &[&GpuUuid]) -> Option<Self> {
        if gpus.len() > MOST_GPUS || !topology.is_known() {
            return None;
        }
        let rank = |one: &&GpuUuid, other: &&GpuUuid| topology.link(one, other).rank();
        let ranks: Vec<Vec<u32>> =
            gpus.iter().map(|one| gpus.iter().map(|other| rank(one, other)).collect()).collect();
        let mut between = pairs(gpus.len()).map(|(one, other)| ranks[one][other]);
        let first = between.next()?;
        between.any(|rank| rank != first).then(|| Self {
            ranks,
            kept: OnceLock::new(),
            answers: Mutex::default(),
        })
    }

    /// `take` of the GPUs in `from`, chosen so that they and `fixed` together are connected best: first the worst connection counts, then
    /// the sum. Among equals, the set that leaves the most and best sets of four, then of two, among the other GPUs in `idle`; then the
    /// lowest positions.
    pub(crate) fn choose(&self, fixed: GpuMask, from: GpuMask, take: u32, idle: GpuMask) -> GpuMask {
        let question = (fixed, from, take, idle);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = answers.get(&question) {
            return *known;
        }
        if answers.len() >= ANSWERS {
            answers.clear();
        }
        let chosen = self.search(question);
        answers.insert(question, chosen);
        chosen
    }

    fn search(&self, (fixed, from, take, idle): Question) -> GpuMask {
        let mut best: Option<Quality> = None;
        let mut equals = Vec::new();
        for set in subsets(from, take) {
            let quality = self.quality(fixed | set);
            if best.is_none_or(|best| quality > best) {
                best = Some(quality);
                equals.clear();
            }
            if best == Some(quality) {
                equals.push(set);
            }
        }
        if let [only] = equals[..] {
            return only;
        }
        let mut found: Option<(Vec<usize>, GpuMask)> = None;
        for set in equals {
            let left = self.left(idle & !set & !fixed);
            if found.as_ref().is_none_or(|(best, _)| left > *best) {
                found = Some((left, set));
            }
        }
        found.map_or(0, |(_, set)| set)
    }

    fn quality(&self, set: GpuMask) -> Quality {
        let members: Vec<usize> = positions(set).collect();
        let ranks = pairs(members.len()).map(|(one, other)| self.ranks[members[one]][members[other]]);
        ranks.fold((u32::MAX, 0), |(worst, sum), rank| (worst.min(rank), sum + u64::from(rank)))
    }

    /// The offer of these GPUs to later tasks: the number of sets of each size and rank.
    fn left(&self, idle: GpuMask) -> Vec<usize> {
        let kept = self.kept.get_or_init(|| KEPT.iter().map(|size| self.sets(*size)).collect());
        let count = |sets: &Vec<GpuMask>| sets.iter().filter(|set| **set & !idle == 0).count();
        kept.iter().flatten().map(count).collect()
    }

    fn sets(&self, size: usize) -> ByRank {
        let all = GpuMask::MAX >> (GpuMask::BITS as usize - self.ranks.len());
        let mut by_rank: BTreeMap<u32, Vec<GpuMask>> = BTreeMap::new();
        for set in subsets(all, u32::try_from(size).unwrap_or(u32::MAX)) {
            by_rank.entry(self.quality(set).0).or_default().push(set);
        }
        by_rank.into_values().rev().collect()
    }
}

/// The positions in a set.
pub(crate) fn positions(set: GpuMask) -> impl Iterator<Item = usize> {
    (0..GpuMask::BITS as usize).filter(move |at| set >> at & 1 == 1)
}

/// Each two of the first `count` positions, the lower one first.
pub(crate) fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |one| (one + 1..count).map(move |other| (one, other)))
}

/// All sets of `take` members of `from`, in ascending order of the mask; none if `from` has fewer.
pub(crate) fn subsets(from: GpuMask, take: u32) -> impl Iterator<Item = GpuMask> {
    let members: Vec<usize> = positions(from).collect();
    let end = 1u64 << members.len();
    let first = if take as usize <= members.len() { (1u64 << take) - 1 } else { end };
    // Gosper's hack: the next number with as many bits. The empty set has no next one.
    let next = |set: &u64| {
        let lowest = set & set.wrapping_neg();
        let carried = set + lowest;
        (lowest > 0).then(|| (((carried ^ set) >> 2) / lowest) | carried)
    };
    let sets = std::iter::successors(Some(first), next).take_while(move |set| *set < end);
    sets.map(move |set| {
        let chosen = members.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
        chosen.fold(0, |mask, (_, member)| mask | 1 << member)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_of_them_once_and_in_order() {
        assert_eq!(subsets(0b1011, 2).collect::<Vec<_>>(), [0b0011, 0b1001, 0b1010]);
        assert_eq!(subsets(0b1011, 3).collect::<Vec<_>>(), [0b1011]);
        assert_eq!(subsets(0b1011, 0).collect::<Vec<_>>(), [0]);
        assert_eq!(subsets(0b1011, 4).count(), 0);
        assert_eq!(subsets(0xffff, 8).count(), 12_870);
    }
}
