//! Arrays and mipmapped arrays: how large they are only the driver knows.
//!
//! It tells for arrays whose memory the program provides. So before an array is made, one without memory is made of the same
//! description, asked what it needs, and destroyed. Drivers before 11.6 can't tell; there the packed size is charged.

use core::ffi::{c_int, c_uint, c_void};

use super::charge::{self, Place};
use super::memory::Word;
use super::{Context, Device, OUT_OF_MEMORY, SUCCESS, driver, real};
use crate::book::SMALL_BYTES;
use crate::function::{Function, Status};
use crate::process::process;
use crate::table::Entry;

/// `CUarray` or `CUmipmappedArray`.
pub(super) type Array = *mut c_void;

/// `CUDA_ARRAY_DESCRIPTOR`, with sizes of either width.
#[repr(C)]
pub(super) struct Descriptor<S> {
    width: S,
    height: S,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`, with sizes of either width.
#[repr(C)]
pub(super) struct Descriptor3d<S> {
    width: S,
    height: S,
    depth: S,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth counts layers, which don't shrink from level to level.
const LAYERS: c_uint = 0x01 | 0x04;
const SPARSE: c_uint = 0x40;
const DEFERRED_MAPPING: c_uint = 0x80;

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Requirements {
    bytes: usize,
    alignment: usize,
    reserved: [c_uint; 4],
}

/// An array to be made, in the widest form; `levels` is 0 for one that is not mipmapped.
struct Wanted {
    descriptor: Descriptor3d<usize>,
    levels: c_uint,
}

impl Wanted {
    fn flat<S: Word>(d: &Descriptor<S>) -> Self {
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

    fn deep<S: Word>(d: &Descriptor3d<S>, levels: c_uint) -> Self {
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

    /// What it takes; 0 if its memory is mapped into it by the program, and charged there.
    fn bytes(&self, device: Device) -> u64 {
        if self.descriptor.flags & (SPARSE | DEFERRED_MAPPING) != 0 {
            return 0;
        }
        let packed = self.packed_bytes();
        // Small ones share granules; only from there on does the driver's rounding matter.
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
            let depth = if d.flags & LAYERS == 0 { at(d.depth) } else { (d.depth as u64).max(1) };
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
        let mut array = core::ptr::null_mut();
        let mut requirements = Requirements::default();
        // SAFETY: the structures have the driver's layout; the array is ours and goes at the end.
        let status = unsafe {
            if self.levels == 0 {
                (real::cuArray3DCreate_v2.get().ok()?(&raw mut array, &raw const probe) == SUCCESS)
                    .then_some(())?;
                let status =
                    driver::cuArrayGetMemoryRequirements.get().ok()?(&raw mut requirements, array, device);
                real::cuArrayDestroy.get().ok()?(array);
                status
            } else {
                let create = real::cuMipmappedArrayCreate.get().ok()?;
                (create(&raw mut array, &raw const probe, self.levels) == SUCCESS).then_some(())?;
                let ask = driver::cuMipmappedArrayGetMemoryRequirements.get().ok()?;
                let status = ask(&raw mut requirements, array, device);
                real::cuMipmappedArrayDestroy.get().ok()?(array);
                status
            }
        };
        (status == SUCCESS && requirements.bytes > 0).then_some(requirements.bytes as u64)
    }
}

type Create<D> = unsafe extern "C" fn(*mut Array, *const D) -> Status;

pub(super) unsafe fn create<S: Word>(
    real: Create<Descriptor<S>>,
    array: *mut Array,
    descriptor: *const Descriptor<S>,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe {
        created(
            array,
            descriptor.as_ref().map(Wanted::flat),
            || real(array, descriptor),
            &real::cuArrayDestroy,
        )
    }
}

pub(super) unsafe fn create_3d<S: Word>(
    real: Create<Descriptor3d<S>>,
    array: *mut Array,
    descriptor: *const Descriptor3d<S>,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe {
        let wanted = descriptor.as_ref().map(|descriptor| Wanted::deep(descriptor, 0));
        created(array, wanted, || real(array, descriptor), &real::cuArrayDestroy)
    }
}

pub(super) unsafe fn create_mipmapped(
    real: unsafe extern "C" fn(*mut Array, *const Descriptor3d<usize>, c_uint) -> Status,
    array: *mut Array,
    descriptor: *const Descriptor3d<usize>,
    levels: c_uint,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe {
        // At least one, so that the probe is mipmapped too.
        let wanted = descriptor.as_ref().map(|descriptor| Wanted::deep(descriptor, levels.max(1)));
        created(array, wanted, || real(array, descriptor, levels), &real::cuMipmappedArrayDestroy)
    }
}

type Destroy = Function<unsafe extern "C" fn(Array) -> Status>;

unsafe fn created(
    array: *mut Array,
    wanted: Option<Wanted>,
    real: impl FnOnce() -> Status,
    destroy: &Destroy,
) -> Status {
    let Some((wanted, (context, device))) = wanted.zip(charge::current()) else { return real() };
    let bytes = wanted.bytes(device);
    if bytes == 0 {
        return real();
    }
    let reservation = match Place::of(device).and_then(|place| place.reserve(bytes)) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: written by the driver.
    let array = unsafe { *array };
    if remember(array, context, reservation) {
        return status;
    }
    if let Ok(destroy) = destroy.get() {
        // SAFETY: just created, and nobody has seen it.
        unsafe { destroy(array) };
    }
    OUT_OF_MEMORY
}

fn remember(array: Array, context: Context, reservation: charge::Reservation) -> bool {
    let Some(process) = process() else { return false };
    let entry = Entry::new(array as u64, context as u64, reservation.gpu(), reservation.bytes());
    let Ok(gone) = process.arrays.insert(entry) else { return false };
    reservation.keep();
    if let Some(gone) = gone {
        charge::release(gone.gpu(), gone.bytes());
    }
    true
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Array) -> Status, array: Array) -> Status {
    // Forgotten first, as linear memory is.
    let known = process().and_then(|process| process.arrays.remove(array as u64));
    // SAFETY: the caller's argument.
    let status = unsafe { real(array) };
    if let Some(entry) = known {
        if status == SUCCESS {
            charge::release(entry.gpu(), entry.bytes());
        } else if let Some(process) = process() {
            // Full can't be: its place has just been left.
            let _ = process.arrays.insert(entry);
        }
    }
    status
}
