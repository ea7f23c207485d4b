//! The capacity that the cluster lacks for tasks that find no room. It is worked out once for each shape, at the end of
//! a round: tasks of one shape lack the same, and what is free only falls in a round.

use std::collections::BTreeMap;

use crate::fair::accounts::Accounts;
use crate::search::evict::Claimant;
use crate::search::turns::Position;
use crate::search::victims::{Bar, Victims};
use crate::shape::group::Group;
use crate::{Amounts, Cluster, Demand, HeldBy, HeldQuota, Host, Policy, PoolMilli, Reason, Shape};

/// Tasks about which the cluster gives the same answer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    shape: Shape,
    /// The classes of GPUs that the pools of the task allow.
    allowed: Vec<bool>,
    gang: bool,
}

/// Tasks about which the accounts give the same answer.
type Claim = (usize, i32, Shape, [u64; 3]);

/// The capacity that tasks lack; the reasons of the plan without it are incomplete.
#[derive(Default)]
pub(crate) struct Lacks {
    cases: BTreeMap<Case, (Demand, Option<Reason>)>,
    claims: BTreeMap<Claim, (PoolMilli, Option<HeldQuota>)>,
    of: BTreeMap<Position, (Case, Option<Claim>)>,
}

impl Lacks {
    /// Notes that a group finds no room. With `priority`, its project is within its quota, and nothing could be preempted.
    pub(crate) fn note(&mut self, cluster: &Cluster, group: &Group, priority: Option<i32>) {
        let allowed = cluster.classes().iter().map(|class| {
            class.is_allowed(&group.demand.pools)
                && !group.demand.used_up.iter().any(|pool| class.pools.contains(pool))
        });
        let shape = group.shapes[0].clone();
        let case = Case { shape, allowed: allowed.collect(), gang: group.shapes.len() > 1 };
        if !self.cases.contains_key(&case) {
            self.cases.insert(case.clone(), (group.demand.clone(), None));
        }
        let claim = priority.map(|priority| (group.project, priority, case.shape.clone(), group.amounts.0));
        if let Some(claim) = claim.clone().filter(|claim| !self.claims.contains_key(claim)) {
            self.claims.insert(claim, (group.in_pools.clone(), None));
        }
        for member in &group.members {
            self.of.insert(*member, (case.clone(), claim.clone()));
        }
    }

    /// Works out what is lacking now.
    pub(crate) fn explain(
        &mut self,
        cluster: &Cluster,
        accounts: &mut Accounts,
        victims: Option<&Victims>,
        policy: &Policy,
    ) {
        for (case, (demand, found)) in &mut self.cases {
            *found = Some(lack(cluster, case, demand));
        }
        for ((project, priority, shape, wanted), (in_pools, found)) in &mut self.claims {
            let claimant = Claimant {
                project: *project,
                priority: *priority,
                wanted: Amounts(*wanted),
                in_pools,
                moves: false,
                shares_only: false,
            };
            let by = victims.filter(|_| policy.reclaim).map(|victims| {
                let possible = victims.possible(accounts, &claimant);
                holders(cluster, victims, &possible, &claimant, shape)
            });
            let claim = accounts.quota_of_gpus(*project).map(|(name, held, quota)| HeldQuota {
                project: name.to_owned(),
                held,
                quota,
                by: by.unwrap_or_default(),
                reclaim: policy.reclaim,
            });
            // If no other project holds GPUs that would suffice, it does not wait for its quota.
            *found = claim.filter(|claim| !claim.reclaim || !claim.by.is_empty());
        }
    }

    /// The reason with what was worked out.
    pub(crate) fn in_full(&self, position: Position, reason: Reason) -> Reason {
        let Reason::NoRoom { needs, free, more, in_use, share, quota, pools } = reason else { return reason };
        let known = self.of.get(&position);
        let found = known.and_then(|(case, _)| self.cases.get(case)?.1.clone());
        let claim = known.and_then(|(_, claim)| self.claims.get(claim.as_ref()?)?.1.clone());
        let (free, more, in_use) = match found {
            Some(Reason::NoHost { cpu_milli, memory_bytes, .. }) => {
                return Reason::NoHost { needs, cpu_milli, memory_bytes };
            }
            Some(Reason::NoRoom { free, more, in_use, .. }) => (free, more, in_use),
            _ => (free, more, in_use),
        };
        Reason::NoRoom { needs, free, more, in_use, share, quota: claim.map(Box::new).or(quota), pools }
    }
}

fn lack(cluster: &Cluster, case: &Case, demand: &Demand) -> Reason {
    let needs = String::new();
    let gpus_alone = Demand { host: Host::default(), ..demand.clone() };
    if !case.gang && cluster.has_room(&cluster.shape(&gpus_alone)) {
        let Host { cpu_milli, memory_bytes } = demand.host;
        return Reason::NoHost { needs, cpu_milli, memory_bytes };
    }
    let (free, more) = cluster.free_parts(&case.shape);
    let in_use = cluster.in_use(&case.allowed);
    Reason::NoRoom { needs, free, more, in_use, share: None, quota: None, pools: Vec::new() }
}

/// The holders of the GPUs that would do, in thousandths of a GPU, apart from the claimant's own project.
fn holders(
    cluster: &Cluster,
    victims: &Victims,
    possible: &[bool],
    claimant: &Claimant<'_>,
    shape: &Shape,
) -> Vec<(HeldBy, u64)> {
    let mut sums: BTreeMap<HeldBy, u64> = BTreeMap::new();
    for unit in victims.units.iter().filter(|unit| unit.project != claimant.project) {
        let gpus =
            unit.places.iter().flat_map(|place| place.gpus.iter().map(|(gpu, cut)| (place.node, *gpu, cut)));
        let would_do =
            gpus.filter(|(node, gpu, _)| shape.share(cluster.node(*node).gpus[*gpu].class).is_some());
        let milli: u64 = would_do.map(|(.., cut)| u64::from(cut.milli.0)).sum();
        let by = match unit.bar {
            Some(Bar::Stopping) => continue,
            Some(Bar::NotPreemptible) => HeldBy::NotPreemptible,
            Some(Bar::MinimumTime) => HeldBy::MinimumTime,
            None if !possible[unit.kind] => HeldBy::WithinQuota,
            None => HeldBy::Preemptible,
        };
        *sums.entry(by).or_default() += milli;
    }
    sums.into_iter().filter(|(_, milli)| *milli > 0).collect()
}
