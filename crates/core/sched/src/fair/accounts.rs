//! The project tree, with each project's use, demand and fair share.

use std::collections::BTreeMap;

use cantle_model::PoolQuota;

use super::fairshare::{Claim, divide};
use crate::search::evict::Claimant;
use crate::{Amounts, PoolMilli, Project, Quota, RESOURCES, Resource, UsedShare};

/// Position of the root, which is the cluster.
pub(crate) const ROOT: usize = 0;

/// One project, or the root.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) name: String,
    parent: usize,
    children: Vec<usize>,
    priority: i32,
    quotas: [Quota; 3],
    usage_ppm: u32,
    pub(crate) min_run_ms: i64,
    /// Held by it and those below it.
    held: Amounts,
    /// The part of it that cannot be taken back.
    held_for_good: Amounts,
    /// Held and waited for.
    requested: Amounts,
    fair: Amounts,
    deserved: Amounts,
    pub(crate) by_pool: BTreeMap<String, PoolQuota>,
    /// The part of what is held that is on GPUs of each pool.
    pub(crate) in_pools: PoolMilli,
    /// The part of that which cannot be taken back.
    pub(crate) in_pools_for_good: PoolMilli,
}

/// The tree. Position 0 is the root; tasks without a known project belong to it directly.
#[derive(Clone, Debug)]
pub(crate) struct Accounts {
    accounts: Vec<Account>,
    by_name: BTreeMap<String, usize>,
}

/// A project's part of the GPUs, in thousandths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuShare {
    /// The project.
    pub project: String,
    /// Held by its tasks and those of projects below it.
    pub held_milli: u64,
    /// Held and waited for.
    pub requested_milli: u64,
    /// Guaranteed.
    pub deserved_milli: u64,
    /// The fair share at the moment, given all demands.
    pub fair_milli: u64,
    /// Never more than this.
    pub limit_milli: Option<u64>,
}

/// A quota that a task would break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) project: String,
    pub(crate) resource: Resource,
    pub(crate) most: u64,
    pub(crate) held: u64,
    /// The demand of the task.
    pub(crate) asked: u64,
}

impl Accounts {
    /// A tree without holdings. A project whose parent is unknown (or below itself) is at the top.
    pub(crate) fn new(projects: &[Project], capacity: Amounts) -> Self {
        let everything = Quota { deserved: None, limit: None, weight: 1 };
        let mut accounts = vec![Account::new("", 0, [everything; 3], 0, 0)];
        let mut by_name = BTreeMap::new();
        for project in projects {
            by_name.insert(project.name.clone(), accounts.len());
            let (usage, min_run_ms) = (project.usage_ppm, project.min_run_ms);
            let mut account =
                Account::new(&project.name, project.priority, project.quotas, usage, min_run_ms);
            account.by_pool.clone_from(&project.by_pool);
            accounts.push(account);
        }
        accounts[ROOT].fair = capacity;
        accounts[ROOT].deserved = capacity;
        let mut tree = Self { accounts, by_name };
        for project in projects {
            let at = tree.by_name[&project.name];
            let parent = project.parent.as_ref().and_then(|name| tree.by_name.get(name)).copied();
            let parent = parent.filter(|parent| !tree.path(*parent).contains(&at)).unwrap_or(ROOT);
            tree.accounts[at].parent = parent;
        }
        for at in 1..tree.accounts.len() {
            let parent = tree.accounts[at].parent;
            tree.accounts[parent].children.push(at);
        }
        tree
    }

    /// Number of accounts, the root included.
    pub(crate) const fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Position of a project; the root if it is unknown.
    pub(crate) fn position(&self, project: Option<&str>) -> usize {
        project.and_then(|name| self.by_name.get(name)).copied().unwrap_or(ROOT)
    }

    pub(crate) fn account(&self, at: usize) -> &Account {
        &self.accounts[at]
    }

    pub(crate) fn account_mut(&mut self, at: usize) -> &mut Account {
        &mut self.accounts[at]
    }

    /// The project and those above it, without the root.
    pub(crate) fn path(&self, mut at: usize) -> Vec<usize> {
        let mut path = Vec::new();
        while at != ROOT {
            path.push(at);
            at = self.accounts[at].parent;
        }
        path
    }

    /// The number of projects that are above, or are, both.
    pub(crate) fn shared(&self, one: usize, other: usize) -> usize {
        if one == other {
            return usize::MAX;
        }
        let (one, other) = (self.path(one), self.path(other));
        one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count()
    }

    /// Counts a task that waits.
    pub(crate) fn request(&mut self, project: usize, amounts: Amounts) {
        for at in self.path(project) {
            self.accounts[at].requested = self.accounts[at].requested.plus(amounts);
        }
    }

    /// Counts a task that runs.
    pub(crate) fn hold(&mut self, project: usize, amounts: Amounts, for_good: bool) {
        for at in self.path(project) {
            let account = &mut self.accounts[at];
            account.held = account.held.plus(amounts);
            if for_good {
                account.held_for_good = account.held_for_good.plus(amounts);
            }
        }
    }

