//! Divides the time of one GPU.

use std::collections::BTreeMap;

use crate::{MilliUs, Period};

/// A whole GPU.
const WHOLE: u32 = 1000;

/// The state of a GPU, for the parts that no run held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuPresence {
    /// It could take tasks.
    Here,
    /// Its driver had reported a fault.
    Faulty,
    /// Its node did not report, or reported without it.
    Away,
}

/// A time during which a GPU was in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTime {
    /// The state.
    pub state: GpuPresence,
    /// When.
    pub period: Period,
}

/// A share of the GPU that a run held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Index of the run in the caller's list.
    pub run: usize,
    /// Its share in thousandths of the GPU.
    pub milli: u32,
    /// The part of it that is within a quota.
    pub guaranteed_milli: u32,
    /// When the run began to hold it, which may be before this part of its time.
    pub since_us: i64,
    /// When.
    pub period: Period,
}

/// The time of a GPU, divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// The GPU time of each run; a run has one entry at most.
    pub shares: BTreeMap<usize, MilliUs>,
    /// The part of it that was within a quota.
    pub guaranteed: BTreeMap<usize, MilliUs>,
    /// The rest, which no run had, by the state of the GPU.
    pub rest: BTreeMap<GpuPresence, MilliUs>,
    /// The part of the shares during times of which no state is recorded.
    pub unrecorded: MilliUs,
    /// The time that was taken from runs whose end was reported after another run had begun in their place.
    pub late: MilliUs,
}

impl Division {
    /// All shares and the rest.
    #[must_use]
    pub fn total(&self) -> MilliUs {
        self.shares.values().chain(self.rest.values()).sum()
    }
}

/// Divides `period` of one GPU. `times` are in order and do not overlap; `holds` come in any order.
///
/// More than a whole GPU is never held at a time: a share is given to a run after its former holder has left it. Where the holds
/// exceed a GPU, the end of the former holder was reported late, and its hold is cut at the beginning of the newer one.
#[must_use]
pub fn divide(period: Period, times: &[GpuTime], holds: &[Hold]) -> Division {
    let mut holds = holds.to_vec();
    holds.iter_mut().for_each(|hold| hold.period = hold.period.within(period));
    holds.retain(|hold| hold.period.us() > 0 && hold.milli > 0);
    holds.sort_by_key(|hold| hold.period.from_us);
    let edges = holds.iter().map(|hold| hold.period).chain(times.iter().map(|time| time.period));
    let parts = period.cut(edges.flat_map(|period| [period.from_us, period.to_us]));

    let mut result = Division::default();
    let (mut coming, mut times) = (holds.into_iter().peekable(), times.iter().peekable());
    let mut held: Vec<Hold> = Vec::new();
    for part in parts {
        held.retain(|hold| hold.period.to_us > part.from_us);
        while let Some(hold) = coming.next_if(|hold| hold.period.from_us <= part.from_us) {
            // By the beginning of the run, also where it lies before the period: it decides which of two is the newer one.
            let order = |hold: &Hold| (hold.since_us, hold.run);
            let place = held.partition_point(|other| order(other) <= order(&hold));
            held.insert(place, hold);
        }
        while times.next_if(|time| time.period.to_us <= part.from_us).is_some() {}
        let state = times.peek().filter(|time| time.period.from_us <= part.from_us).map(|time| time.state);
        result.add(part, state, &held);
    }
    result
}

