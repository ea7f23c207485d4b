//! Quotas: how much of each resource a project may have.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Milli, Preempt, TimeLimit, counted};

/// The resources that quotas count.
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

impl Resource {
    /// So much of it, for people: `2.5 GPUs`, `16 CPU cores`, `64 GiB of memory`.
    #[must_use]
    pub fn text(self, amount: u64) -> String {
        let number = self.number(amount);
        match self {
            Self::Gpu => counted(number, "GPU"),
            Self::Cpu => counted(number, "CPU core"),
            Self::Memory => format!("{number} of memory"),
        }
    }

    /// The same without its name: `2.5`, `16`, `64 GiB`.
    #[must_use]
    pub fn number(self, amount: u64) -> String {
        match (self, u32::try_from(amount)) {
            (Self::Memory, _) => Bytes(amount).to_string(),
            (_, Ok(milli)) => Milli(milli).to_string(),
            (_, Err(_)) => (amount / 1000).to_string(),
        }
    }
}

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

/// A project's quota of one resource, in the unit of that [`Resource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Guaranteed: lent to others while unused, taken back when needed. `None`: as much as there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deserved: Option<u64>,
    /// Never more than this. `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Weight in the division of what is left over, relative to its siblings. 0: nothing.
    #[serde(default = "one")]
    pub weight: u32,
}

const fn one() -> u32 {
    1
}

impl Quota {
    /// Nothing guaranteed, no limit, weight 1.
    pub const NONE: Self = Self { deserved: Some(0), limit: None, weight: 1 };
    /// Not counted.
    pub const UNCOUNTED: Self = Self { deserved: None, limit: None, weight: 1 };
}

/// All that an administrator grants a project. It holds for the projects below it together, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectQuota {
    /// Of GPUs, in thousandths.
    pub gpu: Quota,
    /// Of CPU cores, in thousandths.
    #[serde(default = "uncounted")]
    pub cpu: Quota,
    /// Of main memory, in bytes.
    #[serde(default = "uncounted")]
    pub memory: Quota,
    /// Siblings of higher priority get what is left over first.
    #[serde(default)]
    pub priority: i32,
    /// Its tasks are not taken from it before they ran so long, in milliseconds.
    #[serde(default)]
    pub min_run_ms: i64,
    /// How its tasks make room for others; `None`: as those of the project above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preempt>,
    /// A task of it that enters a queue may run for so long; `None`: as the queue allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_s: Option<TimeLimit>,
    /// Its tasks use GPUs of these pools only; empty: of every pool and of none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<String>,
    /// Of the GPUs of single pools, in thousandths, by name of the pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_pool: BTreeMap<String, PoolQuota>,
}

/// A project's quota of the GPUs of one pool, in thousandths. It holds together with the quota of all GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolQuota {
    /// Guaranteed: lent to others while unused, taken back when needed.
    #[serde(default)]
    pub deserved: u64,
    /// Never more than this. `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

const fn uncounted() -> Quota {
    Quota::UNCOUNTED
}

impl Default for ProjectQuota {
    fn default() -> Self {
        let (cpu, memory) = (Quota::UNCOUNTED, Quota::UNCOUNTED);
        let (pools, by_pool) = (Vec::new(), BTreeMap::new());
        let (preempt, max_time_s) = (None, None);
        Self {
            gpu: Quota::NONE,
            cpu,
            memory,
            priority: 0,
            min_run_ms: 0,
            preempt,
            max_time_s,
            pools,
            by_pool,
        }
    }
}

impl ProjectQuota {
    /// Its parts in the order of [`RESOURCES`]. Of GPUs, at least as much is guaranteed as in its pools together.
    #[must_use]
    pub fn quotas(&self) -> [Quota; 3] {
        let in_pools = self.by_pool.values().fold(0, |sum: u64, pool| sum.saturating_add(pool.deserved));
        let deserved = self.gpu.deserved.map(|deserved| deserved.max(in_pools));
        [Quota { deserved, ..self.gpu }, self.cpu, self.memory]
    }