    /// Takes back what [`Self::hold`] counted of a task that can be taken back.
    pub(crate) fn release(&mut self, project: usize, amounts: Amounts) {
        for at in self.path(project) {
            self.accounts[at].held = self.accounts[at].held.minus(amounts);
        }
    }

    /// Works out deserved and fair shares, level by level from the top. `requested` must be complete.
    pub(crate) fn share_out(&mut self, gpu_unit: u64, usage_weight_percent: u32) {
        let mut level = vec![ROOT];
        while let Some(at) = level.pop() {
            let children = self.accounts[at].children.clone();
            for resource in 0..RESOURCES.len() {
                let total = self.accounts[at].fair.0[resource];
                let claims: Vec<Claim> =
                    children.iter().map(|&c| self.accounts[c].claim(resource, total)).collect();
                let unit = if resource == 0 { gpu_unit } else { 1 };
                let fair = divide(total, &claims, unit, usage_weight_percent);
                for ((&child, claim), fair) in children.iter().zip(&claims).zip(fair) {
                    self.accounts[child].fair.0[resource] = fair;
                    self.accounts[child].deserved.0[resource] = claim.deserved;
                }
            }
            level.extend(children);
        }
    }

    /// The first limit that `amounts` more would break, if any.
    pub(crate) fn over_limit(&self, project: usize, amounts: Amounts) -> Option<Binding> {
        let most = |account: &Account, resource: usize| account.quotas[resource].limit;
        self.binding(project, amounts, |account| account.held, most)
    }

    /// The first quota that `amounts` more for good would break, if any.
    pub(crate) fn over_quota_for_good(&self, project: usize, amounts: Amounts) -> Option<Binding> {
        let most = |account: &Account, resource: usize| Some(account.deserved.0[resource]);
        self.binding(project, amounts, |account| account.held_for_good, most)
    }

    fn binding(
        &self,
        project: usize,
        amounts: Amounts,
        held: impl Fn(&Account) -> Amounts,
        most: impl Fn(&Account, usize) -> Option<u64>,
    ) -> Option<Binding> {
        for at in self.path(project) {
            let account = &self.accounts[at];
            for (resource, name) in RESOURCES.into_iter().enumerate() {
                let (held, asked) = (held(account).0[resource], amounts.0[resource]);
                let Some(most) = most(account, resource) else { continue };
                if asked > 0 && held.saturating_add(asked) > most {
                    return Some(Binding {
                        project: account.name.clone(),
                        resource: name,
                        most,
                        held,
                        asked,
                    });
                }
            }
        }
        None
    }

    /// The first fair share that `amounts` more would go beyond, if any: no task is stopped for such a task, see
    /// [`Self::may_lose`].
    pub(crate) fn over_share(&self, project: usize, amounts: Amounts) -> Option<UsedShare> {
        let most = |account: &Account, resource: usize| Some(account.fair.0[resource]);
        let Binding { project, resource, most, held, .. } =
            self.binding(project, amounts, |account| account.held, most)?;
        let account = &self.accounts[self.by_name[&project]];
        let at = RESOURCES.iter().position(|known| *known == resource)?;
        let (deserved, limit) = (account.deserved.0[at], account.quotas[at].limit);
        Some(UsedShare { project, resource, held, fair: most, deserved, limit })
    }

    /// May `amounts` be taken from `victim` for `claimant`, which wants `wanted` more? Compared where their paths part:
    /// the victim's side is over what it may keep, or over its quota while the claimant's stays within its
    /// own. A claimant never takes more than its fair share.
    pub(crate) fn may_lose(&self, victim: usize, amounts: Amounts, claimant: &Claimant<'_>) -> bool {
        let Claimant { project: claimant, wanted, shares_only, .. } = *claimant;
        let (theirs, ours) = (self.path(victim), self.path(claimant));
        let parted =
            |path: &[usize], other: &[usize]| path.iter().rev().find(|at| !other.contains(at)).copied();
        // Below the point where the paths part, the claimant stays within its fair share.
        let below = ours.iter().take_while(|at| !theirs.contains(at)).map(|&at| &self.accounts[at]);
        let mut fair = below.map(|account| over(account.held.plus(wanted), account.fair, wanted).is_none());
        if claimant == ROOT || !fair.all(|fair| fair) {
            return false;
        }
        let path = theirs;
        let Some(theirs) = parted(&path, &ours) else {
            // Tasks without a project have no quota to defend; a parent's own tasks yield to its children.
            return true;
        };
        let within_quota = parted(&ours, &self.path(theirs)).is_none_or(|ours| {
            let account = &self.accounts[ours];
            over(account.held.plus(wanted), account.deserved, wanted).is_none()
        });
        // GPUs that a project holds within its quota are lost to the quota of another one only, never to a share of the
        // rest.
        let mut below = path.iter().take_while(|at| **at != theirs).map(|&at| &self.accounts[at]);
        let mut guaranteed = || below.any(|account| over(account.held, account.deserved, amounts).is_none());
        let victim = &self.accounts[theirs];
        if over(victim.held, victim.keeps(), amounts).is_some() && (within_quota || !guaranteed()) {
            return true;
        }
        within_quota && !shares_only && over(victim.held, victim.deserved, amounts).is_some()
    }

