//! Runs: what nodes still hold, and the accounts of what was used.

pub(crate) mod accounts;
pub(crate) mod advice;
pub(crate) mod leases;
pub(crate) mod metering;
pub(crate) mod sides;
pub(crate) mod usage;
pub(crate) mod usage_days;
