//! The private table through which `nvidia-smi` reaches NVML. Without it the program says "Mismatch in versions".

use std::ffi::c_void;

use super::{NvmlError, nvml_api};
use crate::ffi::{In, Out};

/// The table's id.
const ID: [u8; 16] =
    [0xC4, 0xFE, 0x3E, 0x6C, 0xC9, 0x8F, 0x6C, 0x4E, 0xA3, 0x27, 0xEE, 0x69, 0x6E, 0x12, 0xF7, 0xC4];

/// Slots of the table; the real one has about as many.
const SLOTS: usize = 512;

/// The table: its size in bytes, then functions.
#[repr(C)]
struct Table {
    size_bytes: usize,
    slots: [extern "C" fn() -> i32; SLOTS - 1],
}

/// Most slots are never called; a call changes nothing and succeeds.
extern "C" fn nothing() -> i32 {
    0
}

static TABLE: Table = Table { size_bytes: size_of::<Table>(), slots: [nothing; SLOTS - 1] };

nvml_api! {
    fn nvmlInternalGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        if id.get()? != ID {
            return Err(NvmlError::NOT_FOUND);
        }
        Ok(table.set((&raw const TABLE).cast())?)
    }
}
