//! GPU time of slices over the last hour: for each GPU, the share of each task in intervals of about ten seconds, from the
//! counts that agents report. It is kept in memory, and a restart of the server clears it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

/// Reports closer together than this make one sample.
const EVERY_US: i64 = 9_000_000;
/// Reports further apart than this have a gap between them.
const GAP_US: i64 = 4 * EVERY_US;
const KEPT_S: i64 = 3600;
/// Tasks that the reader may not see, together.
const OTHERS: &str = "others";

/// An agent's counters of a slice.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    pub(crate) lease: String,
    pub(crate) task: String,
    /// Since the slice began.
    pub(crate) gpu_time_us: u64,
}

/// For each GPU, by its UUID.
#[derive(Debug, Default)]
pub(crate) struct GpuTime(BTreeMap<String, Gpu>);

#[derive(Debug, Default)]
struct Gpu {
    /// The report of the last sample: its time, and each lease's count.
    before: Option<(i64, BTreeMap<String, u64>)>,
    /// Thousandths of the GPU, by task.
    samples: VecDeque<(i64, BTreeMap<String, u64>)>,
}

/// Lines for the page: lists of equal length, by task.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct View {
    times_s: Vec<i64>,
    series: BTreeMap<String, Vec<Option<u64>>>,
}

impl GpuTime {
    /// Adds a report about a GPU; `slices` are those that are counted.
    pub(crate) fn add(&mut self, uuid: &str, time_us: i64, slices: &[Counted]) {
        if slices.is_empty() && !self.0.contains_key(uuid) {
            return;
        }
        let gpu = self.0.entry(uuid.to_owned()).or_default();
        let time_s = time_us / 1_000_000;
        let passed_us = gpu.before.as_ref().map(|(before_us, _)| time_us.saturating_sub(*before_us));
        if passed_us.is_some_and(|passed_us| passed_us < EVERY_US) {
            return;
        }
        let now = slices.iter().map(|slice| (slice.lease.clone(), slice.gpu_time_us)).collect();
        let before = gpu.before.replace((time_us, now));
        if let (Some((_, before)), Some(passed_us)) = (before, passed_us) {
            let is_gap = passed_us > GAP_US;
            let had = if is_gap { BTreeMap::new() } else { had(slices, &before, passed_us.unsigned_abs()) };
            gpu.samples.push_back((time_s, had));
        }
        while gpu.samples.front().is_some_and(|(oldest_s, _)| time_s.saturating_sub(*oldest_s) > KEPT_S) {
            gpu.samples.pop_front();
        }
        let is_over = slices.is_empty() && gpu.samples.iter().all(|(_, had)| had.is_empty());
        if is_over {
            self.0.remove(uuid);
        }
    }

    /// The tasks that had time on a GPU.
    pub(crate) fn tasks(&self, uuid: &str) -> BTreeSet<String> {
        let samples = self.0.get(uuid).into_iter().flat_map(|gpu| &gpu.samples);
        samples.flat_map(|(_, had)| had.keys().cloned()).collect()
    }

    /// The lines of a GPU, for a caller that may see these tasks.
    pub(crate) fn view(&self, uuid: &str, may_see: &BTreeSet<String>) -> View {
        let mut view = View::default();
        let samples = self.0.get(uuid).into_iter().flat_map(|gpu| &gpu.samples);
        for (at, (time_s, had)) in samples.enumerate() {
            view.times_s.push(*time_s);
            for (task, thousandths) in had {
                let name = if may_see.contains(task) { task.as_str() } else { OTHERS };
                let line = view.series.entry(name.to_owned()).or_default();
                line.resize(at + 1, None);
                if let Some(value) = line.last_mut() {
                    *value = Some(value.unwrap_or(0) + thousandths);
                }
            }
        }
        let samples = view.times_s.len();
        view.series.values_mut().for_each(|line| line.resize(samples, None));
        view
    }
}

/// Each task's part of this time, in thousandths. A slice that was not there before has begun since.
fn had(slices: &[Counted], before: &BTreeMap<String, u64>, passed_us: u64) -> BTreeMap<String, u64> {
    let mut had: BTreeMap<String, u64> = BTreeMap::new();
    for slice in slices {
        let since_us = before.get(&slice.lease).copied().unwrap_or(0);
        let worked_us = slice.gpu_time_us.saturating_sub(since_us);
        let thousandths = (worked_us.saturating_mul(1000) / passed_us.max(1)).min(1000);
        *had.entry(slice.task.clone()).or_default() += thousandths;
    }
    had
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lease: &str, gpu_time_us: u64) -> Counted {
        Counted { lease: lease.to_owned(), task: format!("task of {lease}"), gpu_time_us }
    }

    fn all(gpus: &GpuTime) -> View {
        gpus.view("GPU-0", &gpus.tasks("GPU-0"))
    }

    #[test]
    fn a_share_is_what_was_counted_in_the_time_between_two_reports() {
        let mut gpus = GpuTime::default();
        for second in (0..=40_u64).step_by(2) {
            let mut slices = vec![counted("a", second * 250_000)];
            if second > 20 {
                slices.push(counted("b", (second - 20) * 500_000));
            }
            gpus.add("GPU-0", second.cast_signed() * 1_000_000, &slices);
        }
        let view = all(&gpus);
        assert_eq!(view.times_s, [10, 20, 30, 40]);
        assert_eq!(view.series["task of a"], [Some(250); 4]);
        assert_eq!(view.series["task of b"], [None, None, Some(500), Some(500)]);
    }

    #[test]
    fn an_hour_is_kept_and_a_time_without_reports_is_a_gap() {
        let mut gpus = GpuTime::default();
        for ten in 0..1000_u64 {
            gpus.add("GPU-0", ten.cast_signed() * 10_000_000, &[counted("a", ten * 1_000_000)]);
        }
        let view = all(&gpus);
        assert_eq!((view.times_s.len(), view.times_s[0]), (361, 9990 - KEPT_S));
        gpus.add("GPU-0", 10_090_000_000, &[counted("a", 2_000_000_000)]);
        assert_eq!(all(&gpus).series["task of a"].last(), Some(&None), "its time is unknown");
    }

    #[test]
    fn a_gpu_whose_slices_ended_an_hour_ago_is_forgotten() {
        let mut gpus = GpuTime::default();
        gpus.add("GPU-0", 0, &[]);
        assert!(gpus.0.is_empty(), "without a compute share there is nothing to count");
        for ten in 0..500_u64 {
            let slices = if ten < 20 { vec![counted("a", ten)] } else { Vec::new() };
            gpus.add("GPU-0", ten.cast_signed() * 10_000_000, &slices);
        }
        assert!(gpus.0.is_empty());
    }

    #[test]
    fn who_may_not_see_a_task_sees_that_somebody_had_the_time() {
        let mut gpus = GpuTime::default();
        for ten in 0..2_u64 {
            let slices = ["a", "b", "c"].map(|lease| counted(lease, ten * 2_000_000));
            gpus.add("GPU-0", ten.cast_signed() * 10_000_000, &slices);
        }
        let view = gpus.view("GPU-0", &BTreeSet::from(["task of b".to_owned()]));
        assert_eq!(
            view.series,
            BTreeMap::from([
                ("others".to_owned(), vec![Some(400)]),
                ("task of b".to_owned(), vec![Some(200)])
            ])
        );
    }
}