impl Division {
    /// `held`: the newest hold last.
    fn add(&mut self, part: Period, state: Option<GpuPresence>, held: &[Hold]) {
        let us = MilliUs::from(part.us());
        let mut left = WHOLE;
        for hold in held.iter().rev() {
            let given = hold.milli.min(left);
            left -= given;
            self.late += MilliUs::from(hold.milli - given) * us;
            if given > 0 {
                *self.shares.entry(hold.run).or_default() += MilliUs::from(given) * us;
                let guaranteed = given.min(hold.guaranteed_milli);
                if guaranteed > 0 {
                    *self.guaranteed.entry(hold.run).or_default() += MilliUs::from(guaranteed) * us;
                }
            }
        }
        match state {
            Some(state) => *self.rest.entry(state).or_default() += MilliUs::from(left) * us,
            None => self.unrecorded += MilliUs::from(WHOLE - left) * us,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn from_to(from_us: i64, to_us: i64) -> Period {
        Period { from_us, to_us }
    }

    const fn hold(run: usize, milli: u32, from_us: i64, to_us: i64) -> Hold {
        Hold { run, milli, guaranteed_milli: 0, since_us: from_us, period: from_to(from_us, to_us) }
    }

    const fn time(state: GpuPresence, from_us: i64, to_us: i64) -> GpuTime {
        GpuTime { state, period: from_to(from_us, to_us) }
    }

    #[test]
    fn what_nobody_holds_is_the_rest() {
        let times = [time(GpuPresence::Here, 0, 60), time(GpuPresence::Away, 60, 100)];
        let holds = [hold(0, 500, 10, 30), hold(1, 250, 20, 80)];
        let divided = divide(from_to(0, 100), &times, &holds);
        assert_eq!(divided.shares, BTreeMap::from([(0, 500 * 20), (1, 250 * 60)]));
        let here = 1000 * 60 - 500 * 20 - 250 * 40;
        assert_eq!(
            divided.rest,
            BTreeMap::from([(GpuPresence::Here, here), (GpuPresence::Away, 1000 * 40 - 250 * 20)])
        );
        assert_eq!((divided.late, divided.unrecorded), (0, 0));
    }

    #[test]
    fn only_the_period_counts() {
        let divided = divide(from_to(50, 60), &[time(GpuPresence::Here, 0, 1000)], &[hold(0, 1000, 0, 55)]);
        assert_eq!(divided.shares, BTreeMap::from([(0, 5000)]));
        assert_eq!(divided.total(), 10_000);
    }

    #[test]
    fn a_late_end_is_cut_where_the_next_run_begins() {
        let holds = [hold(0, 1000, 0, 12), hold(1, 1000, 10, 20)];
        let divided = divide(from_to(0, 20), &[time(GpuPresence::Here, 0, 20)], &holds);
        assert_eq!(divided.shares, BTreeMap::from([(0, 10_000), (1, 10_000)]));
        assert_eq!(divided.late, 2000);
    }

    #[test]
    fn the_newer_run_is_the_same_in_each_part_of_the_time() {
        // The one that began later comes first in the list.
        let holds = [hold(0, 1000, 5, 20), hold(1, 1000, 0, 20)];
        let divided = divide(from_to(10, 20), &[time(GpuPresence::Here, 0, 20)], &holds);
        assert_eq!(divided.shares, BTreeMap::from([(0, 10_000)]));
    }

    #[test]
    fn a_run_of_a_time_without_records_is_counted_and_named() {
        let divided = divide(from_to(0, 20), &[time(GpuPresence::Here, 10, 20)], &[hold(0, 500, 0, 20)]);
        assert_eq!(divided.shares, BTreeMap::from([(0, 10_000)]));
        assert_eq!((divided.unrecorded, divided.total()), (5000, 15_000));
    }

    /// Adds the division of another time of the same GPU.
    fn join(whole: &mut Division, other: &Division) {
        for (run, share) in &other.shares {
            *whole.shares.entry(*run).or_default() += share;
        }
        for (run, share) in &other.guaranteed {
            *whole.guaranteed.entry(*run).or_default() += share;
        }
        for (state, rest) in &other.rest {
            *whole.rest.entry(*state).or_default() += rest;
        }
        whole.unrecorded += other.unrecorded;
        whole.late += other.late;
    }

    fn any_hold() -> impl Strategy<Value = Hold> {
        (0..6_usize, 0..1200_u32, -50..150_i64, -10..90_i64)
            .prop_map(|(run, milli, from, length)| hold(run, milli, from, from + length))
    }

    fn any_times() -> impl Strategy<Value = Vec<GpuTime>> {
        let state = prop_oneof![Just(GpuPresence::Here), Just(GpuPresence::Faulty), Just(GpuPresence::Away)];
        (-20..20_i64, prop::collection::vec((state, 0..60_i64), 0..6)).prop_map(|(begin, states)| {
            let mut at = begin;
            let next = |(state, length)| {
                let from = at;
                at += length;
                time(state, from, at)
            };
            states.into_iter().map(next).collect()
        })
    }

    proptest! {
        /// The account closes, whatever was reported, and a period is the sum of its parts.
        #[test]
        fn parts_add_up_to_the_time(
            holds in prop::collection::vec(any_hold(), 0..12),
            times in any_times(),
            cuts in prop::collection::vec(0..100_i64, 0..4),
        ) {
            let period = from_to(0, 100);
            let whole = divide(period, &times, &holds);
            let recorded: u64 = times.iter().map(|time| time.period.within(period).us()).sum();
            prop_assert_eq!(whole.total() - whole.unrecorded, 1000 * MilliUs::from(recorded));
            let mut joined = Division::default();
            period.cut(cuts).into_iter().for_each(|part| join(&mut joined, &divide(part, &times, &holds)));
            prop_assert_eq!(joined, whole);
        }
    }
}
