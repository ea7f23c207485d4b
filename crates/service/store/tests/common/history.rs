//! Checks whether any order of operations explains what the callers of a queue saw. It knows nothing of the store: tasks
//! wait, are taken for a run, are put back, and are done.
#![allow(unreachable_pub, reason = "one test uses it")]

use std::collections::BTreeSet;

/// A call about one task. A run is named by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It came into the queue.
    Submit,
    /// A caller got it.
    Take(i64),
    /// A caller may have got it and never learned of it.
    PerhapsTake,
    /// It went back into the queue, or may have.
    PutBack,
    /// The caller that got it for this run reports that it is done.
    Done(i64),
}

/// One operation of one caller: between its beginning and its end it happened, at one moment, unless the caller got no answer.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub begin: u64,
    pub end: u64,
    pub what: What,
    /// The caller got an answer; otherwise it may have happened, at any time from its beginning on, or never.
    pub is_sure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Nowhere,
    /// After this run.
    Waits(i64),
    /// For this run; or after this one, by a caller that does not know its number.
    Taken(i64),
    PerhapsTaken(i64),
    Done(i64),
}

fn next(state: State, what: What) -> Option<State> {
    match (state, what) {
        (State::Nowhere, What::Submit) => Some(State::Waits(0)),
        (State::Waits(last), What::Take(run)) if run > last => Some(State::Taken(run)),
        (State::Waits(last), What::PerhapsTake) => Some(State::PerhapsTaken(last)),
        (State::Taken(last) | State::PerhapsTaken(last), What::PutBack) => Some(State::Waits(last)),
        (State::Taken(run) | State::Done(run), What::Done(by)) if run == by => Some(State::Done(run)),
        _ => None,
    }
}

/// Whether some order of the operations about one task explains every answer, and ends with the task done.
pub fn is_explained(ops: &[Op]) -> bool {
    search(ops, 0, State::Nowhere, &mut BTreeSet::new())
}

fn search(ops: &[Op], happened: u128, state: State, tried: &mut BTreeSet<(u128, State)>) -> bool {
    assert!(ops.len() <= 128, "too many operations about one task");
    let left = || (0..ops.len()).filter(|at| happened & (1 << at) == 0);
    if matches!(state, State::Done(_)) && left().all(|at| !ops[at].is_sure) {
        return true;
    }
    if !tried.insert((happened, state)) {
        return false;
    }
    // A call that ended before another one began happened before it.
    let first_end = left().filter(|at| ops[*at].is_sure).map(|at| ops[at].end).min().unwrap_or(u64::MAX);
    // Of those that are alike and may never have happened, the one that began first will do.
    let is_first = |at: &usize| {
        ops[*at].is_sure
            || !left().any(|other| other < *at && !ops[other].is_sure && ops[other].what == ops[*at].what)
    };
    left().filter(|at| ops[*at].begin <= first_end).filter(is_first).any(|at| {
        next(state, ops[at].what).is_some_and(|state| search(ops, happened | 1 << at, state, tried))
    })
}
