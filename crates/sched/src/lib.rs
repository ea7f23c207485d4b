//! Which task next, on which GPU, and why the others wait. Pure: `now` and ids are arguments, nothing is read from
//! outside, the same input gives the same plan everywhere (agent, server, Kubernetes, simulator).
//!
//! [`plan`] looks at a [`State`] and says what to start; [`audit`] is written apart from it and proves before every
//! execution that a plan takes nothing twice; [`why`] tells the user of a waiting task what is missing.

mod audit;
mod cluster;
mod demand;
mod never;
mod plan;
mod policy;
mod rank;
mod reason;
mod reserve;
mod state;
mod turns;
mod validate;
mod why;

pub use audit::{Violation, audit};
pub use cluster::{Cluster, Place};
pub use demand::{Ask, Demand, Shape};
pub use plan::{Plan, Start, Wait, plan};
pub use policy::{Order, Placement, Policy};
pub use reason::{FreePart, Reason, Use};
pub use state::{GpuState, Host, Node, Queue, Running, State, Waiting};
pub use validate::{DemandError, validate_queues};
pub use why::{Explanation, NodeLack, why};
