//! A histogram: counts in buckets.

/// Counts of values in buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// By bucket, each value in one bucket only; a value above all bounds is in none.
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// An empty one with these upper bounds, lowest first.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, buckets: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        if let Some(bucket) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[bucket] += 1;
        }
    }

    /// Each bound with the number of values at or below it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let below = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        self.bounds.iter().copied().zip(below)
    }

    /// Number of values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_below_it() {
        let mut histogram = Histogram::new(&[1.0, 2.5]);
        for value in [0.5, 1.0, 2.0, 40.0] {
            histogram.observe(value);
        }
        assert_eq!(histogram.cumulative().collect::<Vec<_>>(), [(1.0, 2), (2.5, 3)]);
        assert_eq!((histogram.count(), histogram.sum()), (4, 43.5));
    }
}
