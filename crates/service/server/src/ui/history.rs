//! The history of tasks and queues: a few hundred samples of each, for any age. It is kept in memory, and saved from
//! time to time so that it outlives the server.

use std::collections::{BTreeMap, VecDeque};

use cantle_store::ChartRow;
use serde::{Deserialize, Serialize};

/// Seconds between two samples.
pub(crate) const EVERY_S: i64 = 2;
/// A line keeps between half of this and this many samples.
const SAMPLES: usize = 600;
/// Tasks whose line is kept, the newest ones.
const TASKS: usize = 1000;
/// Samples further apart than this multiple of their distance, but at least [`GAP_S`], have a gap between them.
const GAP: i64 = 4;
const GAP_S: i64 = 30;

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A task, by its id.
    Task,
    /// A queue, by its name.
    Queue,
}

impl Kind {
    /// Its name in addresses and in the database.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Task, Self::Queue].into_iter().find(|kind| kind.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Queue => "queue",
        }
    }

    /// The names of the two values of a sample.
    const fn series(self) -> [&'static str; 2] {
        match self {
            Self::Task => ["used_bytes", "limit_bytes"],
            Self::Queue => ["waiting", "longest_wait_s"],
        }
    }
}

/// Two values over time. When it is full, every second sample goes and the distance between samples doubles.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    /// Of this number of samples that are offered, one is kept.
    every: u64,
    offered: u64,
    samples: Vec<(i64, [u64; 2])>,
    /// It has a sample that is not saved.
    #[serde(skip)]
    changed: bool,
}

impl Default for Line {
    fn default() -> Self {
        Self { every: 1, offered: 0, samples: Vec::new(), changed: false }
    }
}

impl Line {
    fn add(&mut self, time_s: i64, values: [u64; 2]) {
        let wanted = self.offered.is_multiple_of(self.every);
        self.offered += 1;
        if !wanted {
            return;
        }
        self.changed = true;
        self.samples.push((time_s, values));
        if self.samples.len() >= SAMPLES {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// The line for charts, with an empty value in the middle of each gap.
    fn points(&self) -> impl Iterator<Item = (i64, Option<[u64; 2]>)> {
        let apart_s = i64::try_from(self.every).unwrap_or(i64::MAX).saturating_mul(EVERY_S);
        let gap_s = apart_s.saturating_mul(GAP).max(GAP_S);
        let mut before = None;
        self.samples.iter().flat_map(move |(time_s, values)| {
            let last_s = before.replace(*time_s).unwrap_or(*time_s);
            let gap = (time_s - last_s > gap_s).then(|| (last_s + (time_s - last_s) / 2, None));
            gap.into_iter().chain([(*time_s, Some(*values))])
        })
    }
}

/// A line for the page: lists of equal length.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct View {
    times_s: Vec<i64>,
    series: BTreeMap<&'static str, Vec<Option<u64>>>,
}

/// All lines.
#[derive(Debug, Default)]
pub(crate) struct History {
    lines: BTreeMap<(Kind, String), Line>,
    /// Tasks in the order in which they were first seen, oldest first.
    order: VecDeque<String>,
    /// Lines that are deleted here and not yet in the database.
    gone: Vec<(String, String)>,
}

/// The lines to save: changed lines, and kind and id of those that were deleted.
pub(crate) type Unsaved = (Vec<ChartRow>, Vec<(String, String)>);

impl History {
    /// A history with the saved lines. A line that this version cannot read counts as none.
    pub(crate) fn restore(rows: Vec<ChartRow>) -> Self {
        let mut history = Self::default();
        for ChartRow { kind, id, line } in rows {
            if let (Some(kind), Ok(line)) = (Kind::parse(&kind), serde_json::from_str(&line)) {
                history.lines.insert((kind, id), line);
            }
        }
        let tasks = history.lines.iter().filter(|((kind, _), _)| *kind == Kind::Task);
        let mut seen: Vec<_> =
            tasks.map(|((_, id), line)| (line.samples.first().map(|first| first.0), id.clone())).collect();
        seen.sort_unstable();
        history.order = seen.into_iter().map(|(_, id)| id).collect();
        history
    }

    /// The changes since the last call.
    pub(crate) fn unsaved(&mut self) -> Unsaved {
        let changed = self.lines.iter_mut().filter_map(|(key, line)| {
            let changed = std::mem::take(&mut line.changed);
            changed.then_some((key, &*line))
        });
        let rows = changed.filter_map(|((kind, id), line)| {
            // A line consists of numbers, which can always be written.
            let line = serde_json::to_string(line).ok()?;
            Some(ChartRow { kind: kind.name().to_owned(), id: id.clone(), line })
        });
        (rows.collect(), std::mem::take(&mut self.gone))
    }

