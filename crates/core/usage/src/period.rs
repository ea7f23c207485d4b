//! Times and amounts.

/// A share of a GPU in thousandths, times microseconds: 1000 × 3,600,000,000 are a GPU-hour.
pub type MilliUs = u128;

/// A time from `from_us` up to but without `to_us`, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its first microsecond.
    pub from_us: i64,
    /// The first microsecond after it.
    pub to_us: i64,
}

impl Period {
    /// Its length in microseconds; 0 if it ends before it begins.
    #[must_use]
    pub fn us(self) -> u64 {
        u64::try_from(self.to_us.saturating_sub(self.from_us)).unwrap_or(0)
    }

    /// The part of it that lies in `other`.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        let from_us = self.from_us.max(other.from_us);
        Self { from_us, to_us: self.to_us.min(other.to_us).max(from_us) }
    }

    /// The parts of it between these times, in order.
    #[must_use]
    pub fn cut(self, at_us: impl IntoIterator<Item = i64>) -> Vec<Self> {
        if self.us() == 0 {
            return Vec::new();
        }
        let inside = |at: &i64| (self.from_us + 1..self.to_us).contains(at);
        let mut edges: Vec<i64> =
            at_us.into_iter().filter(inside).chain([self.from_us, self.to_us]).collect();
        edges.sort_unstable();
        edges.dedup();
        edges.windows(2).map(|edge| Self { from_us: edge[0], to_us: edge[1] }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_period_are_the_period() {
        let period = Period { from_us: 10, to_us: 30 };
        let parts = period.cut([5, 10, 20, 20, 30, 40, 12]);
        let edges: Vec<_> = parts.iter().map(|part| (part.from_us, part.to_us)).collect();
        assert_eq!(edges, [(10, 12), (12, 20), (20, 30)]);
        assert_eq!(parts.iter().map(|part| part.us()).sum::<u64>(), period.us());
    }

    #[test]
    fn a_period_that_ends_before_it_begins_is_empty() {
        let back = Period { from_us: 30, to_us: 10 };
        assert_eq!((back.us(), back.cut([20]).iter().map(|part| part.us()).sum::<u64>()), (0, 0));
        assert_eq!(back.within(Period { from_us: 0, to_us: 100 }).us(), 0);
    }
}
