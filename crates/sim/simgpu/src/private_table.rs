//! The table that the simulated driver gives to the stand-in for NVIDIA's runtime through `cuGetExportTable`: the runtime's
//! access to its context, which does not appear among the exported functions. NVIDIA's own tables are not simulated.

use crate::ffi::Out;

/// Names the table.
pub(crate) static ID: [u8; 16] = *b"cantle simulated";

/// The table; its size comes first, as in the driver's own.
#[repr(C)]
pub(crate) struct PrivateTable {
    pub(crate) size_bytes: usize,
    /// `CUresult (*)(CUcontext *, CUdevice)`
    pub(crate) primary_context_retain: extern "C" fn(Out<usize>, i32) -> i32,
}
