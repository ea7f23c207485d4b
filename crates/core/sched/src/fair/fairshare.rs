//! Divides one resource among siblings as KAI-Scheduler does (`resource_division.go`), but in thousandths of a GPU, so
//! that a queue of halves gets its halves. With `unit` 1000 it rounds as KAI does, which lends only whole GPUs over
//! quota.

/// The claim of one sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Guaranteed.
    pub(crate) deserved: u64,
    /// The demand of its running and waiting tasks, at most its limit.
    pub(crate) requestable: u64,
    /// Part of what is left over.
    pub(crate) weight: u32,
    /// Higher ones get what is left over first.
    pub(crate) priority: i32,
    /// Decayed use in millionths of capacity.
    pub(crate) usage_ppm: u32,
}

const PPM: u128 = 1_000_000;

/// The fair share of each claim. Amounts over quota are multiples of `unit`, except for a last remainder;
/// `usage_weight_percent` is the weight of past use against a claim.
pub(crate) fn divide(total: u64, claims: &[Claim], unit: u64, usage_weight_percent: u32) -> Vec<u64> {
    let mut fair: Vec<u64> = claims.iter().map(|claim| claim.deserved.min(claim.requestable)).collect();
    let mut left = total.saturating_sub(fair.iter().sum());
    let mut priorities: Vec<i32> = claims.iter().map(|claim| claim.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    priorities.dedup();
    let mut remainders = vec![0u128; claims.len()];
    for &priority in &priorities {
        let mut again = true;
        while again && left > 0 {
            let round = weights(claims, &fair, priority, usage_weight_percent);
            again = share_out(claims, &round, unit, &mut left, &mut fair, &mut remainders);
        }
        // Before a lower priority gets anything, as in KAI since October 2026.
        hand_out_rest(claims, priority, unit, &remainders, &mut left, &mut fair);
    }
    fair
}

/// Weight of each claim that wants more: its part, moved away from what it used before.
fn weights(claims: &[Claim], fair: &[u64], priority: i32, usage_weight_percent: u32) -> Vec<u128> {
    let wants = |at: usize| claims[at].priority == priority && claims[at].requestable > fair[at];
    let total: u128 = (0..claims.len()).filter(|&at| wants(at)).map(|at| u128::from(claims[at].weight)).sum();
    let weight = |at: usize| {
        if !wants(at) || total == 0 {
            return 0;
        }
        let part = u128::from(claims[at].weight) * PPM / total;
        let usage = u128::from(claims[at].usage_ppm);
        let k = u128::from(usage_weight_percent);
        (part * (100 + k)).saturating_sub(k * usage) / 100
    };
    (0..claims.len()).map(weight).collect()
}

/// One round; true if a sibling got its whole demand, so that the others may get more.
fn share_out(
    claims: &[Claim],
    weights: &[u128],
    unit: u64,
    left: &mut u64,
    fair: &mut [u64],
    remainders: &mut [u128],
) -> bool {
    let total: u128 = weights.iter().sum();
    if total == 0 {
        return false;
    }
    let (round, mut again) = (u128::from(*left), false);
    for (at, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0) {
        let wanted = claims[at].requestable - fair[at];
        let share = u64::try_from(round * weight / total).unwrap_or(u64::MAX);
        let given = if wanted <= share {
            again = true;
            wanted
        } else {
            share - share % unit
        };
        remainders[at] = round * weight * PPM / total - u128::from(given) * PPM;
        fair[at] += given;
        *left -= given;
    }
    again
}

/// The rest after rounding, one unit each: the largest remainder first, then the earlier claim.
fn hand_out_rest(
    claims: &[Claim],
    priority: i32,
    unit: u64,
    remainders: &[u128],
    left: &mut u64,
    fair: &mut [u64],
) {
    let wants = |at: &usize| claims[*at].priority == priority && claims[*at].weight > 0;
    let mut order: Vec<usize> = (0..claims.len()).filter(wants).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(remainders[at]));
    for at in order {
        let given = unit.min(*left).min(claims[at].requestable.saturating_sub(fair[at]));
        fair[at] += given;
        *left -= given;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(deserved: u64, requestable: u64, weight: u32) -> Claim {
        Claim { deserved, requestable, weight, priority: 0, usage_ppm: 0 }
    }

    #[test]
    fn quota_first_then_by_weight() {
        let claims = [claim(1500, 9000, 1), claim(1500, 9000, 1)];
        assert_eq!(divide(3000, &claims, 1, 0), [1500, 1500]);
        let claims = [claim(1000, 9000, 3), claim(1000, 9000, 1)];
        assert_eq!(divide(6000, &claims, 1, 0), [4000, 2000]);
    }

    #[test]
    fn what_one_does_not_want_goes_to_the_others() {
        let claims = [claim(2000, 500, 1), claim(1000, 9000, 1), claim(0, 700, 1)];
        assert_eq!(divide(4000, &claims, 1, 0), [500, 2800, 700]);
    }

    #[test]
    fn weight_zero_gets_its_quota_only() {
        assert_eq!(divide(4000, &[claim(1000, 9000, 0), claim(0, 1000, 1)], 1, 0), [1000, 1000]);
    }

    #[test]
    fn higher_priority_takes_what_is_left_over_first() {
        let high = Claim { priority: 1, ..claim(0, 2500, 1) };
        assert_eq!(divide(4000, &[claim(0, 9000, 1), high], 1, 0), [1500, 2500]);
    }

    #[test]
    fn thousandths_are_shared_and_kai_shares_whole_gpus() {
        let claims = [claim(0, 9000, 1), claim(0, 9000, 1)];
        assert_eq!(divide(3000, &claims, 1, 0), [1500, 1500]);
        assert_eq!(divide(3000, &claims, 1000, 0), [2000, 1000], "the older one gets the odd GPU");
    }

    #[test]
    fn the_rest_of_rounding_stays_within_its_priority() {
        let high = Claim { priority: 1, ..claim(0, 9000, 1) };
        let low = claim(0, 9000, 1);
        assert_eq!(divide(3000, &[high, high, low], 1000, 0), [2000, 1000, 0]);
        assert_eq!(divide(1000, &[high, high, high, low], 1000, 0), [1000, 0, 0, 0]);
        assert_eq!(divide(1000, &[high, high, high, low], 1, 0), [334, 333, 333, 0]);
        // The lower one still has the part that the higher one does not want.
        let modest = Claim { requestable: 1000, ..high };
        assert_eq!(divide(3000, &[modest, low], 1000, 0), [1000, 2000]);
    }

    #[test]
    fn past_use_counts_against() {
        let used = Claim { usage_ppm: 500_000, ..claim(0, 9000, 1) };
        assert_eq!(divide(4000, &[used, claim(0, 9000, 1)], 1, 0), [2000, 2000]);
        // Weights 0.5 + 1·(0.5 − 0.5) = 0.5 and 0.5 + 1·(0.5 − 0) = 1.
        let fair = divide(3000, &[used, claim(0, 9000, 1)], 1, 100);
        assert_eq!(fair, [1000, 2000]);
    }
}
