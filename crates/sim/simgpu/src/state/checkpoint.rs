//! Orders of the checkpoint functions, which a process carries out itself, in a thread of its driver.
//!
//! The caller writes an order into the cell of the process and wakes it; the process answers in the same cell. Either may be killed at
//! any instruction. An order that was given is carried out whether or not its caller still lives, and a caller waits for no dead process.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use super::file::Sim;
use super::layout::WHOLE_GPU;
use super::process::{ConsumeError, Registration};
use crate::spec::MAX_DEVICES;

/// `CUprocessState`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessState(pub u32);

#[allow(missing_docs, reason = "the names are CUDA's")]
impl ProcessState {
    pub const RUNNING: Self = Self(0);
    pub const LOCKED: Self = Self(1);
    pub const CHECKPOINTED: Self = Self(2);
    pub const FAILED: Self = Self(3);

    /// In one word, for people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::RUNNING => "running",
            Self::LOCKED => "locked",
            Self::CHECKPOINTED => "checkpointed",
            _ => "failed",
        }
    }
}

/// An order to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Lock = 1,
    Checkpoint,
    Restore,
    Unlock,
}

/// An order with all that belongs to it. The caller reads the machine's settings: the process may not see their file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) command: Command,
    /// 0: no limit.
    pub(crate) timeout_ms: u32,
    /// The bandwidth between GPUs and host memory, MiB per second; 0: unlimited.
    pub(crate) mib_per_s: u32,
    /// The host memory that all checkpointed processes may take, MiB; 0: unlimited.
    pub(crate) host_mib: u32,
    /// To which GPU the memory of each GPU comes back.
    pub(crate) places: [u8; MAX_DEVICES],
}

/// The cell of one process. Zero is that of a process without orders.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// The number of the last order; the process waits for its change.
    given: AtomicU32,
    /// The number of the last order that was carried out.
    done: AtomicU32,
    command: AtomicU32,
    result: AtomicI32,
    timeout_ms: AtomicU32,
    mib_per_s: AtomicU32,
    host_mib: AtomicU32,
    /// The thread that carries orders out, in the process's own pid namespace.
    pub(crate) thread: AtomicU32,
    places: [AtomicU64; MAX_DEVICES / 8],
}

impl Orders {
    /// For a machine that has just been started, and for another process.
    pub(super) fn reset(&self) {
        self.done.store(self.given.load(Acquire), Release);
        self.thread.store(0, Release);
    }

    /// Gives an order, if none is under way; its number. Callers hold the machine's lock.
    pub(crate) fn give(&self, request: &Request) -> Option<u32> {
        let number = self.given.load(Acquire);
        if number != self.done.load(Acquire) {
            return None;
        }
        self.command.store(request.command as u32, Relaxed);
        self.timeout_ms.store(request.timeout_ms, Relaxed);
        self.mib_per_s.store(request.mib_per_s, Relaxed);
        self.host_mib.store(request.host_mib, Relaxed);
        for (word, places) in self.places.iter().zip(request.places.chunks_exact(8)) {
            word.store(places.iter().rev().fold(0, |word, place| word << 8 | u64::from(*place)), Relaxed);
        }
        let number = number.wrapping_add(1);
        self.given.store(number, Release);
        wake(&self.given);
        Some(number)
    }

    /// Waits until order `number` was carried out, for 10 ms at most; its result.
    pub(crate) fn answer(&self, number: u32) -> Option<i32> {
        let done = self.done.load(Acquire);
        if done == number {
            return Some(self.result.load(Acquire));
        }
        sleep(&self.done, done);
        (self.done.load(Acquire) == number).then(|| self.result.load(Acquire))
    }

