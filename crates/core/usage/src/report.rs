//! A report: parts of a period, added up by key.

use std::collections::{BTreeMap, BTreeSet};

use crate::MilliUs;
use crate::part::{Crossing, PartGpu, PartRun, TaskId, Text, Texts, UsagePart};
use crate::price::Cost;

/// Whose time a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimeKind {
    /// Runs had it.
    Allocated,
    /// No run had it, and a task could have had it.
    Free,
    /// No run had it; the GPU had a fault.
    Faulty,
    /// No run had it; the node or the GPU was away.
    Away,
}

/// The value of a key in a part; texts are those of [`Report::text`].
#[derive(Clone, Debug)]
pub enum Column {
    /// The same for all.
    Same(Text),
    /// By run; lines of nobody have none.
    Run(Vec<Text>),
    /// By GPU.
    Gpu {
        /// Its values.
        of: Vec<Text>,
        /// By run, for runs without a GPU; empty: they have none.
        without: Vec<Text>,
    },
    /// The texts for use within the quota of the project and for borrowed use; lines without a run have none.
    Side([Text; 2]),
}

/// The subject of a line of a report.
#[derive(Clone, Copy)]
enum Whose {
    /// A run with its GPU, and its side.
    Run(u32, u32, usize),
    Without(u32),
    Nobody(u32),
}

impl Column {
    fn at(&self, whose: Whose) -> Text {
        let of = |list: &[Text], index: u32| list.get(index as usize).copied().unwrap_or(0);
        match (self, whose) {
            (Self::Same(text), _) => *text,
            (Self::Run(list), Whose::Run(run, ..) | Whose::Without(run)) => of(list, run),
            (Self::Gpu { of: list, .. }, Whose::Run(_, gpu, _) | Whose::Nobody(gpu)) => of(list, gpu),
            (Self::Gpu { without, .. }, Whose::Without(run)) => of(without, run),
            (Self::Side(texts), Whose::Run(.., side)) => texts[side],
            (Self::Run(_), Whose::Nobody(_)) | (Self::Side(_), Whose::Without(_) | Whose::Nobody(_)) => 0,
        }
    }
}

/// The sums of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The number of runs.
    pub runs: u64,
    /// GPU time.
    pub gpu: MilliUs,
    /// The part of it that was within quotas.
    pub guaranteed: MilliUs,
    /// The number of runs that were given up.
    pub given_up: u64,
    /// Their GPU time.
    pub lost: MilliUs,
    /// Memory limit times time, in bytes × microseconds.
    pub memory_byte_us: u128,
    /// GPU time of runs whose peak of memory is known.
    pub measured: MilliUs,
    /// Of each such run its GPU time × its peak in millionths of its limit.
    pub peak_ppm: u128,
    /// How long its runs had waited, in microseconds, as far as that is known.
    pub waits_us: Vec<u64>,
    /// Name of the task of its newest run, if the parts have the tasks.
    pub name: Option<String>,
    cost: Cost,
    /// GPU time without a price.
    unpriced: MilliUs,
    /// Runs that go on beyond the last part in which they were seen.
    crossing: BTreeSet<(TaskId, i64)>,
    /// The run that was counted last: the number of its part, and its index there.
    last: Option<(usize, u32)>,
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

    /// Counts a run once, in whichever parts it is. The shares of a run follow each other in a part.
    fn count(&mut self, number: usize, index: u32, run: &PartRun, name: Option<&String>) {
        if self.last == Some((number, index)) {
            return;
        }
        self.last = Some((number, index));
        self.name = name.cloned();
        if let Some(Crossing { task, run, from_before, goes_on }) = &run.crosses {
            let id = (task.clone(), *run);
            let is_known = *from_before && self.crossing.contains(&id);
            match goes_on {
                true if !is_known => drop(self.crossing.insert(id)),
                false if is_known => drop(self.crossing.remove(&id)),
                _ => {}
            }
            if is_known {
                return;
            }
        }
        self.runs += 1;
        self.given_up += u64::from(run.given_up);
        self.waits_us.extend(run.waited_us);
    }
}

