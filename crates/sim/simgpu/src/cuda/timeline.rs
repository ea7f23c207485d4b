//! The work that this process has queued on the machine's engines: a queue per stream, and the effect of each item when its
//! turn comes.
//!
//! The timeline exists from the moment when a program gets a function that takes time. For all other programs, work
//! completes at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use super::effects::{Effect, Stamp, holds};
use super::{CuError, CuResult};
use crate::signals::SignalsBlocked;
use crate::state::Sim;
use crate::time::{DEPTH, Engine, EngineId, Op, Ring, SLICE_NS, now_ns, precise_timers, update};

/// A thread that waits for space gets that much, so that not every launch sleeps.
const ROOM: u64 = DEPTH / 16;
/// A thread that waits for something that no engine can foresee polls again after this time.
const UNFORESEEN_NS: u64 = 20_000_000;
/// Poll interval of a word of host memory that a stream waits for.
const POLL_NS: u64 = 100_000;
const WORKER_STACK_BYTES: usize = 256 << 10;

/// The legacy default stream's number in [`LineKey`].
pub(super) const LEGACY: u64 = 0;

/// A stream of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineKey {
    pub(super) context: u32,
    pub(super) stream: u64,
}

/// The destination of work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Destination {
    pub(super) key: LineKey,
    pub(super) engine: EngineId,
    /// In order with the legacy default stream.
    pub(super) is_blocking: bool,
}

/// The work of one stream.
pub(super) struct Line {
    pub(super) place: Destination,
    pub(super) ring: Ring,
    pub(super) channel: u64,
    /// As far as is known, the first item that is not done.
    pub(super) head: u64,
    /// Up to here, this stream has waited for the legacy one, and the legacy one for this.
    after_legacy: u64,
    legacy_after: u64,
    /// The number of queued kernels of each spinning group.
    rounds: BTreeMap<(u32, u64), u32>,
    /// The effects of the items of this line, in order.
    pub(super) effects: VecDeque<(u64, Effect)>,
    is_closed: bool,
}

impl Line {
    pub(super) fn is_done(&self) -> bool {
        self.head >= self.ring.tail()
    }
}

/// The state that the lock guards.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) lines: BTreeMap<LineKey, Line>,
    /// When events were reached, by event.
    pub(super) stamps: BTreeMap<u64, Stamp>,
    has_worker: bool,
}

/// The work of this process.
pub(super) struct Timeline {
    pub(super) sim: &'static Sim,
    slot: usize,
    lines: Mutex<Lines>,
    /// There is something new for the worker.
    news: Condvar,
}

static TIMELINE: OnceLock<Timeline> = OnceLock::new();

/// The timeline, if this process's work takes time.
#[inline]
pub(super) fn timeline() -> Option<&'static Timeline> {
    TIMELINE.get()
}

/// From now on, the work of this process takes time.
pub(super) fn begin(sim: &'static Sim, slot: usize) {
    TIMELINE.get_or_init(|| Timeline { sim, slot, lines: Mutex::default(), news: Condvar::new() });
}

impl Timeline {
    pub(super) fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Queues an item; its number. Waits for room if the stream's queue is full.
    pub(super) fn submit(&'static self, place: Destination, op: Op, effect: Option<Effect>) -> CuResult<u64> {
        loop {
            let mut lines = self.lock();
            self.open(&mut lines, place)?;
            // Room for what the legacy stream may have to wait for, too.
            let needed = lines.most_waits(place.key) + 1;
            let line = lines.line(place.key)?;
            if line.ring.tail() + needed > line.head + DEPTH {
                let until = line.ring.tail() + needed.max(ROOM) - DEPTH;
                drop(lines);
                self.wait(place.key, until - 1);
                continue;
            }
            let waits = lines.order_with_legacy(place);
            let line = lines.line(place.key)?;
            let op = line.with_round(op);
            let now = now_ns();
            for wait in waits {
                line.ring.push(wait, now);
            }
            let seq = line.ring.push(op, if op == Op::Hold { u64::MAX } else { now });
            if let Some(effect) = effect {
                let is_for_worker = effect.needs_worker();
                let stamped = (line.channel, effect);
                line.effects.push_back((seq, effect));
                if let (channel, Effect::Event(event)) = stamped {
                    lines.stamps.insert(event, Stamp::Pending { key: place.key, channel, seq });
                }
                if is_for_worker {
                    self.call_worker(&mut lines);
                }
            }
            return Ok(seq);
        }
    }

