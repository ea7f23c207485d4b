//! Measures how long each task has been over its limit.
//!
//! A task that takes memory in bursts is over its limit at some scans and not at others. A clean scan therefore resets
//! nothing at once: the times add up, and are reset only after [`MEMORY`] without another finding.

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_model::LeaseId;
use tokio::time::Instant;

use super::Finding;

/// Interval of scans. Three more scans confirm a finding, so a task is killed 0.75 to 1 s after it exceeded its limit,
/// plus the duration of the scans.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The time over its limit after which a task is stopped: a scan takes time, and memory use changes meanwhile.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// A finding counts for the time since the scan before, but not for longer than this: a watchdog that was held up has seen nothing.
const LOOK_MAX: Duration = Duration::from_millis(350);

/// How long findings are remembered.
const MEMORY: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Over {
    total: Duration,
    seen: Instant,
}

/// Of all leases.
#[derive(Debug, Default)]
pub(super) struct Overs {
    overs: BTreeMap<LeaseId, Over>,
    looked: Option<Instant>,
}

impl Overs {
    /// A scan begins: returns the time that a finding in it counts for.
    pub(super) fn look(&mut self, now: Instant) -> Duration {
        self.overs.retain(|_, over| now.duration_since(over.seen) < MEMORY);
        let before = self.looked.replace(now);
        before.map_or(Duration::ZERO, |before| now.duration_since(before).min(LOOK_MAX))
    }

    /// A task has a finding at this scan.
    pub(super) fn found(
        &mut self,
        lease: &LeaseId,
        wrong: String,
        stands_for: Duration,
        now: Instant,
    ) -> Option<Finding> {
        let known = self.overs.contains_key(lease);
        let over = self.overs.entry(lease.clone()).or_insert(Over { total: Duration::ZERO, seen: now });
        over.total += stands_for;
        over.seen = now;
        if over.total >= GRACE_PERIOD {
            return Some(Finding::Guilty(wrong));
        }
        (!known).then_some(Finding::Suspect(wrong))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans a task for a minute; `is_over` determines when it is over its limit. Returns when it was found guilty, in
    /// milliseconds.
    fn guilty_after(is_over: impl Fn(u64) -> bool, interval_ms: u64) -> Option<u64> {
        let (began, lease) = (Instant::now(), LeaseId::from("a"));
        let mut overs = Overs::default();
        (0..60_000 / interval_ms).map(|look| look * interval_ms).find(|&at| {
            let now = began + Duration::from_millis(at);
            let stands_for = overs.look(now);
            is_over(at)
                && matches!(overs.found(&lease, String::new(), stands_for, now), Some(Finding::Guilty(_)))
        })
    }

    #[test]
    fn a_task_that_stays_over_is_ended_within_a_second() {
        // From the first byte on, which comes between two scans.
        let after = guilty_after(|at| at > 500, 250).unwrap() - 500;
        assert!(after <= 1000, "{after} ms");
        assert!(
            guilty_after(|at| at > 500, 1000).unwrap() >= 2500,
            "not sooner, if the watchdog was held up"
        );
    }

    #[test]
    fn bursts_add_up() {
        assert!(guilty_after(|at| at % 1450 < 900, 250).unwrap() < 3000);
        assert!(
            guilty_after(|at| at % 5000 < 300, 250).unwrap() < 25_000,
            "six times an hour would be another matter"
        );
    }

    #[test]
    fn one_moment_is_forgiven() {
        assert_eq!(guilty_after(|at| at == 1000 || at == 30_000, 250), None);
        assert_eq!(guilty_after(|_| false, 250), None);
    }
}