/// The account of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuSums {
    /// The node that had it last.
    pub node: String,
    /// Time for which its state is known, in microseconds.
    pub recorded_us: u64,
    /// GPU time of runs.
    pub allocated: MilliUs,
    /// Time that no run had: free, faulty, away.
    pub rest: [MilliUs; 3],
    /// The part of the shares during times of which no state is recorded.
    pub unrecorded: MilliUs,
    /// The time that was taken from runs whose end was reported late.
    pub late: MilliUs,
    has_gap: bool,
    /// The end of the time for which its state is known.
    until_us: Option<i64>,
}

impl GpuSums {
    /// Whether its times have neither gaps nor overlaps, and the parts add up, exactly.
    #[must_use]
    pub fn closes(&self) -> bool {
        let total = self.allocated + self.rest.iter().sum::<MilliUs>();
        !self.has_gap && total - self.unrecorded == 1000 * MilliUs::from(self.recorded_us)
    }

    fn add(&mut self, gpu: &PartGpu) {
        if let Some((from_us, to_us, sum_us)) = gpu.recorded {
            self.has_gap |= !gpu.follow || self.until_us.is_some_and(|until_us| until_us != from_us);
            self.until_us = Some(to_us);
            self.recorded_us += sum_us;
        }
        for (sum, rest) in self.rest.iter_mut().zip(gpu.rest) {
            *sum += rest;
        }
        self.unrecorded += gpu.unrecorded;
        self.late += gpu.late;
    }
}

/// Lines by kind, and the texts of their keys.
#[derive(Clone, Debug, Default)]
struct Lines {
    known: BTreeMap<Box<[Text]>, usize>,
    all: Vec<Line>,
    /// Memory for a key.
    key: Vec<Text>,
}

impl Lines {
    fn of(&mut self, kind: Text, columns: &[Column], whose: Whose) -> &mut Line {
        self.key.clear();
        self.key.push(kind);
        self.key.extend(columns.iter().map(|column| column.at(whose)));
        let index = match self.known.get(self.key.as_slice()) {
            Some(index) => *index,
            None => {
                self.known.insert(self.key.as_slice().into(), self.all.len());
                self.all.push(Line::default());
                self.all.len() - 1
            }
        };
        &mut self.all[index]
    }
}

/// Kind of a line, and the values of its keys.
pub type LineKey = (TimeKind, Vec<String>);

/// Lines by kind and key, and the account of each GPU.
#[derive(Clone, Debug, Default)]
pub struct Report {
    texts: Texts,
    lines: Lines,
    accounts: BTreeMap<String, GpuSums>,
    parts: usize,
}

/// The kinds, by the first number of a line's key.
const KINDS: [TimeKind; 4] = [TimeKind::Allocated, TimeKind::Free, TimeKind::Faulty, TimeKind::Away];

impl Report {
    /// The index of a text.
    pub fn text(&mut self, text: &str) -> Text {
        self.texts.index(text)
    }

    /// The number of lines so far.
    #[must_use]
    pub fn line_count(&self) -> usize {
        self.lines.all.len()
    }

