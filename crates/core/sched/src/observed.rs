//! The observed demand so far, from which [`Snapshot::expected`](crate::Snapshot::expected) is derived.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::{Demand, Mix};

/// The number of tasks from which their counts predict future ones.
const ENOUGH: u32 = 100;
/// At this number all counts are halved: what came lately counts most.
const HALVED_AT: u32 = 1000;
/// Demands that come next to never are left out, as in the FGD paper: the others must make up this part, in percent.
const TYPICAL_PERCENT: u32 = 95;
/// Most demands in a mix. Working out what they mean takes longer the more there are.
const TYPICAL: usize = 64;

/// The frequency of each demand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed(Vec<(Demand, u32)>);

impl Observed {
    /// Counts one task.
    pub fn count(&mut self, demand: &Demand) {
        match self.0.iter_mut().find(|(known, _)| known == demand) {
            Some((_, count)) => *count += 1,
            None => self.0.push((demand.clone(), 1)),
        }
        if self.total() >= HALVED_AT {
            self.0.iter_mut().for_each(|(_, count)| *count /= 2);
            self.0.retain(|(_, count)| *count > 0);
        }
    }

    /// The expected demand: typical demands, the most frequent first; nothing while too few tasks have been counted.
    #[must_use]
    pub fn mix(&self) -> Mix {
        if self.total() < ENOUGH {
            return Mix::new();
        }
        let mut mix = self.0.clone();
        mix.sort_by_key(|(_, count)| Reverse(*count));
        let (mut covered, enough) = (0, self.total() * TYPICAL_PERCENT / 100);
        let typical = mix.iter().take_while(|(_, count)| {
            let more = covered < enough;
            covered += count;
            more
        });
        let typical = typical.count().min(TYPICAL);
        mix.truncate(typical);
        mix
    }

    fn total(&self) -> u32 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use cantle_model::{ComputeMode, GpuRequest, Isolation, Milli};

    use super::*;
    use crate::{GpuDemand, Host};

    fn part(milli: u32) -> Demand {
        let ask =
            GpuDemand::Part { request: GpuRequest::Fraction(Milli(milli).into()), devices: 1, compute: None };
        Demand {
            gpus: ask,
            models: Vec::new(),
            pools: Vec::new(),
            used_up: Vec::new(),
            host: Host::default(),
            isolation: Isolation::Any,
            compute: ComputeMode::Even,
        }
    }

    fn counted(demands: impl IntoIterator<Item = u32>) -> Observed {
        let mut observed = Observed::default();
        demands.into_iter().for_each(|milli| observed.count(&part(milli)));
        observed
    }

    #[test]
    fn nothing_is_known_before_enough_were_counted() {
        assert_eq!(counted([500; 99]).mix(), Mix::new());
        assert_eq!(counted([500; 100]).mix(), [(part(500), 100)]);
    }

    #[test]
    fn rare_demands_are_left_out() {
        let observed = counted((0..200).map(|n| if n % 50 == 0 { 100 + n } else { 300 + n % 2 }));
        assert_eq!(observed.mix(), [(part(301), 100), (part(300), 96)]);
        assert_eq!(counted(1..=900).mix().len(), TYPICAL, "even if all are rare");
    }

    #[test]
    fn what_came_lately_counts_most() {
        let observed = counted([250; 999].into_iter().chain([500; 1500]));
        let mix = observed.mix();
        assert_eq!(mix[0].0, part(500));
        assert!(mix[0].1 > 5 * mix.get(1).map_or(0, |(_, count)| *count), "{mix:?}");
        let text = serde_json::to_string(&observed).unwrap();
        assert_eq!(serde_json::from_str::<Observed>(&text).unwrap(), observed);
    }
}
