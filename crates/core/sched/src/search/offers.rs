//! The offers of all nodes for a shape, kept from one waiting task to the next: what a task takes changes a few nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::evict::{Attempt, Offer};
use crate::Shape;

/// Tasks of one shape that may stop the same units get the same offers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leave {
    shape: Shape,
    /// Whether units of each kind may be stopped.
    possible: Vec<bool>,
    /// Project and priority of the task, if tasks of its own project run.
    own: Option<(usize, i32)>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// The changes of the cluster that are in the offers.
    seen: usize,
    by_node: Vec<Option<Offer>>,
    sorted: BTreeSet<Offer>,
}

/// The offers that were made in a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers(BTreeMap<Leave, Known>);

/// Up to this number of lists is kept: each takes some 100 bytes for a node.
const KEPT: usize = 64;
/// Clusters of up to this size are checked by the tests.
const CHECKED: usize = 64;

impl Attempt<'_> {
    /// The offers of all nodes for `shape`, if nothing was refused.
    pub(crate) fn offers(&mut self, shape: &Shape) -> BTreeSet<Offer> {
        let (nodes, none) = (self.cluster.len(), BTreeSet::new());
        if self.claimant.moves {
            return (0..nodes).filter_map(|node| self.offer(shape, node, &none)).collect();
        }
        let project = self.claimant.project;
        let has_own = self.victims.kinds.iter().any(|kind| kind.project == project);
        let leave = Leave {
            shape: shape.clone(),
            possible: self.possible.clone(),
            own: has_own.then_some((project, self.claimant.priority)),
        };
        let mut known = self.victims.offers.0.remove(&leave).unwrap_or_default();
        let mut is_changed = vec![known.by_node.is_empty(); nodes];
        known.by_node.resize(nodes, None);
        self.cluster.changes()[known.seen..].iter().for_each(|&node| is_changed[node] = true);
        known.seen = self.cluster.changes().len();
        for node in (0..nodes).filter(|&node| is_changed[node]) {
            let offer = self.offer(shape, node, &none);
            known.sorted.extend(offer.clone());
            if let Some(former) = std::mem::replace(&mut known.by_node[node], offer)
                && known.by_node[node].as_ref() != Some(&former)
            {
                known.sorted.remove(&former);
            }
        }
        let sorted = known.sorted.clone();
        let fresh = || (0..nodes).filter_map(|node| self.offer(shape, node, &none)).collect();
        debug_assert!(nodes > CHECKED || sorted == fresh(), "a change of a node was missed");
        if self.victims.offers.0.len() >= KEPT {
            self.victims.offers.0.clear();
        }
        self.victims.offers.0.insert(leave, known);
        sorted
    }
}
