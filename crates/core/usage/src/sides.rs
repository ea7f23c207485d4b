//! Which part of what runs hold is within the quotas of their projects, and which part is borrowed.
//!
//! At each moment, the quota of a project goes to its runs that cannot be stopped for others first, then to the oldest
//! ones. A run in a tree of projects with quotas is within quota as far as all of them have room. The part that no
//! quota covers is borrowed.

use std::collections::{BTreeMap, BTreeSet};

use crate::{MilliUs, Period};

/// The GPUs that a run holds, as quotas count them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Index of the run in the caller's list.
    pub run: usize,
    /// Thousandths of GPUs, of all its slices.
    pub milli: u64,
    /// It cannot be stopped for others, and so it must be within quota.
    pub is_kept: bool,
    /// When the run began. It may have held other slices since.
    pub since_us: i64,
    /// When it held these.
    pub period: Period,
    /// The projects whose quotas it counts against: its own and those above it, by index.
    pub projects: Vec<usize>,
}

/// A time during which a project was guaranteed so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantee {
    /// Index of the project.
    pub project: usize,
    /// Thousandths of GPUs.
    pub milli: u64,
    /// When.
    pub period: Period,
    /// No project above it has a quota.
    pub is_topmost: bool,
}

/// The amounts of runs that are within quota, and the amounts that projects lent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sides {
    /// By run: from when on how many of its thousandths are within quota. A run that is not here borrows all that it holds.
    pub guaranteed: BTreeMap<usize, Vec<(i64, u64)>>,
    /// By project and index of the part: what others had of its quota. Of projects in a tree only the topmost with a quota lends.
    pub lent: BTreeMap<(usize, usize), MilliUs>,
}

impl Sides {
    /// The parts of a time of a run, each with the thousandths that are within quota.
    #[must_use]
    pub fn parts(&self, run: usize, period: Period) -> Vec<(Period, u64)> {
        let steps = self.guaranteed.get(&run).map_or(&[][..], Vec::as_slice);
        let at = |us: i64| {
            let next = steps.partition_point(|(from_us, _)| *from_us <= us);
            next.checked_sub(1).map_or(0, |index| steps[index].1)
        };
        let edges = steps.iter().map(|(from_us, _)| *from_us);
        period.cut(edges).into_iter().map(|part| (part, at(part.from_us))).collect()
    }
}

/// Divides what runs held into both sides. `parts` are times in order, for what was lent; `here_milli` has the GPUs that could take
/// tasks, from these times on.
#[must_use]
pub fn sides(
    parts: &[Period],
    holdings: &[Holding],
    guarantees: &[Guarantee],
    here_milli: &[(i64, u64)],
) -> Sides {
    let mut state = State::default();
    let mut changes = changes(holdings, guarantees, here_milli);
    changes.sort_by_key(|(at_us, order, _)| (*at_us, *order));
    let mut changes = changes.into_iter().peekable();
    let mut sides = Sides::default();
    let mut parts = parts.iter().enumerate().peekable();
    while let Some((at_us, _, _)) = changes.peek().copied() {
        let mut touched = BTreeSet::new();
        while let Some((_, _, change)) = changes.next_if(|(next, ..)| *next == at_us) {
            state.apply(change, holdings, guarantees, &mut touched);
        }
        state.divide(at_us, holdings, &touched, &mut sides);
        let until = changes.peek().map_or(i64::MAX, |(next, ..)| *next);
        let lasts = Period { from_us: at_us, to_us: until };
        while let Some((index, part)) = parts.peek().copied() {
            state.lend(index, lasts.within(*part).us(), &mut sides);
            if part.to_us > until {
                break;
            }
            parts.next();
        }
    }
    sides
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Ends(usize),
    Here(u64),
    /// Index of the guarantee.
    Falls(usize),
    Rises(usize),
    Begins(usize),
}