    /// The names of all pools in it, in order.
    pub fn named_pools(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = self.pools.iter().chain(self.by_pool.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }

    /// Can it be kept?
    ///
    /// # Errors
    /// Names the limit that is below what is guaranteed, or the time that is none.
    pub fn check(&self) -> Result<(), QuotaError> {
        for (resource, quota) in RESOURCES.into_iter().zip(self.quotas()) {
            if let (Some(deserved), Some(limit)) = (quota.deserved, quota.limit)
                && limit < deserved
            {
                return Err(QuotaError::LimitBelowQuota { resource, deserved, limit });
            }
        }
        if self.min_run_ms < 0 {
            return Err(QuotaError::MinRun(self.min_run_ms));
        }
        for (pool, PoolQuota { deserved, limit }) in &self.by_pool {
            if let Some(limit) = limit.filter(|limit| limit < deserved) {
                return Err(QuotaError::PoolLimit { pool: pool.clone(), deserved: *deserved, limit });
            }
            if !self.pools.is_empty() && !self.pools.contains(pool) {
                let pools = self.pools.join(",");
                return Err(QuotaError::PoolNotAllowed { pool: pool.clone(), pools });
            }
        }
        Ok(())
    }
}

/// `1.5 GPUs, limit 2 GPUs, weight 1`, then what differs from the default.
impl fmt::Display for ProjectQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu =
            self.gpu.deserved.map_or_else(|| "all GPUs".to_owned(), |amount| Resource::Gpu.text(amount));
        write!(f, "{gpu}")?;
        for (resource, quota) in RESOURCES.into_iter().zip(self.quotas()) {
            if let Some(amount) = quota.deserved.filter(|_| resource != Resource::Gpu) {
                write!(f, ", {}", resource.text(amount))?;
            }
            if let Some(limit) = quota.limit {
                write!(f, ", limit {}", resource.text(limit))?;
            }
        }
        write!(f, ", weight {}", self.gpu.weight)?;
        if self.priority != 0 {
            write!(f, ", priority {}", self.priority)?;
        }
        if self.min_run_ms > 0 {
            write!(f, ", at least {} s of run time", self.min_run_ms / 1000)?;
        }
        if let Some(preempt) = self.preempt {
            write!(f, ", makes room by {preempt}")?;
        }
        if let Some(time) = self.max_time_s {
            write!(f, ", tasks of at most {time}")?;
        }
        for (pool, PoolQuota { deserved, limit }) in &self.by_pool {
            write!(f, ", {} of pool {pool}", Resource::Gpu.text(*deserved))?;
            if let Some(limit) = limit {
                write!(f, " (limit {})", Resource::Gpu.number(*limit))?;
            }
        }
        match self.pools.as_slice() {
            [] => {}
            [pool] => write!(f, ", only pool {pool}")?,
            pools => write!(f, ", only pools {}", pools.join(" and "))?,
        }
        Ok(())
    }
}

/// Why a quota cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The guaranteed amount could never be allocated.
    #[error(
        "the limit of {} is below the quota of {}; raise the limit or lower the quota",
        resource.text(*limit), resource.text(*deserved)
    )]
    LimitBelowQuota {
        /// Of what.
        resource: Resource,
        /// The quota, in the resource's unit.
        deserved: u64,
        /// The limit, in the resource's unit.
        limit: u64,
    },
    /// Not a length of time.
    #[error("a minimum run time of {0} ms is none; give 0 or more")]
    MinRun(i64),
    /// The guaranteed part of a pool could never be allocated.
    #[error(
        "the limit of {} of pool {pool} is below its quota of {} there; raise the limit or lower the quota",
        Resource::Gpu.text(*limit), Resource::Gpu.text(*deserved)
    )]
    PoolLimit {
        /// The pool.
        pool: String,
        /// The quota, in thousandths.
        deserved: u64,
        /// The limit, in thousandths.
        limit: u64,
    },
    /// A quota of GPUs that the project may not use.
    #[error(
        "it has a quota of pool {pool} and may use {pools} only; add {pool} to --pools, or remove its quota of it"
    )]
    PoolNotAllowed {
        /// The pool.
        pool: String,
        /// The allowed pools.
        pools: String,
    },
}

