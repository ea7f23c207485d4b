//! MIG: chooses the profile for a request and the placement of its instance. Pure: the table of profiles is an
//! argument, because it differs by GPU and by driver and NVML reports it.
//!
//! [`grant`] turns a request into a profile. [`Planner::decide`] finds the place that costs future requests the least. Among equal
//! places it prefers a free instance of the right profile, then the place with the fewest free instances to destroy. It
//! never touches a busy instance.

mod grant;
mod layouts;
mod optimum;
mod place;
mod planner;
mod room;
mod table;

pub use grant::{Granted, MigError, grant};
pub use optimum::Optimum;
pub use place::PLANNED;
pub use planner::{Action, Decision, GpuGeometry, Instance, Planner};
pub use table::{Engines, Profile, Table};
