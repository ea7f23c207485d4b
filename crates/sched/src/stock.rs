//! The worth of what is left of a GPU, from the cutting-stock problem: given how often each size is asked for, a
//! remainder is worth what the sizes that fit into it are worth together at their shadow prices.
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
    let mut master = Master::new(demand);
    for _ in 0..ROUNDS {
        let knapsack = Knapsack::new(demand, &master.prices());
        if knapsack.worth[GPU] <= 1.0 + EPSILON {
            return knapsack.worth;
        }
        master.take_in(&knapsack.best_pattern(demand));
    }
    Knapsack::new(demand, &master.prices()).worth
}

/// The restricted master problem in the revised simplex method: a basis of patterns, its inverse and its use.
struct Master {
    inverse: Vec<Vec<f64>>,
    amounts: Vec<f64>,
}

impl Master {
    /// One pattern per size, as many of it as fit.
    fn new(demand: &[(u32, f64)]) -> Self {
        let count = demand.len();
        let mut inverse = vec![vec![0.0; count]; count];
        let mut amounts = vec![0.0; count];
        for (at, &(size, asked)) in demand.iter().enumerate() {
            let per_gpu = f64::from(1000 / size);
            inverse[at][at] = 1.0 / per_gpu;
            amounts[at] = asked / per_gpu;
        }
        Self { inverse, amounts }
    }

    /// Shadow prices of the sizes: every pattern costs one GPU.
    fn prices(&self) -> Vec<f64> {
        (0..self.inverse.len()).map(|size| self.inverse.iter().map(|row| row[size]).sum()).collect()
    }

    /// Brings a pattern into the basis for the one that is used up first.
    fn take_in(&mut self, pattern: &[f64]) {
        let times = |row: &Vec<f64>| row.iter().zip(pattern).map(|(a, b)| a * b).sum::<f64>();
        let direction: Vec<f64> = self.inverse.iter().map(times).collect();
        let steps = direction.iter().zip(&self.amounts).map(|(d, amount)| amount / d);
        let limited = steps.enumerate().filter(|(at, _)| direction[*at] > EPSILON);
        let Some((leaving, step)) = limited.min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        for (amount, d) in self.amounts.iter_mut().zip(&direction) {
            *amount -= step * d;
        }
        self.amounts[leaving] = step;
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
    fn no_pattern_is_worth_more_than_its_gpu() {
        let demand: Vec<(u32, f64)> = (1..60).map(|n| (n * 17 % 991 + 5, f64::from(n))).collect();
        let worth = worth_of_remainders(&demand);
        assert!((worth[1000] - 1.0).abs() < 1e-6, "{}", worth[1000]);
        assert!(worth.windows(2).all(|pair| pair[0] <= pair[1]), "more is never worth less");
    }
}
