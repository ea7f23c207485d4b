//! What used to be: a few hundred samples for each task and queue, however long they live.

use std::collections::BTreeMap;

use serde::Serialize;

/// A line keeps between half of this and this many samples.
const SAMPLES: usize = 600;
/// Tasks whose line is kept, the newest ones.
const TASKS: usize = 1000;

/// What a sample of a task says.
pub(crate) const TASK_SERIES: [&str; 2] = ["used_bytes", "limit_bytes"];
/// What a sample of a queue says.
pub(crate) const QUEUE_SERIES: [&str; 2] = ["waiting", "longest_wait_s"];

/// Two values over time. When it is full, every second sample goes and the distance between samples doubles.
#[derive(Clone, Debug, Default)]
struct Line {
    every: u64,
    offered: u64,
    samples: Vec<(i64, [u64; 2])>,
}

impl Line {
    fn add(&mut self, time_s: i64, values: [u64; 2]) {
        self.every = self.every.max(1);
        let wanted = self.offered.is_multiple_of(self.every);
        self.offered += 1;
        if !wanted {
            return;
        }
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
}

/// Lines as the page wants them: equally long lists.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct View {
    times_s: Vec<i64>,
    series: BTreeMap<&'static str, Vec<u64>>,
}

/// All lines.
#[derive(Debug, Default)]
pub(crate) struct History {
    tasks: BTreeMap<String, Line>,
    /// Tasks in the order in which they were first seen, oldest first.
    order: std::collections::VecDeque<String>,
    queues: BTreeMap<String, Line>,
}

impl History {
    /// A task used so much of its limit.
    pub(crate) fn task(&mut self, id: &str, time_s: i64, used_bytes: u64, limit_bytes: u64) {
        if !self.tasks.contains_key(id) {
            self.order.push_back(id.to_owned());
            if self.order.len() > TASKS
                && let Some(oldest) = self.order.pop_front()
            {
                self.tasks.remove(&oldest);
            }
        }
        self.tasks.entry(id.to_owned()).or_default().add(time_s, [used_bytes, limit_bytes]);
    }

    /// So many tasks waited in a queue, the first of them for so long.
    pub(crate) fn queue(&mut self, name: &str, time_s: i64, waiting: u64, longest_wait_s: u64) {
        self.queues.entry(name.to_owned()).or_default().add(time_s, [waiting, longest_wait_s]);
    }

    /// Forgets queues that are no more.
    pub(crate) fn keep_queues(&mut self, exists: impl Fn(&str) -> bool) {
        self.queues.retain(|name, _| exists(name));
    }

    /// The line of a `task` or a `queue`; empty if there is none.
    pub(crate) fn view(&self, kind: &str, id: &str) -> Option<View> {
        let (lines, names) = match kind {
            "task" => (&self.tasks, TASK_SERIES),
            "queue" => (&self.queues, QUEUE_SERIES),
            _ => return None,
        };
        let empty = Line::default();
        let samples = &lines.get(id).unwrap_or(&empty).samples;
        let column = |at: usize| samples.iter().map(|(_, values)| values[at]).collect();
        Some(View {
            times_s: samples.iter().map(|(time_s, _)| *time_s).collect(),
            series: BTreeMap::from([(names[0], column(0)), (names[1], column(1))]),
        })
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
        let view = history.view("task", "a").unwrap();
        assert!((SAMPLES / 2 - 1..SAMPLES).contains(&view.times_s.len()), "{}", view.times_s.len());
        assert_eq!(view.times_s[0], 0);
        assert!(view.times_s.last().unwrap() > &99_000);
        let gaps: Vec<i64> = view.times_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| gap == &gaps[0]), "evenly spaced");
        assert_eq!(view.series["used_bytes"].len(), view.times_s.len());
    }

    #[test]
    fn old_tasks_and_gone_queues_are_forgotten() {
        let mut history = History::default();
        for task in 0..=TASKS {
            history.task(&format!("{task:05}"), 0, 1, 2);
        }
        assert_eq!(history.view("task", "00000"), history.view("task", "never seen"));
        assert_eq!(history.view("task", "00001").unwrap().times_s, [0]);
        history.queue("q", 0, 3, 4);
        history.keep_queues(|name| name != "q");
        assert!(history.view("queue", "q").unwrap().times_s.is_empty());
        assert_eq!(history.view("cat", "q"), None);
    }
}
