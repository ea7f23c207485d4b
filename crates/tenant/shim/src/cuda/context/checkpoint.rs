//! Suspended processes: their charge stays, so that their memory is free when they resume. It is charged where it was, so they may not
//! resume on another GPU.

use core::ffi::{c_int, c_uint};

use cantle_ledger::ANY_GPU;

use crate::cuda::INVALID_VALUE;
use crate::function::Status;
use crate::process::process;

/// `CUcheckpointGpuPair`: the UUIDs of a GPU, and of the one that takes its place.
#[repr(C)]
pub(crate) struct Pair {
    old: [u8; 16],
    new: [u8; 16],
}

/// The beginning of `CUcheckpointRestoreArgs`.
#[repr(C)]
pub(crate) struct RestoreArguments {
    pairs: *const Pair,
    count: c_uint,
}

pub(crate) unsafe fn restore(
    real: unsafe extern "C" fn(c_int, *const RestoreArguments) -> Status,
    pid: c_int,
    arguments: *const RestoreArguments,
) -> Status {
    // SAFETY: the call contract: `arguments` is null or valid for the driver to read, and so for us; and its `pairs` are `count` pairs, or null.
    let pairs = unsafe {
        let arguments = arguments.as_ref().filter(|arguments| !arguments.pairs.is_null());
        arguments.map_or(&[][..], |arguments| {
            core::slice::from_raw_parts(arguments.pairs, arguments.count as usize)
        })
    };
    if !pairs.iter().all(stays_in_slice) {
        return INVALID_VALUE;
    }
    // SAFETY: the call contract; the arguments are passed unchanged.
    unsafe { real(pid, arguments) }
}

/// Whether the memory comes back to where it is charged: to the same GPU, or to one of the slice from elsewhere.
fn stays_in_slice(pair: &Pair) -> bool {
    let Some(ledger) = process().and_then(|process| process.ledger()) else { return false };
    // A limit of an image is for any GPU.
    let is_in_slice =
        |uuid: &[u8; 16]| ledger.gpus().iter().any(|gpu| [*uuid, ANY_GPU].contains(&gpu.uuid()));
    is_in_slice(&pair.new) && (pair.old == pair.new || !is_in_slice(&pair.old))
}
