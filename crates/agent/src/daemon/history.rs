//! What tasks asked for so far: placement expects more of the same. Kept on disk, so that a new daemon knows it too.

use std::path::{Path, PathBuf};

use cantle_sched::{Demand, Mix, Observed, Start, State};

use crate::node::files::{self, Keep};

/// The demand that this agent has served.
pub(crate) struct History {
    path: PathBuf,
    observed: Observed,
}

impl History {
    /// Goes on from what is on disk; each agent of a machine has its own. It is a help, no more: what can't be read is begun anew.
    pub(crate) fn open(state_dir: &Path, worker: &str) -> Self {
        // Worker ids may hold anything, file names may not.
        let path = state_dir.join(format!("demand-{}.json", worker.replace('/', "_")));
        let observed = files::read_json(&path).unwrap_or_else(|error| {
            tracing::warn!(%error, "what tasks asked for so far is forgotten");
            None
        });
        Self { path, observed: observed.unwrap_or_default() }
    }

    /// What to expect.
    pub(crate) fn mix(&self) -> Mix {
        self.observed.mix()
    }

    /// Counts the tasks that a plan starts.
    pub(crate) fn count(&mut self, state: &State, starts: &[Start]) {
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
        if let Err(error) = files::write_json(&self.path, &self.observed, Keep::UntilBoot) {
            tracing::warn!(%error, "what tasks asked for is not on disk");
        }
    }
}

#[cfg(test)]
mod tests {
    use cantle_model::{Gpu, GpuRequest, Milli, QueueSpec, QueueWant, Slice, TaskId};
    use cantle_sched::{GpuState, Node, Policy, Queue, Running, Waiting, plan};

    use super::*;
    use crate::launch::new_lease;

    const WORKER: &str = "node1:dgpu0-2";

    /// 0.4 of the first of two GPUs is taken.
    fn state(waiting: Waiting) -> State {
        let gpu = |n: u32| {
            let (uuid, model) = (format!("GPU-{n}").as_str().into(), "A100".to_owned());
            GpuState::new(Gpu { uuid, index: n, model, memory_bytes: 40 << 30, mig: false })
        };
        let slice = Slice { gpu: "GPU-0".into(), milli: Milli(400), memory_limit_bytes: 16 << 30, mig: None };
        let lease = new_lease(TaskId::from("other"), String::new(), None, vec![slice]);
        let spec = QueueSpec { name: "q".into(), want: QueueWant::Task };
        let nodes = vec![Node::new("here", (0..2).map(gpu).collect())];
        State::new(nodes, vec![Running::of_lease(&lease, "here", 0)], vec![Queue::new(spec, vec![waiting])])
    }

    fn task(milli: u32) -> Waiting {
        Waiting::new(TaskId::from("t"), 0).wanting(GpuRequest::Fraction(Milli(milli)))
    }

    fn goes_to(state: &State) -> String {
        plan(state, &Policy::default(), 0).starts[0].slices[0].gpu.0.clone()
    }

    #[test]
    fn what_came_before_decides_where_the_next_one_goes_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(dir.path(), WORKER);
        assert!(history.mix().is_empty());
        for milli in [600, 400] {
            let state = state(task(milli));
            let starts = plan(&state, &Policy::default(), 0).starts;
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
    fn what_cannot_be_read_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("demand-node1:dgpu0-2.json"), "{").unwrap();
        assert!(History::open(dir.path(), WORKER).mix().is_empty());
    }
}
