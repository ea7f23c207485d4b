//! Estimates when waiting tasks start, from the expected ends of running tasks. It is simpler than the scheduler: it knows
//! no quotas, priorities or preemption, and each queue is first in, first out.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::GpuRequest;

/// A node that is up, with the queues that it serves.
#[derive(Clone, Debug, Default)]
pub struct StartNode {
    /// Names of the queues.
    pub queues: BTreeSet<String>,
    /// Its GPUs without MIG.
    pub gpus: Vec<StartGpu>,
}

/// A GPU and what is on it.
#[derive(Clone, Debug, Default)]
pub struct StartGpu {
    /// Its memory.
    pub memory_bytes: u64,
    /// The slices of running tasks.
    pub held: Vec<HeldUntil>,
}

/// A slice with the expected time in which it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldUntil {
    /// Thousandths of the GPU.
    pub milli: u32,
    /// From when, in milliseconds since 1970.
    pub from_ms: i64,
    /// Until when; `None`: nobody knows.
    pub until_ms: Option<i64>,
    /// It follows from former runs, and not from time limits alone.
    pub by_history: bool,
}

/// A task that waits, in the order of its queue.
#[derive(Clone, Debug)]
pub struct StartsLater {
    /// Its id.
    pub task: String,
    /// Its queue.
    pub queue: String,
    /// What it asks for; `None`: no GPU.
    pub request: Option<GpuRequest>,
    /// How long it is expected to run; `None`: nobody knows.
    pub runs_ms: Option<i64>,
    /// That follows from former runs.
    pub by_history: bool,
}

/// When a task starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartEstimate {
    /// At this time, in milliseconds since 1970.
    At {
        /// When.
        start_ms: i64,
        /// It follows from former runs, and not from time limits alone.
        by_history: bool,
    },
    /// There is room for it now, so it waits for something else.
    Now,
    /// Nobody knows, for this reason.
    Unknown(&'static str),
}

/// GPUs of a node, each with the thousandths that are taken of it.
type Room = Vec<(usize, u32)>;

const NO_END: &str =
    "a task that it waits for has no time limit, and its queue has no former runs to compare with";
const BEHIND: &str = "the start of a task before it in its queue is unknown";
const NO_NODE: &str = "no node that is up serves its queue";
const TOO_LARGE: &str = "no node that is up has GPUs without MIG for it";

/// The estimate for each of these tasks. Tasks of one queue start in their order.
#[must_use]
pub fn estimate_starts(
    mut nodes: Vec<StartNode>,
    waiting: &[StartsLater],
    now_ms: i64,
) -> BTreeMap<String, StartEstimate> {
    // By queue: not before this, or not known.
    let mut floors: BTreeMap<&str, Option<i64>> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for task in waiting {
        let floor = floors.entry(&task.queue).or_insert(Some(now_ms));
        let estimate = match *floor {
            None => StartEstimate::Unknown(BEHIND),
            Some(from_ms) => place(&mut nodes, task, from_ms, now_ms),
        };
        *floor = match estimate {
            StartEstimate::At { start_ms, .. } => Some(start_ms),
            StartEstimate::Now => *floor,
            StartEstimate::Unknown(_) => None,
        };
        found.insert(task.task.clone(), estimate);
    }
    found
}

/// Gives the task its room at the earliest time.
fn place(nodes: &mut [StartNode], task: &StartsLater, from_ms: i64, now_ms: i64) -> StartEstimate {
    let mut serving = nodes.iter_mut().filter(|node| node.queues.contains(&task.queue)).peekable();
    if serving.peek().is_none() {
        return StartEstimate::Unknown(NO_NODE);
    }
    let Some(request) = &task.request else { return StartEstimate::Now };
    let mut why = TOO_LARGE;
    let mut best: Option<(i64, &mut StartNode, Room)> = None;
    for node in serving {
        match earliest(node, request, task.runs_ms, from_ms) {
            Ok((start_ms, gpus)) => {
                if best.as_ref().is_none_or(|(than, ..)| start_ms < *than) {
                    best = Some((start_ms, node, gpus));
                }
            }
            Err(NO_END) => why = NO_END,
            Err(_) => {}
        }
    }
    let Some((start_ms, node, gpus)) = best else { return StartEstimate::Unknown(why) };
    let before = gpus.iter().filter_map(|(gpu, _)| node.gpus.get(*gpu)).flat_map(|gpu| &gpu.held);
    let by_history = before
        .filter(|held| held.until_ms.is_some_and(|until_ms| until_ms <= start_ms))
        .any(|held| held.by_history);
    for (gpu, milli) in gpus {
        if let Some(gpu) = node.gpus.get_mut(gpu) {
            gpu.held.push(HeldUntil {
                milli,
                from_ms: start_ms,
                until_ms: task.runs_ms.map(|runs_ms| start_ms.saturating_add(runs_ms)),
                by_history: by_history || task.by_history,
            });
        }
    }
    if start_ms <= now_ms { StartEstimate::Now } else { StartEstimate::At { start_ms, by_history } }
}

