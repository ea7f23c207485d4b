//! The private table from which `nvidia-smi` takes its process list; it calls no public function for that.
//!
//! The program gets a copy of the table in which the three lists are filtered: rows of processes outside the slice are
//! removed. The programs of drivers 535, 550, 555, 580 and 595 read the same slots and rows; a table only grows at its end.
//! Tables of older and newer drivers pass untouched, and there the program shows every process on the GPU.

use core::ffi::{c_char, c_uint, c_ulonglong, c_void};
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use super::processes::{DriverRow, keep_own};
use super::{Device, SUCCESS, driver, guard};
use crate::function::Status;

/// The table's id, as the program passes it.
const ID: [u8; 16] =
    [0xC4, 0xFE, 0x3E, 0x6C, 0xC9, 0x8F, 0x6C, 0x4E, 0xA3, 0x27, 0xEE, 0x69, 0x6E, 0x12, 0xF7, 0xC4];
/// The branches of drivers whose table is known, from what their `nvidia-smi` reads.
const KNOWN_BRANCHES: RangeInclusive<u32> = 535..=595;
/// The most words that a table can have here; its first is its size in bytes.
const WORDS: usize = 1024;
/// Slots of the lists: processes that compute, that draw, and behind MPS.
const LISTS: [(usize, List); 3] = [(213, compute), (214, graphics), (215, mps)];

type List = unsafe extern "C" fn(Device, *mut c_uint, *mut Row) -> Status;

/// A process in these lists; 4128 bytes.
#[repr(C)]
pub(super) struct Row {
    pid: c_uint,
    used: c_ulonglong,
    instances: [c_uint; 4],
    name: [c_char; 4096],
}

impl DriverRow for Row {
    fn pid(&self) -> u32 {
        self.pid
    }
}

static COPY: [AtomicUsize; WORDS] = [const { AtomicUsize::new(0) }; WORDS];
static IS_COPIED: AtomicBool = AtomicBool::new(false);
/// The driver's own lists.
static REAL: [AtomicUsize; LISTS.len()] = [const { AtomicUsize::new(0) }; LISTS.len()];

pub(super) unsafe fn get(
    real: unsafe extern "C" fn(*mut *const c_void, *const [u8; 16]) -> Status,
    table: *mut *const c_void,
    id: *const [u8; 16],
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(table, id) };
    // SAFETY: the driver has read `id` and returned success, so that is valid to read.
    let asked_for_lists = status == SUCCESS && unsafe { *id } == ID;
    if !asked_for_lists || !is_known_driver() {
        return status;
    }
    // SAFETY: the out-parameter contract for `table`, after success. This id's table, in the drivers that we know, is an array of
    // words that begins with its size and is never freed.
    unsafe {
        if copy((*table).cast()) {
            *table = COPY.as_ptr().cast();
        }
    }
    status
}

fn is_known_driver() -> bool {
    let mut version = [0_u8; 96];
    let Ok(get) = driver::nvmlSystemGetDriverVersion.get() else { return false };
    // SAFETY: the driver writes at most `version.len()` bytes, all of them into `version`, a live local.
    let status = unsafe { get(version.as_mut_ptr().cast::<c_char>(), version.len() as c_uint) };
    status == SUCCESS && KNOWN_BRANCHES.contains(&branch(&version))
}

/// The number before the first point; 0 if there is none.
fn branch(version: &[u8]) -> u32 {
    let digits = version.iter().take(4).take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

/// Copies the driver's table, with the lists replaced; false if it is not one that we know.
///
/// # Safety
/// `table` is an array of words, the first of which is its size in bytes, and is valid to read.
unsafe fn copy(table: *const usize) -> bool {
    if IS_COPIED.load(Acquire) {
        return true;
    }
    // SAFETY: by this function's condition the table has a first word.
    let words = unsafe { *table } / size_of::<usize>();
    if words > WORDS || LISTS.iter().any(|(slot, _)| *slot >= words) {
        return false;
    }
    // Threads that copy at the same time write the same.
    for (at, word) in COPY.iter().enumerate().take(words) {
        let ours = LISTS.iter().zip(&REAL).find(|((slot, _), _)| *slot == at);
        // SAFETY: `at` is less than `words`, the number of whole words in the table.
        let theirs = unsafe { *table.add(at) };
        word.store(ours.map_or(theirs, |((_, list), _)| *list as usize), Relaxed);
        if let Some((_, real)) = ours {
            real.store(theirs, Relaxed);
        }
    }
    IS_COPIED.store(true, Release);
    true
}

unsafe extern "C" fn compute(device: Device, count: *mut c_uint, rows: *mut Row) -> Status {
    // SAFETY: the call contract, which holds for the table's functions as for exported ones; the arguments are passed unchanged.
    unsafe { filtered::<0>(device, count, rows) }
}

unsafe extern "C" fn graphics(device: Device, count: *mut c_uint, rows: *mut Row) -> Status {
    // SAFETY: the call contract, which holds for the table's functions as for exported ones; the arguments are passed unchanged.
    unsafe { filtered::<1>(device, count, rows) }
}

unsafe extern "C" fn mps(device: Device, count: *mut c_uint, rows: *mut Row) -> Status {
    // SAFETY: the call contract, which holds for the table's functions as for exported ones; the arguments are passed unchanged.
    unsafe { filtered::<2>(device, count, rows) }
}

/// The driver's list without processes that are not the slice's, and with what the slice charges for the others. If the buffer is
/// too small for the driver's list, the answer is the driver's, with its number of rows.
unsafe fn filtered<const LIST: usize>(device: Device, count: *mut c_uint, rows: *mut Row) -> Status {
    let real = REAL.get(LIST).map_or(0, |real| real.load(Relaxed));
    if real == 0 {
        return super::NOT_SUPPORTED;
    }
    let _inside = guard::enter();
    // SAFETY: `real` is not 0, so `copy` took it from this list's slot of the driver's table, which holds the address of a
    // function of this type. The call contract for the arguments, which are passed unchanged.
    let status = unsafe { core::mem::transmute::<usize, List>(real)(device, count, rows) };
    if status != SUCCESS || count.is_null() || rows.is_null() {
        return status;
    }
    // SAFETY: neither is null, and after success the driver has written `*count` rows (out-parameter contract).
    unsafe { *count = keep_own(device, rows, *count, |row, charged_bytes| row.used = charged_bytes) };
    status
}