    /// Gives a stream its line, unless it has one.
    fn open(&self, lines: &mut Lines, place: Destination) -> CuResult {
        if lines.lines.contains_key(&place.key) {
            return Ok(());
        }
        let ring = Ring::take(self.sim, self.slot).ok_or(CuError::OUT_OF_MEMORY)?;
        let head = ring.tail();
        let opened = update(self.sim, place.engine, self.slot, |engine| {
            engine.open(self.slot, place.key.context, ring.index, head)
        });
        let Some((_, channel)) = opened else {
            ring.release();
            return Err(CuError::OUT_OF_MEMORY);
        };
        let (effects, rounds) = (VecDeque::new(), BTreeMap::new());
        let line = Line {
            place,
            ring,
            channel,
            head,
            after_legacy: head,
            legacy_after: head,
            effects,
            is_closed: false,
            rounds,
        };
        lines.lines.insert(place.key, line);
        Ok(())
    }

    /// Looks how far a line is, and does what was to be done there. The engine as it is now.
    pub(super) fn refresh(&self, lines: &mut Lines, key: LineKey) -> Option<Engine> {
        let line = lines.lines.get_mut(&key)?;
        let (engine, ()) = update(self.sim, line.place.engine, self.slot, |_| ())?;
        line.head = engine.head(line.channel).unwrap_or(line.head);
        while let Some((seq, effect)) = line.effects.pop_front_if(|(seq, _)| *seq < line.head) {
            effect.happen(line.ring, seq, line.channel, &mut lines.stamps);
        }
        Some(engine)
    }

    /// Waits until an item is done.
    pub(super) fn wait(&self, key: LineKey, seq: u64) {
        loop {
            let mut lines = self.lock();
            let Some(line) = lines.lines.get(&key) else { return };
            let (ring, channel) = (line.ring, line.channel);
            let signal = ring.signal();
            let Some(engine) = self.refresh(&mut lines, key) else { return };
            if lines.lines.get(&key).is_none_or(|line| line.head > seq) {
                return;
            }
            drop(lines);
            ring.sleep(signal, self.next_look_ns(&engine, channel, seq));
        }
    }

    /// When an item may be done, or something else is to do for its line.
    fn next_look_ns(&self, engine: &Engine, channel: u64, seq: u64) -> u64 {
        if crate::time::meet_if_spinning(self.sim, engine, channel) {
            return engine.now_ns;
        }
        let unforeseen = engine.now_ns + UNFORESEEN_NS;
        let Some(expected) = crate::time::forecast(self.sim, engine.clone(), channel, seq) else {
            return unforeseen;
        };
        // Others may yield their turns, or die: then it is earlier.
        let best = crate::time::forecast(self.sim, engine.alone(channel), channel, seq).unwrap_or(expected);
        expected.min(best.max(engine.now_ns + SLICE_NS / 2))
    }

    /// Waits until everything is done that was queued so far in the lines that `which` selects.
    pub(super) fn drain(&self, which: impl Fn(&Destination) -> bool) {
        let lines = self.lock();
        let found = lines.lines.values().filter(|line| which(&line.place));
        let ends: Vec<(LineKey, u64)> = found.map(|line| (line.place.key, line.ring.tail())).collect();
        drop(lines);
        for (key, tail) in ends {
            if tail > 0 {
                self.wait(key, tail - 1);
            }
        }
    }

