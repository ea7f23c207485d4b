//! Waits for a window.

use core::sync::atomic::Ordering::Relaxed;

use cantle_ledger::compute::{GatePage, ThreadSlot};

use super::clock;
use super::fences::Fences;
use crate::capture_mode::RelaxedMode;
use crate::process::Process;

/// The next window is submitted once the slice has less than this in flight, so that the GPU does not run dry meanwhile: a poll, the time
/// to wake up, and what submitting takes. Half of a longer window.
const REFILL_NS: u64 = 400_000;
/// Poll interval of a thread with pending fences …
const LOOK_NS: u64 = 100_000;
/// … and when what is in flight should have ended: until a thread has detected that, the GPU idles.
const LOOK_AT_END_NS: u64 = 20_000;
/// Interval at which a thread without any checks that the arbiter is alive.
const CHECK_NS: u64 = 3_000_000;
/// Without progress for this long, or 2.5 times the longest launch, a thread continues: what is in flight may wait for
/// it.
const ESCAPE_NS: u64 = 20_000_000;
const ESCAPE_MOST_NS: u64 = 200_000_000;

/// Returns once this thread may submit another window.
pub(super) fn for_window(process: &Process, page: &GatePage, slot: &ThreadSlot, fences: &mut Fences) {
    let began_ns = clock::now_ns();
    let refill_ns = REFILL_NS.max(page.window_ns() / 2);
    let mut closed_since_ns = None;
    loop {
        let now_ns = clock::now_ns();
        if !fences.is_empty() {
            let _relaxed = RelaxedMode::enter();
            fences.confirm(process, page, slot);
        }
        slot.attends.store(u64::from(!fences.is_empty()), Relaxed);
        let word = page.word();
        // Without an arbiter the gate counts as open. The work in flight stays bounded: a queue that fills up while the
        // arbiter is away for a moment would be the GPU's work for seconds.
        if word & 1 == 0 && page.is_arbitrated(now_ns) {
            closed_since_ns = closed_since_ns.or(Some(now_ns));
            slot.waiting_ns.store(now_ns.max(1), Relaxed);
            let pause_ns = if fences.is_empty() { CHECK_NS } else { look_in_ns(left_ns(page, now_ns).0) };
            clock::wait_for_change(page.word_cell(), word, pause_ns);
            continue;
        }
        end_wait(slot, &mut closed_since_ns, now_ns);
        let windows = page.windows();
        let (left_ns, progress_ns) = left_ns(page, now_ns);
        let still_ns = now_ns.saturating_sub(progress_ns.max(began_ns));
        if left_ns < refill_ns || still_ns > escape_ns(process) {
            if page.take_window(windows) {
                break;
            }
            continue;
        }
        // If the gate closes meanwhile, the word changes without a wake-up: it is no reason to hurry.
        clock::wait_for_change(page.word_cell(), word, look_in_ns(left_ns - refill_ns));
    }
    end_wait(slot, &mut closed_since_ns, clock::now_ns());
    slot.attends.store(0, Relaxed);
}

/// GPU time that the slice has in flight, and when something of it ended last: the GPU has worked since.
fn left_ns(page: &GatePage, now_ns: u64) -> (u64, u64) {
    let (in_flight_ns, progress_ns) = page.in_flight(now_ns);
    (in_flight_ns.saturating_sub(now_ns.saturating_sub(progress_ns)), progress_ns)
}

const fn look_in_ns(left_ns: u64) -> u64 {
    if left_ns < LOOK_AT_END_NS {
        LOOK_AT_END_NS
    } else if left_ns < LOOK_NS {
        left_ns
    } else {
        LOOK_NS
    }
}

fn end_wait(slot: &ThreadSlot, since_ns: &mut Option<u64>, now_ns: u64) {
    if let Some(since_ns) = since_ns.take() {
        slot.waiting_ns.store(0, Relaxed);
        let waited_ns = now_ns.saturating_sub(since_ns);
        let before_ns = slot.gate_wait_ns.load(Relaxed);
        slot.gate_wait_ns.store(before_ns.wrapping_add(waited_ns), Relaxed);
    }
}

fn escape_ns(process: &Process) -> u64 {
    let longest_ns = process.gate.prices.longest_ns();
    (longest_ns.saturating_mul(5) / 2).clamp(ESCAPE_NS, ESCAPE_MOST_NS)
}
