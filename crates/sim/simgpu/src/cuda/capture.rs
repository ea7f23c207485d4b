//! Captures streams into graphs, and refuses forbidden calls meanwhile. Rules and codes are those of the driver API
//! reference on `cuStreamBeginCapture_v2` and `cuThreadExchangeStreamCaptureMode`; a forbidden call invalidates the capture
//! that it would have disturbed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::thread::{ThreadId, current as this_thread};

use super::execution::Object;
use super::session::Inner;
use super::{CuError, CuResult};

/// `CU_STREAM_CAPTURE_MODE_…`.
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;
const NON_BLOCKING: u32 = 1;
/// The legacy default stream's handles.
const LEGACY: std::ops::RangeInclusive<u64> = 0..=1;

/// `CU_STREAM_CAPTURE_STATUS_…`
pub(super) const STATUS_NONE: i32 = 0;
pub(super) const STATUS_ACTIVE: i32 = 1;
pub(super) const STATUS_INVALIDATED: i32 = 2;

thread_local! {
    /// The mode of this thread: the calls that are forbidden for it.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// One capture, by the graph that it makes.
struct Capture {
    origin: u64,
    mode: u32,
    thread: ThreadId,
    is_invalid: bool,
    /// Streams that take part because they waited for an event of this capture, with the number of their operations.
    streams: BTreeMap<u64, u64>,
    /// Those of them with operations that the origin does not wait for yet.
    unjoined: BTreeSet<u64>,
    /// The nodes that the next one of a stream waits for.
    tails: BTreeMap<u64, Vec<u64>>,
}

/// All captures of the process.
#[derive(Default)]
pub(super) struct Captures {
    captures: BTreeMap<u64, Capture>,
    /// Events that were recorded in a captured stream: graph, stream, and how many operations it had.
    events: BTreeMap<u64, (u64, u64, u64)>,
    /// The nodes that a waiter for such an event waits for.
    awaited: BTreeMap<u64, Vec<u64>>,
}

impl Captures {
    fn graph_of(&self, stream: u64) -> Option<u64> {
        let of_stream = |(_, capture): &(&u64, &Capture)| capture.streams.contains_key(&stream);
        self.captures.iter().find(of_stream).map(|(graph, _)| *graph)
    }

    /// The nodes that the next one of a captured stream waits for.
    pub(super) fn tail(&self, graph: u64, stream: u64) -> Vec<u64> {
        let tails = self.captures.get(&graph).map(|capture| &capture.tails);
        tails.and_then(|tails| tails.get(&stream)).cloned().unwrap_or_default()
    }

    /// A captured stream has a node more.
    pub(super) fn advance(&mut self, graph: u64, stream: u64, node: u64) {
        if let Some(capture) = self.captures.get_mut(&graph) {
            capture.tails.insert(stream, vec![node]);
        }
    }

    fn invalidate(&mut self, which: impl Fn(&Capture) -> bool) -> bool {
        let mut any = false;
        for capture in self.captures.values_mut().filter(|capture| which(capture)) {
            capture.is_invalid = true;
            any = true;
        }
        any
    }

    /// Status of a stream, and the graph that grows.
    pub(super) fn status(&self, stream: u64) -> (i32, Option<u64>) {
        let Some(graph) = self.graph_of(stream) else { return (STATUS_NONE, None) };
        let is_invalid = self.captures.get(&graph).is_some_and(|capture| capture.is_invalid);
        (if is_invalid { STATUS_INVALIDATED } else { STATUS_ACTIVE }, Some(graph))
    }

    /// An operation in a stream: the graph that it becomes part of, if the stream is captured.
    fn operation(&mut self, stream: u64) -> CuResult<Option<u64>> {
        let Some(graph) = self.graph_of(stream) else { return Ok(None) };
        let Some(capture) = self.captures.get_mut(&graph) else { return Ok(None) };
        if capture.is_invalid {
            return Err(CuError::STREAM_CAPTURE_INVALIDATED);
        }
        *capture.streams.entry(stream).or_default() += 1;
        if stream != capture.origin {
            capture.unjoined.insert(stream);
        }
        Ok(Some(graph))
    }

    /// Whether an event was recorded in a stream that is being captured.
    pub(super) fn is_captured_event(&self, event: u64) -> bool {
        self.events.get(&event).is_some_and(|(graph, ..)| self.captures.contains_key(graph))
    }

    /// An event is recorded; whether that is part of a capture.
    fn record(&mut self, event: u64, stream: u64) -> CuResult<bool> {
        self.events.remove(&event);
        let Some(graph) = self.operation(stream)? else { return Ok(false) };
        let operations = self.captures.get(&graph).and_then(|c| c.streams.get(&stream)).copied();
        self.events.insert(event, (graph, stream, operations.unwrap_or(0)));
        self.awaited.insert(event, self.tail(graph, stream));
        Ok(true)
    }

    /// A stream waits for an event; whether that is part of a capture. The stream joins the event's.
    fn wait(&mut self, stream: u64, event: u64) -> CuResult<bool> {
        let of_event =
            self.events.get(&event).filter(|(graph, ..)| self.captures.contains_key(graph)).copied();
        let Some((graph, recorded_in, operations)) = of_event else {
            // Waiting for work outside of the capture would tie the graph to it.
            let is_captured = self.invalidate(|capture| capture.streams.contains_key(&stream));
            return if is_captured { Err(CuError::STREAM_CAPTURE_ISOLATION) } else { Ok(false) };
        };
        match self.graph_of(stream) {
            Some(other) if other != graph => {
                self.invalidate(|capture| capture.streams.contains_key(&stream));
                return Err(CuError::STREAM_CAPTURE_MERGE);
            }
            _ => {}
        }
        let Some(capture) = self.captures.get_mut(&graph) else { return Ok(false) };
        if capture.streams.get(&recorded_in) == Some(&operations) && recorded_in != stream {
            capture.unjoined.remove(&recorded_in);
        }
        capture.streams.entry(stream).or_default();
        let awaited = self.awaited.get(&event).into_iter().flatten();
        capture.tails.entry(stream).or_default().extend(awaited);
        self.operation(stream).map(|_| true)
    }
}

impl Inner {
    /// The graph that an operation in a stream becomes part of. Work in the legacy stream would wait for captured streams.
    pub(super) fn capture_of(&mut self, stream: u64) -> CuResult<Option<u64>> {
        self.forbid_legacy(stream)?;
        self.graphs.captures.operation(stream)
    }

    fn forbid_legacy(&mut self, stream: u64) -> CuResult {
        if !LEGACY.contains(&stream) {
            return Ok(());
        }
        let objects = &self.objects;
        let is_blocking = |stream: &u64| matches!(objects.get(*stream), Ok(Object::Stream { flags, .. }) if flags & NON_BLOCKING == 0);
        let disturbed =
            |capture: &Capture| capture.mode != RELAXED && capture.streams.keys().any(is_blocking);
        if self.graphs.captures.invalidate(disturbed) {
            return Err(CuError::STREAM_CAPTURE_IMPLICIT);
        }
        Ok(())
    }

    /// Begins to capture a stream into a new graph.
    pub(super) fn begin_capture(&mut self, stream: u64, mode: u32) -> CuResult {
        // The legacy default stream cannot be captured, nor can a stream twice.
        if LEGACY.contains(&stream) || self.graphs.captures.graph_of(stream).is_some() {
            return Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
        }
        if mode > RELAXED {
            return Err(CuError::INVALID_VALUE);
        }
        let graph = self.graphs.create();
        let capture = Capture {
            origin: stream,
            mode,
            thread: this_thread().id(),
            is_invalid: false,
            streams: BTreeMap::from([(stream, 0)]),
            unjoined: BTreeSet::new(),
            tails: BTreeMap::new(),
        };
        self.graphs.captures.captures.insert(graph, capture);
        Ok(())
    }

    /// Ends a capture; its graph. One that was invalidated has none.
    pub(super) fn end_capture(&mut self, stream: u64) -> CuResult<u64> {
        let captures = &mut self.graphs.captures;
        let graph = captures.graph_of(stream).ok_or(CuError::ILLEGAL_STATE)?;
        let Some(capture) = captures.captures.get_mut(&graph) else { return Err(CuError::ILLEGAL_STATE) };
        if capture.origin != stream {
            return Err(CuError::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != this_thread().id() {
            return Err(CuError::STREAM_CAPTURE_WRONG_THREAD);
        }
        let result = match (capture.is_invalid, capture.unjoined.is_empty()) {
            (true, _) => Err(CuError::STREAM_CAPTURE_INVALIDATED),
            (false, false) => Err(CuError::STREAM_CAPTURE_UNJOINED),
            (false, true) => Ok(graph),
        };
        captures.captures.remove(&graph);
        captures.events.retain(|_, (of, ..)| *of != graph);
        let events = &captures.events;
        captures.awaited.retain(|event, _| events.contains_key(event));
        if result.is_err() {
            self.destroy_graph(graph)?;
        }
        result
    }

    /// An event is recorded; whether that is part of a capture.
    pub(super) fn capture_record(&mut self, event: u64, stream: u64) -> CuResult<bool> {
        self.forbid_legacy(stream)?;
        self.graphs.captures.record(event, stream)
    }

    /// A stream waits for an event; whether that is part of a capture.
    pub(super) fn capture_wait(&mut self, stream: u64, event: u64) -> CuResult<bool> {
        self.forbid_legacy(stream)?;
        self.graphs.captures.wait(stream, event)
    }

    /// Asks for something of a stream that a captured one cannot tell.
    pub(super) fn forbid_captured(&mut self, stream: u64) -> CuResult {
        self.forbid_legacy(stream)?;
        if self.graphs.captures.invalidate(|capture| capture.streams.contains_key(&stream)) {
            return Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// Waits for a whole context, and so for its captured streams.
    pub(super) fn forbid_any_capture(&mut self, context: u32) -> CuResult {
        let objects = &self.objects;
        let is_here = |stream: &u64| matches!(objects.get(*stream), Ok(Object::Stream { context: of, .. }) if of == context);
        if self.graphs.captures.invalidate(|capture| capture.streams.keys().any(is_here)) {
            return Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }

    /// A call that may do something that a capture does not see, from this thread.
    pub(super) fn forbid_unsafe(&mut self) -> CuResult {
        let (mode, thread) = (MODE.get(), this_thread().id());
        if self.graphs.captures.captures.is_empty() || mode == RELAXED {
            return Ok(());
        }
        let disturbed = |capture: &Capture| {
            capture.mode != RELAXED && capture.thread == thread || capture.mode == GLOBAL && mode == GLOBAL
        };
        if self.graphs.captures.invalidate(disturbed) {
            return Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }
}

/// Another mode for this thread; the one before.
pub(super) fn exchange_mode(mode: u32) -> CuResult<u32> {
    if mode > RELAXED { Err(CuError::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
}
