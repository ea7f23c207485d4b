//! The arbiter's record of one slice.

use crate::MS;

/// The constants of the policy. Those of [`Parameters::default`] come from a discrete-event simulation of the policy (docs/adr/0024),
/// in which each parameter was varied separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Length of a turn. Between 2 and 10 ms it hardly changes the shares. A drain costs up to 0.2 ms, so turns of 5 ms leave 3.9 % of the
    /// GPU idle, and those of 8 ms 2.4 %.
    pub quantum_ns: u64,
    /// Work that a slice may submit at a time. The driver's queue must not hold more: it outlives the grant.
    pub window_ns: u64,
    /// As `window_ns`, for a slice without a limit whose neighbors are all idle. A newcomer is opened at once, and the driver divides what is
    /// left; but threads that wake up late on a busy machine do not idle the GPU.
    pub solo_window_ns: u64,
    /// A slice counts as idle this long after its last work.
    pub recent_ns: u64,
    /// How long a holder without work keeps the grant while others wait.
    pub hold_ns: u64,
    /// How long a slice that was granted may take to launch: its threads have to wake up first.
    pub wake_ns: u64,
    /// A drain ends this long before the work in flight should end: meanwhile the next slice's threads notice that it is their
    /// turn, and launch.
    pub lead_ns: u64,
    /// A drain ends this long after the gate was shut, or after 2.5 times the longest kernel …
    pub escape_ns: u64,
    /// … and after this time in any case.
    pub escape_most_ns: u64,
    /// Work without progress for this long is not weighted any more.
    pub unweightable_ns: u64,
    /// A bucket of tokens holds this much time …
    pub bucket_ns: u64,
    /// … and a slice that has emptied its bucket continues once it holds this much.
    pub reopen_ns: u64,
    /// Time between two polls that is charged at most: the arbiter itself may have been stopped.
    pub longest_step_ns: u64,
    /// Launches that nothing has confirmed count as done 1.5 times their price and this much after the last one.
    pub tail_ns: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            quantum_ns: 8 * MS,
            window_ns: MS,
            solo_window_ns: 8 * MS,
            recent_ns: 100 * MS,
            hold_ns: 300_000,
            wake_ns: 2 * MS,
            lead_ns: 150_000,
            escape_ns: 20 * MS,
            escape_most_ns: 200 * MS,
            unweightable_ns: 1000 * MS,
            bucket_ns: 20 * MS,
            reopen_ns: 2 * MS,
            longest_step_ns: 50 * MS,
            tail_ns: MS,
        }
    }
}

/// The terms of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceShare {
    /// Its weight, in thousandths of the GPU; 0 counts as 1.
    pub weight_milli: u32,
    /// Its cap, in thousandths of the GPU; none for no cap.
    pub limit_milli: Option<u32>,
}

/// The observations of a slice. Its processes write these figures, so any values are possible; wrong ones harm their own
/// slice only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// A thread waits at the closed gate.
    pub waiting: bool,
    /// A thread with work in flight waits for its end, at the gate or in a synchronization, and will confirm it.
    pub attended: bool,
    /// Prices of all launches so far, in nanoseconds of GPU time.
    pub submitted_ns: u64,
    /// As `submitted_ns`, of those that have ended.
    pub confirmed_ns: u64,
    /// The longest known price of one launch.
    pub longest_ns: u64,
}

/// The state of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateDecision {
    /// Launches pass.
    pub open: bool,
    /// Work that may be in flight.
    pub window_ns: u64,
    /// GPU time that the slice has been charged so far.
    pub granted_ns: u64,
    /// Its work makes no progress: the gates of this GPU are open, and the driver divides.
    pub unweightable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No slice has the grant.
    Free,
    /// One slice has it.
    Held { holder: u64, since_ns: u64 },
    /// It was taken from one, whose work in flight ends.
    Draining { from: u64 },
}

