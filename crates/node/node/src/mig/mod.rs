//! MIG instances: created when a task starts, kept when it has ended, destroyed when their memory slices are needed.
//!
//! A lease names GPU, profile and placement (the first memory slice) before anything is created there, and the MIG device
//! once the instance is ready. Any process may be killed in between:
//!
//! ```text
//! lease on disk ─► journal: "ours" ─► GPU instance ─► compute instance ─► its name in the lease ─► task starts
//!       │                │                  │                │
//!    swept with       dropped, as       counts as free, is destroyed when its slices are needed or an agent starts
//!    its owner       nothing is there
//! ```
//!
//! The [`journal`] lists our placements, because a placement is known before an instance exists. An instance elsewhere was
//! made by others and is never touched. An instance is in use if a lease names its device; the journal does not decide
//! that. An instance without a lease is free, unless a process still uses it.
//!
//! Creating and destroying needs the lock of that GPU ([`Writer`]), which may be held for seconds. Planning needs the
//! node's lock, for milliseconds. The GPU's lock is always taken first, then the node's.
//!
//! Instances that an administrator names are used as they are ([`fixed`]): the driver then shows only these, and refuses
//! to create or destroy one.

mod fixed;
mod geometry;
mod journal;
mod mode;
mod stages;
mod view;
mod writer;

pub(crate) use fixed::report_lost;
pub use fixed::{chosen, fixed_by_gpu, name_given};
pub use geometry::{geometry, look};
pub use journal::Journal;
pub use mode::WholeGpu;
pub use mode::{sweep, turn_on};
pub use stages::Stages;
pub use view::{MigGpu, MigPlacement, PlacementState, foreign, mig_gpus};
pub use writer::Adopt;
pub use writer::{Writer, make_instances};

#[cfg(test)]
mod tests;
