//! What happens in this process when an engine has reached an item.

use std::collections::BTreeMap;
use std::ffi::c_void;

use super::timeline::LineKey;
use crate::time::Ring;

/// A function of the program's.
pub(super) type HostFunction = extern "C" fn(*mut c_void);

#[derive(Clone, Copy)]
pub(super) enum Effect {
    /// An event gets its time.
    Event(u64),
    /// A word of host memory gets a value of this many bytes.
    Write { address: u64, value: u64, bytes: u32 },
    /// A function is called; the stream waits until it returns.
    Host { function: HostFunction, data: usize },
    /// The stream waits for an item of a line on another engine.
    Elsewhere { key: LineKey, seq: u64 },
    /// A kernel spins until it has met others.
    Spin,
}

/// When an event was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stamp {
    /// Not yet: it is this item of a channel.
    Pending {
        key: LineKey,
        channel: u64,
        seq: u64,
    },
    At(u64),
}

impl Stamp {
    pub(super) fn is_of(&self, of: u64) -> bool {
        matches!(self, Self::Pending { channel, .. } if *channel == of)
    }
}

impl Effect {
    /// Whether somebody may wait for it who makes no call to the driver.
    pub(super) fn needs_worker(&self) -> bool {
        !matches!(self, Self::Event(_))
    }

    /// The item of this effect has been passed.
    pub(super) fn happen(self, ring: Ring, seq: u64, channel: u64, stamps: &mut BTreeMap<u64, Stamp>) {
        match self {
            Self::Event(event) => {
                let is_this = |stamp: &&mut Stamp| matches!(stamp, Stamp::Pending { channel: c, seq: s, .. } if (*c, *s) == (channel, seq));
                // An event that was recorded again has a newer item.
                if let (Some(stamp), Some(at_ns)) = (stamps.get_mut(&event).filter(is_this), ring.at_ns(seq))
                {
                    *stamp = Stamp::At(at_ns);
                }
            }
            Self::Write { address, value, bytes } => write(address, value, bytes),
            Self::Host { .. } | Self::Elsewhere { .. } | Self::Spin => {}
        }
    }

    /// The call to make.
    pub(super) fn host_function(self) -> Option<impl FnOnce() + use<>> {
        match self {
            Self::Host { function, data } => Some(move || function(data as *mut c_void)),
            _ => None,
        }
    }
}

/// What `cuStreamWriteValue32` and `…64` do to host memory.
pub(super) fn write(address: u64, value: u64, bytes: u32) {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    // SAFETY: the program has named host memory that it has registered with the driver or got from it, and has aligned the
    // address; by the contract of the functions it stays until the stream has passed the write. Others may read it meanwhile,
    // which is what an atomic is for.
    unsafe {
        match bytes {
            4 => (*(address as *const AtomicU32)).store(value as u32, Ordering::Release),
            _ => (*(address as *const AtomicU64)).store(value, Ordering::Release),
        }
    }
}
