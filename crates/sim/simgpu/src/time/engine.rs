//! The state of one engine.

/// The progress of an engine. Plain figures: any process can advance a copy of it without an effect on others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Engine {
    /// Everything before this time has happened.
    pub(crate) now_ns: u64,
    /// Time in which some context had work on the engine.
    pub(crate) busy_ns: u64,
    /// The same at the last two ends of a period.
    pub(super) busy_samples_ns: [u64; 2],
    /// The rest of the turn.
    pub(super) slice_left_ns: u64,
    /// The rest of the switch to the context whose turn it is.
    pub(super) switch_left_ns: u64,
    /// Index of the context whose turn it is.
    pub(super) turn: usize,
    /// Number of the next channel; numbers are not used again.
    pub(super) next_channel: u64,
    pub(crate) processes: Vec<Process>,
    /// Contexts in the order in which they are served.
    pub(super) contexts: Vec<u64>,
    pub(super) channels: Vec<Channel>,
    /// Marks that the last advance passed.
    pub(super) passed: Vec<Passed>,
}

/// A process that has, or had, work on an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its slot in the machine's state.
    pub(crate) slot: usize,
    /// Time in which one of its contexts had work on the engine.
    pub(crate) gpu_ns: u64,
    /// The same at the last two ends of a period.
    pub(super) samples_ns: [u64; 2],
}

/// A stream of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channel {
    pub(super) id: u64,
    pub(super) context: u64,
    pub(super) ring: usize,
    /// The first item that is not done.
    pub(super) head: u64,
    /// Its remaining time, if it is a kernel; 0: not begun.
    pub(super) left_ns: u64,
    /// Its remaining time, if it is a copy; 0: not begun.
    pub(super) copy_left_ns: u64,
}

/// A mark that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) ring: usize,
    pub(super) seq: u64,
    pub(super) at_ns: u64,
}

/// A context's name on an engine.
pub(super) fn context_key(slot: usize, context: u32) -> u64 {
    (slot as u64) << 32 | u64::from(context)
}

pub(super) fn slot_of(context: u64) -> usize {
    (context >> 32) as usize
}

fn percent(samples_ns: [u64; 2]) -> u32 {
    ((samples_ns[1] - samples_ns[0]).saturating_mul(100) / super::PERIOD_NS) as u32
}

impl Process {
    /// Of the last whole period.
    pub(crate) fn utilization_percent(&self) -> u32 {
        percent(self.samples_ns)
    }
}

impl Engine {
    /// Of the last whole period.
    pub(crate) fn utilization_percent(&self) -> u32 {
        percent(self.busy_samples_ns)
    }

    /// Whether it ever had a channel.
    pub(crate) fn was_used(&self) -> bool {
        self.next_channel > 0
    }

    /// The first item of a channel that is not done; `None` if there is no such channel (any more).
    pub(crate) fn head(&self, channel: u64) -> Option<u64> {
        self.channel(channel).map(|c| c.head)
    }

    pub(super) fn channel(&self, id: u64) -> Option<&Channel> {
        self.channels.iter().find(|c| c.id == id)
    }

    /// A new channel of a context, whose items come from `ring`, the first of them number `head`.
    pub(crate) fn open(&mut self, slot: usize, context: u32, ring: usize, head: u64) -> u64 {
        let key = context_key(slot, context);
        if !self.processes.iter().any(|p| p.slot == slot) {
            self.processes.push(Process { slot, gpu_ns: 0, samples_ns: [0; 2] });
        }
        if self.contexts.is_empty() {
            (self.slice_left_ns, self.switch_left_ns) = (super::SLICE_NS, 0);
        }
        if !self.contexts.contains(&key) {
            self.contexts.push(key);
        }
        self.next_channel += 1;
        self.channels.push(Channel {
            id: self.next_channel,
            context: key,
            ring,
            head,
            left_ns: 0,
            copy_left_ns: 0,
        });
        self.next_channel
    }

    /// Ends a channel and drops its items.
    pub(crate) fn close(&mut self, channel: u64) {
        self.channels.retain(|c| c.id != channel);
        self.forget_contexts();
    }

    /// Ends everything of the processes that `is_alive` does not know.
    pub(crate) fn bury(&mut self, is_alive: impl Fn(usize) -> bool) {
        if self.processes.iter().all(|p| is_alive(p.slot)) {
            return;
        }
        self.processes.retain(|p| is_alive(p.slot));
        let Self { channels, processes, .. } = self;
        channels.retain(|c| processes.iter().any(|p| p.slot == slot_of(c.context)));
        self.forget_contexts();
    }

    /// Contexts without channels leave the round. If one of them had the turn, the next one has it.
    fn forget_contexts(&mut self) {
        for index in (0..self.contexts.len()).rev() {
            let context = self.contexts[index];
            if self.channels.iter().any(|c| c.context == context) {
                continue;
            }
            self.contexts.remove(index);
            if index < self.turn {
                self.turn -= 1;
            } else if index == self.turn {
                self.slice_left_ns = super::SLICE_NS;
                self.switch_left_ns = super::SWITCH_DRAINED_NS;
            }
        }
        if self.turn >= self.contexts.len() {
            self.turn = 0;
        }
    }

    /// The same engine with one channel's context alone on it; for what can be done in the best case.
    pub(crate) fn alone(&self, channel: u64) -> Self {
        let mut alone = self.clone();
        let Some(context) = self.channel(channel).map(|c| c.context) else { return alone };
        alone.channels.retain(|c| c.context == context);
        alone.forget_contexts();
        alone.switch_left_ns = 0;
        alone
    }
}
