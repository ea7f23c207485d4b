//! Chooses the pods to evict so that a pod of higher priority gets its slice. kube-scheduler preempts for CPU and memory,
//! but never for claims. This module follows the same rules: it evicts only pods of lower priority, only where that helps,
//! and as few and as unimportant ones as possible. It never evicts a pod that a PodDisruptionBudget protects. Pure.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cantle_sched::Host;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Nomination, Nominator, gates, group_of, has_preferences, host_of, slice_of};
use crate::ObjectExt as _;
use crate::claim::ends_with_pod;
use crate::cluster::{ClusterView, PodSlices, ViewNode};
use crate::queues::outcome::is_unschedulable;

mod budget;

pub use budget::DisruptionBudget;

/// Nodes that are examined in detail for one pod: kube-scheduler's own number.
const MAX_CANDIDATES: usize = 100;
/// Pods that something is decided about at once.
const MAX_AT_ONCE: usize = 16;

/// The report about a pod that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preemption {
    /// These have to go from this node.
    Evict {
        /// Its request and the free capacity, as text.
        reason: String,
        /// The node.
        node: String,
        /// At least one, the least important first.
        victims: Vec<PreemptedPod>,
    },
    /// Pods that are ending leave enough room there.
    Awaited {
        /// The node.
        node: String,
    },
    /// Pods of lower priority hold enough, and PodDisruptionBudgets protect them.
    Protected,
    /// Pods of lower priority do not hold enough anywhere.
    InVain,
}

/// A pod that has to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptedPod {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
}

/// Priority of a pod, by its PriorityClass.
#[must_use]
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
}

/// Does the pod keep its gate, because it would take room that others leave for pods of higher priority? `preempting` are these: their
/// priorities, and the nodes on which the room is.
pub fn is_to_wait<'n>(
    pod: &Pod,
    nomination: Option<&Nomination>,
    preempting: impl IntoIterator<Item = (i32, &'n str)>,
) -> bool {
    let may_go_to = |node: &str| nomination.is_none_or(|nomination| nomination.node == node);
    preempting.into_iter().any(|(higher, node)| priority(pod) < higher && may_go_to(node))
}

/// May other pods have to go for this one? Only if kube-scheduler has tried it, and all that keeps it from a node is known here. How many pods
/// its group needs is not.
fn may_preempt(pod: &Pod) -> bool {
    let policy = pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref());
    let is_waiting =
        is_unschedulable(pod) && gates(pod).next().is_none() && pod.metadata.deletion_timestamp.is_none();
    is_waiting
        && slice_of(pod).is_some()
        && group_of(pod).is_none()
        && !has_preferences(pod)
        && policy != Some("Never")
}

/// A pod that has slices.
struct Holder<'a> {
    pod: &'a Pod,
    host: Host,
    is_leaving: bool,
    /// Each of its claims ends with it.
    owns_claims: bool,
    /// By the budgets' indices; none if no budget lets it go.
    budgets: Option<Vec<usize>>,
}

impl<'a> Holder<'a> {
    fn of(pod: &'a Pod, budgets: &[DisruptionBudget]) -> Self {
        let claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims).flatten();
        let matching: Vec<usize> =
            budgets.iter().enumerate().filter(|(_, budget)| budget.covers(pod)).map(|(at, _)| at).collect();
        Self {
            pod,
            host: host_of(pod),
            is_leaving: pod.metadata.deletion_timestamp.is_some(),
            owns_claims: claims.into_iter().all(ends_with_pod),
            // The API server evicts no pod that has several.
            budgets: (matching.len() <= 1).then_some(matching),
        }
    }

    /// The most important first: of higher priority, and then the older one.
    fn importance(&self) -> (Reverse<i32>, Option<Time>, Option<String>) {
        (Reverse(priority(self.pod)), self.pod.creation_timestamp(), self.pod.uid())
    }

    fn victim(&self) -> PreemptedPod {
        PreemptedPod {
            uid: self.pod.uid().unwrap_or_default(),
            namespace: self.pod.namespace().unwrap_or_default(),
            name: self.pod.name_any(),
            priority: priority(self.pod),
        }
    }
}

/// The cost of evicting these pods; the lowest is best. kube-scheduler's order.
type Cost = (i32, i64, usize, Reverse<Option<Time>>);

fn cost(victims: &[&Holder<'_>]) -> Cost {
    let priorities = || victims.iter().map(|holder| priority(holder.pod));
    let highest = priorities().max().unwrap_or(i32::MIN);
    // Each counts, also one of negative priority.
    let sum = priorities().map(|each| i64::from(each) - i64::from(i32::MIN)).sum();
    let of_highest = victims.iter().filter(|holder| priority(holder.pod) == highest);
    let oldest = of_highest.map(|holder| holder.pod.creation_timestamp()).min().flatten();
    (highest, sum, victims.len(), Reverse(oldest))
}

/// Pods that have slices, and what may be done about them.
pub struct Preemptor<'a> {
    nominator: &'a Nominator<'a>,
    holders: BTreeMap<String, Holder<'a>>,
    budgets: &'a [DisruptionBudget],
}

