//! The placement policies that an administrator can choose from.

use super::ranking::NodeOffer;
use crate::{Binpack, Cluster, Demand, Picker, Placement, Ranking, Shape, Spread, Worth};

/// The ranking of a [`Placement`].
#[derive(Clone, Debug)]
pub enum Standard {
    /// By lost worth.
    Worth(Box<Worth>),
    /// Fullest first.
    Binpack(Binpack),
    /// Emptiest first.
    Spread(Spread),
}

impl Standard {
    /// The ranking for `placement` on `cluster`, given the demand that is expected.
    #[must_use]
    pub fn new(placement: Placement, expected: &[(Demand, u32)], cluster: &Cluster) -> Self {
        let worth = || Worth::new(expected, cluster).map(|worth| Self::Worth(Box::new(worth)));
        match placement {
            Placement::Worth => worth().unwrap_or(Self::Binpack(Binpack)),
            Placement::Binpack => Self::Binpack(Binpack),
            Placement::Spread => Self::Spread(Spread),
        }
    }

    /// The same, ready to find places on `cluster`.
    #[must_use]
    pub fn picker(placement: Placement, expected: &[(Demand, u32)], cluster: &Cluster) -> Picker<Self> {
        Picker::new(Self::new(placement, expected, cluster), cluster)
    }

    fn ranking(&self) -> &dyn Ranking {
        match self {
            Self::Worth(ranking) => ranking.as_ref(),
            Self::Binpack(ranking) => ranking,
            Self::Spread(ranking) => ranking,
        }
    }
}

impl Ranking for Standard {
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer> {
        self.ranking().offer(cluster, node, shape)
    }

    fn price(&self, shape: &Shape, group: u64) -> i64 {
        self.ranking().price(shape, group)
    }

    fn changed(&mut self, cluster: &Cluster, node: usize) {
        if let Self::Worth(ranking) = self {
            ranking.changed(cluster, node);
        }
    }
}
