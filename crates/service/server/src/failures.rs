//! Callers with wrong keys. The more of them come from a network, the later each gets its answer. Right keys are never delayed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::door::network_of;

/// Failures without a delay: an expired token of each program of an office.
const FREE: f64 = 20.0;
/// A network is forgiven one failure in this time.
const FORGIVEN: Duration = Duration::from_secs(1);
/// The pause that each failure beyond adds, and the longest pause.
const STEP: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(5);
/// Networks that are known apart. All others are one.
const NETWORKS: usize = 4096;

/// The failures of each network that are not forgiven, and up to when.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<BTreeMap<Option<IpAddr>, (f64, Instant)>>);

impl Failures {
    /// Counts a failure; how long its answer waits.
    pub(crate) fn delay(&self, address: Option<IpAddr>) -> Duration {
        self.delay_at(address, Instant::now())
    }

    fn delay_at(&self, address: Option<IpAddr>, now: Instant) -> Duration {
        let mut networks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = |(count, since): &(f64, Instant)| {
            (count - now.duration_since(*since).as_secs_f64() / FORGIVEN.as_secs_f64()).max(0.0)
        };
        let mut network = address.map(network_of);
        if networks.len() >= NETWORKS && !networks.contains_key(&network) {
            networks.retain(|_, known| left(known) > 0.0);
            if networks.len() >= NETWORKS {
                network = None;
            }
        }
        let known = networks.entry(network).or_insert((0.0, now));
        *known = (left(known) + 1.0, now);
        STEP.mul_f64((known.0 - FREE).max(0.0)).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_a_network_come_later_and_later_until_it_is_forgiven() {
        let (failures, start) = (Failures::default(), Instant::now());
        let delay = |address: &str, now| failures.delay_at(Some(address.parse().unwrap()), now);
        let first: Vec<Duration> = (0..20).map(|n| delay(&format!("10.0.0.{n}"), start)).collect();
        assert!(first.iter().all(Duration::is_zero), "{first:?}");
        assert_eq!(delay("10.0.0.77", start), STEP);
        assert_eq!(delay("10.0.0.77", start), 2 * STEP);
        assert_eq!(delay("10.0.1.77", start), Duration::ZERO, "another network");
        for _ in 0..1000 {
            assert!(delay("10.0.0.1", start) <= MOST);
        }
        assert_eq!(delay("10.0.0.1", start), MOST);
        assert_eq!(delay("10.0.0.1", start + 2000 * FORGIVEN), Duration::ZERO);
    }

    #[test]
    fn many_networks_take_no_more_memory() {
        let (failures, start) = (Failures::default(), Instant::now());
        for n in 0..NETWORKS + 100 {
            let bits = u32::try_from(n).unwrap() << 8;
            failures.delay_at(Some(std::net::Ipv4Addr::from_bits(bits).into()), start);
        }
        assert!(failures.0.lock().unwrap().len() <= NETWORKS + 1);
    }
}
