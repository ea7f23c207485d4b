//! The value of each layout of busy instances on one GPU: the compute slices of work that it will accept, relative to
//! others.
//!
//! The values are those of the exact optimum of one GPU ([`crate::Optimum`]), for the requested mix at a low and at a high load. No load is known here,
//! and a layout that is good at both loses little at any between them. They choose the place on a GPU; between GPUs, `room` decides
//! (docs/adr/0070).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Table;
use crate::optimum::{Busy, Chain, all_states, places, rates, with};

/// Requested compute slices as a part of all. `tests/one_gpu.rs` shows what that reaches at 0.5 to 0.9.
const LOADS: [f64; 2] = [0.2, 1.0];

/// Values of this precision decide as exact ones do.
const ENOUGH: f64 = 1e-5;

/// A mix is rounded to parts of this, so that one more request does not make all values new.
const PARTS: f64 = 64.0;

/// Solved mixes that are remembered. A fleet has some tables, and each its mix of the hour.
const REMEMBERED: usize = 64;

/// For each layout of a table, its free places: their units, and what is lost if an instance is busy there, in compute slices.
#[derive(Debug, PartialEq)]
pub(crate) struct Layouts(BTreeMap<Busy, Vec<(u32, f64)>>);

/// Positions of profiles, and their parts of the mix, in whole numbers.
type Mix = Vec<(usize, f64)>;

struct Solved {
    table: Arc<Table>,
    mix: Mix,
    layouts: Arc<Layouts>,
}

/// Solving takes milliseconds, and a round of the scheduler microseconds. The last used is the last one.
static SOLVED: Mutex<Vec<Solved>> = Mutex::new(Vec::new());

impl Layouts {
    /// The values for profiles that are requested as often as `weights` says, by position.
    pub(crate) fn of(table: &Arc<Table>, weights: &[f64]) -> Arc<Self> {
        let mix = mix(table, weights);
        let mut solved = SOLVED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = solved.iter().position(|known| known.mix == mix && known.table == *table) {
            let found = solved.remove(at);
            let layouts = Arc::clone(&found.layouts);
            solved.push(found);
            return layouts;
        }
        if solved.len() == REMEMBERED {
            solved.remove(0);
        }
        let layouts = Arc::new(Self::solve(table, &mix));
        solved.push(Solved { table: Arc::clone(table), mix, layouts: Arc::clone(&layouts) });
        layouts
    }

    fn solve(table: &Table, mix: &[(usize, f64)]) -> Self {
        let states = all_states(table);
        let mut values = vec![0.0; states.len()];
        for load in LOADS {
            let (solved, _) = Chain::new(table, &states, rates(table, mix, load)).solve(ENOUGH);
            values.iter_mut().zip(solved).for_each(|(value, more)| *value += more / LOADS.len() as f64);
        }
        let costs = |(busy, state): (&Busy, &usize)| {
            let after = |units: u32| Some((units, values[*state] - values[*states.get(&with(busy, units))?]));
            let taken = busy.iter().fold(0, |taken, units| taken | units);
            let all = places(table).map(|(profile, start)| table.units_at(profile, start));
            let free: BTreeSet<u32> = all.filter(|units| units & taken == 0).collect();
            (busy.clone(), free.into_iter().filter_map(after).collect())
        };
        Self(states.iter().map(costs).collect())
    }

    /// The costs of the places that are free next to these busy ones; none if this table does not have the layout.
    pub(crate) fn costs(&self, busy: &Busy) -> &[(u32, f64)] {
        self.0.get(busy).map_or(&[], Vec::as_slice)
    }
}

fn mix(table: &Table, weights: &[f64]) -> Mix {
    let requested: Vec<usize> = table.plain().filter(|at| weights[*at] > 0.0).collect();
    let sum: f64 = requested.iter().map(|at| weights[*at]).sum();
    // Every profile that is requested at all counts.
    requested.into_iter().map(|at| (at, (weights[at] / sum * PARTS).round().max(1.0))).collect()
}
