//! A report: the divided time of all GPUs, added up by key.

use std::collections::{BTreeMap, BTreeSet};

use crate::price::Cost;
use crate::{Division, GpuPresence, MilliUs};

/// Whose time a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeKind {
    /// Runs had it.
    Allocated,
    /// Nobody had it, and a task could have had it.
    Free,
    /// Nobody had it; the GPU had a fault.
    Faulty,
    /// Nobody had it; the node or the GPU was away.
    Away,
}

impl From<GpuPresence> for TimeKind {
    fn from(state: GpuPresence) -> Self {
        match state {
            GpuPresence::Here => Self::Free,
            GpuPresence::Faulty => Self::Faulty,
            GpuPresence::Away => Self::Away,
        }
    }
}

/// Which side of its project's quota a part of a run's share was on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Within the quota.
    Guaranteed,
    /// Beyond it, or the project has none.
    Borrowed,
}

/// What is known of a run apart from its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How long the task waited for this run, in microseconds.
    pub waited_us: Option<u64>,
    /// It was given up: what it did has to be done again.
    pub given_up: bool,
    /// The most memory that it had at a time, in millionths of its limit; `None` if it was not measured.
    pub peak_ppm: Option<u32>,
}

/// The sums of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The runs in it, by their index.
    pub runs: BTreeSet<usize>,
    /// GPU time.
    pub gpu: MilliUs,
    /// The part of it that was within quotas.
    pub guaranteed: MilliUs,
    /// GPU time of runs that were given up.
    pub lost: MilliUs,
    /// Memory limit times time, in bytes × microseconds.
    pub memory_byte_us: u128,
    /// GPU time of runs whose peak of memory is known.
    pub measured: MilliUs,
    /// Of each such run its GPU time × its peak in millionths of its limit.
    pub peak_ppm: u128,
    cost: Cost,
    /// GPU time without a price.
    unpriced: MilliUs,
}

impl Line {
    /// The cost in millionths of the currency; `None` if a part of the time has no price.
    #[must_use]
    pub fn cost_micro(&self) -> Option<u128> {
        (self.unpriced == 0).then(|| self.cost.micro())
    }

    /// The part of their memory limits that the measured runs had at their peaks, in millionths, weighted by their GPU time.
    #[must_use]
    pub fn mean_peak_ppm(&self) -> Option<u128> {
        self.peak_ppm.checked_div(self.measured)
    }

    fn add(&mut self, gpu: MilliUs, price_micro: Option<u64>) {
        self.gpu += gpu;
        match price_micro {
            Some(micro) => self.cost.add(gpu, micro),
            None => self.unpriced += gpu,
        }
    }
}

/// Lines by part and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The lines.
    pub lines: BTreeMap<(TimeKind, Vec<String>), Line>,
}

impl Report {
    /// A run without a GPU has no time, and counts.
    pub fn add_run(&mut self, run: usize, key: Vec<String>) {
        self.lines.entry((TimeKind::Allocated, key)).or_default().runs.insert(run);
    }

    /// Adds a part of a GPU's time. `memory_bytes` is the memory of a run's slice per thousandth of its share. `split`: each side of
    /// a run has its own key.
    pub fn add(
        &mut self,
        division: &Division,
        price_micro: Option<u64>,
        facts: impl Fn(usize) -> Facts,
        memory_bytes_per_milli: impl Fn(usize) -> u64,
        key: impl Fn(Option<usize>, Option<Side>) -> Vec<String>,
        split: bool,
    ) {
        for (run, side, gpu, guaranteed) in parts(division, split) {
            let line = self.lines.entry((TimeKind::Allocated, key(Some(run), side))).or_default();
            line.add(gpu, price_micro);
            line.runs.insert(run);
            line.guaranteed += guaranteed;
            line.memory_byte_us += gpu * u128::from(memory_bytes_per_milli(run));
            let facts = facts(run);
            if facts.given_up {
                line.lost += gpu;
            }
            if let Some(ppm) = facts.peak_ppm {
                line.measured += gpu;
                line.peak_ppm += gpu * u128::from(ppm);
            }
        }
        for (&state, &gpu) in division.rest.iter().filter(|(_, gpu)| **gpu > 0) {
            self.lines.entry((state.into(), key(None, None))).or_default().add(gpu, price_micro);
        }
    }
}

