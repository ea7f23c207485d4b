//! Quotas of pools: what a place takes of each pool, and which pools a task may have no more of.

use cantle_model::PoolQuota;

use super::accounts::Accounts;
use crate::search::evict::Claimant;
use crate::{Amounts, Cluster, Place, PoolMilli, Shape, UsedPool};

/// Adds `other` to `sum`.
pub(crate) fn add(sum: &mut PoolMilli, other: &PoolMilli) {
    for (pool, milli) in other {
        *sum.entry(pool.clone()).or_default() += milli;
    }
}

/// Takes `other` from `sum`, never below zero.
pub(crate) fn take(sum: &mut PoolMilli, other: &PoolMilli) {
    for (pool, milli) in other {
        let left = sum.entry(pool.clone()).or_default();
        *left = left.saturating_sub(*milli);
    }
}

impl Cluster {
    /// The thousandths that a place takes of each pool.
    pub(crate) fn in_pools(&self, place: &Place) -> PoolMilli {
        let mut sums = PoolMilli::new();
        for (gpu, cut) in &place.gpus {
            for pool in &self.classes()[self.node(place.node).gpus[*gpu].class].pools {
                *sums.entry(pool.clone()).or_default() += u64::from(cut.milli.0);
            }
        }
        sums
    }

    /// The most that `shape` could take of each pool.
    pub(crate) fn most_in_pools(&self, shape: &Shape) -> PoolMilli {
        let mut most = PoolMilli::new();
        for class in shape.classes() {
            let milli = shape.share(class).map_or(0, |cut| u64::from(cut.milli.0));
            for pool in &self.classes()[class].pools {
                let known = most.entry(pool.clone()).or_default();
                *known = (*known).max(milli * u64::from(shape.devices().1));
            }
        }
        most
    }
}

impl Accounts {
    /// The pools of which `project` and those above it may not have as much more as `asked`.
    pub(crate) fn used_up(&self, project: usize, asked: &PoolMilli, for_good: bool) -> Vec<UsedPool> {
        let mut found = Vec::new();
        for account in self.path(project).into_iter().map(|at| self.account(at)) {
            for (pool, PoolQuota { deserved, limit }) in &account.by_pool {
                let asked = asked.get(pool).copied().unwrap_or(0);
                let of = |sums: &PoolMilli| sums.get(pool).copied().unwrap_or(0);
                let rules = [
                    (*limit, of(&account.in_pools), false),
                    (for_good.then_some(*deserved), of(&account.in_pools_for_good), true),
                ];
                for (most, held, for_good) in rules {
                    if let Some(most) = most.filter(|most| asked > 0 && held.saturating_add(asked) > *most) {
                        let (project, pool) = (account.name.clone(), pool.clone());
                        found.push(UsedPool { project, pool, held, most, asked, for_good });
                    }
                }
            }
        }
        found
    }

    /// Counts what a task that runs holds of pools.
    pub(crate) fn hold_in(&mut self, project: usize, in_pools: &PoolMilli, for_good: bool) {
        if in_pools.is_empty() {
            return;
        }
        for at in self.path(project) {
            let account = self.account_mut(at);
            add(&mut account.in_pools, in_pools);
            if for_good {
                add(&mut account.in_pools_for_good, in_pools);
            }
        }
    }

    /// Takes back what [`Self::hold_in`] counted of a task that can be taken back.
    pub(crate) fn release_in(&mut self, project: usize, in_pools: &PoolMilli) {
        if in_pools.is_empty() {
            return;
        }
        for at in self.path(project) {
            take(&mut self.account_mut(at).in_pools, in_pools);
        }
    }

    /// As [`Self::may_lose`], with quotas of pools. They guarantee in two ways: a project keeps what it holds of a pool as
    /// long as that is within its quota of it, and gets it back from those that have more of the pool than theirs. It
    /// must be within its quota of all GPUs then, so that nobody can take that back from it in turn.
    pub(crate) fn may_lose_of(
        &self,
        victim: usize,
        amounts: Amounts,
        in_pools: &PoolMilli,
        claimant: &Claimant<'_>,
    ) -> bool {
        let may_lose = self.may_lose(victim, amounts, claimant);
        if in_pools.is_empty() {
            return may_lose;
        }
        let (theirs, ours) = (self.path(victim), self.path(claimant.project));
        let without = |path: &[usize], other: &[usize]| -> Vec<usize> {
            path.iter().filter(|at| !other.contains(at)).copied().collect()
        };
        let (theirs, ours) = (without(&theirs, &ours), without(&ours, &theirs));
        if self.is_guaranteed(&theirs, in_pools) {
            return false;
        }
        may_lose
            || self.is_within_quota(&ours, claimant.wanted)
                && self.may_lose_pool(&theirs, in_pools, &ours, claimant.in_pools)
    }

    fn quota_of(&self, at: usize, pool: &str) -> u64 {
        self.account(at).by_pool.get(pool).map_or(0, |quota| quota.deserved)
    }

    fn held_of(&self, at: usize, pool: &str) -> u64 {
        self.account(at).in_pools.get(pool).copied().unwrap_or(0)
    }

    /// Does a project of the path hold no more of one of these pools than is guaranteed to it?
    fn is_guaranteed(&self, path: &[usize], in_pools: &PoolMilli) -> bool {
        let guaranteed = |at: usize, pool: &str| {
            let quota = self.quota_of(at, pool);
            quota > 0 && self.held_of(at, pool) <= quota
        };
        path.iter().any(|&at| in_pools.keys().any(|pool| guaranteed(at, pool)))
    }

    /// Is there a pool of which `ours` stays within its quota with `wanted` more, and `theirs` has more than its own?
    /// Compared where the paths part.
    fn may_lose_pool(
        &self,
        theirs: &[usize],
        in_pools: &PoolMilli,
        ours: &[usize],
        wanted: &PoolMilli,
    ) -> bool {
        let Some(&ours) = ours.last() else { return false };
        in_pools.keys().any(|pool| {
            let Some(wanted) = wanted.get(pool) else { return false };
            let over = |&at: &usize| self.held_of(at, pool) > self.quota_of(at, pool);
            self.held_of(ours, pool) + wanted <= self.quota_of(ours, pool) && theirs.last().is_none_or(over)
        })
    }
}
