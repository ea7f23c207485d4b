//! `cudaPointerGetAttributes`.

use super::driver::driver;
use super::{CudaResult, context, runtime_api};
use crate::ffi::Out;

const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;

const UNREGISTERED: i32 = 0;
const HOST: i32 = 1;
const MANAGED: i32 = 3;
/// No device.
const NONE: i32 = -2;

/// `cudaPointerAttributes`; in CUDA 13 reserved words follow.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
}

fn attributes(address: u64) -> CudaResult<Attributes> {
    context::init()?;
    let (mut kind, mut managed, mut device) = (UNREGISTERED, 0_u32, NONE);
    let (mut device_pointer, mut host_pointer) = (0_u64, 0_u64);
    let wanted = [MEMORY_TYPE, IS_MANAGED, DEVICE_ORDINAL, DEVICE_POINTER, HOST_POINTER];
    let results: [*mut u64; 5] = [
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut device).cast(),
        &raw mut device_pointer,
        &raw mut host_pointer,
    ];
    driver!(cuPointerGetAttributes(
        5 => u32, wanted.as_ptr() => *const i32, results.as_ptr() => *const *mut u64, address => u64
    ))?;
    let kind = if managed & 0xFF != 0 { MANAGED } else { kind };
    match kind {
        UNREGISTERED => Ok(Attributes { kind, device: NONE, device_pointer: 0, host_pointer: address }),
        // The driver leaves the ordinal of host memory open.
        HOST => Ok(Attributes { kind, device: context::device()?, device_pointer, host_pointer }),
        _ => Ok(Attributes { kind, device, device_pointer, host_pointer }),
    }
}

runtime_api! {
    fn cudaPointerGetAttributes(out: Out<Attributes>, address: u64) { Ok(out.set(attributes(address)?)?) }
}
