//! Attributes of pointers.

use std::ffi::c_void;

use super::address_space::{Allocation, Kind};
use super::session::{Inner, session};
use super::{CuError, CuResult, driver_api};
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

/// A range of device addresses with memory behind it.
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) size_bytes: u64,
    device: usize,
    /// 0 for memory that belongs to no context.
    context: u32,
    managed: bool,
}

impl Inner {
    /// The range that contains a device address: an allocation or a mapping.
    pub(super) fn range(&self, address: u64) -> Option<Range> {
        if let Some((start, size_bytes, device)) = self.vmm.mapped(address) {
            return Some(Range { start, size_bytes, device, context: 0, managed: false });
        }
        let (start, Allocation { size_bytes, context, kind }) = self.addresses.containing(address)?;
        let device = match kind {
            Kind::Reserved => None,
            Kind::Graph(pool) => self.pools.device_of(pool),
            _ => self.contexts.device_of(context).ok(),
        };
        Some(Range { start, size_bytes, device: device?, context, managed: kind == Kind::Managed })
    }
}

/// Writes one attribute; the type behind `out` depends on it. Unknown pointers are host memory the driver does not know.
fn attribute(inner: &Inner, out: *mut c_void, attribute: i32, address: u64) -> CuResult {
    let Some(range) = inner.range(address) else {
        let size_bytes = inner.host.size_of(address).ok_or(CuError::INVALID_VALUE)?;
        return match attribute {
            MEMORY_TYPE => Ok(Out(out.cast()).set(TYPE_HOST)?),
            HOST_POINTER | DEVICE_POINTER => Ok(Out(out.cast()).set(address)?),
            RANGE_SIZE => Ok(Out(out.cast()).set(size_bytes)?),
            IS_MANAGED => Ok(Out(out.cast()).set(0_u8)?),
            MAPPED => Ok(Out(out.cast()).set(1_i32)?),
            _ => Err(CuError::INVALID_VALUE),
        };
    };
    match attribute {
        CONTEXT => Ok(Out(out.cast()).set(super::context::handle(range.context))?),
        MEMORY_TYPE => Ok(Out(out.cast()).set(TYPE_DEVICE)?),
        DEVICE_POINTER => Ok(Out(out.cast()).set(address)?),
        HOST_POINTER if range.managed => Ok(Out(out.cast()).set(address)?),
        BUFFER_ID | RANGE_START => Ok(Out(out.cast()).set(range.start)?),
        IS_MANAGED => Ok(Out(out.cast()).set(u8::from(range.managed))?),
        DEVICE_ORDINAL => Ok(Out(out.cast()).set(range.device as i32)?),
        RANGE_SIZE => Ok(Out(out.cast()).set(range.size_bytes)?),
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
