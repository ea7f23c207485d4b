//! The policies that a replay can use.

use std::fmt;
use std::str::FromStr;

use cantle_sched::{Cluster, Mix, Picker, Place, Placement, Ranking, Shape, Standard};
use serde::Serialize;

use crate::baselines::{BestFit, Fgd, any};
use crate::random::Random;

/// Our own placements, or those that the FGD paper compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayPolicy {
    /// Our default: least worth lost.
    Worth,
    /// Fullest first.
    Binpack,
    /// Emptiest first.
    Spread,
    /// The paper's fragmentation gradient descent.
    Fgd,
    /// The paper's best fit.
    BestFit,
    /// Any place that fits.
    Random,
}

const POLICIES: [(&str, ReplayPolicy); 6] = [
    ("worth", ReplayPolicy::Worth),
    ("binpack", ReplayPolicy::Binpack),
    ("spread", ReplayPolicy::Spread),
    ("fgd", ReplayPolicy::Fgd),
    ("bestfit", ReplayPolicy::BestFit),
    ("random", ReplayPolicy::Random),
];

impl FromStr for ReplayPolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = POLICIES.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
        found.ok_or_else(|| {
            let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
            format!("\"{text}\" is not a policy; write one of {}", names.join(", "))
        })
    }
}

impl fmt::Display for ReplayPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = POLICIES.iter().find(|(_, policy)| policy == self).map_or("", |(name, _)| *name);
        f.pad(name)
    }
}

/// Finds a place for a shape; it must be asked about the same cluster each time.
pub(crate) type Finder = Box<dyn FnMut(&Cluster, &Shape) -> Option<Place>>;

impl ReplayPolicy {
    /// Ready to find places on `cluster`, which the tasks of `mix` are expected on.
    pub(crate) fn finder(self, mix: &Mix, cluster: &Cluster, seed: u64) -> Finder {
        let standard = |placement| ranked(Standard::new(placement, mix, cluster), cluster);
        match self {
            Self::Worth => standard(Placement::Worth),
            Self::Binpack => standard(Placement::Binpack),
            Self::Spread => standard(Placement::Spread),
            Self::Fgd => ranked(Fgd::new(mix, cluster), cluster),
            Self::BestFit => ranked(BestFit, cluster),
            Self::Random => {
                let mut random = Random(!seed);
                Box::new(move |cluster, shape| any(cluster, shape, &mut random))
            }
        }
    }
}

fn ranked(ranking: impl Ranking + 'static, cluster: &Cluster) -> Finder {
    let mut picker = Picker::new(ranking, cluster);
    Box::new(move |cluster, shape| picker.find(cluster, shape))
}