    /// Adds a sample of a task: memory used, and its limit.
    pub(crate) fn task(&mut self, id: &str, time_s: i64, used_bytes: u64, limit_bytes: u64) {
        let key = (Kind::Task, id.to_owned());
        if !self.lines.contains_key(&key) {
            self.order.push_back(id.to_owned());
            if self.order.len() > TASKS
                && let Some(oldest) = self.order.pop_front()
            {
                self.forget((Kind::Task, oldest));
            }
        }
        self.lines.entry(key).or_default().add(time_s, [used_bytes, limit_bytes]);
    }

    /// Adds a sample of a queue: number of waiting tasks, and how long the first of them has waited.
    pub(crate) fn queue(&mut self, name: &str, time_s: i64, waiting: u64, longest_wait_s: u64) {
        let line = self.lines.entry((Kind::Queue, name.to_owned())).or_default();
        line.add(time_s, [waiting, longest_wait_s]);
    }

    /// Forgets queues that were deleted.
    pub(crate) fn keep_queues(&mut self, exists: impl Fn(&str) -> bool) {
        let gone = |(kind, name): &&(Kind, String)| *kind == Kind::Queue && !exists(name);
        let gone: Vec<_> = self.lines.keys().filter(gone).cloned().collect();
        gone.into_iter().for_each(|key| self.forget(key));
    }

    fn forget(&mut self, key: (Kind, String)) {
        self.lines.remove(&key);
        self.gone.push((key.0.name().to_owned(), key.1));
    }

    /// The line of a task or a queue; empty if there is none.
    pub(crate) fn view(&self, kind: Kind, id: &str) -> View {
        let points: Vec<_> =
            self.lines.get(&(kind, id.to_owned())).into_iter().flat_map(Line::points).collect();
        let column = |at: usize| points.iter().map(|(_, values)| values.map(|values| values[at])).collect();
        let [first, second] = kind.series();
        View {
            times_s: points.iter().map(|(time_s, _)| *time_s).collect(),
            series: BTreeMap::from([(first, column(0)), (second, column(1))]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_life_has_few_samples_from_all_of_it() {
        let mut history = History::default();
        for second in 0..100_000 {
            history.task("a", second, second.unsigned_abs(), 7);
        }
        let view = history.view(Kind::Task, "a");
        assert!((SAMPLES / 2 - 1..SAMPLES).contains(&view.times_s.len()), "{}", view.times_s.len());
        assert_eq!(view.times_s[0], 0);
        assert!(view.times_s.last().unwrap() > &99_000);
        let gaps: Vec<i64> = view.times_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| gap == &gaps[0]), "evenly spaced");
        assert_eq!(view.series["used_bytes"].len(), view.times_s.len());
    }

    #[test]
    fn old_tasks_and_gone_queues_are_forgotten_also_where_they_are_saved() {
        let mut history = History::default();
        for task in 0..=TASKS {
            history.task(&format!("{task:05}"), 0, 1, 2);
        }
        assert!(history.view(Kind::Task, "00000").times_s.is_empty());
        assert_eq!(history.view(Kind::Task, "00001").times_s, [0]);
        history.queue("q", 0, 3, 4);
        history.keep_queues(|name| name != "q");
        assert!(history.view(Kind::Queue, "q").times_s.is_empty());
        let (rows, gone) = history.unsaved();
        assert_eq!(rows.len(), TASKS);
        assert_eq!(gone, [("task".into(), "00000".into()), ("queue".into(), "q".into())]);
    }

    #[test]
    fn what_was_saved_goes_on_as_if_nothing_had_been() {
        let (mut whole, mut first) = (History::default(), History::default());
        for second in 0..2000 {
            for history in [&mut whole, &mut first] {
                history.task("late", second + 1, 1, 2);
                history.task("early", second, second.unsigned_abs(), 7);
                history.queue("q", second, 3, 4);
            }
        }
        let (rows, _) = first.unsaved();
        assert_eq!(rows.len(), 3);
        assert_eq!(first.unsaved(), (Vec::new(), Vec::new()), "saved once");
        let mut second = History::restore(rows);
        assert_eq!(second.order, ["early", "late"]);
        for later in 2000..4000 {
            whole.task("early", later, 5, 7);
            second.task("early", later, 5, 7);
        }
        assert_eq!(second.view(Kind::Task, "early"), whole.view(Kind::Task, "early"));
        assert_eq!(second.view(Kind::Queue, "q"), whole.view(Kind::Queue, "q"));
        assert_eq!(second.unsaved().0.len(), 1, "only what changed since");
        let other = ChartRow { kind: "task".into(), id: "x".into(), line: "of another version".into() };
        assert!(History::restore(vec![other]).lines.is_empty());
    }

    #[test]
    fn a_time_without_samples_is_a_gap() {
        let mut history = History::default();
        for time_s in [0, 2, 4, 30, 100, 102] {
            history.queue("q", time_s, 1, 0);
        }
        let view = history.view(Kind::Queue, "q");
        assert_eq!(view.times_s, [0, 2, 4, 30, 65, 100, 102], "slow looks are no gap");
        let one = Some(1);
        assert_eq!(view.series["waiting"], [one, one, one, one, None, one, one]);
    }
}
