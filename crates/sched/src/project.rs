//! Projects: who may use how much, and who gets what is left.

use serde::{Deserialize, Serialize};

/// What quotas are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Thousandths of a GPU that slices really hold, MIG by memory slices.
    Gpu,
    /// Thousandths of a CPU core.
    Cpu,
    /// Bytes of main memory.
    Memory,
}

/// All resources, in the order in which [`Amounts`] holds them.
pub const RESOURCES: [Resource; 3] = [Resource::Gpu, Resource::Cpu, Resource::Memory];

/// So much of each resource, in the units of [`Resource`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts(pub [u64; 3]);

impl Amounts {
    /// `self + other`, never overflowing.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_add(other.0[at])))
    }

    /// `self - other`, never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(other.0[at])))
    }

    /// Is no resource more than in `most`?
    #[must_use]
    pub fn within(self, most: Self) -> bool {
        self.0.iter().zip(most.0).all(|(amount, most)| *amount <= most)
    }
}

/// What a project may have of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Guaranteed: lent to others while unused, taken back when needed. `None`: as much as there is.
    pub deserved: Option<u64>,
    /// Never more than this. `None`: no limit.
    pub limit: Option<u64>,
    /// Part of what is left over, beside the weights of the siblings. 0: nothing.
    pub weight: u32,
}

impl Quota {
    /// Nothing guaranteed, no limit, weight 1.
    pub const NONE: Self = Self { deserved: Some(0), limit: None, weight: 1 };
    /// Not counted.
    pub const UNCOUNTED: Self = Self { deserved: None, limit: None, weight: 1 };
}

/// A project. Projects form a tree; tasks belong to any of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Project {
    /// Its name, unique.
    pub name: String,
    /// The project above; `None` at the top.
    pub parent: Option<String>,
    /// Siblings of higher priority get what is left over first.
    pub priority: i32,
    /// Quotas in the order of [`RESOURCES`].
    pub quotas: [Quota; 3],
    /// Its decayed use of GPUs in millionths of the cluster's capacity, see [`crate::decayed_usage_ppm`].
    pub usage_ppm: u32,
    /// Its tasks are not taken from it before they ran so long, in milliseconds.
    pub min_run_ms: i64,
}

impl Project {
    /// A project at the top with so many thousandths of a GPU deserved and nothing else counted.
    #[must_use]
    pub fn new(name: impl Into<String>, deserved_milli: u64) -> Self {
        let gpu = Quota { deserved: Some(deserved_milli), ..Quota::NONE };
        Self {
            name: name.into(),
            parent: None,
            priority: 0,
            quotas: [gpu, Quota::UNCOUNTED, Quota::UNCOUNTED],
            usage_ppm: 0,
            min_run_ms: 0,
        }
    }
}
