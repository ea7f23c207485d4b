//! Charges the slices for the time that has passed.

use crate::Arbiter;
use crate::state::{Phase, SliceState};

impl Arbiter {
    /// Charges the time since the last poll to the slices with unfinished work, in equal parts, as the driver divides it; if there
    /// is none, to the holder that keeps others waiting.
    pub(crate) fn charge(&mut self, elapsed_ns: u64) {
        let (now_ns, parameters) = (self.now_ns, self.parameters);
        let holder = match self.phase {
            Phase::Held { holder, .. } => Some(holder),
            Phase::Free | Phase::Draining { .. } => None,
        };
        let rivals = self.candidate(holder).is_some();
        let busy = |slice: &SliceState| slice.is_unfinished(now_ns, &parameters);
        let count = self.slices.values().filter(|slice| busy(slice)).count() as u64;
        for (id, slice) in &mut self.slices {
            let is_busy = slice.is_unfinished(now_ns, &parameters);
            slice.idle_since_ns = if is_busy { None } else { slice.idle_since_ns.or(Some(now_ns)) };
            let part_ns = match count {
                0 if Some(*id) == holder && rivals => elapsed_ns,
                0 => 0,
                _ if is_busy => elapsed_ns / count,
                _ => 0,
            };
            slice.virtual_ns = slice.virtual_ns.saturating_add(slice.weighted(part_ns));
            if is_busy {
                slice.granted_ns = slice.granted_ns.saturating_add(part_ns);
            }
            slice.spend(elapsed_ns, part_ns, parameters.bucket_ns, parameters.reopen_ns);
        }
    }
}

impl SliceState {
    /// Fills the bucket of a slice with a cap, and takes from it what the slice has used.
    ///
    /// That is the lesser of two figures since its gate was opened: how long its work was present (too much by the time that it
    /// takes to notice an end), and the sum of prices (too much where kernels run at once, or have no price yet).
    fn spend(&mut self, elapsed_ns: u64, part_ns: u64, bucket_ns: u64, reopen_ns: u64) {
        let Some(limit_milli) = self.share.limit_milli else {
            self.capped = false;
            return;
        };
        self.episode_presence_ns = self.episode_presence_ns.saturating_add(part_ns);
        let submitted_ns = self.seen.submitted_ns.saturating_sub(self.episode_submitted_ns);
        let used_ns = self.episode_presence_ns.min(submitted_ns);
        let new_ns = used_ns.saturating_sub(self.episode_spent_ns);
        self.episode_spent_ns = self.episode_spent_ns.max(used_ns);
        let income_ns = elapsed_ns.saturating_mul(u64::from(limit_milli)) / 1000;
        let balance_ns = i128::from(self.tokens_ns) + i128::from(income_ns) - i128::from(new_ns);
        // A debt without a bound would close the gate for good after one absurd figure.
        let bound_ns = i128::from(bucket_ns);
        self.tokens_ns = i64::try_from(balance_ns.clamp(-50 * bound_ns, bound_ns)).unwrap_or(0);
        self.capped = if self.capped {
            self.tokens_ns < i64::try_from(reopen_ns).unwrap_or(i64::MAX)
        } else {
            self.tokens_ns <= 0
        };
    }
}
