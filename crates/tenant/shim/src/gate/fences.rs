//! Fences: events behind a thread's work, by which it learns which work has ended and how long it took.
//!
//! A fence is put only on the stream of the current launch, because the program guarantees that this handle is valid: any
//! other stream might be destroyed meanwhile. So with several streams, a fence also confirms earlier launches on the other
//! streams. The arbiter tolerates this difference, which is less than a window.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed as Unordered;

use cantle_ledger::compute::{GatePage, ThreadSlot};

use super::clock;
use crate::cuda::{NOT_READY, SUCCESS};
use crate::process::Process;

type Event = *mut c_void;

mod driver {
    #![allow(non_upper_case_globals, reason = "the names are the driver's")]
    use super::{Event, c_int, c_uint, c_void};
    use crate::function::Status;

    crate::function::driver_functions! { CUDA:
        cuCtxGetCurrent(*mut *mut c_void);
        cuEventCreate(*mut Event, c_uint);
        cuEventDestroy_v2(Event);
        cuEventRecord(Event, *mut c_void);
        cuEventQuery(Event);
        cuEventElapsedTime(*mut f32, Event, Event);
        cuStreamIsCapturing(*mut c_void, *mut c_int);
        cuStreamQuery(*mut c_void);
    }
}

/// Fences that a thread can have pending; more launches than that are confirmed by later ones.
const PENDING: usize = 16;

/// One fence. Its events are made once and used again and again.
#[derive(Clone, Copy)]
struct Fence {
    start: Event,
    end: Event,
    /// The work that was submitted before it.
    submitted_ns: u64,
    /// The price key of the launches that `start` and `end` enclose; 0 for none.
    key: u64,
}

/// A thread's fences, a ring. Valid when zero.
pub(super) struct Fences {
    ring: [Fence; PENDING],
    first: usize,
    count: usize,
    context: *mut c_void,
    contexts_ended: u32,
}

/// Is a capture going on in this stream, or in one that the legacy stream would join? If the driver does not tell, one is.
pub(super) fn is_capturing(stream: usize) -> bool {
    let mut status = 0;
    // SAFETY: the stream of the launch that is being made (call contract); `status` is a live local.
    let asked =
        driver::cuStreamIsCapturing.get().map(|ask| unsafe { ask(stream as *mut c_void, &raw mut status) });
    asked != Ok(SUCCESS) || status != 0
}

/// Has all work on one of the default streams ended? These handles are always valid.
pub(super) fn is_default_stream_idle(stream: usize) -> bool {
    // SAFETY: a default stream's handle.
    stream <= 2
        && !is_capturing(stream)
        && driver::cuStreamQuery.get().is_ok_and(|query| unsafe { query(stream as *mut c_void) } == SUCCESS)
}

impl Fences {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Events belong to a context. After a change of context, the events of the former one are dropped. False if no context is current.
    pub(super) fn follow_context(&mut self, slot: &ThreadSlot) -> bool {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is a live local of the type that the function writes.
        let _status = driver::cuCtxGetCurrent.get().map(|current| unsafe { current(&raw mut context) });
        let ended = crate::process::process().map_or(0, |it| it.gate.contexts_ended.load(Unordered));
        if context == self.context && ended == self.contexts_ended {
            return !context.is_null();
        }
        if self.count > 0 {
            slot.confirmed_ns.store(slot.submitted_ns(), Unordered);
        }
        if ended == self.contexts_ended
            && let Ok(destroy) = driver::cuEventDestroy_v2.get()
        {
            for event in
                self.ring.iter().flat_map(|fence| [fence.start, fence.end]).filter(|it| !it.is_null())
            {
                // SAFETY: an event that `event` made, in a context that has not ended, and that nothing refers to afterwards.
                unsafe { destroy(event) };
            }
        }
        let none = Fence { start: ptr::null_mut(), end: ptr::null_mut(), submitted_ns: 0, key: 0 };
        *self = Self { ring: [none; PENDING], first: 0, count: 0, context, contexts_ended: ended };
        !context.is_null()
    }