    /// Whether everything is done in a stream.
    pub(super) fn is_done(&self, key: LineKey) -> bool {
        let mut lines = self.lock();
        self.refresh(&mut lines, key);
        lines.lines.get(&key).is_none_or(Line::is_done)
    }

    /// The lock, if all work is done.
    pub(super) fn lock_idle(&self) -> Option<MutexGuard<'_, Lines>> {
        let mut lines = self.lock();
        let keys: Vec<LineKey> = lines.lines.keys().copied().collect();
        for key in keys {
            self.refresh(&mut lines, key);
        }
        lines.lines.values().all(Line::is_done).then_some(lines)
    }

    /// All lines end; work that is queued later gets others, on the GPU where the process is then. The caller has made sure that nothing
    /// is queued.
    pub(super) fn end_lines(&self, lines: &mut Lines) {
        let keys: Vec<LineKey> = lines.lines.keys().copied().collect();
        keys.into_iter().for_each(|key| self.end(lines, key));
    }

    /// A stream ends, when its work is done.
    pub(super) fn close(&'static self, key: LineKey) {
        let mut lines = self.lock();
        self.refresh(&mut lines, key);
        let Some(line) = lines.lines.get_mut(&key) else { return };
        line.is_closed = true;
        if line.is_done() {
            self.end(&mut lines, key);
        } else {
            self.call_worker(&mut lines);
        }
    }

    /// A context ends with all its work.
    pub(super) fn end_context(&self, context: u32) {
        let mut lines = self.lock();
        let keys: Vec<LineKey> = lines.lines.keys().filter(|key| key.context == context).copied().collect();
        keys.into_iter().for_each(|key| self.end(&mut lines, key));
    }

    fn end(&self, lines: &mut Lines, key: LineKey) {
        let Some(line) = lines.lines.remove(&key) else { return };
        update(self.sim, line.place.engine, self.slot, |engine| engine.close(line.channel));
        lines.stamps.retain(|_, stamp| !stamp.is_of(line.channel));
        line.ring.release();
    }

    fn call_worker(&'static self, lines: &mut Lines) {
        if !lines.has_worker {
            let _signals = SignalsBlocked::new();
            let worker = std::thread::Builder::new().name("cuda-time".to_owned());
            lines.has_worker = worker.stack_size(WORKER_STACK_BYTES).spawn(move || self.work()).is_ok();
        }
        self.news.notify_one();
    }

    /// Does what is to be done at its time, whatever the program's own threads do meanwhile.
    fn work(&self) {
        precise_timers();
        let mut lines = self.lock();
        loop {
            let waiting =
                lines.lines.values().filter(|line| line.is_closed || line.next_for_worker().is_some());
            let keys: Vec<LineKey> = waiting.map(|line| line.place.key).collect();
            let mut until_ns = u64::MAX;
            for key in keys {
                let next_ns;
                (lines, next_ns) = self.work_on(lines, key);
                until_ns = until_ns.min(next_ns);
            }
            let pause = until_ns.saturating_sub(now_ns()).min(1_000_000_000);
            if pause > 0 {
                let waited = self.news.wait_timeout(lines, Duration::from_nanos(pause));
                lines = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            }
        }
    }

    /// Does what is to be done in a line now. When to look again.
    fn work_on<'a>(&'a self, mut lines: MutexGuard<'a, Lines>, key: LineKey) -> (MutexGuard<'a, Lines>, u64) {
        let Some(engine) = self.refresh(&mut lines, key) else { return (lines, u64::MAX) };
        let Some(line) = lines.lines.get_mut(&key) else { return (lines, u64::MAX) };
        if line.is_closed && line.is_done() {
            self.end(&mut lines, key);
            return (lines, u64::MAX);
        }
        let (ring, channel, tail) = (line.ring, line.channel, line.ring.tail());
        let Some((seq, effect)) = line.next_for_worker() else {
            return (lines, self.next_look_ns(&engine, channel, tail.saturating_sub(1)));
        };
        if seq > line.head {
            return (lines, self.next_look_ns(&engine, channel, seq - 1));
        }
        match effect {
            Effect::Host { .. } => {
                let call = line.take_host_function(seq);
                drop(lines);
                if let Some(call) = call {
                    call();
                }
                ring.set_ready(seq, now_ns());
                (self.lock(), 0)
            }
            Effect::Await { address, value, bytes, condition } => {
                if holds(address, value, bytes, condition) {
                    ring.set_ready(seq, now_ns());
                    return (lines, 0);
                }
                (lines, now_ns() + POLL_NS)
            }
            Effect::Elsewhere { key: other, seq: awaited } => {
                let engine = self.refresh(&mut lines, other);
                let line = lines.lines.get(&other).filter(|line| line.head <= awaited);
                let (Some(line), Some(engine)) = (line, engine) else {
                    ring.set_ready(seq, now_ns());
                    return (lines, 0);
                };
                let channel = line.channel;
                (lines, self.next_look_ns(&engine, channel, awaited))
            }
            _ => (lines, self.next_look_ns(&engine, channel, seq)),
        }
    }
}