    /// Adds a part; parts are in the order of their times. `columns` are the keys of its lines, and `price_micro` is the price of a
    /// GPU-hour of a model in this part.
    pub fn add(&mut self, part: &UsagePart, columns: &[Column], price_micro: impl Fn(&str) -> Option<u64>) {
        self.parts += 1;
        let number = self.parts;
        let split = columns.iter().any(|column| matches!(column, Column::Side(_)));
        let prices: Vec<Option<u64>> =
            part.gpus.iter().map(|gpu| price_micro(part.text(gpu.model))).collect();
        let mut allocated = vec![0; part.gpus.len()];
        for (index, run) in (0..).zip(&part.runs).filter(|(_, run)| run.without_gpu) {
            let line = self.lines.of(0, columns, Whose::Without(index));
            line.count(number, index, run, name(part, index));
        }
        for share in &part.shares {
            let Some(run) = part.runs.get(share.run as usize) else { continue };
            let sides = match split {
                true => [(share.guaranteed, share.guaranteed), (share.had - share.guaranteed, 0)],
                false => [(share.had, share.guaranteed), (0, 0)],
            };
            for (side, (had, guaranteed)) in sides.into_iter().enumerate().filter(|(_, (had, _))| *had > 0) {
                let line = self.lines.of(0, columns, Whose::Run(share.run, share.gpu, side));
                line.count(number, share.run, run, name(part, share.run));
                line.add(had, prices.get(share.gpu as usize).copied().flatten());
                line.guaranteed += guaranteed;
                line.memory_byte_us += had * u128::from(share.memory_per_milli);
                if run.given_up {
                    line.lost += had;
                }
                if let Some(ppm) = run.peak_ppm {
                    line.measured += had;
                    line.peak_ppm += had * u128::from(ppm);
                }
            }
            if let Some(sum) = allocated.get_mut(share.gpu as usize) {
                *sum += share.had;
            }
        }
        for (index, ((gpu, price), allocated)) in (0..).zip(part.gpus.iter().zip(prices).zip(allocated)) {
            for (kind, rest) in (1..).zip(gpu.rest).filter(|(_, rest)| *rest > 0) {
                self.lines.of(kind, columns, Whose::Nobody(index)).add(rest, price);
            }
            let uuid = part.text(gpu.gpu);
            let account = match self.accounts.get_mut(uuid) {
                Some(account) => account,
                None => self.accounts.entry(uuid.to_owned()).or_default(),
            };
            account.add(gpu);
            account.allocated += allocated;
            let node = part.text(gpu.node);
            if !node.is_empty() && account.node != node {
                node.clone_into(&mut account.node);
            }
        }
    }

    /// The lines in order, and the accounts by GPU.
    #[must_use]
    pub fn finish(self) -> (BTreeMap<LineKey, Line>, BTreeMap<String, GpuSums>) {
        let Self { texts, lines: Lines { known, mut all, .. }, accounts, .. } = self;
        let named = |(key, index): (Box<[Text]>, usize)| {
            let kind = KINDS[key[0] as usize];
            let keys = key[1..].iter().map(|text| texts.get(*text).to_owned()).collect();
            // The fields that a line needs only to count each run once are no longer needed.
            ((kind, keys), Line { crossing: BTreeSet::new(), last: None, ..std::mem::take(&mut all[index]) })
        };
        (known.into_iter().map(named).collect(), accounts)
    }
}

fn name(part: &UsagePart, run: u32) -> Option<&String> {
    part.tasks.get(run as usize)?.name.as_ref()
}

