//! The interface of a placement policy: a ranking of places.

use crate::{Cluster, Cut, Shape};

/// Compared from the left, the lowest wins. Equal ranks must mean interchangeable places, so that renaming or
/// shuffling nodes and GPUs changes nothing but names; the position decides between them.
pub type Rank = [i64; 6];

/// The best that one node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeOffer {
    /// The input of [`Ranking::price`], in addition to the shape and the cluster as a whole.
    pub group: u64,
    /// Its rank, from the node alone.
    pub rank: Rank,
    /// Positions of GPUs on the node and what is taken of each.
    pub gpus: Vec<(usize, Cut)>,
}

/// Ranks places. The part that depends on one node alone is in the offer, and is cached until that node changes. The
/// part that depends on the whole cluster is in the price, which is computed for each decision, once per group.
pub trait Ranking {
    /// The best offer of the node at `node`; `None` if `shape` does not fit there.
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer>;

    /// Added to the first number of the rank of every offer of `group`.
    fn price(&self, _shape: &Shape, _group: u64) -> i64 {
        0
    }

    /// The free amounts of the node at `node` have changed.
    fn changed(&mut self, _cluster: &Cluster, _node: usize) {}
}
