//! The pages through which a slice's processes and the arbiter of its GPU talk about launches.
//!
//! Two files beside `limits` and `usage`, made only for a slice whose compute share is enforced. `grant` is written by the arbiter and
//! mapped read-only by the tenant: whether its gate is open. `launches` is written by the tenant: what its threads have launched,
//! and what has ended. The tenant may write any byte there, or shorten the file; what it writes is taken for its own slice only, and
//! the arbiter copies the file instead of mapping it.
//!
//! Time is `CLOCK_MONOTONIC` in nanoseconds, the same for all processes of a machine. Launches are counted by their *price*:
//! the GPU time that they are expected to take.

#[cfg(feature = "std")]
mod host;
mod layout;
mod tenant;

#[cfg(feature = "std")]
pub use host::{
    GRANT_FILE, GrantTerms, LAUNCHES_FILE, LaunchSums, LaunchWatch, create_grant, read_grant, run_first,
};
pub(crate) use layout::VERSION;
pub use layout::{MAX_THREADS, ThreadSlot};
pub use tenant::{GATE_STALE_NS, GatePage};
