//! Finds the best place without looking at every node: for each shape, offers are kept in order and only nodes that
//! changed since the shape was last asked for are ranked again. A decision costs about the logarithm of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use super::ranking::Rank;
use crate::{Cluster, Place, Ranking, Shape};

/// Shapes remembered at most; beyond it all are forgotten, which costs time and nothing else.
const SHAPES: usize = 256;

/// A ranking with what it remembers about one cluster.
#[derive(Clone, Debug)]
pub struct Picker<R> {
    ranking: R,
    /// Changes of the cluster that the ranking knows of.
    seen: usize,
    shapes: BTreeMap<Shape, Offers>,
}

/// Offers of all nodes for one shape.
#[derive(Clone, Debug, Default)]
struct Offers {
    /// Changes of the cluster that are worked in.
    seen: usize,
    by_node: Vec<Option<(u64, Rank)>>,
    by_group: BTreeMap<u64, BTreeSet<(Rank, usize)>>,
}

impl<R: Ranking> Picker<R> {
    /// Nothing remembered yet. `ranking` must know `cluster` as it is now.
    pub const fn new(ranking: R, cluster: &Cluster) -> Self {
        Self { ranking, seen: cluster.changes().len(), shapes: BTreeMap::new() }
    }

    /// The best place for `shape`; `None` if it fits nowhere. It must be asked about the same cluster each time.
    pub fn find(&mut self, cluster: &Cluster, shape: &Shape) -> Option<Place> {
        for &node in &cluster.changes()[self.seen..] {
            self.ranking.changed(cluster, node);
        }
        self.seen = cluster.changes().len();
        if self.shapes.len() >= SHAPES && !self.shapes.contains_key(shape) {
            self.shapes.clear();
        }
        if !self.shapes.contains_key(shape) {
            self.shapes.insert(shape.clone(), Offers::default());
        }
        let offers = self.shapes.get_mut(shape)?;
        offers.refresh(&self.ranking, cluster, shape);
        let node = offers.best(&self.ranking, shape)?;
        let gpus = cluster.best_connected(node, self.ranking.offer(cluster, node, shape)?.gpus);
        Some(Place { node, gpus, host: shape.host() })
    }
}

impl Offers {
    fn refresh(&mut self, ranking: &impl Ranking, cluster: &Cluster, shape: &Shape) {
        if self.by_node.len() == cluster.len() {
            for &node in &cluster.changes()[self.seen..] {
                self.ask(ranking, cluster, shape, node);
            }
        } else {
            self.by_node = vec![None; cluster.len()];
            for node in 0..cluster.len() {
                self.ask(ranking, cluster, shape, node);
            }
        }
        self.seen = cluster.changes().len();
    }

    fn ask(&mut self, ranking: &impl Ranking, cluster: &Cluster, shape: &Shape, node: usize) {
        let offer = ranking.offer(cluster, node, shape).map(|offer| (offer.group, offer.rank));
        if self.by_node[node] == offer {
            return;
        }
        if let Some((group, rank)) = self.by_node[node] {
            let ranked = self.by_group.entry(group).or_default();
            ranked.remove(&(rank, node));
            if ranked.is_empty() {
                self.by_group.remove(&group);
            }
        }
        if let Some((group, rank)) = offer {
            self.by_group.entry(group).or_default().insert((rank, node));
        }
        self.by_node[node] = offer;
    }

    fn best(&self, ranking: &impl Ranking, shape: &Shape) -> Option<usize> {
        let first_of = |(group, ranked): (&u64, &BTreeSet<(Rank, usize)>)| {
            let (mut rank, node) = *ranked.first()?;
            rank[0] = rank[0].saturating_add(ranking.price(shape, *group));
            Some((rank, node))
        };
        self.by_group.iter().filter_map(first_of).min().map(|(_, node)| node)
    }
}
