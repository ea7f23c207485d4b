//! Projects: how much each project may use, and which project gets what is left.

use std::collections::BTreeMap;

use cantle_model::{PoolQuota, ProjectQuota, Quota};

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
    /// Quotas in the order of [`cantle_model::RESOURCES`].
    pub quotas: [Quota; 3],
    /// Its decayed use of GPUs in millionths of the cluster's capacity, see [`crate::usage_ppm`].
    pub usage_ppm: u32,
    /// Its tasks are not taken from it before they ran so long, in milliseconds.
    pub min_run_ms: i64,
    /// Its quotas of single pools, in thousandths of a GPU.
    pub by_pool: BTreeMap<String, PoolQuota>,
}

impl Project {
    /// A project at the top with a quota of this number of thousandths of a GPU; nothing else is counted.
    #[must_use]
    pub fn new(name: impl Into<String>, deserved_milli: u64) -> Self {
        let gpu = Quota { deserved: Some(deserved_milli), ..Quota::NONE };
        Self::with_quota(name, None, &ProjectQuota { gpu, ..ProjectQuota::default() })
    }

    /// A project with what it was granted, below `parent` if there is one.
    #[must_use]
    pub fn with_quota(name: impl Into<String>, parent: Option<String>, quota: &ProjectQuota) -> Self {
        Self {
            name: name.into(),
            parent,
            priority: quota.priority,
            quotas: quota.quotas(),
            usage_ppm: 0,
            min_run_ms: quota.min_run_ms,
            by_pool: quota.by_pool.clone(),
        }
    }
}
