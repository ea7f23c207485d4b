//! The gate in front of launches, in the build of the CUDA filter for slices whose compute share is enforced (feature `gate`).
//! Other builds do not hook launches.
//!
//! A launch costs its *price*: the GPU time that its function took before. A thread has credit: GPU time that it may launch
//! without asking ([`admits`]). When the credit is used up or the gate has changed, the thread puts a fence behind its work,
//! waits until the gate is open and little of the slice's work is left in flight, and takes new credit ([`slow`]). Nothing
//! here holds a lock during a call of the driver. During a capture nothing is counted, waited for, or recorded: the captured
//! work is charged as a graph.
//!
//! Without an arbiter (its heartbeat is old) or without pages, every launch passes.

mod clock;
mod fast;
mod fences;
mod hooks;
mod launch;
mod price;
mod thread;
mod wait;

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

pub(crate) use hooks::HOOKS;
pub(crate) use launch::{graph, synchronized_context, synchronized_event, synchronized_stream};
pub(crate) use price::Prices;
pub(crate) use thread::Threads;

use crate::capture_mode::RelaxedMode;
use crate::function::Status;
use crate::process::{Process, process};
use cantle_ledger::compute::GatePage;
use thread::Thread;

/// The state of a process for its gate. Valid when zero.
pub(crate) struct State {
    pub(crate) threads: Threads,
    pub(crate) prices: Prices,
    /// Counts the contexts that have ended: events of an ended context must not be used any more.
    pub(crate) contexts_ended: AtomicU32,
}

/// A launch with a price that is not known counts as this much in flight, so that there is one of it at a time.
const UNKNOWN_NS: u64 = 50_000_000;
/// Every slow path of this number measures a price again.
const SAMPLE_EVERY: u32 = 16;

/// Fibonacci hashing: the factor of [`hashed`], which [`fast`] needs, too.
const SPREAD: u32 = 0x9E37_79B1;

/// The place of a key in a table with `1 << (32 - shift)` entries.
#[inline]
const fn hashed(key: u32, shift: u32) -> usize {
    (key.wrapping_mul(SPREAD) >> shift) as usize
}

/// A context ends: its events end with it.
pub(crate) fn context_ends() {
    if let Some(process) = process() {
        process.gate.contexts_ended.fetch_add(1, Relaxed);
    }
}

/// Does the thread's credit cover this launch? [`fast`] answers that for most launches.
#[inline]
fn admits(process: &Process, key: u64, stream: usize) -> bool {
    let Some(thread) = process.gate.threads.find(thread::pointer()) else { return false };
    let Some((page, slot)) = process.existing_gate_page().zip(thread.slot()) else { return false };
    let Some(price_ns) = process.gate.prices.known(key) else { return false };
    let left_ns = slot.credit_ns.load(Relaxed) - i64::from(price_ns);
    if left_ns < 0 || thread.word.load(Relaxed) != page.word() {
        return false;
    }
    slot.credit_ns.store(left_ns, Relaxed);
    thread.note_stream(stream);
    process.gate.threads.expect(thread, stream);
    true
}

/// May the launch be made at once? If not, [`through`] makes it. `key` names what is launched, `stream` where, as a handle that any
/// function of the driver takes.
///
/// The two are apart so that the arguments of most launches stay where they are: a closure would put all of them into memory.
#[inline]
pub(crate) fn passes(key: u64, stream: usize) -> bool {
    process().is_some_and(|process| admits(process, key, stream))
}

/// Launches through the gate, which did not let it pass at once.
#[cold]
#[inline(never)]
pub(crate) fn through(key: u64, stream: usize, launch: impl Fn() -> Status) -> Status {
    match process() {
        Some(process) => slow(process, key, stream, &launch),
        None => launch(),
    }
}

#[cold]
fn slow(process: &'static Process, key: u64, stream: usize, launch: &dyn Fn() -> Status) -> Status {
    let found = process.gate_page().and_then(|page| Some((page, process.gate.threads.claim(page)?)));
    let Some((page, thread)) = found else { return launch() };
    let Some(slot) = thread.slot() else { return launch() };
    let relaxed = RelaxedMode::enter();
    if fences::is_capturing(stream) {
        drop(relaxed);
        return launch();
    }
    let fences = thread.fences();
    if !fences.follow_context(slot) {
        drop(relaxed);
        // The driver refuses a launch without a current context. No event would tell when it has ended, so that a turn for it would
        // last until the arbiter takes it back.
        return launch();
    }
    fences.confirm(process, page, slot);
    fences.put(stream, slot);
    drop(relaxed);
    // The relaxed mode has ended: it must not apply to other calls of this thread, and the wait makes none.
    wait::for_window(process, page, slot, fences);
    let known_ns = process.gate.prices.known(key);
    let rounds = thread.rounds.load(Relaxed).wrapping_add(1);
    thread.rounds.store(rounds, Relaxed);
    thread.take_credit(page, slot, known_ns, stream);
    process.gate.threads.expect(thread, stream);
    fast::publish(process, page);
    let sample = process.gate.prices.wants(key) || rounds.is_multiple_of(SAMPLE_EVERY);
    if !sample {
        return launch();
    }
    let began = {
        let _relaxed = RelaxedMode::enter();
        fences.begin_sample(stream)
    };
    let status = launch();
    if began && status == crate::cuda::SUCCESS {
        let _relaxed = RelaxedMode::enter();
        fences.end_sample(stream, key, slot);
    }
    status
}

/// A synchronization returned: `all` means that everything this thread launched has ended.
fn synchronized(process: &Process, page: &GatePage, thread: &Thread, all: bool) {
    let Some(slot) = thread.slot() else { return };
    let relaxed = RelaxedMode::enter();
    let fences = thread.fences();
    fences.confirm(process, page, slot);
    drop(relaxed);
    if all {
        fences.confirm_all(slot);
    }
    slot.attends.store(0, Relaxed);
}
