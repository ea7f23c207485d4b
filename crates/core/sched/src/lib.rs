//! Decides which task starts next, on which GPU, and why the others wait. Pure: `now` and ids are arguments, and
//! nothing is read from outside. So the same input gives the same plan everywhere (agent, server, Kubernetes,
//! simulator).
//!
//! [`plan`] decides from a [`Snapshot`] what to start. [`audit`] is independent of it and checks, before a plan is
//! carried out, that it takes nothing twice. [`why`] explains to a user what a waiting task lacks.

mod audit;
mod explain;
mod fair;
mod observed;
mod plan;
mod policy;
mod project;
mod search;
mod shape;
mod snapshot;
mod validate;

pub use audit::{Violation, audit};
pub use cantle_model::{Amounts, Cause, Quota, RESOURCES, Resource};
pub use explain::connection::connection;
pub use explain::reason::{FreePart, HeldBy, HeldQuota, Obstacle, Reason, Use, UsedPool, UsedShare};
pub use explain::starts::{HeldUntil, StartEstimate, StartGpu, StartNode, StartsLater, estimate_starts};
pub use explain::why::{Explanation, NodeLack, why};
pub use fair::accounts::GpuShare;
pub use fair::tally::shares;
pub use fair::usage::{decayed_use, recent_use, usage_ppm};
pub use observed::Observed;
pub use plan::{Plan, Start, Wait, plan};
pub use policy::{Order, Placement, Policy};
pub use project::Project;
pub use search::binpack::{Binpack, Spread};
pub use search::cutting_stock::allocation_bound;
pub use search::evict::Eviction;
pub use search::outlook::Mix;
pub use search::picker::Picker;
pub use search::ranking::{NodeOffer, Rank, Ranking};
pub use search::standard::Standard;
pub use search::worth::Worth;
pub use shape::cluster::{Cluster, GpuFree, NodeFree, Place};
pub use shape::cut::{Cut, InstanceCut};
pub use shape::demand::{Demand, GpuClass, GpuDemand, Shape};
pub use shape::fabric::Fabric;
pub use snapshot::{
    Elsewhere, Gang, GpuState, Held, Host, Node, PoolMilli, Queue, Running, Snapshot, Waiting,
};
pub use validate::{DemandError, validate_queues};