/// Is there a pod that others may have to go for, and a less important one that has slices?
pub fn is_asked(view: &ClusterView, placed: &[impl Borrow<Pod>], waiting: &[impl Borrow<Pod>]) -> bool {
    let having: BTreeSet<&str> = view.holdings.iter().map(|holding| holding.pod.as_str()).collect();
    let has_slices = |pod: &&Pod| pod.metadata.uid.as_deref().is_some_and(|uid| having.contains(uid));
    let lowest = placed.iter().map(Borrow::<Pod>::borrow).filter(has_slices).map(priority).min();
    let is_higher = |pod: &Pod| lowest.is_some_and(|lowest| lowest < priority(pod)) && may_preempt(pod);
    waiting.iter().map(Borrow::<Pod>::borrow).any(is_higher)
}

impl<'a> Preemptor<'a> {
    /// Of the pods that have a place, and all budgets. `leaving` are UIDs of pods that are known to end.
    pub fn new(
        nominator: &'a Nominator<'a>,
        placed: &'a [impl Borrow<Pod>],
        budgets: &'a [DisruptionBudget],
        leaving: &BTreeSet<String>,
    ) -> Self {
        let pods = placed.iter().map(Borrow::<Pod>::borrow);
        let holders = pods.filter_map(|pod| {
            let uid = pod.uid()?;
            let mut holder = Holder::of(pod, budgets);
            holder.is_leaving |= leaving.contains(&uid);
            Some((uid, holder))
        });
        Self { nominator, holders: holders.collect(), budgets }
    }

    /// The actions for the waiting pods that may preempt, by their UIDs; none for a pod that fits. The most important one
    /// first, and then what others leave. `made` are nominations that are under way.
    pub fn decide(
        &self,
        waiting: &[impl Borrow<Pod>],
        made: &BTreeMap<String, Nomination>,
    ) -> BTreeMap<String, Preemption> {
        let mut asking: Vec<&Pod> =
            waiting.iter().map(Borrow::<Pod>::borrow).filter(|pod| may_preempt(pod)).collect();
        asking.sort_by_key(|pod| (Reverse(priority(pod)), pod.creation_timestamp(), pod.uid()));
        asking.truncate(MAX_AT_ONCE);
        let mut gone = self.leaving();
        let mut left: Vec<i32> = self.budgets.iter().map(|budget| budget.allowed).collect();
        let mut others = made.clone();
        let mut decided = BTreeMap::new();
        for pod in asking {
            let Some(uid) = pod.uid() else { continue };
            others.remove(&uid);
            let mut pod = pod.clone();
            pod.status = None;
            let Some(reason) = self.nominator.lacks(&pod, &others, None) else { continue };
            let (preemption, node) = self.one(&pod, reason, &gone, &left, &others);
            if let Preemption::Evict { victims, .. } = &preemption {
                for victim in victims {
                    for at in self.holders[&victim.uid].budgets.iter().flatten() {
                        left[*at] -= 1;
                    }
                    gone.insert(victim.uid.clone());
                }
            }
            if let (Some(node), Some(slice_name)) = (node, slice_of(&pod)) {
                others.insert(uid.clone(), Nomination { node, slice_name, host: host_of(&pod) });
            }
            decided.insert(uid, preemption);
        }
        decided
    }

    /// Those that are about to end, and those that have ended and whose claims are still to be freed.
    fn leaving(&self) -> BTreeSet<String> {
        let leaving = self.holders.iter().filter(|(_, holder)| holder.is_leaving).map(|(uid, _)| uid);
        let having = self.nominator.view.holdings.iter().map(|holding| &holding.pod);
        let ended = having.filter(|uid| !uid.is_empty() && !self.holders.contains_key(*uid));
        leaving.chain(ended).cloned().collect()
    }

