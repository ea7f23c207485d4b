//! Decides which of a GPU's slices may launch work now, so that each gets its part of the GPU's time.
//!
//! Weighted fair queuing over *slices*: each has a virtual time, which grows by the GPU time that it is charged, divided by its
//! weight. The slice with the least virtual time has the grant: its gate is open, the others' are closed. A grant lasts a
//! quantum. Then the gate closes, the work in flight ends (the drain), and the next slice gets the grant: a little before that
//! end, because its threads have to wake up. Overrun is charged like any other time, so its owner skips turns for it. An idle
//! slice is passed over. A slice that returns from a pause starts at most a bounded credit ahead of the others.
//!
//! * **Liveness before exclusivity.** A drain ends the escape limit after the gate was shut, done or not, with progress or without. So a kernel that waits for another
//!   GPU or for a closed gate delays its neighbors, but never stops them. A slice whose work makes no progress for longer is
//!   *unweightable*: meanwhile all gates are open, and the driver divides the time.
//! * **Only caps idle the GPU.** A slice with a limit takes its time from a bucket of tokens. Weights never delay a slice
//!   without competitors.
//!
//! There is no clock and no input or output here: [`Arbiter::poll`] gets the time and the observations, and returns the
//! state of each gate. The proof sketch and what was rejected are in docs/adr/0024.

mod charge;
mod state;

use std::collections::BTreeMap;

pub use state::{GateDecision, Observation, Parameters, SliceShare};
use state::{Phase, SliceState};

const MS: u64 = 1_000_000;

/// The arbiter of one GPU. Slices are named by numbers that its user chooses.
#[derive(Debug)]
pub struct Arbiter {
    parameters: Parameters,
    slices: BTreeMap<u64, SliceState>,
    phase: Phase,
    now_ns: u64,
    /// Least virtual time at which a slice that returns from a pause may start, before the sleeper's
    /// credit is subtracted.
    floor: u64,
}

impl Arbiter {
    /// An arbiter that knows no slice yet.
    #[must_use]
    pub const fn new(parameters: Parameters) -> Self {
        Self { parameters, slices: BTreeMap::new(), phase: Phase::Free, now_ns: 0, floor: 0 }
    }

    /// Takes the observations of each slice that exists at `now_ns` (of any clock that does not run backward); returns the
    /// state of each gate from now on. A slice that is not observed any more is forgotten.
    pub fn poll(
        &mut self,
        now_ns: u64,
        observed: &[(u64, SliceShare, Observation)],
    ) -> Vec<(u64, GateDecision)> {
        let elapsed_ns = now_ns.saturating_sub(self.now_ns).min(self.parameters.longest_step_ns);
        self.now_ns = self.now_ns.max(now_ns);
        self.observe(observed);
        self.charge(elapsed_ns);
        self.wake_sleepers();
        self.judge_progress();
        self.step();
        let all_open = self.slices.values().any(|slice| slice.unweightable);
        let (now, parameters) = (self.now_ns, self.parameters);
        let alone =
            self.slices.values().filter(|slice| slice.was_recently_active(now, &parameters)).count() <= 1;
        self.slices
            .iter_mut()
            .map(|(id, slice)| {
                let window_ns = match slice.share.limit_milli {
                    None if alone => parameters.solo_window_ns,
                    _ => parameters.window_ns,
                };
                let open = slice.open || all_open && !slice.capped;
                if open != slice.was_open {
                    slice.was_open = open;
                    if open {
                        slice.opened_ns = now_ns;
                        slice.begin_episode();
                    }
                }
                let (granted_ns, unweightable) = (slice.granted_ns, slice.unweightable);
                (*id, GateDecision { open, window_ns, granted_ns, unweightable })
            })
            .collect()
    }

    fn observe(&mut self, observed: &[(u64, SliceShare, Observation)]) {
        let now_ns = self.now_ns;
        self.slices.retain(|id, _| observed.iter().any(|(seen, ..)| seen == id));
        for (id, share, observation) in observed {
            let fresh = || SliceState::new(*share, *observation, now_ns, self.floor);
            let slice = self.slices.entry(*id).or_insert_with(fresh);
            slice.share = *share;
            slice.observe(*observation, now_ns);
        }
    }

