//! Why a task waits.

pub(crate) mod connection;
pub(crate) mod lack;
pub(crate) mod never;
pub(crate) mod reason;
pub(crate) mod starts;
pub(crate) mod why;