impl Line {
    /// The first kernel of a group on a stream meets the first ones of the others, the second the second ones. So every
    /// reader finds that the same kernels have met, however late it reads.
    fn with_round(&mut self, op: Op) -> Op {
        let Op::Spin { ranks, group } = op else { return op };
        let round = self.rounds.entry((ranks, group)).or_default();
        *round = round.wrapping_add(1);
        Op::Spin { ranks, group: group << 32 | u64::from(*round) }
    }

    /// The first item at which the worker has to do something.
    fn next_for_worker(&self) -> Option<(u64, Effect)> {
        self.effects.iter().find(|(_, effect)| effect.needs_worker()).copied()
    }

    fn take_host_function(&mut self, seq: u64) -> Option<impl FnOnce() + use<>> {
        let index = self.effects.iter().position(|(at, _)| *at == seq)?;
        self.effects.remove(index)?.1.host_function()
    }
}

impl Lines {
    pub(super) fn line(&mut self, key: LineKey) -> CuResult<&mut Line> {
        self.lines.get_mut(&key).ok_or(CuError::INVALID_HANDLE)
    }

    /// Maximum number of items that [`Lines::order_with_legacy`] may request.
    fn most_waits(&self, LineKey { context, stream }: LineKey) -> u64 {
        let is_other =
            |key: &&LineKey| key.context == context && (stream == LEGACY) != (key.stream == LEGACY);
        self.lines.keys().filter(is_other).count() as u64
    }

    /// The items that an item has to wait for because of the legacy default stream: its items come after everything that the
    /// context's blocking streams have, and theirs after its.
    fn order_with_legacy(&mut self, place: Destination) -> Vec<Op> {
        let LineKey { context, stream } = place.key;
        if stream == LEGACY {
            let others = self.lines.values_mut().filter(|line| {
                line.place.key.context == context && line.place.key.stream != LEGACY && line.place.is_blocking
            });
            let wait = |line: &mut Line| {
                let tail = line.ring.tail();
                (tail > line.head && std::mem::replace(&mut line.legacy_after, tail) < tail)
                    .then_some(Op::Wait { channel: line.channel, seq: tail - 1 })
            };
            return others.filter_map(wait).collect();
        }
        let Some(legacy) = self.lines.get(&LineKey { context, stream: LEGACY }).filter(|_| place.is_blocking)
        else {
            return Vec::new();
        };
        let (channel, head, tail) = (legacy.channel, legacy.head, legacy.ring.tail());
        let Some(line) = self.lines.get_mut(&place.key) else { return Vec::new() };
        if tail <= head || std::mem::replace(&mut line.after_legacy, tail) >= tail {
            return Vec::new();
        }
        vec![Op::Wait { channel, seq: tail - 1 }]
    }
}
