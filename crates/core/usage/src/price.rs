//! The price of a GPU-hour.

use std::fmt;

use crate::{MilliUs, Period};

/// A GPU-hour in [`MilliUs`].
const GPU_HOUR: u128 = 1000 * 3_600_000_000;

/// The price of the GPUs of one model for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// Product name of the GPUs; `*`: all that no other price names.
    pub model: String,
    /// Price of a GPU-hour, in millionths of the currency.
    pub micro: u64,
    /// When it is valid.
    pub period: Period,
}

/// A price sheet: at any time a model has one price at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices(Vec<Price>);

/// Two prices of a sheet, by their index, do not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceError {
    /// This price ends before it begins.
    Backwards(usize),
    /// Both are valid at the same time for the same model.
    Overlap(usize, usize),
    /// Between the end of the first and the beginning of the second, their model has no price.
    Gap(usize, usize),
}

impl fmt::Display for PriceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backwards(_) => f.write_str("it ends before it begins"),
            Self::Overlap(..) => f.write_str("two prices of the model are valid at the same time"),
            Self::Gap(..) => f.write_str("the model has no price between these two"),
        }
    }
}

impl std::error::Error for PriceError {}

impl Prices {
    /// A sheet of these prices, in any order.
    ///
    /// # Errors
    /// The first pair that overlaps or leaves a gap.
    pub fn new(prices: Vec<Price>) -> Result<Self, PriceError> {
        if let Some(index) = prices.iter().position(|price| price.period.us() == 0) {
            return Err(PriceError::Backwards(index));
        }
        let mut order: Vec<usize> = (0..prices.len()).collect();
        order.sort_by_key(|&index| (&prices[index].model, prices[index].period.from_us));
        for pair in order.windows(2) {
            let (first, second) = (&prices[pair[0]], &prices[pair[1]]);
            if first.model != second.model {
                continue;
            }
            if first.period.to_us > second.period.from_us {
                return Err(PriceError::Overlap(pair[0], pair[1]));
            }
            if first.period.to_us < second.period.from_us {
                return Err(PriceError::Gap(pair[0], pair[1]));
            }
        }
        Ok(Self(prices))
    }

    /// All prices.
    #[must_use]
    pub fn all(&self) -> &[Price] {
        &self.0
    }

    /// The times at which a price changes.
    pub fn edges_us(&self) -> impl Iterator<Item = i64> {
        self.0.iter().flat_map(|price| [price.period.from_us, price.period.to_us])
    }

    /// The price of a GPU-hour of this model at this time, in millionths of the currency.
    #[must_use]
    pub fn at(&self, model: &str, at_us: i64) -> Option<u64> {
        let valid = |price: &&Price| (price.period.from_us..price.period.to_us).contains(&at_us);
        let named = |name: &str| self.0.iter().filter(valid).find(|price| price.model == name);
        named(model).or_else(|| named("*")).map(|price| price.micro)
    }
}

/// A cost in millionths of the currency, as sums of GPU time at a price; it is rounded when it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost(u128);

impl Cost {
    pub(crate) fn add(&mut self, gpu: MilliUs, micro: u64) {
        self.0 += gpu * u128::from(micro);
    }

    /// To the nearest millionth.
    pub(crate) fn micro(self) -> u128 {
        (self.0 + GPU_HOUR / 2) / GPU_HOUR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(model: &str, from_us: i64, to_us: i64, micro: u64) -> Price {
        Price { model: model.to_owned(), micro, period: Period { from_us, to_us } }
    }

    #[test]
    fn a_model_has_its_own_price_before_that_of_all() {
        let prices =
            Prices::new(vec![price("*", 0, 100, 1), price("H100", 0, 50, 2), price("H100", 50, 90, 3)]);
        let prices = prices.unwrap();
        assert_eq!([0, 49, 50, 95].map(|at| prices.at("H100", at)), [Some(2), Some(2), Some(3), Some(1)]);
        assert_eq!((prices.at("A100", 7), prices.at("A100", 100)), (Some(1), None));
    }

    #[test]
    fn a_sheet_with_a_gap_or_an_overlap_is_refused() {
        let sheet = |second: Price| Prices::new(vec![price("a", 50, 100, 1), second]);
        assert_eq!(sheet(price("a", 0, 60, 1)), Err(PriceError::Overlap(1, 0)));
        assert_eq!(sheet(price("a", 0, 40, 1)), Err(PriceError::Gap(1, 0)));
        assert_eq!(sheet(price("b", 9, 9, 1)), Err(PriceError::Backwards(1)));
        assert!(sheet(price("b", 0, 40, 1)).is_ok());
    }

    #[test]
    fn half_a_gpu_for_two_hours_costs_a_gpu_hour() {
        let mut cost = Cost::default();
        for _ in 0..2 {
            cost.add(500 * 3_600_000_000, 2_500_000);
        }
        assert_eq!(cost.micro(), 2_500_000);
    }
}
