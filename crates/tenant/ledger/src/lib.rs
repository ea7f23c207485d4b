//! The accounting region of one slice: the tenant's limits, and what each of its processes uses.
//!
//! It consists of two files in one directory. The agent writes `limits`, and tenants map it read-only. All processes of
//! the slice share `usage`: every process owns one *slot*, and every GPU has one *word* that holds the sum.
//!
//! * **Never over the limit.** A reservation is one compare-and-swap of the GPU's word, whose new value was checked
//!   against the limit. There is no instant at which the sum exceeds it, with any number of processes.
//! * **Exact through SIGKILL at any instruction.** The word carries the stamp of the operation that wrote it, so the process
//!   that settles a dead one's slot can tell whether the last operation took effect ([`protocol`]).
//! * **No lock that a dead process can hold.** The region has none; settling is lock-free and may itself be killed.
//! * **The slot of a live process is never settled.** A process is alive as long as it holds a kernel lock, which ends with its
//!   memory ([`attach`]); a pid does not decide that.
//!
//! Bytes in `usage` belong to the tenant and may hold anything: each field read from it is bounds-checked, and wrong bytes
//! can at worst make that tenant's own accounting wrong (the agent compares it with the driver's).
#![no_std]

#[cfg(feature = "std")]
extern crate std;

pub mod attach;
pub mod compute;
mod file_names;
#[cfg(feature = "std")]
pub mod host;
mod layout;
mod map;
mod note;
#[cfg(feature = "std")]
mod observer;
mod proc_stat;
pub mod protocol;
pub mod seccomp;

pub use attach::{Account, Attachment, Ledger, Uses};
pub use file_names::{GRANT_FILE, LAUNCHES_FILE, LIMITS_FILE, MEMORY_FILE, USAGE_FILE};
pub use layout::{ANY_GPU, GpuEntry, MAX_GPUS, MAX_SLOTS, Refusal, Uuid};
pub use map::OpenError;
pub use note::{Layouts, NOTE};
pub use protocol::Over;

/// Memory is accounted in granules of this many bytes (the physical page of every NVIDIA GPU since Pascal).
pub const GRANULE_BYTES: u64 = 2 << 20;

/// Whole granules in a limit: a slice's limit is rounded down.
#[must_use]
pub const fn granules_within(bytes: u64) -> u32 {
    let granules = bytes / GRANULE_BYTES;
    if granules > protocol::MAX_GRANULES as u64 { protocol::MAX_GRANULES } else { granules as u32 }
}

/// Granules that hold an allocation: a request is rounded up. Beyond what a word can count it saturates, and no limit
/// admits that many.
#[must_use]
pub const fn granules_holding(bytes: u64) -> u32 {
    let granules = bytes.div_ceil(GRANULE_BYTES);
    if granules > protocol::MAX_GRANULES as u64 { protocol::MAX_GRANULES + 1 } else { granules as u32 }
}