/// The shares of runs, each with what of it was guaranteed; both sides apart if they are to be.
fn parts(division: &Division, split: bool) -> impl Iterator<Item = (usize, Option<Side>, MilliUs, MilliUs)> {
    division.shares.iter().flat_map(move |(&run, &gpu)| {
        let guaranteed = division.guaranteed.get(&run).copied().unwrap_or(0);
        let parts = if split {
            [(Some(Side::Guaranteed), guaranteed, guaranteed), (Some(Side::Borrowed), gpu - guaranteed, 0)]
        } else {
            [(None, gpu, guaranteed), (None, 0, 0)]
        };
        let had = parts.into_iter().filter(|(_, gpu, _)| *gpu > 0);
        had.map(move |(side, gpu, guaranteed)| (run, side, gpu, guaranteed))
    })
}

/// The smallest of these numbers that at least `percent` of them do not exceed; `None` without numbers. Sorts them.
#[must_use]
pub fn percentile(numbers: &mut [u64], percent: usize) -> Option<u64> {
    numbers.sort_unstable();
    let rank = (numbers.len() * percent).div_ceil(100).max(1);
    numbers.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuTime, Hold, Period, divide};

    #[test]
    fn a_percentile_is_one_of_the_numbers() {
        let mut numbers = [50, 10, 40, 20, 30];
        assert_eq!(
            [0, 50, 95, 100].map(|percent| percentile(&mut numbers, percent)),
            [10, 30, 50, 50].map(Some)
        );
        assert_eq!(percentile(&mut [], 50), None);
    }

    #[test]
    fn lines_add_up_and_an_unknown_price_is_no_price() {
        let period = Period { from_us: 0, to_us: 3_600_000_000 };
        let times = [GpuTime { state: GpuPresence::Here, period }];
        let holds = [(0, 250), (1, 500)].map(|(run, milli)| Hold {
            run,
            milli,
            guaranteed_milli: 100,
            since_us: 0,
            period,
        });
        let division = divide(period, &times, &holds);
        let mut report = Report::default();
        let facts =
            |run| Facts { given_up: run == 1, waited_us: None, peak_ppm: (run == 1).then_some(300_000) };
        let key = |run: Option<usize>, _| vec![run.map_or_else(String::new, |_| "vision".to_owned())];
        for price in [Some(4_000_000), None] {
            report.add(&division, price, facts, |_| 7, key, false);
        }
        let had = &report.lines[&(TimeKind::Allocated, vec!["vision".to_owned()])];
        assert_eq!(
            (had.gpu, had.lost, had.runs.len()),
            (2 * 750 * 3_600_000_000, 2 * 500 * 3_600_000_000, 2)
        );
        assert_eq!((had.memory_byte_us, had.cost_micro()), (7 * had.gpu, None));
        assert_eq!((had.measured, had.mean_peak_ppm()), (had.lost, Some(300_000)));
        assert_eq!(had.guaranteed, 2 * 200 * 3_600_000_000);
        let mut sides = Report::default();
        let key = |run: Option<usize>, side| vec![format!("{run:?} {side:?}")];
        sides.add(&division, None, facts, |_| 7, key, true);
        let of = |key: &str| sides.lines[&(TimeKind::Allocated, vec![key.to_owned()])].gpu;
        assert_eq!(of("Some(1) Some(Guaranteed)"), 100 * 3_600_000_000);
        assert_eq!(of("Some(1) Some(Borrowed)"), 400 * 3_600_000_000);
        let free = &report.lines[&(TimeKind::Free, vec![String::new()])];
        assert_eq!(free.mean_peak_ppm(), None);
        assert_eq!(free.gpu + had.gpu, 2 * 1000 * 3_600_000_000);
    }
}
