//! Advances an engine to a given time. Pure: the same state and the same rings give the same result.

use super::engine::{Channel, Engine, Passed, slot_of};
use super::item::{Item, Op};
use super::{PERIOD_NS, SLICE_NS, SWITCH_DRAINED_NS, SWITCH_PREEMPTED_NS};

/// Marks that one advance may pass; it ends early then.
const MAX_PASSED: usize = 256;
/// Steps of a forecast. Beyond that it is no forecast.
const MAX_STEPS: usize = 4096;

/// The queues of an engine's channels.
pub(super) trait Rings {
    /// An item, or `None` if it was not queued yet.
    fn item(&self, ring: usize, seq: u64) -> Option<Item>;
}

/// The running items of the context whose turn it is.
#[derive(Default)]
struct Running {
    kernels: u64,
    spinning: bool,
    /// The shortest rest of a kernel.
    least_left_ns: u64,
    /// When the next item that is known becomes ready.
    next_ready_ns: u64,
}

impl Engine {
    /// Whether an advance had to end early.
    pub(super) fn is_full(&self) -> bool {
        self.passed.len() >= MAX_PASSED
    }

    /// Advances the time to `until_ns`, or until [`Engine::is_full`].
    pub(super) fn advance(&mut self, rings: &impl Rings, until_ns: u64) {
        self.passed.clear();
        while self.now_ns < until_ns && !self.is_full() {
            self.step(rings, until_ns);
        }
        // Passes the items without a duration after the one that has just ended.
        if self.switch_left_ns == 0 {
            self.settle(rings);
        }
    }

    /// Up to the next change, at most to `until_ns`.
    fn step(&mut self, rings: &impl Rings, end_ns: u64) {
        let end_ns = end_ns.min(self.begin_copies(rings));
        let until_ns = end_ns.min((self.now_ns / PERIOD_NS + 1) * PERIOD_NS);
        if self.switch_left_ns > 0 {
            let dt = self.switch_left_ns.min(until_ns - self.now_ns);
            self.switch_left_ns -= dt;
            return self.pass_time(dt);
        }
        let running = self.settle(rings);
        if self.is_full() {
            return;
        }
        if running.kernels == 0 && !running.spinning {
            if !self.next_turn(rings, SWITCH_DRAINED_NS, SLICE_NS) {
                self.idle(rings, end_ns);
            }
            return;
        }
        let mut dt =
            (until_ns - self.now_ns).min(self.slice_left_ns).min(running.next_ready_ns - self.now_ns);
        if running.kernels > 0 {
            dt = dt.min(running.least_left_ns.saturating_mul(running.kernels));
        }
        self.run(running.kernels, dt);
        if self.slice_left_ns == 0 {
            let turn_ns = if running.spinning { self.uneven_turn_ns() } else { SLICE_NS };
            if !self.next_turn(rings, SWITCH_PREEMPTED_NS, turn_ns) {
                self.slice_left_ns = SLICE_NS;
            }
        }
    }

    /// Copies begin as soon as they are ready, in whatever context. When the first of those that run ends.
    fn begin_copies(&mut self, rings: &impl Rings) -> u64 {
        let now_ns = self.now_ns;
        let mut next_ns = u64::MAX;
        for channel in self.channels.iter_mut().filter(|c| c.copy_left_ns == 0) {
            match rings.item(channel.ring, channel.head) {
                Some(Item { op: Op::Copy { ns }, ready_ns, .. }) if ready_ns <= now_ns => {
                    channel.copy_left_ns = ns.max(1);
                }
                Some(Item { op: Op::Copy { .. }, ready_ns, .. }) => next_ns = next_ns.min(ready_ns),
                _ => {}
            }
        }
        let running = self.channels.iter().map(|c| c.copy_left_ns).filter(|left| *left > 0);
        let least = running
            .clone()
            .min()
            .map(|least| now_ns.saturating_add(least.saturating_mul(running.count() as u64)));
        next_ns.min(least.unwrap_or(u64::MAX))
    }

    /// Does what takes no time in the context whose turn it is, until all its channels run, wait or are empty.
    fn settle(&mut self, rings: &impl Rings) -> Running {
        let Some(&context) = self.contexts.get(self.turn) else {
            return Running { next_ready_ns: u64::MAX, ..Running::default() };
        };
        loop {
            let mut running =
                Running { least_left_ns: u64::MAX, next_ready_ns: u64::MAX, ..Running::default() };
            let mut moved = false;
            for index in 0..self.channels.len() {
                if self.channels[index].context == context {
                    moved |= self.settle_channel(rings, index, &mut running);
                }
            }
            if !moved || self.is_full() {
                return running;
            }
        }
    }

    /// Whether anything was passed that another channel may have waited for.
    fn settle_channel(&mut self, rings: &impl Rings, index: usize, running: &mut Running) -> bool {
        let first = self.channels[index].head;
        loop {
            let Channel { ring, head, .. } = self.channels[index];
            let Some(item) = rings.item(ring, head) else { break };
            if item.ready_ns > self.now_ns {
                running.next_ready_ns = running.next_ready_ns.min(item.ready_ns);
                break;
            }
            match item.op {
                Op::Busy { ns } => {
                    let left = &mut self.channels[index].left_ns;
                    if *left == 0 {
                        *left = ns.max(1);
                    }
                    running.kernels += 1;
                    running.least_left_ns = running.least_left_ns.min(*left);
                    break;
                }
                Op::Spin { .. } if item.met_ns.is_none() => {
                    running.spinning = true;
                    break;
                }
                Op::Wait { .. } if self.is_blocked(item.op) => break,
                Op::Copy { .. } => break,
                Op::Mark if self.is_full() => break,
                Op::Mark => self.passed.push(Passed { ring, seq: head, at_ns: self.now_ns }),
                Op::Wait { .. } | Op::Hold | Op::Spin { .. } => {}
            }
            self.channels[index].head += 1;
        }
        self.channels[index].head != first
    }

