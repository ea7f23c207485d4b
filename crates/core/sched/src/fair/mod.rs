//! Quotas and fair shares of projects.

pub(crate) mod accounts;
pub(crate) mod fairshare;
pub(crate) mod pool;
pub(crate) mod tally;
pub(crate) mod usage;
