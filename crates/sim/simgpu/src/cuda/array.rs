//! Arrays and mipmapped arrays. An array consumes the bytes of its elements, without padding, as any other allocation.

use std::collections::BTreeMap;

use super::session::{Inner, session};
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out};

const HANDLE_BASE: u64 = 0xC0DE_A000_0000;
const ALIGNMENT_BYTES: usize = 64 << 10;
const FLAG_LAYERED: u32 = 0x01;
const FLAG_CUBEMAP: u32 = 0x04;
const FLAG_SPARSE: u32 = 0x40;
const FLAG_DEFERRED: u32 = 0x80;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Flat {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Requirements {
    size: usize,
    alignment: usize,
    reserved: [u32; 4],
}

#[derive(Clone, Copy)]
struct Array {
    descriptor: Descriptor,
    /// 1 for a plain array, else the levels of a mipmapped one.
    levels: u32,
    /// The memory that it consumes on its device; 0 for an array that gets its memory later or is a level of another.
    size_bytes: u64,
    context: u32,
}

/// Arrays by handle.
#[derive(Default)]
pub(super) struct Arrays {
    live: BTreeMap<u64, Array>,
    created: u64,
}

impl Arrays {
    fn insert(&mut self, array: Array) -> u64 {
        self.created += 1;
        let handle = HANDLE_BASE + self.created * 16;
        self.live.insert(handle, array);
        handle
    }

    fn get(&self, handle: u64) -> CuResult<Array> {
        self.live.get(&handle).copied().ok_or(CuError::INVALID_HANDLE)
    }

    /// Arrays made in a context.
    pub(super) fn in_context(&self, context: u32) -> Vec<u64> {
        self.live.iter().filter(|(_, a)| a.context == context).map(|(&handle, _)| handle).collect()
    }
}

impl Descriptor {
    fn element_bytes(&self) -> CuResult<u64> {
        let component = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0A | 0x20 => 4,
            _ => return Err(CuError::INVALID_VALUE),
        };
        if matches!(self.channels, 1 | 2 | 4) {
            Ok(component * u64::from(self.channels))
        } else {
            Err(CuError::INVALID_VALUE)
        }
    }

    /// Bytes of the elements of one level.
    fn level_bytes(&self, level: u32) -> CuResult<u64> {
        let extent = |n: usize| (n as u64).checked_shr(level).unwrap_or(0).max(1);
        // Layers (and the faces of a cube) do not shrink from level to level.
        let layered = self.flags & (FLAG_LAYERED | FLAG_CUBEMAP) != 0;
        let depth = if layered { (self.depth as u64).max(1) } else { extent(self.depth) };
        let extents = [extent(self.width), extent(self.height), depth];
        let bytes = extents.into_iter().try_fold(self.element_bytes()?, u64::checked_mul);
        bytes.ok_or(CuError::OUT_OF_MEMORY)
    }

    fn bytes(&self, levels: u32) -> CuResult<u64> {
        (0..levels).try_fold(0_u64, |sum, level| {
            sum.checked_add(self.level_bytes(level)?).ok_or(CuError::OUT_OF_MEMORY)
        })
    }
}

impl Inner {
    fn create_array(&mut self, descriptor: Descriptor, levels: u32) -> CuResult<u64> {
        let levels_possible =
            usize::BITS - descriptor.width.max(descriptor.height).max(descriptor.depth).leading_zeros();
        if descriptor.width == 0 || levels == 0 || levels > levels_possible {
            return Err(CuError::INVALID_VALUE);
        }
        let (context, device) = self.current_device()?;
        let bytes = descriptor.bytes(levels)?;
        let size_bytes = if descriptor.flags & (FLAG_SPARSE | FLAG_DEFERRED) == 0 { bytes } else { 0 };
        if size_bytes > 0 {
            let (registration, account) = self.account(device)?;
            account.allocate(registration, size_bytes)?;
        }
        Ok(self.arrays.insert(Array { descriptor, levels, size_bytes, context }))
    }

    pub(super) fn destroy_array(&mut self, handle: u64) -> CuResult {
        let array = self.arrays.live.remove(&handle).ok_or(CuError::INVALID_HANDLE)?;
        if array.size_bytes == 0 {
            return Ok(());
        }
        let device = self.contexts.device_of(array.context)?;
        let (registration, account) = self.account(device)?;
        account.free(registration, array.size_bytes)
    }
}

fn create(out: Out<u64>, descriptor: Descriptor, levels: u32) -> CuResult {
    if out.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let handle = session()?.lock().create_array(descriptor, levels)?;
    Ok(out.set(handle)?)
}

fn requirements(out: Out<Requirements>, handle: u64) -> CuResult {
    let array = session()?.lock().arrays.get(handle)?;
    // Only arrays whose memory the program provides have requirements.
    if array.descriptor.flags & (FLAG_SPARSE | FLAG_DEFERRED) == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let size = (array.descriptor.bytes(array.levels)? as usize).next_multiple_of(ALIGNMENT_BYTES);
    Ok(out.set(Requirements { size, alignment: ALIGNMENT_BYTES, reserved: [0; 4] })?)
}

driver_api! {
    fn cuArrayCreate_v2(out: Out<u64>, descriptor: In<Flat>) {
        let Flat { width, height, format, channels } = descriptor.get()?;
        create(out, Descriptor { width, height, depth: 0, format, channels, flags: 0 }, 1)
    }

    fn cuArray3DCreate_v2(out: Out<u64>, descriptor: In<Descriptor>) { create(out, descriptor.get()?, 1) }

    fn cuMipmappedArrayCreate(out: Out<u64>, descriptor: In<Descriptor>, levels: u32) {
        create(out, descriptor.get()?, levels)
    }

    fn cuArrayDestroy(array: u64) { session()?.lock().destroy_array(array) }

    fn cuMipmappedArrayDestroy(array: u64) { session()?.lock().destroy_array(array) }

    fn cuMipmappedArrayGetLevel(out: Out<u64>, array: u64, level: u32) {
        let mut inner = session()?.lock();
        let whole = inner.arrays.get(array)?;
        if level >= whole.levels {
            return Err(CuError::INVALID_VALUE);
        }
        let shrink = |n: usize| if n == 0 { 0 } else { (n >> level).max(1) };
        let d = whole.descriptor;
        let descriptor = Descriptor { width: shrink(d.width), height: shrink(d.height), depth: shrink(d.depth), ..d };
        let handle = inner.arrays.insert(Array { descriptor, levels: 1, size_bytes: 0, context: whole.context });
        Ok(out.set(handle)?)
    }

    fn cuArrayGetDescriptor_v2(out: Out<Flat>, array: u64) {
        let Descriptor { width, height, format, channels, .. } = session()?.lock().arrays.get(array)?.descriptor;
        Ok(out.set(Flat { width, height, format, channels })?)
    }

    fn cuArray3DGetDescriptor_v2(out: Out<Descriptor>, array: u64) {
        Ok(out.set(session()?.lock().arrays.get(array)?.descriptor)?)
    }

    fn cuArrayGetMemoryRequirements(out: Out<Requirements>, array: u64, _device: i32) { requirements(out, array) }

    fn cuMipmappedArrayGetMemoryRequirements(out: Out<Requirements>, array: u64, _device: i32) {
        requirements(out, array)
    }
}