    /// A slice that wants the GPU again is at most the sleeper's credit ahead of the others.
    fn wake_sleepers(&mut self) {
        let now_ns = self.now_ns;
        let active = self.slices.values().filter(|slice| slice.was_active);
        self.floor = active.map(|slice| slice.virtual_ns).min().unwrap_or(self.floor).max(self.floor);
        for slice in self.slices.values_mut() {
            let is_active = slice.seen.waiting || slice.is_unfinished(now_ns, &self.parameters);
            if is_active && !slice.was_active {
                let credit = slice.weighted(2 * self.parameters.quantum_ns);
                slice.virtual_ns = slice.virtual_ns.max(self.floor.saturating_sub(credit));
                slice.woke = true;
            }
            if is_active {
                slice.active_ns = now_ns;
            }
            slice.was_active = is_active;
        }
    }

    /// Work that makes no progress cannot be weighted.
    fn judge_progress(&mut self) {
        let (now_ns, limit_ns) = (self.now_ns, self.parameters.unweightable_ns);
        for slice in self.slices.values_mut() {
            let stuck = slice.seen.submitted_ns != slice.seen.confirmed_ns
                && slice.is_unfinished(now_ns, &self.parameters);
            let still_ns = now_ns.saturating_sub(slice.progress_ns.max(slice.opened_ns));
            slice.unweightable = stuck && (slice.unweightable || still_ns > limit_ns);
        }
    }

    /// Decides which slice has the grant.
    fn step(&mut self) {
        match self.phase {
            Phase::Free => self.grant_next(),
            Phase::Held { holder, since_ns } => self.step_held(holder, since_ns),
            Phase::Draining { from } => {
                let now_ns = self.now_ns;
                let limit_ns = self.escape_limit_ns(from);
                let drained = self.slices.get(&from).is_none_or(|slice| {
                    !slice.is_unfinished(now_ns, &self.parameters)
                        || slice.left_ns(now_ns) < self.parameters.lead_ns
                        || now_ns.saturating_sub(slice.closed_ns) > limit_ns
                });
                if drained {
                    self.grant_next();
                }
            }
        }
    }

    fn step_held(&mut self, holder: u64, since_ns: u64) {
        let now_ns = self.now_ns;
        let Some(slice) = self.slices.get(&holder) else { return self.grant_next() };
        if slice.capped {
            self.close(holder);
            self.phase = Phase::Draining { from: holder };
            return;
        }
        let Some(next) = self.candidate(Some(holder)) else {
            // There is no competitor, so there is no turn to end.
            if now_ns.saturating_sub(since_ns) > self.parameters.quantum_ns {
                self.phase = Phase::Held { holder, since_ns: now_ns };
            }
            return;
        };
        let Some(rival) = self.slices.get(&next) else { return };
        let first = rival.virtual_ns < slice.virtual_ns;
        if rival.woke && first {
            // It has waited long enough: the driver divides what is left of the holder's work with it.
            self.close(holder);
            self.open(next);
        } else if slice.is_idle(now_ns, &self.parameters) {
            self.close(holder);
            self.grant_next();
        } else if now_ns.saturating_sub(since_ns) >= self.parameters.quantum_ns {
            if first {
                self.close(holder);
                self.phase = Phase::Draining { from: holder };
            } else {
                self.phase = Phase::Held { holder, since_ns: now_ns };
            }
        }
    }

    /// The waiting slice whose turn it is; `except` does not count.
    fn candidate(&self, except: Option<u64>) -> Option<u64> {
        let waiting = self.slices.iter().filter(|(id, slice)| {
            Some(**id) != except && slice.seen.waiting && !slice.capped && !slice.unweightable
        });
        waiting.min_by_key(|(id, slice)| (slice.virtual_ns, **id)).map(|(id, _)| *id)
    }

    fn grant_next(&mut self) {
        match self.candidate(None) {
            Some(next) => self.open(next),
            None => self.phase = Phase::Free,
        }
    }

    fn open(&mut self, id: u64) {
        let now_ns = self.now_ns;
        if let Some(slice) = self.slices.get_mut(&id) {
            slice.open = true;
            slice.woke = false;
            slice.launched_since_grant = false;
            slice.idle_since_ns = None;
            slice.grant_ns = now_ns;
            self.phase = Phase::Held { holder: id, since_ns: now_ns };
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(slice) = self.slices.get_mut(&id) {
            slice.open = false;
            slice.closed_ns = self.now_ns;
        }
    }

    /// The time that a slice's work may take after its gate was shut before its neighbors continue. Progress does not extend it: the slice
    /// itself says how much it makes.
    fn escape_limit_ns(&self, id: u64) -> u64 {
        let longest_ns = self.slices.get(&id).map_or(0, |slice| slice.seen.longest_ns);
        (longest_ns.saturating_mul(5) / 2).clamp(self.parameters.escape_ns, self.parameters.escape_most_ns)
    }
}
