//! The file `grant` as the arbiter holds it: in its own memory, and written out whole.
//!
//! A mapping would be faster, but a program that cuts a mapped file short ends each process that touches the lost page
//! (SIGBUS). A write cannot end anything, and restores bytes that another program has cut off or overwritten.

use std::ffi::CStr;

use core::mem::offset_of;

use super::GrantTerms;
use crate::Uuid;
use crate::compute::layout::{GRANT_MAGIC, GrantRegion, VERSION};
use crate::map::{Fd, OpenError, WakeAddress};

/// The fields that the arbiter changes. The fields are those of [`GrantRegion`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Announced {
    pub(super) heartbeat_ns: u64,
    pub(super) word: u32,
    pub(super) unweightable: bool,
    pub(super) window_ns: u64,
    pub(super) granted_ns: u64,
    pub(super) gate_wait_ns: u64,
    pub(super) recent_all_us: u32,
    pub(super) recent_own_us: u32,
}

impl Announced {
    pub(super) const fn is_open(&self) -> bool {
        self.word & 1 == 1
    }
}

/// A slice's `grant`, open for writing.
pub(super) struct Grant {
    file: Fd,
    pub(super) waiters: WakeAddress,
    terms: GrantTerms,
    pub(super) now: Announced,
}

impl Grant {
    /// A page that cannot be read is one without an announcement.
    pub(super) fn open(path: &CStr, terms: GrantTerms) -> Result<Self, OpenError> {
        let file = Fd::open(path, libc::O_RDWR | libc::O_NOFOLLOW)?;
        let now = read(&file)
            .map_or_else(|_| Announced::default(), |(_, now)| Announced { heartbeat_ns: 0, ..now });
        let waiters = WakeAddress::new(&file, offset_of!(GrantRegion, word))?;
        Ok(Self { file, waiters, terms, now })
    }

    /// A disk that is full takes nothing; then the heartbeat in the file grows old, and the gate counts as open.
    pub(super) fn write(&self) {
        let _ = self.file.write_at(&bytes(&self.terms, &self.now).0, 0);
    }
}

/// The file's content. Aligned as the file's page is, so that the kernel copies each field in one step: readers see no half of one.
#[repr(align(64))]
pub(super) struct Bytes(pub(super) [u8; size_of::<GrantRegion>()]);

pub(super) fn bytes(terms: &GrantTerms, now: &Announced) -> Bytes {
    let mut bytes = [0_u8; size_of::<GrantRegion>()];
    let mut set = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    set(offset_of!(GrantRegion, magic), &GRANT_MAGIC.to_ne_bytes());
    set(offset_of!(GrantRegion, version), &VERSION.to_ne_bytes());
    set(offset_of!(GrantRegion, mode), &terms.mode.to_ne_bytes());
    set(offset_of!(GrantRegion, uuid), &terms.uuid);
    set(offset_of!(GrantRegion, request_milli), &terms.request_milli.to_ne_bytes());
    set(offset_of!(GrantRegion, limit_milli), &terms.limit_milli.unwrap_or(0).to_ne_bytes());
    set(offset_of!(GrantRegion, heartbeat_ns), &now.heartbeat_ns.to_ne_bytes());
    set(offset_of!(GrantRegion, word), &now.word.to_ne_bytes());
    set(offset_of!(GrantRegion, unweightable), &u32::from(now.unweightable).to_ne_bytes());
    set(offset_of!(GrantRegion, window_ns), &now.window_ns.to_ne_bytes());
    set(offset_of!(GrantRegion, granted_ns), &now.granted_ns.to_ne_bytes());
    set(offset_of!(GrantRegion, gate_wait_ns), &now.gate_wait_ns.to_ne_bytes());
    set(offset_of!(GrantRegion, recent_all_us), &now.recent_all_us.to_ne_bytes());
    set(offset_of!(GrantRegion, recent_own_us), &now.recent_own_us.to_ne_bytes());
    Bytes(bytes)
}

pub(super) fn read(file: &Fd) -> Result<(GrantTerms, Announced), OpenError> {
    let mut bytes = [0_u8; size_of::<GrantRegion>()];
    if !file.read_exact_at(&mut bytes, 0) {
        return Err(OpenError::Truncated);
    }
    let (u32_at, u64_at) = (|at| u32_at(&bytes, at), |at| u64_at(&bytes, at));
    if u64_at(offset_of!(GrantRegion, magic)) != GRANT_MAGIC
        || u32_at(offset_of!(GrantRegion, version)) != VERSION
    {
        return Err(OpenError::Unknown);
    }
    let mut uuid = Uuid::default();
    uuid.copy_from_slice(&bytes[offset_of!(GrantRegion, uuid)..][..size_of::<Uuid>()]);
    let limit_milli = u32_at(offset_of!(GrantRegion, limit_milli));
    let terms = GrantTerms {
        uuid,
        mode: u32_at(offset_of!(GrantRegion, mode)),
        request_milli: u32_at(offset_of!(GrantRegion, request_milli)),
        limit_milli: (limit_milli > 0).then_some(limit_milli),
    };
    let now = Announced {
        heartbeat_ns: u64_at(offset_of!(GrantRegion, heartbeat_ns)),
        word: u32_at(offset_of!(GrantRegion, word)),
        unweightable: u32_at(offset_of!(GrantRegion, unweightable)) == 1,
        window_ns: u64_at(offset_of!(GrantRegion, window_ns)),
        granted_ns: u64_at(offset_of!(GrantRegion, granted_ns)),
        gate_wait_ns: u64_at(offset_of!(GrantRegion, gate_wait_ns)),
        recent_all_us: u32_at(offset_of!(GrantRegion, recent_all_us)),
        recent_own_us: u32_at(offset_of!(GrantRegion, recent_own_us)),
    };
    Ok((terms, now))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}
