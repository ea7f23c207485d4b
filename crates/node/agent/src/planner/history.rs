//! The requests of past tasks, from which placement predicts future ones. They are on disk, so that a new daemon knows
//! them too.

use std::path::{Path, PathBuf};

use cantle_runtime::files::{self, Durability};
use cantle_sched::{Demand, Mix, Observed, Snapshot, Start};

/// The demand that this agent has served.
pub(crate) struct History {
    path: PathBuf,
    observed: Observed,
}

impl History {
    /// Goes on from what is on disk; each agent of a machine has its own. It only helps: what cannot be read starts
    /// empty.
    pub(crate) fn open(state_dir: &Path, worker: &str) -> Self {
        // Worker ids may hold anything, file names may not.
        let path = state_dir.join(format!("demand-{}.json", worker.replace('/', "_")));
        let observed = files::read_json(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "the history of requests is lost");
            None
        });
        Self { path, observed: observed.unwrap_or_default() }
    }

    /// The expected demand.
    pub(crate) fn mix(&self) -> Mix {
        self.observed.mix()
    }

    /// Counts the tasks that a plan starts.
    pub(crate) fn count(&mut self, state: &Snapshot, starts: &[Start]) {
        let demand = |start: &Start| {
            let queue = state.queues.iter().find(|queue| queue.spec.name == start.queue)?;
            let waiting = queue.waiting.iter().find(|waiting| waiting.task == start.task)?;
            Some(Demand::of(queue, waiting))
        };
        let demands: Vec<Demand> = starts.iter().filter_map(demand).collect();
        if demands.is_empty() {
            return;
        }
        demands.iter().for_each(|demand| self.observed.count(demand));
        if let Err(error) = files::write_json(&self.path, &self.observed, Durability::Crash) {
            tracing::warn!(%error, "the history of requests is not on disk");
        }
    }
}

#[cfg(test)]
mod tests {
    use cantle_decide::{Offer, SnapshotBuilder, decide};
    use cantle_model::{Gpu, GpuRequest, Milli, QueueSpec, QueueWant, Slice, TaskId};
    use cantle_sched::{Policy, Waiting};

    use super::*;
    use cantle_node::new_lease;

    const WORKER: &str = "node1:dgpu0-2";

    /// 0.4 of the first of two GPUs is taken.
    fn state(waiting: Waiting) -> Snapshot {
        let gpu = |n: u32| {
            let (uuid, model) = (format!("GPU-{n}").as_str().into(), "A100".to_owned());
            Offer::new(Gpu { uuid, index: n, model, memory_bytes: 40 << 30, mig: false })
        };
        let slice = Slice { gpu: "GPU-0".into(), milli: Milli(400), memory_limit_bytes: 16 << 30, mig: None };
        let lease = new_lease(TaskId::from("other"), String::new(), None, vec![slice]);
        let spec = QueueSpec { name: "q".into(), want: QueueWant::Task };
        let world = SnapshotBuilder::default().node("here", (0..2).map(gpu)).lease(&lease, "here");
        world.queue(spec, vec![waiting]).build()
    }

    fn task(milli: u32) -> Waiting {
        Waiting::new(TaskId::from("t"), 0).wanting(GpuRequest::Fraction(Milli(milli).into()))
    }

    fn goes_to(state: &Snapshot) -> String {
        decide(state, &Policy::default(), 0).unwrap().starts[0].slices[0].gpu.0.clone()
    }

    #[test]
    fn what_came_before_decides_where_the_next_one_goes_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(dir.path(), WORKER);
        assert!(history.mix().is_empty());
        for milli in [600, 400] {
            let state = state(task(milli));
            let starts = decide(&state, &Policy::default(), 0).unwrap().starts;
            (0..50).for_each(|_| history.count(&state, &starts));
        }
        assert!(History::open(dir.path(), "node1:dgpu3").mix().is_empty(), "another agent's");
        let known = History::open(dir.path(), WORKER).mix();
        assert_eq!((known.len(), &known), (2, &history.mix()));

        let mut state = state(task(300));
        assert_eq!(goes_to(&state), "GPU-0", "packed, while nothing is known");
        state.expected = known;
        assert_eq!(goes_to(&state), "GPU-1", "0.6 is kept for one that needs it");
    }

    #[test]
    fn what_cannot_be_read_starts_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("demand-node1:dgpu0-2.json"), "{").unwrap();
        assert!(History::open(dir.path(), WORKER).mix().is_empty());
    }
}