    /// Are the projects of a path within their quotas with `wanted` more?
    pub(crate) fn is_within_quota(&self, path: &[usize], wanted: Amounts) -> bool {
        let within = |&at: &usize| {
            let account = &self.accounts[at];
            over(account.held.plus(wanted), account.deserved, wanted).is_none()
        };
        path.iter().all(within)
    }

    /// The name of a project, and how much of its quota of GPUs it holds; `None` for the root.
    pub(crate) fn quota_of_gpus(&self, project: usize) -> Option<(&str, u64, u64)> {
        let account = &self.accounts[project];
        (project != ROOT).then(|| (account.name.as_str(), account.held.0[0], account.deserved.0[0]))
    }

    /// Would `wanted` in exchange for `given_up` of the same project leave it, or one above it, with more than before and
    /// more than it may keep? Then it would be taken back at once, and so on forever: a project grows beyond its share
    /// into free room only.
    pub(crate) fn grows_over_share(&self, project: usize, wanted: Amounts, given_up: Amounts) -> bool {
        self.path(project).iter().map(|&at| &self.accounts[at]).any(|account| {
            let (after, keeps) = (account.held.plus(wanted).minus(given_up), account.keeps());
            let most = Amounts(std::array::from_fn(|at| keeps.0[at].max(account.held.0[at])));
            over(after, most, wanted).is_some()
        })
    }

    /// Order in which siblings are served, the lowest first (KAI's `queue_order.go`).
    pub(crate) fn turn_key(&self, at: usize, next: Amounts) -> TurnKey {
        let account = &self.accounts[at];
        let with_next = account.held.plus(next);
        (
            over(account.held, account.fair, account.held).is_some(),
            over(with_next, account.deserved, next).is_some(),
            std::cmp::Reverse(account.priority),
            account.dominant_ppm(with_next),
            account.dominant_ppm(account.held),
            at,
        )
    }

    /// Every project's part of GPUs, in the order given.
    pub(crate) fn gpu_shares(&self) -> Vec<GpuShare> {
        let share = |account: &Account| GpuShare {
            project: account.name.clone(),
            held_milli: account.held.0[0],
            requested_milli: account.requested.0[0],
            deserved_milli: account.deserved.0[0],
            fair_milli: account.fair.0[0],
            limit_milli: account.quotas[0].limit,
        };
        self.accounts[1..].iter().map(share).collect()
    }

    pub(crate) fn children(&self, at: usize) -> &[usize] {
        &self.accounts[at].children
    }
}

/// Compared from the left: over its fair share, over quota with its next task, priority, dominant share with and
/// without the next task, the older one.
pub(crate) type TurnKey = (bool, bool, std::cmp::Reverse<i32>, u64, u64, usize);

/// The first resource of which `held` is more than `most`, among those of which `involved` has any.
fn over(held: Amounts, most: Amounts, involved: Amounts) -> Option<usize> {
    (0..RESOURCES.len()).find(|&at| involved.0[at] > 0 && held.0[at] > most.0[at])
}

impl Account {
    fn new(name: &str, priority: i32, quotas: [Quota; 3], usage_ppm: u32, min_run_ms: i64) -> Self {
        Self {
            name: name.to_owned(),
            parent: ROOT,
            children: Vec::new(),
            priority,
            quotas,
            usage_ppm,
            min_run_ms,
            held: Amounts::default(),
            held_for_good: Amounts::default(),
            requested: Amounts::default(),
            fair: Amounts::default(),
            deserved: Amounts::default(),
            by_pool: BTreeMap::new(),
            in_pools: PoolMilli::new(),
            in_pools_for_good: PoolMilli::new(),
        }
    }

    fn claim(&self, resource: usize, total: u64) -> Claim {
        let quota = self.quotas[resource];
        Claim {
            deserved: quota.deserved.unwrap_or(total),
            requestable: self.requested.0[resource].min(quota.limit.unwrap_or(u64::MAX)),
            weight: quota.weight,
            priority: self.priority,
            usage_ppm: if resource == 0 { self.usage_ppm } else { 0 },
        }
    }

    /// The amount that it may keep: its quota or its fair share, at most its limit.
    fn keeps(&self) -> Amounts {
        let keeps = |at: usize| {
            self.fair.0[at].max(self.deserved.0[at]).min(self.quotas[at].limit.unwrap_or(u64::MAX))
        };
        Amounts(std::array::from_fn(keeps))
    }

    /// The largest part of what it may keep that `held` is, in millionths.
    fn dominant_ppm(&self, held: Amounts) -> u64 {
        let keeps = self.keeps();
        let part = |at: usize| match (held.0[at], keeps.0[at]) {
            (0, _) => 0,
            (_, 0) => u64::MAX,
            (held, keeps) => {
                u64::try_from(u128::from(held) * 1_000_000 / u128::from(keeps)).unwrap_or(u64::MAX)
            }
        };
        (0..RESOURCES.len()).map(part).max().unwrap_or(0)
    }
}
