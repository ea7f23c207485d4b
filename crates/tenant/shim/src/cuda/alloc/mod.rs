//! Allocations that live until they are freed: each is charged before the driver is asked.

pub(crate) mod array;
pub(crate) mod export;
pub(crate) mod linear;
pub(crate) mod location;
pub(crate) mod release;
pub(crate) mod reservation;
pub(crate) mod slab;
pub(crate) mod slice_gpu;
pub(crate) mod vmm;