/// The smallest of these numbers that at least `percent` of them do not exceed; `None` without numbers. Changes their order.
#[must_use]
pub fn percentile(numbers: &mut [u64], percent: usize) -> Option<u64> {
    let rank = (numbers.len() * percent).div_ceil(100).max(1);
    if rank > numbers.len() {
        return None;
    }
    Some(*numbers.select_nth_unstable(rank - 1).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuPresence, GpuTime, Hold, PartBuilder, PartShare, PartTask, Period, divide};

    const HOUR: Period = Period { from_us: 0, to_us: 3_600_000_000 };

    #[test]
    fn a_percentile_is_one_of_the_numbers() {
        let mut numbers = [50, 10, 40, 20, 30];
        assert_eq!(
            [0, 50, 95, 100].map(|percent| percentile(&mut numbers, percent)),
            [10, 30, 50, 50].map(Some)
        );
        assert_eq!(percentile(&mut [], 50), None);
    }

    /// Two runs on one GPU of this model for an hour: the second one was given up, and its peak is known.
    fn part(model: &str, crosses: bool) -> UsagePart {
        let holds = [(0, 250), (1, 500)].map(|(run, milli)| Hold {
            run,
            milli,
            guaranteed_milli: 100,
            since_us: 0,
            period: HOUR,
        });
        let division = divide(HOUR, &[GpuTime { state: GpuPresence::Here, period: HOUR }], &holds);
        let mut builder = PartBuilder::default();
        let gpu = PartGpu { gpu: builder.text("GPU-a"), model: builder.text(model), ..PartGpu::default() };
        let gpu = builder.gpu(gpu, &[HOUR], &division);
        for (&index, &had) in &division.shares {
            let run = builder.run(index, |_| {
                let run = PartRun {
                    given_up: index == 1,
                    waited_us: Some(index as u64),
                    peak_ppm: (index == 1).then_some(300_000),
                    crosses: crosses.then(|| Crossing {
                        task: format!("t{index}").as_str().into(),
                        run: 1,
                        from_before: true,
                        goes_on: true,
                    }),
                    ..PartRun::default()
                };
                (run, PartTask { id: format!("t{index}"), name: None })
            });
            let guaranteed = division.guaranteed[&index];
            builder.share(PartShare { run, gpu, had, guaranteed, memory_per_milli: 7 });
        }
        builder.build()
    }

    #[test]
    fn lines_add_up_and_an_unknown_price_is_no_price() {
        let mut report = Report::default();
        let vision = report.text("vision");
        let columns = [Column::Run(vec![vision; 2])];
        for model in ["A", "B"] {
            report.add(&part(model, false), &columns, |model| (model == "A").then_some(4_000_000));
        }
        let (lines, accounts) = report.finish();
        let had = &lines[&(TimeKind::Allocated, vec!["vision".to_owned()])];
        assert_eq!((had.gpu, had.lost), (2 * 750 * 3_600_000_000, 2 * 500 * 3_600_000_000));
        assert_eq!((had.runs, had.given_up, &had.waits_us[..]), (4, 2, &[0, 1, 0, 1][..]));
        assert_eq!((had.memory_byte_us, had.cost_micro()), (7 * had.gpu, None));
        assert_eq!((had.measured, had.mean_peak_ppm()), (had.lost, Some(300_000)));
        assert_eq!(had.guaranteed, 2 * 200 * 3_600_000_000);
        let free = &lines[&(TimeKind::Free, vec![String::new()])];
        assert_eq!((free.mean_peak_ppm(), free.gpu + had.gpu), (None, 2 * 1000 * 3_600_000_000));
        // Both parts are of the same hour: its times overlap.
        assert!(!accounts["GPU-a"].closes());
    }

    #[test]
    fn a_run_that_several_parts_have_counts_once() {
        let mut report = Report::default();
        for _ in 0..3 {
            report.add(&part("A", true), &[Column::Same(0)], |_| Some(1_000_000));
        }
        let (lines, _) = report.finish();
        let had = &lines[&(TimeKind::Allocated, vec![String::new()])];
        assert_eq!((had.runs, had.given_up, had.waits_us.len()), (2, 1, 2));
        assert_eq!((had.gpu, had.cost_micro()), (3 * 750 * 3_600_000_000, Some(2_250_000)));
    }

    #[test]
    fn each_side_has_its_line() {
        let mut report = Report::default();
        let column = Column::Side([report.text("guaranteed"), report.text("borrowed")]);
        report.add(&part("A", false), &[column], |_| None);
        let (lines, accounts) = report.finish();
        let of = |side: &str| &lines[&(TimeKind::Allocated, vec![side.to_owned()])];
        assert_eq!(
            (of("guaranteed").gpu, of("guaranteed").guaranteed),
            (200 * 3_600_000_000, 200 * 3_600_000_000)
        );
        assert_eq!((of("borrowed").gpu, of("borrowed").guaranteed), (550 * 3_600_000_000, 0));
        assert!(accounts["GPU-a"].closes());
    }

    #[test]
    fn a_gap_between_parts_is_seen() {
        let mut account = GpuSums::default();
        let of = |from_us, to_us| PartGpu {
            recorded: Some((from_us, to_us, 10)),
            follow: true,
            rest: [10_000, 0, 0],
            ..PartGpu::default()
        };
        account.add(&of(0, 10));
        account.add(&of(10, 20));
        assert!(account.closes());
        account.add(&of(21, 31));
        assert!(!account.closes());
    }
}
