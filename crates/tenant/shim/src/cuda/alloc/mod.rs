//! Allocations that live until they are freed: each is charged before the driver is asked.

pub(crate) mod array;
pub(crate) mod charge;
pub(crate) mod export;
pub(crate) mod linear;
pub(crate) mod location;
pub(crate) mod slab;
pub(crate) mod vmm;
