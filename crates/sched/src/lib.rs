//! Which task next, on which GPU, and why the others wait. Pure: `now` and ids are arguments, nothing is read from
//! outside, the same input gives the same plan everywhere (agent, server, Kubernetes, simulator).
//!
//! [`plan`] looks at a [`Snapshot`] and says what to start; [`audit`] is written apart from it and proves before every
//! execution that a plan takes nothing twice; [`why`] tells the user of a waiting task what is missing.

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
mod never;
mod observed;
mod outlook;
mod picker;
mod plan;
mod policy;
mod project;
mod ranking;
mod reason;
mod reserve;
mod round;
mod snapshot;
mod standard;
mod stock;
mod tally;
mod turns;
mod usage;
mod validate;
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
pub use reason::{FreePart, Obstacle, Reason, Use, UsedShare};
pub use snapshot::{Elsewhere, Gang, GpuState, Held, Host, Node, Queue, Running, Snapshot, Waiting};
pub use standard::Standard;
pub use stock::allocation_bound;
pub use tally::shares;
pub use usage::{decayed_use, recent_use, usage_ppm};
pub use validate::{DemandError, validate_queues};
pub use why::{Explanation, NodeLack, why};
pub use worth::Worth;
