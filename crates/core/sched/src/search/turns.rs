//! Decides the order in which waiting tasks are considered.

use std::collections::VecDeque;

use crate::fair::accounts::{Accounts, ROOT};
use crate::{Amounts, Order, Snapshot};

/// A waiting task: position of its queue and its position there.
pub(crate) type Position = (usize, usize);

/// Hands out turns. Under [`Order::Share`] the order depends on what was started before.
#[derive(Clone, Debug)]
pub(crate) enum Turns {
    Listed(VecDeque<Position>),
    /// Waiting tasks of each project, by priority and then place in their queues.
    Shared(Vec<VecDeque<Position>>),
}

impl Turns {
    pub(crate) fn new(state: &Snapshot, order: Order, accounts: &Accounts) -> Self {
        match order {
            Order::Strict => Self::Listed(listed(state).into()),
            Order::Fair => Self::Listed(in_turn(state).into()),
            Order::Share => Self::Shared(by_project(state, accounts)),
        }
    }

    /// The next task to consider; `needs` has the demand of each task.
    pub(crate) fn next(&mut self, accounts: &Accounts, needs: &[Vec<Amounts>]) -> Option<Position> {
        match self {
            Self::Listed(positions) => positions.pop_front(),
            Self::Shared(projects) => {
                let project = neediest(projects, accounts, needs, ROOT)?.0;
                projects[project].pop_front()
            }
        }
    }
}

fn listed(state: &Snapshot) -> Vec<Position> {
    let queues = state.queues.iter().enumerate();
    queues.flat_map(|(at, queue)| (0..queue.waiting.len()).map(move |task| (at, task))).collect()
}

fn in_turn(state: &Snapshot) -> Vec<Position> {
    let mut all = listed(state);
    let count = state.queues.len();
    let last = state.queues.iter().position(|queue| Some(&queue.spec.name) == state.last_served.as_ref());
    let first = last.map_or(0, |last| last + 1);
    // Sorting is stable: the n-th tasks of all queues come before the (n+1)-th of any.
    all.sort_by_key(|&(queue, task)| (task, (queue + count - first) % count));
    all
}

fn by_project(state: &Snapshot, accounts: &Accounts) -> Vec<VecDeque<Position>> {
    let mut all = listed(state);
    let waiting = |(queue, task): Position| &state.queues[queue].waiting[task];
    all.sort_by_key(|&position| std::cmp::Reverse(waiting(position).priority));
    let mut projects = vec![VecDeque::new(); accounts.len()];
    for position in all {
        projects[accounts.position(waiting(position).project.as_deref())].push_back(position);
    }
    projects
}

/// The project at or below `at` whose turn it is, and its next task. A parent's own tasks come after its children's.
fn neediest(
    projects: &[VecDeque<Position>],
    accounts: &Accounts,
    needs: &[Vec<Amounts>],
    at: usize,
) -> Option<(usize, Position)> {
    let below = accounts.children(at).iter().filter_map(|&child| {
        let (project, (queue, task)) = neediest(projects, accounts, needs, child)?;
        Some((accounts.turn_key(child, needs[queue][task]), project, (queue, task)))
    });
    let child = below.min_by(|a, b| a.0.cmp(&b.0)).map(|(_, project, position)| (project, position));
    child.or_else(|| projects[at].front().map(|&position| (at, position)))
}
