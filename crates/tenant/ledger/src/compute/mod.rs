//! The shared pages between a slice's processes and the arbiter of its GPU.
//!
//! Two files next to `limits` and `usage`, made only for a slice whose compute share is enforced. The arbiter writes
//! `grant`, and the tenant maps it read-only: it has the state of the gate. The tenant writes `launches`: what its threads
//! have launched, and what has ended. The tenant may write any byte there, or shorten the file. Its content counts for its
//! own slice only. The arbiter maps neither file: it copies the one and writes the other.
//!
//! Time is `CLOCK_MONOTONIC` in nanoseconds, the same for all processes of a machine. Launches are counted by their *price*:
//! the GPU time that they are expected to take.

#[cfg(feature = "std")]
mod host;
mod layout;
mod tenant;

#[cfg(feature = "std")]
pub use host::{GrantTerms, LaunchSums, LaunchWatch, create_grant, read_grant, run_first};
pub(crate) use layout::VERSION;
pub use layout::{MAX_THREADS, ThreadSlot};
/// The length of [`LAUNCHES_FILE`](crate::LAUNCHES_FILE).
#[cfg(feature = "std")]
pub(crate) const LAUNCHES_BYTES: usize = size_of::<layout::LaunchesRegion>();
/// The length of [`GRANT_FILE`](crate::GRANT_FILE).
#[cfg(feature = "std")]
pub(crate) const GRANT_BYTES: usize = size_of::<layout::GrantRegion>();
pub use tenant::{GATE_STALE_NS, GatePage};