    /// Waits for an order. For the process of this cell.
    pub(crate) fn next(&self) -> Request {
        loop {
            let given = self.given.load(Acquire);
            if given == self.done.load(Acquire) {
                sleep(&self.given, given);
                continue;
            }
            let mut places = [0; MAX_DEVICES];
            for (word, places) in self.places.iter().zip(places.chunks_exact_mut(8)) {
                places.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
            return Request {
                command: match self.command.load(Relaxed) {
                    1 => Command::Lock,
                    2 => Command::Checkpoint,
                    3 => Command::Restore,
                    _ => Command::Unlock,
                },
                timeout_ms: self.timeout_ms.load(Relaxed),
                mib_per_s: self.mib_per_s.load(Relaxed),
                host_mib: self.host_mib.load(Relaxed),
                places,
            };
        }
    }

    /// The order was carried out.
    pub(crate) fn finish(&self, result: i32) {
        self.result.store(result, Relaxed);
        self.done.store(self.given.load(Acquire), Release);
        wake(&self.done);
    }
}

/// Until the word differs from `seen`, or for 10 ms: its other user may have died.
fn sleep(word: &AtomicU32, seen: u32) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    // SAFETY: the kernel reads `word`, which is never unmapped, and `limit`, a live local.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address of `word` only as a name; it is never unmapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Why a checkpointed process could not get its memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unparked {
    Yes,
    OutOfMemory,
}

impl Registration {
    /// This process's state for the checkpoint functions.
    pub(crate) fn process_state(&self) -> ProcessState {
        self.locked().map_or(ProcessState::FAILED, |state| state.slots[self.slot].process_state)
    }

    pub(crate) fn set_process_state(&self, process_state: ProcessState) {
        if let Ok(mut state) = self.locked() {
            state.slots[self.slot].process_state = process_state;
        }
    }

    /// Granules that this process holds on GPUs, or held there before its checkpoint.
    pub(crate) fn granules_to_park(&self) -> u64 {
        let Ok(state) = self.locked() else { return 0 };
        let slot = &state.slots[self.slot];
        let held = slot.held_granules.iter().map(|device| u64::from(device[WHOLE_GPU])).sum::<u64>();
        held + slot.parked_granules.iter().map(|granules| u64::from(*granules)).sum::<u64>()
    }

    /// Moves all that this process holds to host memory, of which all such processes may take `host_granules`.
    pub(crate) fn park(&self, host_granules: u64) -> Result<(), ConsumeError> {
        let mut state = self.locked()?;
        let parked: u64 = state.processes().flat_map(|(_, slot)| slot.parked_granules).map(u64::from).sum();
        let mine = state.slots[self.slot].held_granules;
        let mine: u64 = mine.iter().map(|device| u64::from(device[WHOLE_GPU])).sum();
        if parked + mine > host_granules {
            return Err(ConsumeError::OutOfMemory);
        }
        for index in 0..MAX_DEVICES {
            let slot = &mut state.slots[self.slot];
            let held = std::mem::take(&mut slot.held_granules[index][WHOLE_GPU]);
            slot.parked_unattributed[index] =
                std::mem::take(&mut slot.unattributed_granules[index][WHOLE_GPU]);
            slot.parked_granules[index] = held;
            state.devices[index].used_granules[WHOLE_GPU] -= held;
        }
        state.slots[self.slot].process_state = ProcessState::CHECKPOINTED;
        Ok(())
    }

    /// Brings it back: what was on a GPU to the one in its place. All or nothing.
    pub(crate) fn unpark(&self, places: &[u8; MAX_DEVICES]) -> Result<Unparked, ConsumeError> {
        drop(Sim::swept(self.sim()));
        let mut state = self.locked()?;
        let parked = state.slots[self.slot].parked_granules;
        for (index, gpu) in state.devices().iter().enumerate() {
            let arrives = |(from, _): &(usize, &u32)| usize::from(places[*from]) == index;
            let wanted: u32 = parked.iter().enumerate().filter(arrives).map(|(_, granules)| *granules).sum();
            if gpu.used_granules[WHOLE_GPU] + wanted > gpu.capacity_granules[WHOLE_GPU] {
                return Ok(Unparked::OutOfMemory);
            }
        }
        for (from, &to) in places.iter().enumerate() {
            let slot = &mut state.slots[self.slot];
            let to = usize::from(to).min(MAX_DEVICES - 1);
            let granules = std::mem::take(&mut slot.parked_granules[from]);
            slot.held_granules[to][WHOLE_GPU] += granules;
            slot.unattributed_granules[to][WHOLE_GPU] += std::mem::take(&mut slot.parked_unattributed[from]);
            state.devices[to].used_granules[WHOLE_GPU] += granules;
        }
        state.slots[self.slot].process_state = ProcessState::LOCKED;
        Ok(Unparked::Yes)
    }
}
