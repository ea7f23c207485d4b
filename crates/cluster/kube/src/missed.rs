//! Finds pods that wait although there is a place for them, because kube-scheduler does not try them again.
//!
//! While kube-scheduler waits for the API server's answer to an allocation, it counts the capacity of that allocation twice
//! (Kubernetes 1.36: the watch of claims may be faster than the answer). A pod that it tries meanwhile finds no room, and no event
//! that follows concerns the pod: the next attempt is minutes later. A new claim of the pod is such an event.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// A pod whose nomination is older was missed: kube-scheduler tries again within ten seconds if it knows that it has to, and mostly
/// at once.
const AFTER: Duration = Duration::from_secs(5);
/// kube-scheduler itself tries all pods again after that time.
const LONGEST: Duration = Duration::from_secs(300);

/// The pods that were missed, by their UIDs: when they get a new claim.
#[derive(Default)]
pub(crate) struct Missed(BTreeMap<String, Turn>);

struct Turn {
    at: Instant,
    next: Duration,
}

impl Missed {
    /// Those of the `unplaced` pods, for which there is a place, that are due for a new claim. The time between two claims of a pod
    /// doubles: another reason than that of above may keep it from its place.
    pub(crate) fn due(&mut self, unplaced: &BTreeSet<String>) -> BTreeSet<String> {
        let now = Instant::now();
        self.0.retain(|uid, turn| unplaced.contains(uid) || now < turn.at + LONGEST);
        let mut due = BTreeSet::new();
        for uid in unplaced {
            let turn = self.0.entry(uid.clone()).or_insert(Turn { at: now + AFTER, next: AFTER * 2 });
            if now >= turn.at {
                *turn = Turn { at: now + turn.next, next: LONGEST.min(turn.next * 2) };
                due.insert(uid.clone());
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pod_gets_a_new_claim_after_twice_the_time_each() {
        let (mut missed, one) = (Missed::default(), BTreeSet::from(["u".to_owned()]));
        let mut seconds = Vec::new();
        for second in 0..700 {
            if missed.due(&one) == one {
                seconds.push(second);
            }
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(seconds, [5, 15, 35, 75, 155, 315, 615]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_is_placed_in_time_keeps_its_claim() {
        let (mut missed, one) = (Missed::default(), BTreeSet::from(["u".to_owned()]));
        assert!(missed.due(&one).is_empty());
        advance(Duration::from_secs(4)).await;
        assert!(missed.due(&BTreeSet::new()).is_empty());
    }
}