    fn one(
        &self,
        pod: &Pod,
        reason: String,
        gone: &BTreeSet<String>,
        left: &[i32],
        others: &BTreeMap<String, Nomination>,
    ) -> (Preemption, Option<String>) {
        let trials: Vec<Trial<'_>> =
            self.nominator.view.nodes.iter().map(|node| Trial::new(self, node, pod, others)).collect();
        if let Some(trial) = trials.iter().find(|trial| trial.fits(gone)) {
            let node = trial.node.name.clone();
            return (Preemption::Awaited { node: node.clone() }, Some(node));
        }
        let mut best: Option<(Cost, &str, Vec<&Holder<'_>>)> = None;
        let mut is_protected = false;
        let mut candidates = 0;
        // If only CPU or memory is missing, kube-scheduler itself preempts.
        for trial in trials.iter().filter(|trial| !trial.has_gpus()) {
            let lower = self.lower(trial, pod, gone);
            let Some(victims) = trial.victims(&self.allowed(&lower, left), gone) else {
                is_protected |= trial.fits(&with(gone, &lower));
                continue;
            };
            let cost = cost(&victims);
            if best.as_ref().is_none_or(|(known, ..)| cost < *known) {
                best = Some((cost, &trial.node.name, victims));
            }
            candidates += 1;
            if candidates == MAX_CANDIDATES {
                break;
            }
        }
        match best {
            Some((_, node, mut victims)) => {
                victims.reverse();
                let victims = victims.into_iter().map(Holder::victim).collect();
                (Preemption::Evict { reason, node: node.to_owned(), victims }, Some(node.to_owned()))
            }
            None if is_protected => (Preemption::Protected, None),
            None => (Preemption::InVain, None),
        }
    }

    /// Those of the node that have slices and are less important than `pod`, the most important first.
    fn lower(&self, trial: &Trial<'_>, pod: &Pod, gone: &BTreeSet<String>) -> Vec<&Holder<'a>> {
        let uids: BTreeSet<&str> = trial.holdings.iter().map(|holding| holding.pod.as_str()).collect();
        let holders =
            uids.into_iter().filter(|uid| !gone.contains(*uid)).filter_map(|uid| self.holders.get(uid));
        let mut lower: Vec<&Holder<'a>> =
            holders.filter(|holder| holder.owns_claims && priority(holder.pod) < priority(pod)).collect();
        lower.sort_by_key(|holder| holder.importance());
        lower
    }

    /// Those of them that budgets let go, which let the least important ones go first.
    fn allowed<'h>(&self, lower: &[&'h Holder<'a>], left: &[i32]) -> Vec<&'h Holder<'a>> {
        let mut left = left.to_vec();
        let mut allowed: Vec<&Holder<'a>> = Vec::new();
        for holder in lower.iter().rev() {
            let Some(budgets) = &holder.budgets else { continue };
            if budgets.iter().all(|at| left[*at] > 0) {
                budgets.iter().for_each(|at| left[*at] -= 1);
                allowed.push(holder);
            }
        }
        allowed.reverse();
        allowed
    }
}

fn with(gone: &BTreeSet<String>, more: &[&Holder<'_>]) -> BTreeSet<String> {
    gone.iter().cloned().chain(more.iter().filter_map(|holder| holder.pod.uid())).collect()
}

/// A node, and a pod that is tried on it as if others were gone.
struct Trial<'t> {
    preemptor: &'t Preemptor<'t>,
    node: &'t ViewNode,
    holdings: Vec<&'t PodSlices>,
    pod: &'t Pod,
    others: &'t BTreeMap<String, Nomination>,
}

impl<'t> Trial<'t> {
    fn new(
        preemptor: &'t Preemptor<'t>,
        node: &'t ViewNode,
        pod: &'t Pod,
        others: &'t BTreeMap<String, Nomination>,
    ) -> Self {
        let holdings = preemptor.nominator.view.holdings.iter();
        let holdings = holdings.filter(|holding| holding.node == node.name).collect();
        Self { preemptor, node, holdings, pod, others }
    }

    /// Is there room without those?
    fn fits(&self, gone: &BTreeSet<String>) -> bool {
        let free = self.preemptor.nominator.nodes.get(&self.node.name);
        let (taints, mut free) = free.cloned().unwrap_or((Vec::new(), Host::UNCOUNTED));
        let holders = gone.iter().filter_map(|uid| self.preemptor.holders.get(uid));
        let here =
            |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&self.node.name);
        for holder in holders.filter(|holder| here(holder.pod)) {
            free.cpu_milli = free.cpu_milli.saturating_add(holder.host.cpu_milli);
            free.memory_bytes = free.memory_bytes.saturating_add(holder.host.memory_bytes);
        }
        self.has_room(gone, taints, free)
    }

    /// Is there room now, CPU and memory aside?
    fn has_gpus(&self) -> bool {
        let taints = self.preemptor.nominator.nodes.get(&self.node.name).map(|(taints, _)| taints.clone());
        self.has_room(&BTreeSet::new(), taints.unwrap_or_default(), Host::UNCOUNTED)
    }

    fn has_room(&self, gone: &BTreeSet<String>, taints: Vec<Taint>, free: Host) -> bool {
        let holdings = self.holdings.iter().filter(|holding| !gone.contains(&holding.pod));
        let view = ClusterView {
            nodes: vec![self.node.clone()],
            holdings: holdings.copied().cloned().collect(),
            ..ClusterView::default()
        };
        let mut nominator = Nominator::new(&view, &[] as &[Node], &[] as &[Pod]);
        nominator.nodes.insert(self.node.name.clone(), (taints, free));
        nominator.lacks(self.pod, self.others, Some(self.node)).is_none()
    }

    /// Those of `lower` that have to go, the most important first; none if all of them would not be enough. `lower` are put back one
    /// by one, the most important first, as long as there is still room.
    fn victims<'h>(&self, lower: &[&'h Holder<'t>], gone: &BTreeSet<String>) -> Option<Vec<&'h Holder<'t>>> {
        let mut gone = with(gone, lower);
        if lower.is_empty() || !self.fits(&gone) {
            return None;
        }
        let mut victims = Vec::new();
        for holder in lower {
            let uid = holder.pod.uid()?;
            gone.remove(&uid);
            if !self.fits(&gone) {
                gone.insert(uid);
                victims.push(*holder);
            }
        }
        Some(victims)
    }
}

#[cfg(test)]
mod tests;
