//! Engines in memory that all processes share. A state is never changed in place: a process that has computed a newer one
//! writes it into a free buffer and makes that the current one with one compare-and-swap, or drops it if another process was
//! quicker.
//!
//! A process that is stopped in between keeps a buffer; there are [`BUFFERS`]. Others take over the buffer of a dead
//! process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::engine::Engine;
use super::now_ns;
use super::rings::{DEPTH, Entry, Header, MAX_RINGS, Ring, RingsOf};
use crate::spec::MAX_DEVICES;
use crate::state::{MAX_DOMAINS, Sim};

const BUFFERS: usize = 8;
/// Bits of the current word that name the buffer; the others count.
const INDEX_BITS: u32 = 8;
/// Enough for 500 processes with a stream each.
const WORDS: usize = 8192;

/// Zeros are the state of a machine that has just been started.
#[repr(C)]
pub(crate) struct TimeRegion {
    engines: [[SharedEngine; MAX_DOMAINS]; MAX_DEVICES],
    pub(super) headers: [Header; MAX_RINGS],
    pub(super) entries: [[Entry; DEPTH as usize]; MAX_RINGS],
}

#[repr(C)]
struct SharedEngine {
    /// The number of the current buffer, and a count of changes; 0: no process has used this engine.
    current: AtomicU64,
    buffers: [Buffer; BUFFERS],
}

#[repr(C)]
struct Buffer {
    /// Slot of the process that writes it, plus 1; 0: none.
    writer: AtomicU32,
    length: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The engine of a GPU (domain 0) or of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EngineId {
    pub(crate) device: usize,
    pub(crate) domain: usize,
}

impl SharedEngine {
    /// The current state, and the word that names it.
    fn load(&self) -> (u64, Engine) {
        loop {
            let current = self.current.load(Ordering::Acquire);
            let buffer = &self.buffers[index_of(current)];
            let length = (buffer.length.load(Ordering::Relaxed) as usize).min(WORDS);
            let length = if current == 0 { 0 } else { length };
            let words: Vec<u64> = buffer.words[..length].iter().map(|w| w.load(Ordering::Relaxed)).collect();
            fence(Ordering::Acquire);
            // The writer of a buffer has checked that it is no longer the current one.
            if self.current.load(Ordering::Relaxed) == current
                && let Some(engine) = Engine::decode(&words)
            {
                return (current, engine);
            }
        }
    }

    /// Replaces the state that `current` names. `false` if it is not the current one any more, or if all buffers are being written.
    fn publish(&self, sim: &'static Sim, slot: usize, current: u64, engine: &Engine) -> bool {
        let words = engine.encode();
        let Some(index) = self.claim(sim, slot) else { return false };
        let buffer = &self.buffers[index];
        buffer.length.store(words.len() as u64, Ordering::Relaxed);
        for (shared, word) in buffer.words.iter().zip(&words) {
            shared.store(*word, Ordering::Relaxed);
        }
        let next = ((current >> INDEX_BITS) + 1) << INDEX_BITS | index as u64;
        let published = self.current.compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed);
        buffer.writer.store(0, Ordering::Release);
        published.is_ok()
    }

    /// A free buffer, which only this thread writes. It stays so until `writer` is 0 again.
    fn claim(&self, sim: &'static Sim, slot: usize) -> Option<usize> {
        let me = slot as u32 + 1;
        for (index, buffer) in self.buffers.iter().enumerate() {
            if index == index_of(self.current.load(Ordering::SeqCst)) {
                continue;
            }
            let writer = buffer.writer.load(Ordering::Relaxed);
            let is_free = writer == 0 || writer != me && !sim.is_slot_held(writer as usize - 1);
            if !is_free
                || buffer.writer.compare_exchange(writer, me, Ordering::SeqCst, Ordering::Relaxed).is_err()
            {
                continue;
            }
            // It may have become the current one before this process took it; it cannot any more.
            if index != index_of(self.current.load(Ordering::SeqCst)) {
                fence(Ordering::SeqCst);
                return Some(index);
            }
            buffer.writer.store(0, Ordering::Release);
        }
        None
    }
}

fn index_of(current: u64) -> usize {
    (current & ((1 << INDEX_BITS) - 1)) as usize % BUFFERS
}

fn engine(sim: &'static Sim, id: EngineId) -> &'static SharedEngine {
    &sim.time().engines[id.device][id.domain]
}

/// The engine now. Nothing is published: for readers without a slot.
pub(crate) fn view(sim: &'static Sim, id: EngineId) -> Engine {
    let (_, mut state) = engine(sim, id).load();
    advance(sim, &mut state, now_ns());
    while state.is_full() {
        advance(sim, &mut state, now_ns());
    }
    state
}

fn advance(sim: &'static Sim, state: &mut Engine, until_ns: u64) {
    state.bury(|slot| sim.is_slot_held(slot));
    state.advance(&RingsOf(sim), until_ns);
}

/// Advances the engine to now, changes it, and publishes that for all processes. `None` if the change does not fit.
pub(crate) fn update<T>(
    sim: &'static Sim,
    id: EngineId,
    slot: usize,
    mut change: impl FnMut(&mut Engine) -> T,
) -> Option<(Engine, T)> {
    let shared = engine(sim, id);
    let now = now_ns();
    loop {
        let (current, mut state) = shared.load();
        // An item that was passed may be dropped only after it is recorded.
        note_passed(sim, &state);
        advance(sim, &mut state, now);
        let is_full = state.is_full();
        let changed = if is_full { None } else { Some(change(&mut state)) };
        if state.words() > WORDS {
            return None;
        }
        if !shared.publish(sim, slot, current, &state) {
            std::thread::yield_now();
            continue;
        }
        note_passed(sim, &state);
        if let Some(result) = changed {
            return Some((state, result));
        }
    }
}

/// Gives the marks that were passed their times. It may be done more than once.
fn note_passed(sim: &'static Sim, state: &Engine) {
    for passed in &state.passed {
        Ring::at(sim, passed.ring).set_at_ns(passed.seq, passed.at_ns);
    }
}

/// The engines that were used since the machine was started.
pub(crate) fn engines_in_use(sim: &'static Sim) -> impl Iterator<Item = EngineId> {
    let all =
        (0..MAX_DEVICES).flat_map(|device| (0..MAX_DOMAINS).map(move |domain| EngineId { device, domain }));
    all.filter(move |&id| engine(sim, id).current.load(Ordering::Relaxed) != 0)
}

/// A process begins to use `slot`: what the one before it left is none of its own.
pub(crate) fn inherit_nothing(sim: &'static Sim, slot: usize) {
    for id in engines_in_use(sim) {
        let shared = engine(sim, id);
        for buffer in &shared.buffers {
            let _ = buffer.writer.compare_exchange(slot as u32 + 1, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
        let _ = update(sim, id, slot, |state| state.bury(|other| other != slot && sim.is_slot_held(other)));
    }
    sim.time().free_rings(slot);
}

impl TimeRegion {
    /// After a reboot: no engine was ever used, and no ring is anyone's.
    pub(crate) fn reset(&self) {
        for shared in self.engines.iter().flatten() {
            if shared.current.swap(0, Ordering::SeqCst) != 0 {
                shared.buffers.iter().for_each(|buffer| buffer.writer.store(0, Ordering::SeqCst));
            }
        }
        self.headers.iter().for_each(Header::reset);
    }
}
