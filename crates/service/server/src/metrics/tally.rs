//! Counts of events and waiting times, since the server's start.

use std::collections::BTreeMap;

use cantle_clearml::cantle::EventView;
use cantle_metrics::Histogram;
use jiff::Timestamp;

/// Upper bounds of the buckets for waiting times, in seconds.
const BOUNDS_S: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0];

/// Counts since the server's start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Events by kind.
    pub(crate) events: BTreeMap<String, u64>,
    /// When each waiting task was queued, and where.
    queued: BTreeMap<String, (Timestamp, String)>,
    /// Seconds that ended waits took, by queue.
    pub(crate) waits: BTreeMap<String, Histogram>,
}

impl Tally {
    /// Counts an event.
    pub(crate) fn count(&mut self, event: &EventView) {
        *self.events.entry(event.kind.clone()).or_default() += 1;
        let (Some(task), Ok(time)) = (&event.task, event.time.parse::<Timestamp>()) else {
            return;
        };
        match event.kind.as_str() {
            "enqueue" => {
                self.queued.insert(task.clone(), (time, event.queue.clone().unwrap_or_default()));
            }
            "place" => {
                if let Some((since, queue)) = self.queued.remove(task) {
                    let waits = self.waits.entry(queue).or_insert_with(|| Histogram::new(&BOUNDS_S));
                    waits.observe(time.duration_since(since).as_secs_f64().max(0.0));
                }
            }
            // These end a wait without a placement: a user took the task out of the queue.
            "dequeue" | "draft" | "end" => {
                self.queued.remove(task);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, task: &str, second: u32) -> EventView {
        EventView {
            kind: kind.to_owned(),
            task: Some(task.to_owned()),
            queue: Some(if task == "c" { "slow" } else { "quick" }.to_owned()),
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
        let of = |queue: &str| (tally.waits[queue].count(), tally.waits[queue].sum());
        assert_eq!((of("quick"), of("slow")), ((1, 2.0), (1, 40.0)));
        assert_eq!(tally.events["place"], 4);
        assert!(tally.queued.is_empty());
    }
}
