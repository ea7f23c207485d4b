//! The private table through which `nvidia-smi` reaches NVML. Without it the program prints "Mismatch in versions", and its
//! process list comes from here, not from the public functions. Slots and structure were found by experiments with the
//! programs of drivers 535, 550, 555, 580 and 595.

use std::ffi::{c_char, c_void};

use super::handle::{Handle, target};
use super::process::{Process, list, running};
use super::system::process_name;
use super::{NvmlError, code, nvml_api};
use crate::ffi::{In, Out};

/// The table's id.
const ID: [u8; 16] =
    [0xC4, 0xFE, 0x3E, 0x6C, 0xC9, 0x8F, 0x6C, 0x4E, 0xA3, 0x27, 0xEE, 0x69, 0x6E, 0x12, 0xF7, 0xC4];

/// Words of the table, the size included; the real one has about as many.
const WORDS: usize = 512;
const COMPUTE_PROCESSES: usize = 213;
const GRAPHICS_PROCESSES: usize = 214;
const MPS_PROCESSES: usize = 215;

/// The arguments of a slot: a GPU, and a list to fill.
type Slot = extern "C" fn(Handle, Out<u32>, Out<NamedProcess>) -> i32;

/// The table: its size in bytes, then functions.
#[repr(C)]
struct Table {
    size_bytes: usize,
    slots: [Slot; WORDS - 1],
}

/// A process as slots 213 to 215 give it.
#[repr(C)]
struct NamedProcess {
    pid: u32,
    used_bytes: u64,
    gpu_instance: u32,
    compute_instance: u32,
    unknown: [u32; 2],
    name: [c_char; 4096],
}

impl NamedProcess {
    fn new(process: Process) -> Self {
        let mut name = [0; 4096];
        let text = process_name(process.pid).unwrap_or_default();
        for (to, from) in name[..4095].iter_mut().zip(text.bytes()) {
            *to = from as c_char;
        }
        Self {
            pid: process.pid,
            used_bytes: process.used_bytes,
            gpu_instance: process.gpu_instance,
            compute_instance: process.compute_instance,
            unknown: [0; 2],
            name,
        }
    }
}

/// Other slots are called now and then, with other arguments; doing nothing, successfully, satisfies the program.
extern "C" fn nothing(_: Handle, _: Out<u32>, _: Out<NamedProcess>) -> i32 {
    0
}

extern "C" fn compute_processes(device: Handle, count: Out<u32>, buffer: Out<NamedProcess>) -> i32 {
    let named = |target| running(&target).into_iter().map(NamedProcess::new).collect();
    code(target(device).map(named).and_then(|processes| list(count, buffer, processes)))
}

extern "C" fn no_processes(device: Handle, count: Out<u32>, buffer: Out<NamedProcess>) -> i32 {
    code(target(device).and_then(|_| list(count, buffer, Vec::new())))
}

static TABLE: Table = {
    let mut slots: [Slot; WORDS - 1] = [nothing; WORDS - 1];
    slots[COMPUTE_PROCESSES - 1] = compute_processes;
    slots[GRAPHICS_PROCESSES - 1] = no_processes;
    slots[MPS_PROCESSES - 1] = no_processes;
    Table { size_bytes: size_of::<Table>(), slots }
};

nvml_api! {
    fn nvmlInternalGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        if id.get()? != ID {
            return Err(NvmlError::NOT_FOUND);
        }
        Ok(table.set((&raw const TABLE).cast())?)
    }
}
