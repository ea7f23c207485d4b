//! Memory that an open file descriptor keeps.
//!
//! The driver keeps exported memory as long as a copy of its descriptor is open, also when its handle is released. No hook is called
//! when a descriptor is closed. So the charge stays when the handle goes, and the descriptor is looked at when this process asks for the
//! amount of memory, creates memory, or would be refused. A copy of a descriptor, in this process or in another one, is not
//! followed: what it alone keeps is found by the watchdog.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;

use super::release;
use super::vmm::Handle;
use crate::cuda::SUCCESS;
use crate::function::Status;
use crate::process::{Process, keeping_errno, process};
use crate::table::Entry;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`. The memory that other kinds keep cannot be checked.
const DESCRIPTOR: c_int = 1;

pub(crate) unsafe fn export(
    real: unsafe extern "C" fn(*mut c_void, Handle, c_int, u64) -> Status,
    shared: *mut c_void,
    handle: Handle,
    kind: c_int,
    flags: u64,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(shared, handle, kind, flags) };
    if status == SUCCESS
        && kind == DESCRIPTOR
        && let Some(process) = process()
    {
        // SAFETY: the out-parameter contract, after success: for this kind it is an `int`.
        note(process, handle, unsafe { *shared.cast::<c_int>() });
    }
    status
}

/// Remembers the last descriptor of a handle's memory: by its number, with the handle and the file.
fn note(process: &Process, handle: Handle, descriptor: c_int) {
    let (Ok(number), Some(memory)) = (u32::try_from(descriptor), process.handles.get(handle)) else { return };
    let Some(file) = file_of(number) else { return };
    let export = Entry::new(key_of(number), both(handle, file), memory.gpu(), 0);
    // If there is no room, what this descriptor keeps is found by the watchdog.
    if let Ok(known) = process.exports.insert(export) {
        process
            .handles
            .update(handle, |entry| entry.context = u64::from(count_of(entry)) | export.key << u32::BITS);
        // The number is new, so the descriptor that had it before is closed.
        known.iter().for_each(|known| give_back(process, known));
    }
}

/// How many handles and mappings keep the memory of an entry. Its upper half is the key of the last descriptor.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
pub(crate) const fn count_of(memory: &Entry) -> u32 {
    memory.context as u32
}

/// The last handle or mapping of `memory` has gone: gives back its charge, or keeps it as long as its descriptor is open.
pub(crate) fn release(process: &Process, memory: &Entry) {
    let key = memory.context >> u32::BITS;
    if key == 0 || !keep(process, key, memory) {
        release::charged(memory);
    }
}

fn keep(process: &Process, key: u64, memory: &Entry) -> bool {
    let Some(file) = file_of(number_of(key)) else { return false };
    let mut is_kept = false;
    process.exports.update(key, |export| {
        is_kept = export.bytes() == 0 && export.context == both(memory.key, file);
        if is_kept {
            export.set_bytes(memory.bytes());
        }
    });
    if is_kept {
        process.kept_by_descriptors.fetch_add(1, Relaxed);
    }
    is_kept
}

/// Gives back the charge for memory whose descriptor is closed.
#[inline]
pub(crate) fn settle() {
    if let Some(process) = process().filter(|process| process.kept_by_descriptors.load(Relaxed) > 0) {
        settle_all(process);
    }
}

#[cold]
fn settle_all(process: &Process) {
    process.exports.each(|export| {
        let is_open = file_of(number_of(export.key)).is_some_and(|file| export.context >> u32::BITS == file);
        if export.bytes() > 0
            && !is_open
            && let Some(gone) = process.exports.remove_if(export.key, |now| *now == export)
        {
            give_back(process, &gone);
        }
    });
}

fn give_back(process: &Process, export: &Entry) {
    if export.bytes() > 0 {
        process.kept_by_descriptors.fetch_sub(1, Relaxed);
        release::charged(export);
    }
}

/// No key is 0.
const fn key_of(number: u32) -> u64 {
    number as u64 + 1
}

#[expect(clippy::cast_possible_truncation, reason = "the inverse of `key_of`")]
const fn number_of(key: u64) -> u32 {
    (key - 1) as u32
}

/// A handle, by its lower half, and the file of its descriptor. Numbers of descriptors are reused.
const fn both(handle: Handle, file: u64) -> u64 {
    file << u32::BITS | handle & u32::MAX as u64
}

/// The file that a descriptor is open for, in 32 bits; none if it is closed. The driver's are all of one device node, so there a descriptor of
/// the same number counts as the same one: what it keeps stays charged too long, which is safe.
fn file_of(number: u32) -> Option<u64> {
    let mut file = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel writes a `stat`, which `file` has room for.
    let failed = keeping_errno(|| unsafe { libc::syscall(libc::SYS_fstat, number, file.as_mut_ptr()) });
    if failed != 0 {
        return None;
    }
    // SAFETY: after success the kernel has written it.
    let file = unsafe { file.assume_init() };
    let mixed = file.st_ino ^ file.st_dev.rotate_left(24) ^ file.st_rdev.rotate_left(8);
    Some((mixed ^ mixed >> u32::BITS) & u64::from(u32::MAX))
}
