//! The effects in this process when an engine has reached an item.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// The stream waits until a word of host memory fulfills a condition.
    Await { address: u64, value: u64, bytes: u32, condition: u32 },
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
    /// Whether a thread may wait for it without a call to the driver.
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
            Self::Host { .. } | Self::Await { .. } | Self::Elsewhere { .. } | Self::Spin => {}
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

/// A word of host memory that the program and the driver share.
///
/// The program has named memory that it has registered with the driver or got from it, at an aligned address; by the contract
/// of the functions for such words it stays until the stream has passed them.
struct HostWord {
    address: u64,
    bytes: u32,
}

impl HostWord {
    fn store(&self, value: u64) {
        // SAFETY: see the type: a live, aligned word, which others may use meanwhile; that is what an atomic is for.
        unsafe {
            match self.bytes {
                4 => (*(self.address as *const AtomicU32)).store(value as u32, Ordering::Release),
                _ => (*(self.address as *const AtomicU64)).store(value, Ordering::Release),
            }
        }
    }

    fn load(&self) -> u64 {
        // SAFETY: see the type: a live, aligned word, which others may use meanwhile; that is what an atomic is for.
        unsafe {
            match self.bytes {
                4 => u64::from((*(self.address as *const AtomicU32)).load(Ordering::Acquire)),
                _ => (*(self.address as *const AtomicU64)).load(Ordering::Acquire),
            }
        }
    }
}

/// The effect of `cuStreamWriteValue32` and `…64`.
pub(super) fn write(address: u64, value: u64, bytes: u32) {
    HostWord { address, bytes }.store(value);
}

/// Whether the condition of `cuStreamWaitValue32` or `…64` holds: `CU_STREAM_WAIT_VALUE_…`.
pub(super) fn holds(address: u64, value: u64, bytes: u32, condition: u32) -> bool {
    const EQUAL: u32 = 1;
    const AND: u32 = 2;
    const NOR: u32 = 3;
    let word = HostWord { address, bytes }.load();
    match condition & 3 {
        EQUAL => word == value,
        AND => word & value != 0,
        NOR => !(word | value) & (u64::MAX >> (64 - 8 * bytes)) != 0,
        // Cyclically not less.
        _ if bytes == 4 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
        _ => word.wrapping_sub(value) as i64 >= 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_those_of_the_driver() {
        let word = 5_u64;
        let is = |value, condition| holds(&raw const word as u64, value, 8, condition);
        assert!(is(5, 0) && is(4, 0) && !is(6, 0));
        assert!(is(5, 1) && !is(4, 1));
        assert!(is(1, 2) && !is(2, 2));
        assert!(is(0, 3) && !is(!5, 3));
        let word = u64::from(u32::MAX);
        assert!(!holds(&raw const word as u64, 1, 4, 0), "-1 comes before 1");
    }
}