#[derive(Debug)]
pub(crate) struct SliceState {
    pub(crate) share: SliceShare,
    pub(crate) seen: Observation,
    pub(crate) virtual_ns: u64,
    pub(crate) granted_ns: u64,
    /// As decided; `was_open` as last announced, which an unweightable neighbor may make true.
    pub(crate) open: bool,
    pub(crate) was_open: bool,
    pub(crate) capped: bool,
    pub(crate) unweightable: bool,
    pub(crate) was_active: bool,
    pub(crate) active_ns: u64,
    pub(crate) woke: bool,
    pub(crate) launched_since_grant: bool,
    pub(crate) opened_ns: u64,
    pub(crate) closed_ns: u64,
    pub(crate) grant_ns: u64,
    pub(crate) launch_ns: u64,
    /// When it had nothing in flight for the last time, and when something of it ended.
    pub(crate) began_ns: u64,
    pub(crate) progress_ns: u64,
    pub(crate) idle_since_ns: Option<u64>,
    pub(crate) tokens_ns: i64,
    /// GPU time since the gate was opened last, measured in two ways, and how much of it was taken from the bucket.
    pub(crate) episode_presence_ns: u64,
    pub(crate) episode_submitted_ns: u64,
    pub(crate) episode_spent_ns: u64,
}

impl SliceState {
    pub(crate) fn new(share: SliceShare, seen: Observation, now_ns: u64, floor: u64) -> Self {
        Self {
            share,
            seen,
            virtual_ns: floor,
            granted_ns: 0,
            open: false,
            was_open: false,
            capped: false,
            unweightable: false,
            was_active: false,
            active_ns: now_ns,
            woke: false,
            launched_since_grant: false,
            opened_ns: now_ns,
            closed_ns: now_ns,
            grant_ns: now_ns,
            launch_ns: now_ns,
            began_ns: now_ns,
            progress_ns: now_ns,
            idle_since_ns: None,
            // So that it need not wait before its first launch.
            tokens_ns: 2_000_000,
            episode_presence_ns: 0,
            episode_submitted_ns: seen.submitted_ns,
            episode_spent_ns: 0,
        }
    }

    pub(crate) fn observe(&mut self, seen: Observation, now_ns: u64) {
        if self.seen.submitted_ns == self.seen.confirmed_ns {
            self.began_ns = now_ns;
        }
        if seen.submitted_ns != self.seen.submitted_ns {
            self.launch_ns = now_ns;
            self.launched_since_grant = true;
        }
        if seen.confirmed_ns != self.seen.confirmed_ns {
            self.progress_ns = now_ns;
        }
        self.seen = seen;
    }

    /// Virtual time of this much GPU time.
    pub(crate) fn weighted(&self, gpu_ns: u64) -> u64 {
        gpu_ns.saturating_mul(1000) / u64::from(self.share.weight_milli.clamp(1, 1000))
    }

    /// Does its work run, as far as is known? Launches since the last fence are never confirmed if their threads then do
    /// something else: it counts as done some time after it should have been.
    pub(crate) fn is_unfinished(&self, now_ns: u64, parameters: &Parameters) -> bool {
        let out_ns = self.seen.submitted_ns.saturating_sub(self.seen.confirmed_ns);
        if out_ns == 0 {
            return false;
        }
        let due_ns = out_ns.saturating_mul(3) / 2;
        let since_ns = self.launch_ns.max(self.progress_ns);
        self.seen.attended || now_ns.saturating_sub(since_ns) <= due_ns.saturating_add(parameters.tail_ns)
    }

    /// GPU time that its work in flight still takes, by its prices.
    pub(crate) fn left_ns(&self, now_ns: u64) -> u64 {
        let out_ns = self.seen.submitted_ns.saturating_sub(self.seen.confirmed_ns);
        out_ns.saturating_sub(now_ns.saturating_sub(self.began_ns.max(self.progress_ns)))
    }

    pub(crate) const fn was_recently_active(&self, now_ns: u64, parameters: &Parameters) -> bool {
        now_ns.saturating_sub(self.active_ns) < parameters.recent_ns
    }

    /// Has the holder been idle for so long that the others continue?
    pub(crate) fn is_idle(&self, now_ns: u64, parameters: &Parameters) -> bool {
        let had_its_chance =
            self.launched_since_grant || now_ns.saturating_sub(self.grant_ns) > parameters.wake_ns;
        let idle_ns = self.idle_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        had_its_chance && idle_ns > parameters.hold_ns
    }

    pub(crate) fn begin_episode(&mut self) {
        self.episode_presence_ns = 0;
        self.episode_submitted_ns = self.seen.submitted_ns;
        self.episode_spent_ns = 0;
    }
}
