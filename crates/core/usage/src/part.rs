//! The divided time of all GPUs in a part of a period. A report is the sum of such parts, whatever they were made from: so the part of a day
//! that is over can be kept, and no report has to read the runs of that day again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Division, GpuPresence, MilliUs, Period};

/// Index of a text; 0 is the empty one.
pub type Text = u32;

/// Texts, each of them once.
#[derive(Clone, Debug)]
pub struct Texts {
    all: Vec<String>,
    known: BTreeMap<String, Text>,
}

impl Default for Texts {
    fn default() -> Self {
        Self { all: vec![String::new()], known: BTreeMap::from([(String::new(), 0)]) }
    }
}

impl Texts {
    /// The index of a text.
    pub fn index(&mut self, text: &str) -> Text {
        if let Some(index) = self.known.get(text) {
            return *index;
        }
        let index = index_of(self.all.len());
        self.all.push(text.to_owned());
        self.known.insert(text.to_owned(), index);
        index
    }

    /// The text with this index; empty if there is none.
    #[must_use]
    pub fn get(&self, index: Text) -> &str {
        self.all.get(index as usize).map_or("", String::as_str)
    }
}

/// Lists in memory are shorter than that.
fn index_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A run in a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRun {
    /// Id of the task's project.
    pub project: Text,
    /// Id of the queue.
    pub queue: Text,
    /// Id of the user.
    pub owner: Text,
    /// The node that it ran on.
    pub node: Text,
    /// Index of its set of tags.
    pub tags: u32,
    /// How long the task waited for this run, in microseconds.
    pub waited_us: Option<u64>,
    /// It was given up: what it did has to be done again.
    pub given_up: bool,
    /// The most memory that it had at a time, in millionths of its limit; `None` if it was not measured.
    pub peak_ppm: Option<u32>,
    /// It never had a GPU: it has no share, and counts.
    pub without_gpu: bool,
    /// The run, if it lasted beyond an end of the part: other parts have it, too.
    pub crosses: Option<Crossing>,
}

/// A run that is in several parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crossing {
    /// Its task.
    pub task: TaskId,
    /// Its number.
    pub run: i64,
    /// It began before the part.
    pub from_before: bool,
    /// It lasted beyond the end of the part.
    pub goes_on: bool,
}

/// The id of a task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskId {
    /// 32 hexadecimal digits, as the server and ClearML's clients make them.
    Digits(u128),
    /// Another one.
    Text(String),
}

impl From<&str> for TaskId {
    fn from(id: &str) -> Self {
        let is_plain = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let digits = is_plain.then(|| u128::from_str_radix(id, 16).ok()).flatten();
        digits.map_or_else(|| Self::Text(id.to_owned()), Self::Digits)
    }
}

/// The task of a run: only reports by task have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTask {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
}

/// A GPU on one node in a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartGpu {
    /// Its UUID.
    pub gpu: Text,
    /// The node that had it.
    pub node: Text,
    /// Its product name.
    pub model: Text,
    /// Its pools.
    pub pools: Text,
    /// Beginning and end of the time for which its state is recorded, and the sum of these times in microseconds.
    pub recorded: Option<(i64, i64, u64)>,
    /// These times have neither gaps nor overlaps.
    pub follow: bool,
    /// Time that no run had: free, faulty, away.
    pub rest: [MilliUs; 3],
    /// The part of the shares during times of which no state is recorded.
    pub unrecorded: MilliUs,
    /// The time that was taken from runs whose end was reported late.
    pub late: MilliUs,
}

/// A run's use of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartShare {
    /// Index of the run.
    pub run: u32,
    /// Index of the GPU.
    pub gpu: u32,
    /// GPU time.
    pub had: MilliUs,
    /// The part of it that was within a quota.
    pub guaranteed: MilliUs,
    /// The memory limit per thousandth of the share, in bytes.
    pub memory_per_milli: u64,
}

/// A part of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsagePart {
    pub(crate) texts: Vec<String>,
    /// Sets of tags.
    pub(crate) tags: Vec<Vec<Text>>,
    pub(crate) runs: Vec<PartRun>,
    pub(crate) gpus: Vec<PartGpu>,
    /// The shares of a run follow each other.
    pub(crate) shares: Vec<PartShare>,
    /// The amounts that projects (by id) lent.
    pub(crate) lent: Vec<(Text, MilliUs)>,
    /// Of each run; empty if the part was read without them.
    #[serde(skip)]
    pub(crate) tasks: Vec<PartTask>,
}