/// In order of time; what ends makes room for what begins at the same time.
fn changes(holdings: &[Holding], guarantees: &[Guarantee], here: &[(i64, u64)]) -> Vec<(i64, u8, Happening)> {
    let mut all = Vec::with_capacity(2 * holdings.len() + 2 * guarantees.len() + here.len());
    all.extend(here.iter().map(|(at_us, milli)| (*at_us, 1, Happening::Here(*milli))));
    for (index, guarantee) in guarantees.iter().enumerate().filter(|(_, one)| one.period.us() > 0) {
        all.push((guarantee.period.from_us, 2, Happening::Rises(index)));
        all.push((guarantee.period.to_us, 1, Happening::Falls(index)));
    }
    for (index, holding) in holdings.iter().enumerate().filter(|(_, one)| one.period.us() > 0) {
        all.push((holding.period.from_us, 3, Happening::Begins(index)));
        all.push((holding.period.to_us, 0, Happening::Ends(index)));
    }
    all
}

/// A moment.
#[derive(Debug, Default)]
struct State {
    /// By project: what it is guaranteed, and whether it is the topmost one.
    deserved: BTreeMap<usize, (u64, bool)>,
    /// By topmost project, the holdings that count against it: those that are kept first, then the oldest.
    held: BTreeMap<usize, BTreeSet<(bool, i64, usize)>>,
    /// By topmost project: what of its quota its runs hold.
    used: BTreeMap<usize, u64>,
    held_milli: u64,
    here_milli: u64,
}

/// The topmost project of a holding: its tree.
fn tree(holding: &Holding) -> Option<usize> {
    holding.projects.last().copied()
}

impl State {
    fn apply(
        &mut self,
        happening: Happening,
        holdings: &[Holding],
        guarantees: &[Guarantee],
        touched: &mut BTreeSet<usize>,
    ) {
        let key = |index: usize| (!holdings[index].is_kept, holdings[index].since_us, index);
        match happening {
            Happening::Here(milli) => self.here_milli = milli,
            Happening::Rises(index) => {
                let Guarantee { project, milli, is_topmost, .. } = guarantees[index];
                self.deserved.insert(project, (milli, is_topmost));
                // A project that is not the topmost one of its tree touches all: quotas rarely change.
                touched.extend(self.held.keys());
            }
            Happening::Falls(index) => {
                self.deserved.remove(&guarantees[index].project);
                touched.extend(self.held.keys());
            }
            Happening::Begins(index) => {
                self.held_milli += holdings[index].milli;
                if let Some(tree) = tree(&holdings[index]) {
                    self.held.entry(tree).or_default().insert(key(index));
                    touched.insert(tree);
                }
            }
            Happening::Ends(index) => {
                self.held_milli -= holdings[index].milli;
                if let Some(tree) = tree(&holdings[index]) {
                    self.held.entry(tree).or_default().remove(&key(index));
                    touched.insert(tree);
                }
            }
        }
    }

    /// Gives the quotas of these trees to their runs.
    fn divide(&mut self, at_us: i64, holdings: &[Holding], trees: &BTreeSet<usize>, sides: &mut Sides) {
        for tree in trees {
            let Some(held) = self.held.get(tree) else { continue };
            let mut left: BTreeMap<usize, u64> = BTreeMap::new();
            let mut used = 0;
            for (.., index) in held {
                let holding = &holdings[*index];
                let quotas = holding
                    .projects
                    .iter()
                    .filter_map(|project| Some((*project, self.deserved.get(project)?.0)));
                let room =
                    |(project, deserved): (usize, u64)| left.get(&project).copied().unwrap_or(deserved);
                let given = quotas.clone().map(room).min().unwrap_or(0).min(holding.milli);
                for (project, deserved) in quotas {
                    *left.entry(project).or_insert(deserved) -= given;
                }
                used += given;
                let steps = sides.guaranteed.entry(holding.run).or_default();
                if steps.last().map_or(0, |(_, milli)| *milli) != given {
                    steps.push((at_us, given));
                }
            }
            self.used.insert(*tree, used);
        }
    }

