//! Sets of units whose end makes room on one node.

use std::collections::BTreeSet;

use super::binpack::choose;
use super::evict::{Attempt, Offer, UNITS};
use super::victims::{Cost, Victims};
use crate::shape::cut::rivals;
use crate::{Cut, GpuFree, Shape};

impl Attempt<'_> {
    /// All sets of units whose end makes room for `shape` on a node, none of which contains another one.
    pub(crate) fn sets_on(&mut self, shape: &Shape, node: usize, offers: &mut Vec<Offer>) {
        let mut units = self.victims.on_node(node);
        units.retain(|&unit| self.may(unit));
        units.truncate(UNITS);
        let free = self.cluster.node(node);
        let fits =
            |units: &[usize]| choose(&self.victims.without(free, node, units), shape, |_, _| ()).is_some();
        let mut steps = self.steps;
        // Depth first: the chosen ones, and the position of the next.
        let mut stack = vec![(Vec::new(), 0)];
        let mut found: Vec<Vec<usize>> = Vec::new();
        while let Some((chosen, next)) = stack.pop() {
            if steps == 0 {
                break;
            }
            steps -= 1;
            if fits(&chosen) {
                let needed = |at: usize| {
                    let without: Vec<usize> = [&chosen[..at], &chosen[at + 1..]].concat();
                    !fits(&without)
                };
                if (0..chosen.len()).all(needed) {
                    found.push(chosen);
                }
                continue;
            }
            if next == units.len() || !fits(&[&chosen, &units[next..]].concat()) {
                continue;
            }
            stack.push((chosen.clone(), next + 1));
            stack.push(([chosen, vec![units[next]]].concat(), next + 1));
        }
        self.steps = steps;
        offers
            .extend(found.into_iter().map(|units| (self.victims.cost_of(&units), units.len(), node, units)));
    }

    /// The cheapest units whose end makes room for `shape` on a node, apart from those that were refused; empty if there is
    /// room.
    pub(crate) fn cheapest_on(
        &self,
        shape: &Shape,
        node: usize,
        refused: &BTreeSet<usize>,
    ) -> Option<Vec<usize>> {
        let free = self.cluster.node(node);
        let victims = &self.victims;
        let may = |unit: usize| !refused.contains(&unit) && self.may(unit);
        let mut gpus: Vec<(Cost, usize, Vec<usize>)> = Vec::new();
        for (at, gpu) in free.gpus.iter().enumerate() {
            let Some(share) = shape.share(gpu.class) else { continue };
            let mut candidates: Vec<usize> =
                if gpu.fits(share) { Vec::new() } else { victims.on_gpu[node][at].clone() };
            candidates.retain(|unit| may(*unit));
            candidates.sort_unstable_by_key(|&unit| (victims.units[unit].cost, unit));
            // In MIG mode each place has others in its way.
            let cuts = if gpu.fits(share) { vec![share] } else { gpu.places(share) };
            let enough = |cut| {
                let mut in_the_way = candidates.clone();
                in_the_way.retain(|&unit| {
                    cut == share || victims.units[unit].on(node, at).any(|held| rivals(gpu, cut, held))
                });
                victims.enough(gpu, cut, node, at, in_the_way)
            };
            let offers =
                cuts.into_iter().filter_map(enough).map(|units| (victims.cost_of(&units), at, units));
            gpus.extend(offers.min_by_key(|(cost, _, units)| (cost.0, units.len(), cost.1)));
        }
        let wanted = shape.devices().0 as usize;
        if gpus.len() < wanted {
            return None;
        }
        gpus.sort_unstable_by_key(|(cost, at, units)| (*cost, units.len(), *at));
        let mut units: Vec<usize> = gpus.into_iter().take(wanted).flat_map(|(_, _, units)| units).collect();
        units.sort_unstable();
        units.dedup();
        units.sort_by_key(|&unit| victims.units[unit].cost);
        if choose(&victims.without(free, node, &units), shape, |_, _| ()).is_some() {
            return Some(units);
        }
        // GPUs have room, the host has not: stop more on the node, the cheapest first.
        let mut more = victims.on_node(node);
        more.retain(|unit| !units.contains(unit) && may(*unit));
        for unit in more {
            units.push(unit);
            if choose(&victims.without(free, node, &units), shape, |_, _| ()).is_some() {
                return Some(units);
            }
        }
        None
    }
}

impl Victims {
    /// The first of `candidates` (cheapest first) that make room on one GPU, without those that then prove needless.
    fn enough(
        &self,
        gpu: &GpuFree,
        share: Cut,
        node: usize,
        at: usize,
        candidates: Vec<usize>,
    ) -> Option<Vec<usize>> {
        let fits = |units: &[usize]| {
            let mut free = gpu.clone();
            units.iter().flat_map(|&unit| self.units[unit].on(node, at)).for_each(|held| free.put_back(held));
            free.fits(share)
        };
        let mut units = Vec::new();
        let mut rest = candidates.into_iter();
        while !fits(&units) {
            units.push(rest.next()?);
        }
        for drop in (0..units.len()).rev() {
            let fewer: Vec<usize> =
                units.iter().enumerate().filter(|(i, _)| *i != drop).map(|(_, u)| *u).collect();
            if fits(&fewer) {
                units = fewer;
            }
        }
        Some(units)
    }
}