impl UsagePart {
    /// The form of [`UsagePart::encode`]. Other forms are not read.
    pub const FORM: i64 = 1;

    /// The part, and its tasks.
    ///
    /// # Errors
    /// None that is known: the memory for it is taken as needed.
    pub fn encode(&self) -> Result<(Vec<u8>, Vec<u8>), postcard::Error> {
        Ok((postcard::to_allocvec(self)?, postcard::to_allocvec(&self.tasks)?))
    }

    /// Reads what [`UsagePart::encode`] wrote; without the tasks, if only a report by task needs them.
    ///
    /// # Errors
    /// It is something else.
    pub fn decode(part: &[u8], tasks: Option<&[u8]>) -> Result<Self, postcard::Error> {
        let part: Self = postcard::from_bytes(part)?;
        let tasks = tasks.map(postcard::from_bytes).transpose()?.unwrap_or_default();
        Ok(Self { tasks, ..part })
    }

    /// The text with this index.
    #[must_use]
    pub fn text(&self, index: Text) -> &str {
        self.texts.get(index as usize).map_or("", String::as_str)
    }

    /// All texts; those of tasks are not among them.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The sets of tags of its runs.
    pub fn tags(&self) -> impl Iterator<Item = impl Iterator<Item = &str>> {
        self.tags.iter().map(|set| set.iter().map(|tag| self.text(*tag)))
    }

    /// Its runs.
    #[must_use]
    pub fn runs(&self) -> &[PartRun] {
        &self.runs
    }

    /// Its GPUs.
    #[must_use]
    pub fn gpus(&self) -> &[PartGpu] {
        &self.gpus
    }

    /// The tasks of its runs, if it was read with them.
    #[must_use]
    pub fn tasks(&self) -> &[PartTask] {
        &self.tasks
    }

    /// The amounts that projects (by id) lent.
    pub fn lent(&self) -> impl Iterator<Item = (&str, MilliUs)> {
        self.lent.iter().map(|(project, lent)| (self.text(*project), *lent))
    }
}

/// Makes a [`UsagePart`].
#[derive(Clone, Debug, Default)]
pub struct PartBuilder {
    texts: Texts,
    sets: BTreeMap<Vec<Text>, u32>,
    part: UsagePart,
    /// By index of the caller's list of runs.
    runs: BTreeMap<usize, u32>,
}

impl PartBuilder {
    /// The index of a text.
    pub fn text(&mut self, text: &str) -> Text {
        self.texts.index(text)
    }

    /// The index of a set of tags.
    pub fn tags(&mut self, tags: &[String]) -> u32 {
        let set: Vec<Text> = tags.iter().map(|tag| self.texts.index(tag)).collect();
        let (sets, all) = (&mut self.sets, &mut self.part.tags);
        *sets.entry(set).or_insert_with_key(|set| {
            all.push(set.clone());
            index_of(all.len() - 1)
        })
    }

    /// The index of a run of the caller's list, which is made if the part does not have it yet.
    pub fn run(&mut self, index: usize, make: impl FnOnce(&mut Self) -> (PartRun, PartTask)) -> u32 {
        if let Some(known) = self.runs.get(&index) {
            return *known;
        }
        let (run, task) = make(self);
        self.part.runs.push(run);
        self.part.tasks.push(task);
        let new = index_of(self.part.runs.len() - 1);
        self.runs.insert(index, new);
        new
    }

    /// Adds a GPU, with the time that no run had of it; the index of it. `recorded` are the times for which its state
    /// is known, in order.
    pub fn gpu(&mut self, mut gpu: PartGpu, recorded: &[Period], division: &Division) -> u32 {
        let rest = |state| division.rest.get(&state).copied().unwrap_or(0);
        gpu.rest = [GpuPresence::Here, GpuPresence::Faulty, GpuPresence::Away].map(rest);
        (gpu.unrecorded, gpu.late) = (division.unrecorded, division.late);
        gpu.follow = recorded.windows(2).all(|pair| pair[0].to_us == pair[1].from_us);
        let sum = recorded.iter().map(|period| period.us()).sum();
        gpu.recorded =
            recorded.first().zip(recorded.last()).map(|(first, last)| (first.from_us, last.to_us, sum));
        self.part.gpus.push(gpu);
        index_of(self.part.gpus.len() - 1)
    }

