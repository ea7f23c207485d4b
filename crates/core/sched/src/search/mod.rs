//! The search: in which order tasks are looked at, where each is placed, and which are stopped for it.

pub(crate) mod binpack;
pub(crate) mod cutting_stock;
pub(crate) mod evict;
pub(crate) mod offers;
pub(crate) mod outlook;
pub(crate) mod permit;
pub(crate) mod picker;
pub(crate) mod ranking;
pub(crate) mod reserve;
pub(crate) mod round;
pub(crate) mod sets;
pub(crate) mod standard;
pub(crate) mod turns;
pub(crate) mod victims;
pub(crate) mod worth;
