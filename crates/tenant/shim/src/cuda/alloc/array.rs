//! Arrays and mipmapped arrays: only the driver knows how large they are.
//!
//! It reports the size of arrays whose memory the program provides. So before an array is made, one without memory is made from
//! the same description, asked for its size, and destroyed. Drivers before 11.6 have no such function; there the packed size is
//! charged.

use core::ffi::{c_int, c_uint, c_void};

use super::linear::Width;
use super::release;
use super::reservation;
use super::slice_gpu::SliceGpu;
use crate::cuda::device;
use crate::cuda::{Context, Device, OUT_OF_MEMORY, SUCCESS, driver, real};
use crate::function::{Function, Status};
use crate::holdings::SMALL_BYTES;
use crate::process::process;
use crate::table::Entry;

/// `CUarray` or `CUmipmappedArray`.
pub(crate) type Array = *mut c_void;

/// `CUDA_ARRAY_DESCRIPTOR`, with sizes of either width.
#[repr(C)]
pub(crate) struct Descriptor<S> {
    width: S,
    height: S,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`, with sizes of either width.
#[repr(C)]
pub(crate) struct Descriptor3d<S> {
    width: S,
    height: S,
    depth: S,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth counts layers, which do not shrink from level to level.
const LAYERS: c_uint = 0x01 | 0x04;
const SPARSE: c_uint = 0x40;
const DEFERRED_MAPPING: c_uint = 0x80;

/// Whether the program maps memory into such an array, instead of the driver.
pub(crate) const fn is_mapped_by_program(flags: c_uint) -> bool {
    flags & (SPARSE | DEFERRED_MAPPING) != 0
}

/// Whether the depth counts layers.
pub(crate) const fn counts_layers(flags: c_uint) -> bool {
    flags & LAYERS != 0
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Requirements {
    bytes: usize,
    alignment: usize,
    reserved: [c_uint; 4],
}

/// An array that the program asks for, in the widest form; `levels` is 0 for one that is not mipmapped.
struct ArrayRequest {
    descriptor: Descriptor3d<usize>,
    levels: c_uint,
}

impl ArrayRequest {
    fn flat<S: Width>(d: &Descriptor<S>) -> Self {
        let (width, height) = (d.width.widen() as usize, d.height.widen() as usize);
        Self {
            descriptor: Descriptor3d {
                width,
                height,
                depth: 0,
                format: d.format,
                channels: d.channels,
                flags: 0,
            },
            levels: 0,
        }
    }

    fn deep<S: Width>(d: &Descriptor3d<S>, levels: c_uint) -> Self {
        let (width, height, depth) =
            (d.width.widen() as usize, d.height.widen() as usize, d.depth.widen() as usize);
        Self {
            descriptor: Descriptor3d {
                width,
                height,
                depth,
                format: d.format,
                channels: d.channels,
                flags: d.flags,
            },
            levels,
        }
    }

    /// Bytes that it takes; 0 if the program maps memory into it, which is charged where it is allocated.
    fn bytes(&self, device: Device) -> u64 {
        if is_mapped_by_program(self.descriptor.flags) {
            return 0;
        }
        let packed = self.packed_bytes();
        // Small ones share granules, so the driver's rounding matters only for larger ones.
        if packed <= SMALL_BYTES { packed } else { self.required_bytes(device).unwrap_or(packed) }
    }

    fn packed_bytes(&self) -> u64 {
        let d = &self.descriptor;
        // CUarray_format: 8-bit 1 and 8; 16-bit 2, 9 and half 16; 32-bit 3, 10 and float 32. Others have 16 bytes at most.
        let element = match d.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => 16,
        };
        let row = u64::from(d.channels).saturating_mul(element);
        (0..self.levels.clamp(1, 32)).fold(0, |sum: u64, level| {
            let at = |extent: usize| (extent as u64 >> level).max(1);
            let depth = if counts_layers(d.flags) { (d.depth as u64).max(1) } else { at(d.depth) };
            let level = [at(d.width), at(d.height), depth]
                .iter()
                .fold(row, |bytes, &extent| bytes.saturating_mul(extent));
            sum.saturating_add(level)
        })
    }

    /// Asks the driver, by way of an array without memory.
    fn required_bytes(&self, device: Device) -> Option<u64> {
        let d = &self.descriptor;
        let probe = Descriptor3d { flags: d.flags | DEFERRED_MAPPING, ..*d };
        let is_mipmapped = self.levels != 0;
        // All three before the first call: an array that is created is destroyed.
        let ask = if is_mipmapped {
            &driver::cuMipmappedArrayGetMemoryRequirements
        } else {
            &driver::cuArrayGetMemoryRequirements
        };
        let destroy = if is_mipmapped { &real::cuMipmappedArrayDestroy } else { &real::cuArrayDestroy };
        let (ask, destroy) = (ask.get().ok()?, destroy.get().ok()?);
        let mut array = core::ptr::null_mut();
        // SAFETY: `array` and `probe` are live locals of the types that the driver's header gives.
        let created = unsafe {
            if is_mipmapped {
                real::cuMipmappedArrayCreate.get().ok()?(&raw mut array, &raw const probe, self.levels)
            } else {
                real::cuArray3DCreate_v2.get().ok()?(&raw mut array, &raw const probe)
            }
        };
        if created != SUCCESS {
            return None;
        }
        let mut requirements = Requirements::default();
        // SAFETY: `requirements` is a live local of the header's type. The driver has just created `array`; it is known to this
        // function alone and not used after its destruction.
        let status = unsafe {
            let status = ask(&raw mut requirements, array, device);
            destroy(array);
            status
        };
        (status == SUCCESS && requirements.bytes > 0).then_some(requirements.bytes as u64)
    }
}

type Create<D> = unsafe extern "C" fn(*mut Array, *const D) -> Status;

pub(crate) unsafe fn create<S: Width>(
    real: Create<Descriptor<S>>,
    array: *mut Array,
    descriptor: *const Descriptor<S>,
) -> Status {
    // SAFETY: the call contract: `descriptor` is null or valid for the driver to read, and so for us; all is passed unchanged.
    unsafe {
        created(
            array,
            descriptor.as_ref().map(ArrayRequest::flat),
            || real(array, descriptor),
            &real::cuArrayDestroy,
        )
    }
}

pub(crate) unsafe fn create_3d<S: Width>(
    real: Create<Descriptor3d<S>>,
    array: *mut Array,
    descriptor: *const Descriptor3d<S>,
) -> Status {
    // SAFETY: the call contract: `descriptor` is null or valid for the driver to read, and so for us; all is passed unchanged.
    unsafe {
        let wanted = descriptor.as_ref().map(|descriptor| ArrayRequest::deep(descriptor, 0));
        created(array, wanted, || real(array, descriptor), &real::cuArrayDestroy)
    }
}

pub(crate) unsafe fn create_mipmapped(
    real: unsafe extern "C" fn(*mut Array, *const Descriptor3d<usize>, c_uint) -> Status,
    array: *mut Array,
    descriptor: *const Descriptor3d<usize>,
    levels: c_uint,
) -> Status {
    // SAFETY: the call contract: `descriptor` is null or valid for the driver to read, and so for us; all is passed unchanged.
    unsafe {
        // At least one, so that the probe is mipmapped too.
        let wanted = descriptor.as_ref().map(|descriptor| ArrayRequest::deep(descriptor, levels.max(1)));
        created(array, wanted, || real(array, descriptor, levels), &real::cuMipmappedArrayDestroy)
    }
}

type Destroy = Function<unsafe extern "C" fn(Array) -> Status>;

/// # Safety
/// If `real` returns success, the driver has written an array to `array`, and `destroy` is the function that destroys it.
unsafe fn created(
    array: *mut Array,
    wanted: Option<ArrayRequest>,
    real: impl FnOnce() -> Status,
    destroy: &Destroy,
) -> Status {
    let Some((wanted, (context, device))) = wanted.zip(device::current()) else { return real() };
    let bytes = wanted.bytes(device);
    if bytes == 0 {
        return real();
    }
    let reservation = match SliceGpu::of(device).and_then(|gpu| gpu.reserve(bytes)) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: by this function's condition, after success.
    let array = unsafe { *array };
    if remember(array, context, reservation) {
        return status;
    }
    if let Ok(destroy) = destroy.get() {
        // SAFETY: the driver has just created `array`, and the program gets an error in its place, so it never uses it.
        unsafe { destroy(array) };
    }
    OUT_OF_MEMORY
}

fn remember(array: Array, context: Context, reservation: reservation::Reservation) -> bool {
    let Some(process) = process() else { return false };
    let entry = Entry::new(array as u64, context as u64, reservation.gpu(), reservation.bytes());
    let Ok(gone) = process.arrays.insert(entry) else { return false };
    reservation.keep();
    if let Some(gone) = gone {
        release::charged(&gone);
    }
    true
}

pub(crate) unsafe fn destroy(real: unsafe extern "C" fn(Array) -> Status, array: Array) -> Status {
    // Removed first, as linear memory is: another thread may get the same handle once the driver has destroyed this one.
    let known = process().and_then(|process| process.arrays.remove(array as u64));
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(array) };
    if let Some(entry) = known {
        if status == SUCCESS {
            release::charged(&entry);
        } else if let Some(process) = process() {
            // If another thread has filled the table meanwhile, the array stays charged: too much is safe, too little is not.
            let _full = process.arrays.insert(entry);
        }
    }
    status
}