    /// Notes what has ended.
    pub(super) fn confirm(&mut self, process: &Process, page: &GatePage, slot: &ThreadSlot) {
        let Ok(query) = driver::cuEventQuery.get() else { return };
        while self.count > 0 {
            let Some(fence) = self.ring.get(self.first).copied() else { return };
            // SAFETY: an event of this thread's current context (`follow_context`, and `is_of_this_context` for waits).
            if unsafe { query(fence.end) } == NOT_READY {
                return;
            }
            if fence.key != 0 {
                learn(process, page, &fence);
            }
            slot.confirmed_ns.store(fence.submitted_ns, Unordered);
            slot.progress_ns.store(clock::now_ns(), Unordered);
            self.first = (self.first + 1) % PENDING;
            self.count -= 1;
        }
    }

    /// Everything has ended.
    pub(super) fn confirm_all(&mut self, slot: &ThreadSlot) {
        self.count = 0;
        slot.confirmed_ns.store(slot.submitted_ns(), Unordered);
        slot.progress_ns.store(clock::now_ns(), Unordered);
    }

    /// Puts a fence behind what was launched, if there is something that no fence is behind.
    pub(super) fn put(&mut self, stream: usize, slot: &ThreadSlot) {
        let submitted_ns = slot.submitted_ns();
        let fenced_ns = match self.count {
            0 => slot.confirmed_ns.load(Unordered),
            count => self
                .ring
                .get((self.first + count - 1) % PENDING)
                .map_or(submitted_ns, |fence| fence.submitted_ns),
        };
        if submitted_ns == fenced_ns {
            return;
        }
        if let Some(fence) = self.next()
            && record(&mut fence.end, stream)
        {
            (fence.submitted_ns, fence.key) = (submitted_ns, 0);
            self.count += 1;
        }
    }

    /// Records the beginning of a launch whose price is measured; false if that cannot be done.
    pub(super) fn begin_sample(&mut self, stream: usize) -> bool {
        self.next().is_some_and(|fence| record(&mut fence.start, stream))
    }

    /// Records its end.
    pub(super) fn end_sample(&mut self, stream: usize, key: u64, slot: &ThreadSlot) {
        // The price of the launch itself counts as submitted; the rest of the window is credit, and does not.
        let submitted_ns = slot.submitted_ns();
        if let Some(fence) = self.next()
            && record(&mut fence.end, stream)
        {
            (fence.submitted_ns, fence.key) = (submitted_ns, key);
            self.count += 1;
        }
    }

    /// The fence that is put next, if there is room.
    fn next(&mut self) -> Option<&mut Fence> {
        if self.count == PENDING {
            return None;
        }
        self.ring.get_mut((self.first + self.count) % PENDING)
    }
}

/// Records an event, which is made first if there is none.
fn record(event: &mut Event, stream: usize) -> bool {
    const DEFAULT: c_uint = 0;
    if event.is_null() {
        // SAFETY: `event` is borrowed; the driver writes one handle.
        let made = driver::cuEventCreate.get().map(|create| unsafe { create(event, DEFAULT) });
        if made != Ok(SUCCESS) {
            *event = ptr::null_mut();
            return false;
        }
    }
    // SAFETY: an event of the current context, and the stream of the launch that is being made (call contract).
    driver::cuEventRecord.get().is_ok_and(|it| unsafe { it(*event, stream as *mut c_void) } == SUCCESS)
}

/// Takes the price from the two events of an ended fence.
fn learn(process: &Process, page: &GatePage, fence: &Fence) {
    let mut took_ms = 0.0_f32;
    // SAFETY: two events of one context, both recorded; `took_ms` is a live local.
    let told = driver::cuEventElapsedTime
        .get()
        .map(|elapsed| unsafe { elapsed(&raw mut took_ms, fence.start, fence.end) });
    if told == Ok(SUCCESS) && took_ms >= 0.0 {
        process.gate.prices.learn(fence.key, (f64::from(took_ms) * 1e6) as u64);
        page.note_price(process.gate.prices.longest_ns());
    }
}
