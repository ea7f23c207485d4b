//! MIG instances: made for a task when it starts, kept when it has ended, destroyed when their memory slices are needed.
//!
//! A lease names GPU, profile and placement (the first memory slice) before anything is made there, and the MIG device once
//! the instance is ready. In between everything may be killed:
//!
//! ```text
//! lease on disk ─► journal: "ours" ─► GPU instance ─► compute instance ─► its name in the lease ─► task starts
//!       │                │                  │                │
//!    swept with       dropped, as       counts as free, is destroyed when its slices are needed or an agent starts
//!    its owner       nothing is there
//! ```
//!
//! The [`journal`] lists our placements, because a placement is known before an instance exists. An instance elsewhere was
//! made by others and is never touched. An instance is in use if a lease names its device, never because of what the
//! journal says; one without a lease is free, unless a process is still in it.
//!
//! Making and destroying needs the lock of that GPU ([`Writer`]), which may be held for seconds; planning needs the node's
//! lock, for milliseconds. The node's lock is taken inside the GPU's, never the other way round.
//!
//! Instances that an administrator names are used as they are ([`fixed`]): the driver then shows these and no other, and
//! refuses to make or to destroy one.

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
pub use view::{MigGpu, MigPlacement, PlacementState, mig_gpus};
pub use writer::Adopt;
pub use writer::{Writer, make_instances};

#[cfg(test)]
mod tests;