    /// Whether an item does not need the context's turn yet.
    fn is_blocked(&self, op: Op) -> bool {
        match op {
            Op::Wait { channel, seq } => self.head(channel).is_some_and(|head| head <= seq),
            Op::Copy { .. } => true,
            _ => false,
        }
    }

    /// Runs the kernels of the context whose turn it is.
    fn run(&mut self, kernels: u64, dt: u64) {
        let context = self.contexts[self.turn];
        for channel in self.channels.iter_mut().filter(|c| c.context == context && c.left_ns > 0) {
            channel.left_ns -= channel.left_ns.min(dt / kernels.max(1));
            if channel.left_ns == 0 {
                channel.head += 1;
            }
        }
        if let Some(process) = self.processes.iter_mut().find(|p| p.slot == slot_of(context)) {
            process.gpu_ns += dt;
        }
        self.busy_ns += dt;
        self.slice_left_ns -= dt;
        self.pass_time(dt);
    }

    fn pass_time(&mut self, dt: u64) {
        let periods = (self.now_ns + dt) / PERIOD_NS - self.now_ns / PERIOD_NS;
        self.now_ns += dt;
        let copies = self.channels.iter().filter(|c| c.copy_left_ns > 0).count() as u64;
        for channel in self.channels.iter_mut().filter(|c| c.copy_left_ns > 0) {
            channel.copy_left_ns -= channel.copy_left_ns.min(dt / copies);
            channel.head += u64::from(channel.copy_left_ns == 0);
        }
        // Only idle time is longer than a period; two empty ones look like all others.
        (0..periods.min(2)).for_each(|_| self.end_period());
    }

    fn end_period(&mut self) {
        self.busy_samples_ns = [self.busy_samples_ns[1], self.busy_ns];
        for process in &mut self.processes {
            process.samples_ns = [process.samples_ns[1], process.gpu_ns];
        }
    }

    /// No context has work: advances to the next work, at most to `until_ns`.
    fn idle(&mut self, rings: &impl Rings, until_ns: u64) {
        let ready = self.channels.iter().filter_map(|c| rings.item(c.ring, c.head)).map(|item| item.ready_ns);
        let next = ready.filter(|ready| *ready > self.now_ns).min().unwrap_or(u64::MAX);
        self.pass_time(next.min(until_ns) - self.now_ns);
    }

    /// The length of the turn after that of a context that spins: half of one to one and a half. With equal turns, two engines could stay in
    /// step, each with a kernel that waits for one on the other. The turns of hardware are not so equal that this would last.
    fn uneven_turn_ns(&self) -> u64 {
        let context = self.contexts.get(self.turn).copied().unwrap_or(0);
        let mixed = (self.now_ns ^ context.rotate_left(17)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        SLICE_NS / 2 + (mixed >> 32) * SLICE_NS / (1 << 32)
    }

    /// Gives the turn to the next context that has work, if there is another one.
    fn next_turn(&mut self, rings: &impl Rings, switch_ns: u64, turn_ns: u64) -> bool {
        let count = self.contexts.len();
        let others = (1..count).map(|step| (self.turn + step) % count);
        let Some(next) = { others }.find(|&index| self.has_work(rings, self.contexts[index])) else {
            return false;
        };
        (self.turn, self.slice_left_ns, self.switch_left_ns) = (next, turn_ns, switch_ns);
        true
    }

    fn has_work(&self, rings: &impl Rings, context: u64) -> bool {
        self.channels.iter().filter(|c| c.context == context).any(|c| {
            rings
                .item(c.ring, c.head)
                .is_some_and(|item| item.ready_ns <= self.now_ns && !self.is_blocked(item.op))
        })
    }

    /// The spinning kernels that have the engine now: ring, item, ranks, group.
    pub(super) fn spinning(&self, rings: &impl Rings) -> Vec<(usize, u64, u32, u64)> {
        let Some(context) = self.contexts.get(self.turn).filter(|_| self.switch_left_ns == 0) else {
            return Vec::new();
        };
        let spinning = |c: &Channel| match rings.item(c.ring, c.head)? {
            Item { op: Op::Spin { ranks, group }, met_ns: None, ready_ns } if ready_ns <= self.now_ns => {
                Some((c.ring, c.head, ranks, group))
            }
            _ => None,
        };
        self.channels.iter().filter(|c| c.context == *context).filter_map(spinning).collect()
    }

    /// When a channel will have passed an item if nothing changes, or when a kernel that spins in it will next get the engine;
    /// `None` if neither is known.
    pub(super) fn forecast(mut self, rings: &impl Rings, channel: u64, seq: u64) -> Option<u64> {
        let ring = self.channel(channel)?.ring;
        let spins = |engine: &Self| engine.spinning(rings).iter().any(|s| s.0 == ring);
        let mut spun = spins(&self);
        for _ in 0..MAX_STEPS {
            if self.head(channel)? > seq {
                return Some(self.now_ns);
            }
            let before_ns = self.now_ns;
            self.passed.clear();
            self.step(rings, u64::MAX);
            if self.now_ns == u64::MAX || self.now_ns > before_ns + 100 * PERIOD_NS {
                return None;
            }
            if self.switch_left_ns == 0 {
                self.settle(rings);
            }
            let spins_now = spins(&self);
            if spins_now && !spun {
                return Some(self.now_ns);
            }
            spun = spins_now;
        }
        Some(self.now_ns)
    }
}
