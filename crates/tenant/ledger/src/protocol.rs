//! The protocol by which a slot's operation changes a GPU's word, and by which a dead slot is settled. Pure atomics: no
//! clock, no kernel, no lock.
//!
//! A *word* is `[seq:32 | slot:12 | used:20]`: the granules in use and the stamp of the operation that put them there.
//! A slot keeps one *record* per GPU:
//!
//! * `intent` `[seq:32 | after:32]`: the operation under way and what the slot will hold once it took effect;
//! * `held` `[seq:32 | granules:32]`: what the slot holds, and the last operation that is reflected in it;
//! * `acked` `[version:32 | seq:32]`: the slot's last operation that took effect *and was then overwritten* in the word.
//!
//! An operation publishes its intent, swaps the word, then writes `held`. Before anyone overwrites another slot's stamp
//! they copy it into that slot's `acked`. So at any instant, a slot's last intent took effect exactly if the word or
//! `acked` shows its stamp. A process may die between any two instructions, and the state is never ambiguous.
//!
//! Settling a dead slot is an operation *of that slot* with `after = 0`. Any process may carry it out, also several at a
//! time: all agree on its sequence number through `intent`, and the word accepts it once.
//!
//! Sequence numbers wrap after 2³² operations of one slot on one GPU. A stale compare-and-swap could then succeed only if its
//! process was stopped for exactly a multiple of 2³² operations and the word's slot and sum were the same again.

/// The largest sum that a word can hold: 2 TiB in granules of 2 MiB, less one.
pub const MAX_GRANULES: u32 = (1 << USED_BITS) - 1;

const USED_BITS: u32 = 20;
const SLOT_BITS: u32 = 12;
/// The slot number of a word that no operation has written yet.
const NOBODY: u32 = (1 << SLOT_BITS) - 1;

/// A shared 64-bit cell. The region uses [`core::sync::atomic::AtomicU64`]; the model checker brings its own.
pub trait Cell {
    /// Acquire load.
    fn load(&self) -> u64;
    /// Release store.
    fn store(&self, value: u64);
    /// Strong compare-and-swap, acquire and release; true if it took place.
    fn swap_if(&self, current: u64, new: u64) -> bool;
}

impl Cell for core::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(core::sync::atomic::Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, core::sync::atomic::Ordering::Release);
    }

    #[inline]
    fn swap_if(&self, current: u64, new: u64) -> bool {
        use core::sync::atomic::Ordering::{AcqRel, Acquire};
        self.compare_exchange(current, new, AcqRel, Acquire).is_ok()
    }
}

/// The record of one slot about one GPU (module documentation).
#[derive(Debug, Default)]
#[repr(C)]
pub struct Record<C> {
    /// The operation under way.
    pub intent: C,
    /// The granules that the slot holds.
    pub held: C,
    /// The slot's last operation whose stamp was overwritten.
    pub acked: C,
}

/// The shared cells of one GPU: its word and each slot's record.
pub trait GpuCells {
    /// The kind of cell.
    type Cell: Cell;
    /// The GPU's word.
    fn word(&self) -> &Self::Cell;
    /// A slot's record; `None` for a number out of range, which hostile bytes may contain.
    fn record(&self, slot: u32) -> Option<&Record<Self::Cell>>;
}

/// A refused reservation, in granules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Over {
    /// In use by all processes of the slice when it was refused.
    pub used: u32,
    /// The slice's limit.
    pub limit: u32,
    /// The requested granules.
    pub asked: u32,
}

/// The value of a word that nothing has been charged to.
#[must_use]
pub const fn empty_word() -> u64 {
    (NOBODY as u64) << USED_BITS
}

/// Granules in use according to a word.
#[must_use]
pub const fn used(word: u64) -> u32 {
    (word & MAX_GRANULES as u64) as u32
}

const fn pack_word(seq: u32, slot: u32, used: u32) -> u64 {
    (seq as u64) << 32 | (slot as u64) << USED_BITS | used as u64
}

const fn word_slot(word: u64) -> u32 {
    (word >> USED_BITS) as u32 & NOBODY
}