/// Why a running task is asked to stop for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Its project has more than its share, and another's task is within its own.
    Reclaim,
    /// A task of higher priority in its project needs the room.
    Preempt,
    /// It fits elsewhere and starts again there, and a task that fits nowhere else gets its place.
    Consolidate,
    /// It uses memory beyond its request that another task was given.
    Lent,
}

/// The projects above `project` in ClearML's names, nearest first: `a/b/c` has `a/b` and `a`.
pub fn projects_above(project: &str) -> impl Iterator<Item = &str> {
    let mut rest = project;
    std::iter::from_fn(move || {
        rest = rest.rsplit_once('/')?.0;
        Some(rest)
    })
}

/// The one spelling of a project's name, as ClearML's server has it: parts between single slashes, without space around them.
/// `None`: no part is left, or one is `.` or `..`, which would look like a place elsewhere in the tree.
pub fn project_name(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('/').map(str::trim).filter(|part| !part.is_empty()).collect();
    let is_name = |part: &&str| !matches!(*part, "." | "..") && !part.contains(char::is_control);
    (!parts.is_empty() && parts.iter().all(is_name)).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_has_one_spelling() {
        for (text, name) in [
            ("vision", Some("vision")),
            ("/vision//x y / z/", Some("vision/x y/z")),
            ("v..", Some("v..")),
            ("vision/.", None),
            ("vision/../speech", None),
            (" / ", None),
            ("a\nb", None),
        ] {
            assert_eq!(project_name(text).as_deref(), name, "{text:?}");
        }
    }

    #[test]
    fn a_limit_below_the_quota_is_refused_in_words() {
        let gpu = Quota { deserved: Some(1500), limit: Some(1000), weight: 1 };
        let error = ProjectQuota { gpu, ..ProjectQuota::default() }.check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "the limit of 1 GPU is below the quota of 1.5 GPUs; raise the limit or lower the quota"
        );
        assert_eq!(ProjectQuota::default().check(), Ok(()));
        assert!(ProjectQuota { min_run_ms: -1, ..ProjectQuota::default() }.check().is_err());
    }

    #[test]
    fn quotas_for_people() {
        let gpu = Quota { deserved: Some(1500), limit: Some(2000), weight: 3 };
        let memory = Quota { deserved: Some(64 << 30), ..Quota::UNCOUNTED };
        let quota = ProjectQuota { gpu, memory, min_run_ms: 60_000, ..ProjectQuota::default() };
        assert_eq!(
            quota.to_string(),
            "1.5 GPUs, limit 2 GPUs, 64 GiB of memory, weight 3, at least 60 s of run time"
        );
    }

    #[test]
    fn quotas_of_pools() {
        let part = |deserved, limit| PoolQuota { deserved, limit };
        let of = |pool: &str, quota| BTreeMap::from([(pool.to_owned(), quota)]);
        let gpu = Quota { deserved: Some(1000), ..Quota::NONE };
        let quota = ProjectQuota { gpu, by_pool: of("a", part(2000, Some(3000))), ..ProjectQuota::default() };
        assert_eq!(quota.check(), Ok(()));
        assert_eq!(quota.quotas()[0].deserved, Some(2000), "what a pool guarantees is guaranteed");
        assert_eq!(quota.to_string(), "1 GPU, weight 1, 2 GPUs of pool a (limit 3)");
        let error = |quota: ProjectQuota| quota.check().unwrap_err().to_string();
        let low = ProjectQuota { by_pool: of("a", part(2000, Some(1500))), ..quota.clone() };
        assert!(error(low).starts_with("the limit of 1.5 GPUs of pool a is below its quota of 2 GPUs there"));
        let other = ProjectQuota { pools: vec!["b".to_owned()], ..quota.clone() };
        assert!(other.to_string().ends_with(", only pool b"));
        assert!(error(other).starts_with("it has a quota of pool a and may use b only"));
        let limit = Quota { limit: Some(1500), ..gpu };
        assert!(error(ProjectQuota { gpu: limit, ..quota }).starts_with("the limit of 1.5 GPUs is below"));
    }

    #[test]
    fn projects_are_a_tree_by_name() {
        assert_eq!(projects_above("a/b/c").collect::<Vec<_>>(), ["a/b", "a"]);
        assert_eq!(projects_above("a").count(), 0);
    }
}