    /// Adds what a run had of a GPU.
    pub fn share(&mut self, share: PartShare) {
        self.part.shares.push(share);
    }

    /// Adds what a project (by id) lent.
    pub fn lent(&mut self, project: &str, lent: MilliUs) {
        let project = self.texts.index(project);
        self.part.lent.push((project, lent));
    }

    /// The part; its runs are in the order of the caller's list.
    #[must_use]
    pub fn build(mut self) -> UsagePart {
        let mut new_of = vec![0; self.runs.len()];
        for (new, old) in (0..).zip(self.runs.values()) {
            new_of[*old as usize] = new;
        }
        self.part.shares.iter_mut().for_each(|share| share.run = new_of[share.run as usize]);
        let in_order = |index: &u32| *index as usize;
        self.part.runs = self.runs.values().map(in_order).map(|old| self.part.runs[old].clone()).collect();
        self.part.tasks = self.runs.values().map(in_order).map(|old| self.part.tasks[old].clone()).collect();
        let mut part = UsagePart { texts: self.texts.all, ..self.part };
        part.shares.sort_by_key(|share| (share.run, share.gpu));
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_apart() {
        let ids = [
            "0123456789abcdef0123456789abcdef",
            "0123456789ABCDEF0123456789abcdef",
            "+123456789abcdef0123456789abcdef",
            "",
        ];
        let read = ids.map(TaskId::from);
        assert_eq!(read[0], TaskId::Digits(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef));
        assert!(read[1..].iter().zip(&ids[1..]).all(|(read, id)| *read == TaskId::Text((*id).to_owned())));
    }

    #[test]
    fn runs_are_in_the_order_of_the_list() {
        let mut builder = PartBuilder::default();
        for (index, had) in [(9, 90), (3, 30), (7, 70), (3, 31)] {
            let task = PartTask { id: format!("t{index}"), name: None };
            let run = builder
                .run(index, |_| (PartRun { waited_us: Some(index as u64), ..PartRun::default() }, task));
            builder.share(PartShare { run, had, ..PartShare::default() });
        }
        let part = builder.build();
        assert_eq!(part.runs.iter().map(|run| run.waited_us).collect::<Vec<_>>(), [3, 7, 9].map(Some));
        assert_eq!(part.tasks.iter().map(|task| task.id.as_str()).collect::<Vec<_>>(), ["t3", "t7", "t9"]);
        let shares: Vec<_> = part.shares.iter().map(|share| (share.run, share.had)).collect();
        assert_eq!(shares, [(0, 30), (0, 31), (1, 70), (2, 90)]);
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let mut builder = PartBuilder::default();
        let of = |builder: &mut PartBuilder, name: &str| PartRun {
            project: builder.text("p"),
            tags: builder.tags(&[name.to_owned(), "x".to_owned()]),
            crosses: Some(Crossing { task: name.into(), run: 3, from_before: true, goes_on: false }),
            waited_us: Some(1 << 40),
            ..PartRun::default()
        };
        for (index, name) in [(7, "a"), (9, "b"), (7, "a")] {
            let task = PartTask { id: name.to_owned(), name: None };
            let run = builder.run(index, |builder| (of(builder, name), task));
            builder.share(PartShare { run, had: u128::from(u64::MAX) << 20, ..PartShare::default() });
        }
        builder.lent("p", 12);
        let part = builder.build();
        assert_eq!((part.runs.len(), part.shares.len(), part.tags.len()), (2, 3, 2));
        assert_eq!(part.text(part.runs[1].project), "p");
        let (bytes, tasks) = part.encode().unwrap();
        assert_eq!(UsagePart::decode(&bytes, Some(&tasks)).unwrap(), part);
        assert_eq!(UsagePart::decode(&bytes, None).unwrap(), UsagePart { tasks: Vec::new(), ..part });
        assert!(UsagePart::decode(&bytes[..bytes.len() - 1], None).is_err());
    }
}