    /// Runs that hold GPUs beyond quota first hold those that no project is guaranteed. The rest is lent by the
    /// projects that do not use their quota, in proportion.
    fn lend(&self, part: usize, us: u64, sides: &mut Sides) {
        let within: u64 = self.used.values().sum();
        let borrowed = self.held_milli.saturating_sub(within);
        if us == 0 || borrowed == 0 {
            return;
        }
        let tops = || self.deserved.iter().filter(|(_, (_, is_topmost))| *is_topmost);
        let promised: u64 = tops().fold(0, |sum, (_, (deserved, _))| sum.saturating_add(*deserved));
        let taken = MilliUs::from(borrowed.saturating_sub(self.here_milli.saturating_sub(promised)));
        let idle = |project: &usize, deserved: u64| {
            let used = self.used.get(project).copied().unwrap_or(0);
            MilliUs::from(deserved.min(self.here_milli).saturating_sub(used))
        };
        let all: MilliUs = tops().map(|(project, (deserved, _))| idle(project, *deserved)).sum();
        if all == 0 {
            return;
        }
        for (project, (deserved, _)) in tops() {
            let lent = taken.min(all) * MilliUs::from(us) * idle(project, *deserved) / all;
            if lent > 0 {
                *sides.lent.entry((*project, part)).or_default() += lent;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn from_to(from_us: i64, to_us: i64) -> Period {
        Period { from_us, to_us }
    }

    fn holding(run: usize, milli: u64, from_us: i64, to_us: i64, projects: &[usize]) -> Holding {
        let (period, projects) = (from_to(from_us, to_us), projects.to_vec());
        Holding { run, milli, is_kept: false, since_us: period.from_us, period, projects }
    }

    fn guarantee(project: usize, milli: u64, from_us: i64, to_us: i64, is_topmost: bool) -> Guarantee {
        Guarantee { project, milli, period: from_to(from_us, to_us), is_topmost }
    }

    #[test]
    fn a_run_changes_side_when_an_older_one_ends() {
        let holdings = [holding(0, 1000, 0, 40, &[0]), holding(1, 1000, 10, 90, &[0])];
        let quota = [guarantee(0, 1500, 0, 60, true)];
        let found = sides(&[from_to(0, 100)], &holdings, &quota, &[(0, 2000)]);
        assert_eq!(found.guaranteed[&0], [(0, 1000)]);
        // Half of it, all of it, and nothing when the quota is gone.
        assert_eq!(found.guaranteed[&1], [(10, 500), (40, 1000), (60, 0)]);
        let parts = found.parts(1, from_to(5, 50));
        assert_eq!(parts, [(from_to(5, 10), 0), (from_to(10, 40), 500), (from_to(40, 50), 1000)]);
        assert_eq!(found.parts(7, from_to(5, 50)), [(from_to(5, 50), 0)], "it borrows all");
    }

    #[test]
    fn a_run_that_is_kept_is_within_quota_before_older_ones() {
        let kept = Holding { is_kept: true, ..holding(1, 1000, 10, 50, &[0]) };
        let found = sides(
            &[from_to(0, 100)],
            &[holding(0, 500, 0, 100, &[0]), kept],
            &[guarantee(0, 1000, 0, 100, true)],
            &[(0, 2000)],
        );
        assert_eq!(found.guaranteed[&0], [(0, 500), (10, 0), (50, 500)]);
        assert_eq!(found.guaranteed[&1], [(10, 1000)]);
    }

    #[test]
    fn a_run_that_comes_back_is_as_old_as_before() {
        let back = Holding { since_us: from_to(0, 1).from_us, ..holding(0, 500, 60, 90, &[0]) };
        let holdings = [holding(0, 1000, 0, 30, &[0]), back, holding(1, 1000, 10, 90, &[0])];
        let quota = [guarantee(0, 1000, 0, 100, true)];
        let found = sides(&[from_to(0, 100)], &holdings, &quota, &[(0, 2000)]);
        assert_eq!(found.parts(0, from_to(0, 30)), [(from_to(0, 30), 1000)]);
        assert_eq!(found.parts(0, from_to(60, 90)), [(from_to(60, 90), 500)]);
        assert_eq!(found.guaranteed[&1], [(30, 1000), (60, 500)]);
    }

    #[test]
    fn all_quotas_above_a_project_have_room() {
        // Project 0 is below project 1, which guarantees less than both of its parts together.
        let holdings = [holding(0, 1000, 0, 100, &[0, 1]), holding(1, 1000, 1, 100, &[2, 1])];
        let quotas = [
            guarantee(0, 1000, 0, 100, false),
            guarantee(2, 1000, 0, 100, false),
            guarantee(1, 1500, 0, 100, true),
        ];
        let found = sides(&[from_to(0, 100)], &holdings, &quotas, &[(0, 4000)]);
        assert_eq!(
            (&found.guaranteed[&0][..], &found.guaranteed[&1][..]),
            (&[(0, 1000)][..], &[(1, 500)][..])
        );
    }

    #[test]
    fn idle_quotas_lend_what_nobody_else_has() {
        // Two projects are guaranteed 1000 and 3000 of 5000; a project without a quota holds 3000, of which 1000 are
        // guaranteed to no project.
        let holdings = [holding(0, 3000, 0, 100, &[]), holding(1, 1000, 50, 100, &[0])];
        let quotas = [guarantee(0, 1000, 0, 100, true), guarantee(1, 3000, 0, 100, true)];
        let parts = [from_to(0, 50), from_to(50, 100)];
        let found = sides(&parts, &holdings, &quotas, &[(0, 5000)]);
        let lent = |project, part| found.lent.get(&(project, part)).copied().unwrap_or(0);
        assert_eq!((lent(0, 0), lent(1, 0)), (500 * 50, 1500 * 50));
        assert_eq!((lent(0, 1), lent(1, 1)), (0, 2000 * 50), "the first one uses its quota now");
        let none = sides(&parts, &holdings, &quotas, &[(0, 9000)]);
        assert!(none.lent.is_empty(), "there was enough that nobody is guaranteed");
    }

    fn any_holding() -> impl Strategy<Value = (u64, i64, i64, bool, usize)> {
        (1..1500_u64, 0..100_i64, 1..60_i64, any::<bool>(), 0..4_usize)
    }

    proptest! {
        /// No project has more within its quota than that, no run more than it holds, and no quota lies idle while a run borrows.
        #[test]
        fn quotas_are_used_and_never_exceeded(
            holdings in prop::collection::vec(any_holding(), 0..12),
            quotas in prop::collection::vec((0..3000_u64, 0..50_i64, 1..60_i64), 3),
        ) {
            // 0 and 1 are below 2; 3 has no quota.
            let projects = |project: usize| match project { 0 | 1 => vec![project, 2], 2 => vec![2], _ => vec![] };
            let holdings: Vec<Holding> = holdings
                .into_iter()
                .enumerate()
                .map(|(run, (milli, from, length, is_kept, project))| Holding {
                    is_kept,
                    ..holding(run, milli, from, from + length, &projects(project))
                })
                .collect();
            let quotas: Vec<Guarantee> = quotas
                .into_iter()
                .enumerate()
                .map(|(project, (milli, from, length))| guarantee(project, milli, from, from + length, project == 2))
                .collect();
            let found = sides(&[from_to(0, 200)], &holdings, &quotas, &[(0, 4000)]);
            for at in 0..170 {
                let now = from_to(at, at + 1);
                let given = |one: &Holding| match one.period.within(now).us() {
                    0 => 0,
                    _ => found.parts(one.run, now)[0].1,
                };
                let is_valid = |one: &&Guarantee| one.period.within(now).us() > 0;
                for quota in quotas.iter().filter(is_valid) {
                    let of = |one: &&Holding| one.projects.contains(&quota.project);
                    let sum: u64 = holdings.iter().filter(of).map(given).sum();
                    prop_assert!(sum <= quota.milli, "{at}: {sum} of {quota:?}");
                }
                for one in holdings.iter().filter(|one| one.period.within(now).us() > 0) {
                    prop_assert!(given(one) <= one.milli);
                    let levels: Vec<_> =
                        quotas.iter().filter(is_valid).filter(|quota| one.projects.contains(&quota.project)).collect();
                    let room = levels.iter().map(|quota| {
                        let of = |one: &&Holding| one.projects.contains(&quota.project);
                        quota.milli - holdings.iter().filter(of).map(given).sum::<u64>()
                    });
                    let room = room.min().unwrap_or(0);
                    prop_assert!(given(one) == one.milli || room == 0, "{at}: {one:?} borrows while {room} is free");
                }
            }
        }
    }
}
