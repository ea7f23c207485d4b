//! What can only be counted as it happens: events, and how long tasks waited. Counts begin with the server.

use std::collections::BTreeMap;

use cantle_clearml::cantle::EventView;
use jiff::Timestamp;

/// Upper bounds of the buckets for waiting times, in seconds.
const BOUNDS_S: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];

/// Counts since the server's start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Events by kind.
    pub(crate) events: BTreeMap<String, u64>,
    /// When a waiting task was queued, by task.
    queued: BTreeMap<String, Timestamp>,
    /// Waiting times by bucket, each wait in one bucket only.
    buckets: [u64; BOUNDS_S.len()],
    /// Waits that ended.
    pub(crate) waits: u64,
    /// Their sum.
    pub(crate) waits_sum_s: f64,
}

impl Tally {
    /// Takes an event into account.
    pub(crate) fn count(&mut self, event: &EventView) {
        *self.events.entry(event.kind.clone()).or_default() += 1;
        let (Some(task), Ok(time)) = (&event.task, event.time.parse::<Timestamp>()) else {
            return;
        };
        match event.kind.as_str() {
            "enqueue" => {
                self.queued.insert(task.clone(), time);
            }
            "place" => {
                if let Some(since) = self.queued.remove(task) {
                    self.waited(time.duration_since(since).as_secs_f64().max(0.0));
                }
            }
            // Whatever else ends a wait is no placement: the task left the queue by hand.
            "dequeue" | "draft" | "end" => {
                self.queued.remove(task);
            }
            _ => {}
        }
    }

    fn waited(&mut self, wait_s: f64) {
        self.waits += 1;
        self.waits_sum_s += wait_s;
        if let Some(bucket) = BOUNDS_S.iter().position(|bound| wait_s <= *bound) {
            self.buckets[bucket] += 1;
        }
    }

    /// Each bound with the number of waits that were no longer.
    pub(crate) fn wait_buckets(&self) -> Vec<(f64, u64)> {
        let below = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS_S.into_iter().zip(below).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, task: &str, second: u32) -> EventView {
        EventView {
            kind: kind.to_owned(),
            task: Some(task.to_owned()),
            time: format!("2026-01-01T00:00:{second:02}.000000+00:00"),
            ..EventView::default()
        }
    }

    #[test]
    fn waits_end_with_a_placement() {
        let mut tally = Tally::default();
        for event in [
            event("enqueue", "a", 0),
            event("enqueue", "b", 0),
            event("enqueue", "c", 1),
            event("dequeue", "b", 2),
            event("place", "a", 2),
            event("place", "b", 3),
            event("place", "c", 41),
            event("place", "never queued", 50),
        ] {
            tally.count(&event);
        }
        assert_eq!((tally.waits, tally.waits_sum_s), (2, 42.0));
        assert_eq!(tally.events["place"], 4);
        let buckets = tally.wait_buckets();
        assert_eq!(
            buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
            [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
        );
        assert!(tally.queued.is_empty());
    }
}