const fn word_seq(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn is_stamped(word: u64, slot: u32, seq: u32) -> bool {
    word_slot(word) == slot && word_seq(word) == seq
}

/// Has the operation that `intent` names changed the GPU's word?
fn took_effect<C: Cell>(record: &Record<C>, word: u64, slot: u32, intent: u64) -> bool {
    is_stamped(word, slot, high(intent)) || low(record.acked.load()) == high(intent)
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn high(pair: u64) -> u32 {
    (pair >> 32) as u32
}

const fn low(pair: u64) -> u32 {
    pair as u32
}

/// Granules that a slot holds, as its owner last wrote it.
pub fn held<G: GpuCells>(gpu: &G, slot: u32) -> u32 {
    gpu.record(slot).map_or(0, |record| low(record.held.load()))
}

/// Granules of a slot that are part of the GPU's word: also right for an owner that died in the middle of a change.
pub fn charged<G: GpuCells>(gpu: &G, slot: u32) -> u32 {
    let Some(record) = gpu.record(slot) else { return 0 };
    let (intent, held) = (record.intent.load(), record.held.load());
    low(if took_effect(record, gpu.word().load(), slot, intent) { intent } else { held })
}

/// Adds `granules` to the GPU's word and to the slot, or refuses. Returns the granules that are in use then.
///
/// Only the slot's owner may call this, and not twice at a time.
///
/// # Errors
/// [`Over`] if the sum would exceed `limit`; nothing has changed then.
pub fn reserve<G: GpuCells>(gpu: &G, slot: u32, granules: u32, limit: u32) -> Result<u32, Over> {
    change(
        gpu,
        slot,
        |used| {
            let over = Over { used, limit, asked: granules };
            let sum = used.checked_add(granules).ok_or(over)?;
            if sum > limit || sum > MAX_GRANULES { Err(over) } else { Ok(sum) }
        },
        |held| held.saturating_add(granules),
    )
}

/// Gives `granules` of the slot back. Never fails; more than the slot holds is what it holds.
///
/// Only the slot's owner may call this, and not twice at a time.
pub fn release<G: GpuCells>(gpu: &G, slot: u32, granules: u32) {
    let granules = granules.min(held(gpu, slot));
    let given: Result<u32, core::convert::Infallible> =
        change(gpu, slot, |used| Ok(used.saturating_sub(granules)), |held| held.saturating_sub(granules));
    let Ok(_) = given;
}

/// Charges the slot with exactly `granules`, regardless of the limit: for memory that is already in use when it is noticed.
/// Returns the granules that are in use then.
///
/// Only the slot's owner may call this, and not twice at a time.
pub fn set_held<G: GpuCells>(gpu: &G, slot: u32, granules: u32) -> u32 {
    let before = held(gpu, slot);
    let set: Result<u32, core::convert::Infallible> = change(
        gpu,
        slot,
        |used| Ok(used.saturating_sub(before).saturating_add(granules).min(MAX_GRANULES)),
        |_| granules,
    );
    let Ok(used) = set;
    used
}

/// One operation of a slot by its owner: intent, word, held. Returns the granules that are in use after it.
#[inline]
fn change<G: GpuCells, E>(
    gpu: &G,
    slot: u32,
    sum_after: impl Fn(u32) -> Result<u32, E>,
    held_after: impl Fn(u32) -> u32,
) -> Result<u32, E> {
    let mut word = gpu.word().load();
    let Some(record) = gpu.record(slot) else { return Ok(used(word)) };
    let mut sum = sum_after(used(word))?;
    let seq = high(record.intent.load()).wrapping_add(1);
    let after = pair(seq, held_after(low(record.held.load())));
    record.intent.store(after);
    loop {
        if acknowledge(gpu, word, slot) && gpu.word().swap_if(word, pack_word(seq, slot, sum)) {
            record.held.store(after);
            return Ok(sum);
        }
        word = gpu.word().load();
        sum = sum_after(used(word))?;
    }
}

/// Copies the stamp in `word` to its slot before `writer` overwrites it. False if the word has changed meanwhile.
#[inline]
fn acknowledge<G: GpuCells>(gpu: &G, word: u64, writer: u32) -> bool {
    let slot = word_slot(word);
    // A slot's own earlier operation is over (its `held` is written, or it is being settled): no process will ask about
    // it.
    if slot == writer {
        return true;
    }
    let Some(record) = gpu.record(slot) else { return true };
    let acked = record.acked.load();
    if low(acked) == word_seq(word) {
        return true;
    }
    // `acked` was read while `word` was current, so a swap from it cannot put back an older stamp: had anyone
    // overwritten the word since, they would have changed `acked` first, and its version makes every value new.
    gpu.word().load() == word
        && record.acked.swap_if(acked, pair(high(acked).wrapping_add(1), word_seq(word)))
}

/// Returns everything a dead slot holds on this GPU. Idempotent; several may do it at once, and any of them may die.
///
/// `still_dead` says whether the slot still belongs to the same dead owner; false once another settler has freed it.
/// Gives the granules that this caller itself returned.
pub fn settle<G: GpuCells>(gpu: &G, slot: u32, still_dead: impl Fn() -> bool) -> u32 {
    let Some(record) = gpu.record(slot) else { return 0 };
    let mut returned = 0;
    loop {
        let intent = record.intent.load();
        let held = record.held.load();
        if !still_dead() {
            return returned;
        }
        let word = gpu.word().load();
        let took_effect = took_effect(record, word, slot, intent);
        if record.intent.load() != intent {
            // Another settler is ahead; a stamp of `intent` that we did not find may have been overwritten unacknowledged.
            continue;
        }
        if took_effect && held != intent {
            record.held.swap_if(held, intent);
        } else if low(held) == 0 {
            return returned;
        } else if took_effect || low(intent) != 0 {
            // Replace the dead owner's last word by the one operation that is left to do. Fails if another settler has.
            record.intent.swap_if(intent, pair(high(intent).wrapping_add(1), 0));
        } else if acknowledge(gpu, word, slot) {
            // The operation that is left to do was not in effect as of `word`: if the swap succeeds, no other process
            // was faster.
            let after = pack_word(high(intent), slot, used(word).saturating_sub(low(held)));
            if gpu.word().swap_if(word, after) {
                returned = low(held);
            }
        }
    }
}
