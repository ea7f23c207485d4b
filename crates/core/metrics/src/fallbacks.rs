//! Quiet fall-backs: values that a program assumes because it could not read its input. Each is counted, and logged
//! once per distinct value: a poll that meets the same value every second must not fill the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::{Exposition, MetricKind, precise};

/// The assumed value and the unreadable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fallback {
    /// A task status that this version does not know: the task counts as `unknown`.
    UnknownStatus,
    /// A task's request for GPUs that cannot be read: the task counts as one that requests nothing, until it is
    /// refused.
    UnreadableRequest,
    /// A node's report that this version cannot read: the node counts as none.
    UnreadableReport,
    /// Leases on disk that cannot be read: a plan is taken for out of date.
    UnreadableLeases,
    /// An object of Kubernetes without a uid: it has the empty one.
    MissingUid,
}

impl Fallback {
    /// The value of the label `kind`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownStatus => "unknown_status",
            Self::UnreadableRequest => "unreadable_request",
            Self::UnreadableReport => "unreadable_report",
            Self::UnreadableLeases => "unreadable_leases",
            Self::MissingUid => "missing_uid",
        }
    }
}

/// Values of one kind that are remembered. Beyond them a new value is counted and not logged.
const VALUES: usize = 1000;

/// Fall-backs since the start of the program, of those kinds that it has.
#[derive(Debug)]
pub struct Fallbacks {
    kinds: &'static [Fallback],
    counts: Mutex<BTreeMap<Fallback, Count>>,
}

#[derive(Debug, Default)]
struct Count {
    times: u64,
    values: BTreeSet<String>,
}

impl Fallbacks {
    /// None so far. `kinds` are shown with 0 from the start, so that rates have a first value.
    #[must_use]
    pub const fn new(kinds: &'static [Fallback]) -> Self {
        Self { kinds, counts: Mutex::new(BTreeMap::new()) }
    }

    /// Counts one, because of `value`. True for the first of each value: the caller logs that one.
    #[must_use = "the first fall-back for each value is logged"]
    pub fn count(&self, kind: Fallback, value: &str) -> bool {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind).or_default();
        count.times += 1;
        count.values.len() < VALUES && !count.values.contains(value) && count.values.insert(value.to_owned())
    }

    /// The count of this one.
    #[must_use]
    pub fn times(&self, kind: Fallback) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&kind).map_or(0, |count| count.times)
    }

    /// Writes the family `name` (without `_total`) with all that `sources` have counted.
    pub fn write(text: &mut Exposition, name: &'static str, sources: &[&Self]) {
        text.family(MetricKind::Counter, name, "Values that could not be read, by what was assumed instead.");
        for source in sources {
            for kind in source.kinds {
                text.sample(&[("kind", kind.as_str())], precise(source.times(*kind)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SOME: Fallbacks = Fallbacks::new(&[Fallback::UnknownStatus, Fallback::UnreadableRequest]);

    #[test]
    fn each_is_counted_and_each_value_is_logged_once() {
        assert!(SOME.count(Fallback::UnknownStatus, "paused"));
        assert!(!SOME.count(Fallback::UnknownStatus, "paused"));
        assert!(SOME.count(Fallback::UnknownStatus, "frozen"));
        let mut text = Exposition::new("");
        Fallbacks::write(&mut text, "cantle_fallbacks", &[&SOME]);
        let (_, text) = text.finish();
        assert!(text.contains("cantle_fallbacks_total{kind=\"unknown_status\"} 3\n"), "{text}");
        assert!(text.contains("cantle_fallbacks_total{kind=\"unreadable_request\"} 0\n"), "{text}");
    }

    #[test]
    fn endless_values_do_not_fill_the_memory() {
        let fallbacks = Fallbacks::new(&[Fallback::MissingUid]);
        let logged =
            (0..2 * VALUES).filter(|n| fallbacks.count(Fallback::MissingUid, &n.to_string())).count();
        assert_eq!(logged, VALUES);
        assert_eq!(fallbacks.times(Fallback::MissingUid), 2 * VALUES as u64);
    }
}
