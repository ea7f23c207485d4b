//! The worth of what is left of a GPU, from the cutting-stock problem: given how often each size is requested, a
//! remainder is worth the sum of the shadow prices of the sizes that fit into it.
//!
//! Column generation after Gilmore and Gomory, "A linear programming approach to the cutting-stock problem",
//! Operations Research 9 (1961): the master problem covers the demand with the fewest GPUs, a knapsack over the
//! shadow prices finds the pattern that would improve it most.

/// Thousandths in a GPU.
const GPU: usize = 1000;
/// A pattern must be worth so much more than a GPU to be taken in.
const EPSILON: f64 = 1e-9;
/// Patterns tried at most; some dozens are enough for dozens of sizes.
const ROUNDS: usize = 1000;

/// For each remainder from 0 to 1000 thousandths: its worth in GPUs, 1 for a whole one. `demand` holds sizes in
/// thousandths (1 to 1000, each once) and how much of each is asked for (positive, any unit).
pub(crate) fn worth_of_remainders(demand: &[(u32, f64)]) -> Vec<f64> {
    if demand.is_empty() {
        return (0..=GPU).map(|left| if left == GPU { 1.0 } else { 0.0 }).collect();
    }
    let mut basis = Basis::one_pattern_per_size(demand);
    for _ in 0..ROUNDS {
        let knapsack = Knapsack::new(demand, &basis.prices());
        if knapsack.worth[GPU] <= 1.0 + EPSILON {
            return knapsack.worth;
        }
        basis.take_in(&knapsack.best_pattern(demand), 1.0);
    }
    Knapsack::new(demand, &basis.prices()).worth
}

/// The most of `demand` that `gpus` GPUs could hold, in GPUs: the optimum of the linear program over all patterns, which
/// no placement exceeds, even one that knows all tasks beforehand and may refuse any of them. `demand` holds sizes in
/// thousandths (1 to 1000, each once) and how many of each there are.
#[must_use]
pub fn allocation_bound(demand: &[(u32, f64)], gpus: f64) -> f64 {
    // One row for each size: no more of it than there is; one for the GPUs: a pattern each.
    let limits: Vec<f64> = demand.iter().map(|(_, count)| *count).chain([gpus]).collect();
    let mut basis = Basis::nothing_placed(&limits);
    let mut bound = f64::INFINITY;
    for _ in 0..ROUNDS {
        let prices = basis.prices();
        let slack = prices.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        if let Some((row, _)) = slack.filter(|(_, price)| **price < -EPSILON) {
            basis.take_in(&unit(limits.len(), row), 0.0);
            continue;
        }
        let placed = |(size, price): (&(u32, f64), &f64)| f64::from(size.0) / 1000.0 - price.max(0.0);
        let gains: Vec<f64> = demand.iter().zip(&prices).map(placed).collect();
        let knapsack = Knapsack::new(demand, &gains);
        // Weak duality: these prices, with the best pattern's gain for a GPU, bound every placement.
        let by_price: f64 = demand.iter().zip(&prices).map(|(size, price)| size.1 * price.max(0.0)).sum();
        bound = bound.min(gpus * knapsack.worth[GPU] + by_price);
        if knapsack.worth[GPU] <= prices[demand.len()] + EPSILON {
            break;
        }
        let mut pattern = knapsack.best_pattern(demand);
        let gpu_of = |(size, count): (&(u32, f64), &f64)| f64::from(size.0) / 1000.0 * count;
        let gain = demand.iter().zip(&pattern).map(gpu_of).sum();
        pattern.push(1.0);
        basis.take_in(&pattern, gain);
    }
    bound
}

fn unit(rows: usize, row: usize) -> Vec<f64> {
    (0..rows).map(|at| f64::from(u8::from(at == row))).collect()
}

/// The revised simplex method: columns in the basis by what they cost or gain, the basis' inverse, how much of each.
struct Basis {
    each: Vec<f64>,
    inverse: Vec<Vec<f64>>,
    amounts: Vec<f64>,
}

impl Basis {
    /// One pattern per size, as many of it as fit; each costs one GPU.
    fn one_pattern_per_size(demand: &[(u32, f64)]) -> Self {
        let per_gpu = |size: u32| f64::from(1000 / size);
        let row = |(at, (size, _)): (usize, &(u32, f64))| {
            unit(demand.len(), at).into_iter().map(|one| one / per_gpu(*size)).collect()
        };
        Self {
            each: vec![1.0; demand.len()],
            inverse: demand.iter().enumerate().map(row).collect(),
            amounts: demand.iter().map(|(size, asked)| asked / per_gpu(*size)).collect(),
        }
    }

    /// Every limit unused.
    fn nothing_placed(limits: &[f64]) -> Self {
        let rows = limits.len();
        let inverse = (0..rows).map(|row| unit(rows, row)).collect();
        Self { each: vec![0.0; rows], inverse, amounts: limits.to_vec() }
    }

    /// Shadow prices of the rows.
    fn prices(&self) -> Vec<f64> {
        let price =
            |row: usize| self.each.iter().zip(&self.inverse).map(|(each, line)| each * line[row]).sum();
        (0..self.inverse.len()).map(price).collect()
    }

