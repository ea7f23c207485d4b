//! MIG: which profile a request gets, and where its instance goes. Pure: everything about profiles is an argument,
//! because NVML says what a GPU offers and it differs by GPU and by driver.
//!
//! [`grant`] turns a request into a profile; [`Planner::decide`] finds the place that leaves the most room; among
//! equals a free instance that is just right, then the fewest free ones to destroy. A busy instance is never touched.

mod grant;
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
