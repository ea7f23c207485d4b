//! In which order waiting tasks get their chance.

use crate::{Order, State};

/// Positions (queue, task in it) of all waiting tasks in turn.
pub(crate) fn turns(state: &State, order: Order) -> Vec<(usize, usize)> {
    let queues = state.queues.iter().enumerate();
    let mut all: Vec<(usize, usize)> =
        queues.flat_map(|(at, queue)| (0..queue.waiting.len()).map(move |task| (at, task))).collect();
    if order == Order::Fair {
        let count = state.queues.len();
        let last = state.queues.iter().position(|queue| Some(&queue.spec.name) == state.last_served.as_ref());
        let first = last.map_or(0, |last| last + 1);
        // Sorting is stable: the n-th tasks of all queues come before the (n+1)-th of any.
        all.sort_by_key(|&(queue, task)| (task, (queue + count - first) % count));
    }
    all
}
