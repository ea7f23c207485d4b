//! The ClearML agent of a node (`cantle daemon`): takes tasks from queues in order of priority and runs them in slices.
//!
//! The crate `cantle-node` has what every kind of node does: leases, capacity, launch, MIG, watchdog. This crate adds the
//! queues of a ClearML server.
//!
//! # The life of a task
//!
//! A task is an `LeasedTask` from its placement to its delivery. One part of the agent owns it at a time and passes it on by
//! value. No part sees the entries of another.
//!
//! ```text
//! queue ─► planner ─► claims ─► executor ─► reporter ─► server
//!                        ▲          │
//!                        └──────────┘  lost its place before it started
//! ```
//!
//! | state     | has it   | on disk since                         | moved on by, to                                        |
//! |-----------|----------|---------------------------------------|--------------------------------------------------------|
//! | waiting   | server   |                                       | `Planner::plan`, `Claims::reserve` → reserved          |
//! | reserved  | claims   | lease, `job.json`                     | `Claims::claim` → claimed; no answer: `Claims::settle` |
//! | claimed   | claims   | `job.json`: claimed                   | `Claims::announce` → starting                          |
//! | returning | claims   |                                       | `Claims::settle` → waiting                             |
//! | starting  | executor | `job.json`: command                   | `Update::Started` → running, returning or ended        |
//! | running   | executor | lease: leader; `stop.json` if stopped | `Update::Ended` → ended                                |
//! | ended     | reporter | `outcome.json`; the lease is gone     | `Reporter::deliver` → the server has the result        |
//!
//! The state follows from the files, so a daemon continues where its killed predecessor stopped (`Agent::adopt`).
//!
//! # The parts
//!
//! * `planner` reads the queues, the quotas and the node, and decides with the scheduler;
//! * `claims` writes leases, takes tasks from their queues, and puts back what cannot start;
//! * `executor` starts, adopts, watches and stops tasks, and receives updates from them;
//! * `reporter` reports to the server: the agent, the node, and the tasks with their logs and results;
//! * `agent` is the loop, and carries entries from one part to the next;
//! * `environment` has what all of them use and none changes.

mod agent;
mod authorities;
mod backoff;
mod claims;
mod command;
mod config;
mod container;
mod entry;
mod environment;
mod error;
mod exec;
mod executor;
mod first_call;
mod idle;
mod journal;
mod listener;
mod look_thread;
mod meter;
mod planner;
mod queues;
mod release;
mod reporter;
mod sdk;
mod setup;
mod task_record;
mod task_user;
mod view;
mod visitors;
mod wakeups;
mod worker_id;

pub use agent::daemon;
pub use config::{AgentConfig, AllocationMode, Hosts};
pub use error::AgentError;
pub use exec::serve_exec;
pub use executor::AbortCommand;
pub use planner::{Hours, Schedule, ScheduleError};
pub use sdk::{SDK_TASK_COMMAND, SdkDirectories, sdk_task_main};
pub use setup::check;
pub use task_user::TaskUserPolicy;
