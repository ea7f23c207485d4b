//! `cantle.*` about pools: named sets of GPUs.

use std::collections::BTreeMap;

use cantle_model::{Pool, PoolQuota};
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::{endpoint, one_or_many};

/// `cantle.get_pools`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetPools {}
endpoint!("cantle.get_pools", GetPools => Pools);

/// Answer of `cantle.get_pools`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pools {
    /// By name.
    pub pools: Vec<PoolView>,
}

/// A pool and its GPUs at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolView {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// GPUs in it, of nodes that are alive.
    pub gpus: u64,
    /// How much of them is allocated, in thousandths of a GPU.
    pub allocated_milli: u64,
    /// The projects whose quotas name it, of those that the caller may see.
    pub projects: Vec<String>,
}

/// `cantle.set_pool`: defines a pool, or defines it again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetPool {
    /// Its name.
    pub pool: String,
    /// Patterns of node names; empty: every node.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub nodes: Vec<String>,
    /// Patterns of GPU models; empty: every model.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub models: Vec<String>,
}
endpoint!("cantle.set_pool", SetPool => PoolMatches);

/// Answer of `cantle.set_pool`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolMatches {
    /// GPUs in the pool, of all nodes that ever reported.
    pub gpus: u64,
    /// The patterns of nodes and models that match none.
    pub unmatched: Vec<String>,
}

/// `cantle.delete_pool`: refused while a quota names it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeletePool {
    /// Its name.
    pub pool: String,
}
endpoint!("cantle.delete_pool", DeletePool => Empty);

/// The part of a pool that a project holds, those below it included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolShare {
    /// Its quota.
    #[serde(flatten)]
    pub quota: PoolQuota,
    /// Held by its tasks, in thousandths of a GPU.
    pub allocated_milli: u64,
}

/// By name of the pool.
pub type PoolShares = BTreeMap<String, PoolShare>;
