//! What a pointer points to.

use std::ffi::c_void;

use super::session::{Inner, session};
use super::{CuError, CuResult, driver_api};
use crate::cuda::address_space::Kind;
use crate::ffi::{In, Out};

const CONTEXT: i32 = 1;
const MEMORY_TYPE: i32 = 2;
const DEVICE_POINTER: i32 = 3;
const HOST_POINTER: i32 = 4;
const BUFFER_ID: i32 = 7;
const IS_MANAGED: i32 = 8;
const DEVICE_ORDINAL: i32 = 9;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;
const MAPPED: i32 = 13;

const TYPE_HOST: u32 = 1;
const TYPE_DEVICE: u32 = 2;

/// Writes one attribute; the type behind `out` depends on it. Unknown pointers are host memory the driver does not know.
fn attribute(inner: &Inner, out: *mut c_void, attribute: i32, address: u64) -> CuResult {
    let host = inner.host.size_of(address);
    let found = inner.addresses.containing(address);
    let Some((start, allocation)) = found else {
        return match (attribute, host) {
            (_, None) => Err(CuError::INVALID_VALUE),
            (MEMORY_TYPE, _) => Ok(Out(out.cast()).set(TYPE_HOST)?),
            (HOST_POINTER | DEVICE_POINTER, _) => Ok(Out(out.cast()).set(address)?),
            (RANGE_SIZE, Some(size)) => Ok(Out(out.cast()).set(size)?),
            (IS_MANAGED, _) => Ok(Out(out.cast()).set(0_u8)?),
            (MAPPED, _) => Ok(Out(out.cast()).set(1_i32)?),
            _ => Err(CuError::INVALID_VALUE),
        };
    };
    let device = inner.contexts.device_of(allocation.context)?;
    match attribute {
        CONTEXT => Ok(Out(out.cast()).set(super::context::handle(allocation.context))?),
        MEMORY_TYPE => Ok(Out(out.cast()).set(TYPE_DEVICE)?),
        DEVICE_POINTER => Ok(Out(out.cast()).set(address)?),
        HOST_POINTER if allocation.kind == Kind::Managed => Ok(Out(out.cast()).set(address)?),
        BUFFER_ID | RANGE_START => Ok(Out(out.cast()).set(start)?),
        IS_MANAGED => Ok(Out(out.cast()).set(u8::from(allocation.kind == Kind::Managed))?),
        DEVICE_ORDINAL => Ok(Out(out.cast()).set(device as i32)?),
        RANGE_SIZE => Ok(Out(out.cast()).set(allocation.size_bytes)?),
        MAPPED => Ok(Out(out.cast()).set(1_i32)?),
        _ => Err(CuError::INVALID_VALUE),
    }
}

driver_api! {
    fn cuPointerGetAttribute(data: *mut c_void, wanted: i32, address: u64) {
        attribute(&session()?.lock(), data, wanted, address)
    }

    /// Unlike the single form this one succeeds for foreign pointers and leaves zeroes.
    fn cuPointerGetAttributes(count: u32, wanted: In<i32>, data: In<*mut c_void>, address: u64) {
        let inner = session()?.lock();
        let wanted = wanted.get_all(count as usize)?;
        let data = data.get_all(count as usize)?;
        for (wanted, out) in wanted.into_iter().zip(data) {
            if attribute(&inner, out, wanted, address).is_err() {
                Out(out.cast()).set(0_u8)?;
            }
        }
        Ok(())
    }
}
