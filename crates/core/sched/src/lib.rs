//! Decides which task starts next, on which GPU, and why the others wait. Pure: `now` and ids are arguments, and
//! nothing is read from outside. So the same input gives the same plan everywhere (agent, server, Kubernetes,
//! simulator).
//!
//! [`plan`] decides from a [`Snapshot`] what to start. [`audit`] is independent of it and checks, before a plan is
//! carried out, that it takes nothing twice. [`why`] explains to a user what a waiting task lacks.

mod accounts;
mod audit;
mod audit_instance;
mod binpack;
mod board;
mod cluster;
mod cut;
mod demand;
mod evict;
mod fairshare;
mod group;
mod lack;
mod never;
mod observed;
mod outlook;
mod permit;
mod picker;
mod plan;
mod policy;
mod pool;
mod project;
mod ranking;
mod reason;
mod reserve;
mod round;
mod sets;
mod snapshot;
mod standard;
mod stock;
mod tally;
mod turns;
mod usage;
mod validate;
mod victims;
mod why;
mod worth;

pub use accounts::GpuShare;
pub use audit::{Violation, audit};
pub use binpack::{Binpack, Spread};
pub use cantle_model::{Amounts, Cause, Quota, RESOURCES, Resource};
pub use cluster::{Cluster, GpuFree, NodeFree, Place};
pub use cut::{Cut, InstanceCut};
pub use demand::{Demand, GpuClass, GpuDemand, Shape};
pub use evict::Eviction;
pub use observed::Observed;
pub use outlook::Mix;
pub use picker::Picker;
pub use plan::{Plan, Start, Wait, plan};
pub use policy::{Order, Placement, Policy};
pub use project::Project;
pub use ranking::{NodeOffer, Rank, Ranking};
pub use reason::{FreePart, HeldBy, HeldQuota, Obstacle, Reason, Use, UsedPool, UsedShare};
pub use snapshot::{
    Elsewhere, Gang, GpuState, Held, Host, Node, PoolMilli, Queue, Running, Snapshot, Waiting,
};
pub use standard::Standard;
pub use stock::allocation_bound;
pub use tally::shares;
pub use usage::{decayed_use, recent_use, usage_ppm};
pub use validate::{DemandError, validate_queues};
pub use why::{Explanation, NodeLack, why};
pub use worth::Worth;