/// The earliest time at which a node has room, on which GPUs, with the thousandths of each.
fn earliest(
    node: &StartNode,
    request: &GpuRequest,
    runs_ms: Option<i64>,
    from_ms: i64,
) -> Result<(i64, Room), &'static str> {
    let count = request.gpus() as usize;
    let able: Room = node
        .gpus
        .iter()
        .enumerate()
        .filter_map(|(at, gpu)| Some((at, request.share_of(gpu.memory_bytes)?.milli.0)))
        .collect();
    if able.len() < count {
        return Err(TOO_LARGE);
    }
    let held = able.iter().filter_map(|(at, _)| node.gpus.get(*at)).flat_map(|gpu| &gpu.held);
    let ends = held.filter_map(|held| held.until_ms).filter(|until_ms| *until_ms > from_ms);
    let times: BTreeSet<i64> = ends.chain([from_ms]).collect();
    for time in times {
        let free = |(at, milli): &&(usize, u32)| {
            node.gpus.get(*at).is_some_and(|gpu| gpu.has_room(*milli, time, runs_ms))
        };
        let gpus: Room = able.iter().filter(free).take(count).copied().collect();
        if gpus.len() == count {
            return Ok((time, gpus));
        }
    }
    Err(NO_END)
}

impl StartGpu {
    /// Whether a slice fits from then on, for so long.
    fn has_room(&self, milli: u32, from_ms: i64, runs_ms: Option<i64>) -> bool {
        let until_ms = runs_ms.map_or(i64::MAX, |runs_ms| from_ms.saturating_add(runs_ms));
        let begins = self.held.iter().map(|held| held.from_ms);
        let times = begins.filter(|begin_ms| (from_ms..until_ms).contains(begin_ms)).chain([from_ms]);
        times.into_iter().all(|time| {
            let there = |held: &&HeldUntil| {
                held.from_ms <= time && held.until_ms.is_none_or(|until_ms| until_ms > time)
            };
            let used: u32 = self.held.iter().filter(there).map(|held| held.milli).sum();
            used + milli <= 1000
        })
    }
}

#[cfg(test)]
mod tests {
    use cantle_model::Milli;

    use super::*;

    fn held(milli: u32, until_ms: Option<i64>) -> HeldUntil {
        HeldUntil { milli, from_ms: 0, until_ms, by_history: false }
    }

    fn node(gpus: &[&[HeldUntil]]) -> StartNode {
        let gpu = |held: &&[HeldUntil]| StartGpu { memory_bytes: 40 << 30, held: held.to_vec() };
        StartNode {
            queues: BTreeSet::from(["q".to_owned(), "r".to_owned()]),
            gpus: gpus.iter().map(gpu).collect(),
        }
    }

    fn later(task: &str, queue: &str, request: GpuRequest, runs_ms: Option<i64>) -> StartsLater {
        let request = Some(request);
        StartsLater { task: task.to_owned(), queue: queue.to_owned(), request, runs_ms, by_history: false }
    }

    fn half() -> GpuRequest {
        GpuRequest::Fraction(Milli(500).into())
    }

    fn at(start_ms: i64) -> StartEstimate {
        StartEstimate::At { start_ms, by_history: false }
    }

    #[test]
    fn a_task_starts_when_enough_has_ended() {
        let nodes = vec![node(&[&[held(500, Some(100)), held(500, Some(300))], &[held(1000, Some(200))]])];
        let waiting = [
            later("a", "q", half(), Some(1000)),
            later("b", "q", half(), Some(1000)),
            later("c", "q", half(), Some(1000)),
            later("d", "q", GpuRequest::Gpus(2), Some(10)),
        ];
        let found = estimate_starts(nodes, &waiting, 10);
        assert_eq!(
            ["a", "b", "c", "d"].map(|task| found[task]),
            [at(100), at(200), at(200), at(1200)],
            "the last one waits for both GPUs, and the others go first"
        );
    }

    #[test]
    fn what_has_no_end_makes_the_start_unknown() {
        let nodes = vec![node(&[&[held(1000, None)]])];
        let waiting = [later("a", "q", half(), Some(10)), later("b", "q", half(), Some(10))];
        let found = estimate_starts(nodes, &waiting, 10);
        assert_eq!(found["a"], StartEstimate::Unknown(NO_END));
        assert_eq!(found["b"], StartEstimate::Unknown(BEHIND));
        // A task that has no end itself holds up what comes after it.
        let nodes = vec![node(&[&[held(1000, Some(50))]])];
        let waiting = [later("a", "q", GpuRequest::Gpus(1), None), later("b", "q", half(), Some(10))];
        let found = estimate_starts(nodes, &waiting, 10);
        assert_eq!((found["a"], found["b"]), (at(50), StartEstimate::Unknown(NO_END)));
    }

    #[test]
    fn former_runs_are_named_as_the_basis() {
        let nodes = vec![node(&[&[HeldUntil { by_history: true, ..held(1000, Some(50)) }]])];
        let waiting =
            [later("a", "q", GpuRequest::Gpus(1), Some(50)), later("b", "q", GpuRequest::Gpus(1), Some(50))];
        let found = estimate_starts(nodes, &waiting, 10);
        let by_history = |start_ms| StartEstimate::At { start_ms, by_history: true };
        assert_eq!((found["a"], found["b"]), (by_history(50), by_history(100)));
    }

    #[test]
    fn what_fits_now_waits_for_something_else() {
        let nodes = vec![node(&[&[held(500, None)]])];
        let memory = GpuRequest::Memory(cantle_model::Bytes(80 << 30));
        let waiting = [
            later("a", "q", half(), Some(10)),
            later("b", "r", memory, None),
            later("c", "nobody", half(), None),
        ];
        let found = estimate_starts(nodes, &waiting, 10);
        assert_eq!(found["a"], StartEstimate::Now);
        assert_eq!(found["b"], StartEstimate::Unknown(TOO_LARGE));
        assert_eq!(found["c"], StartEstimate::Unknown(NO_NODE));
    }
}