    /// Brings a column into the basis for the one that is used up first.
    fn take_in(&mut self, column: &[f64], each: f64) {
        let times = |row: &Vec<f64>| row.iter().zip(column).map(|(a, b)| a * b).sum::<f64>();
        let direction: Vec<f64> = self.inverse.iter().map(times).collect();
        let steps = direction.iter().zip(&self.amounts).map(|(d, amount)| amount / d);
        let limited = steps.enumerate().filter(|(at, _)| direction[*at] > EPSILON);
        let Some((leaving, step)) = limited.min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        for (amount, d) in self.amounts.iter_mut().zip(&direction) {
            *amount -= step * d;
        }
        self.amounts[leaving] = step;
        self.each[leaving] = each;
        let pivot: Vec<f64> = self.inverse[leaving].iter().map(|x| x / direction[leaving]).collect();
        for (row, d) in self.inverse.iter_mut().zip(&direction) {
            for (x, p) in row.iter_mut().zip(&pivot) {
                *x -= d * p;
            }
        }
        self.inverse[leaving] = pivot;
    }
}

/// The most that fits into each remainder, by price.
struct Knapsack {
    worth: Vec<f64>,
    /// The size put in last, or none.
    last: Vec<Option<usize>>,
}

impl Knapsack {
    fn new(demand: &[(u32, f64)], prices: &[f64]) -> Self {
        let (mut worth, mut last) = (vec![0.0; GPU + 1], vec![None; GPU + 1]);
        for left in 1..=GPU {
            worth[left] = worth[left - 1];
            for (at, &(size, _)) in demand.iter().enumerate() {
                let Some(rest) = left.checked_sub(size as usize) else { continue };
                if worth[rest] + prices[at] > worth[left] + EPSILON {
                    worth[left] = worth[rest] + prices[at];
                    last[left] = Some(at);
                }
            }
        }
        Self { worth, last }
    }

    /// How many of each size the best filling of a whole GPU has.
    fn best_pattern(&self, demand: &[(u32, f64)]) -> Vec<f64> {
        let mut pattern = vec![0.0; demand.len()];
        let mut left = GPU;
        while left > 0 {
            match self.last[left] {
                Some(at) => {
                    pattern[at] += 1.0;
                    left -= demand[at].0 as usize;
                }
                None => left -= 1,
            }
        }
        pattern
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_worth_halves() {
        let worth = worth_of_remainders(&[(500, 10.0)]);
        assert_eq!((worth[499], worth[500], worth[999], worth[1000]), (0.0, 0.5, 0.5, 1.0));
    }

    #[test]
    fn a_remainder_that_nothing_fits_is_worth_nothing() {
        let worth = worth_of_remainders(&[(810, 10.0), (470, 10.0)]);
        assert_eq!(worth[190], 0.0, "what 810 leaves");
        assert_eq!(worth[1000] - worth[190], 1.0, "so 810 costs a whole GPU");
        assert!((worth[530] - 0.5).abs() < 1e-9, "what one 470 leaves holds another");
    }

    #[test]
    fn a_scarce_partner_is_worth_more() {
        // Many 700 and few 300: a 700 alone costs a GPU, so a 300 saves nothing beyond its pairs.
        let worth = worth_of_remainders(&[(700, 10.0), (300, 1.0)]);
        assert_eq!(worth[300], 0.0);
        // Few 700 and many 300: three 300 to a GPU.
        let worth = worth_of_remainders(&[(700, 1.0), (300, 10.0)]);
        assert!((worth[300] - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_gpus_could_hold_at_most() {
        let bound = |demand: &[(u32, f64)], gpus: f64| (allocation_bound(demand, gpus) * 1e6).round() / 1e6;
        assert_eq!(bound(&[(1000, 3.0), (500, 2.0)], 10.0), 4.0, "all of it where there is room");
        assert_eq!(bound(&[(600, 10.0)], 5.0), 3.0, "no two of 0.6 to a GPU");
        assert_eq!(bound(&[(600, 10.0), (400, 2.0)], 5.0), 3.8, "two pairs and three alone");
        assert_eq!(bound(&[(600, 10.0), (1000, 2.0)], 5.0), 3.8, "whole ones first");
        assert_eq!(bound(&[(700, 4.0), (300, 9.0)], 4.0), 4.0, "each with a partner");
        assert_eq!(bound(&[(700, 9.0), (300, 3.0)], 4.0), 3.7);
        assert_eq!(bound(&[], 4.0), 0.0);
    }

    /// Every size alone and in pairs, by brute force over how many GPUs get which pattern.
    #[test]
    fn the_bound_is_never_below_what_can_be_placed() {
        for (a, b) in [(350, 650), (410, 550), (240, 470), (999, 1), (334, 333)] {
            for (count_a, count_b) in [(2u32, 5u32), (5, 2), (3, 3)] {
                let patterns: Vec<(u32, u32)> = (0..=1000 / a)
                    .flat_map(|x| (0..=(1000 - x * a) / b).map(move |y| (x, y)))
                    .filter(|(x, y)| *x <= count_a && *y <= count_b)
                    .collect();
                let mut best = 0;
                for first in &patterns {
                    for second in &patterns {
                        let (x, y) = (first.0 + second.0, first.1 + second.1);
                        if x <= count_a && y <= count_b {
                            best = best.max(x * a + y * b);
                        }
                    }
                }
                let bound = allocation_bound(&[(a, count_a.into()), (b, count_b.into())], 2.0);
                assert!(bound >= f64::from(best) / 1000.0 - 1e-9, "{a}, {b}: {bound} below {best}");
                assert!(bound <= 2.0 + 1e-9, "{a}, {b}: {bound} on two GPUs");
            }
        }
    }

    #[test]
    fn no_pattern_is_worth_more_than_its_gpu() {
        let demand: Vec<(u32, f64)> = (1..60).map(|n| (n * 17 % 991 + 5, f64::from(n))).collect();
        let worth = worth_of_remainders(&demand);
        assert!((worth[1000] - 1.0).abs() < 1e-6, "{}", worth[1000]);
        assert!(worth.windows(2).all(|pair| pair[0] <= pair[1]), "more is never worth less");
    }
}
