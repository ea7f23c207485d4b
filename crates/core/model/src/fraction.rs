//! A fraction of one GPU, as fine as other systems in the field write it.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::{Milli, whole_granules};

/// A part of one GPU in ten-thousandths: `0.0625`, the smallest one that ClearML documents, is 625.
///
/// Stored as thousandths, as every amount of compute is: an integer, with a decimal only where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fraction(u32);

impl Fraction {
    /// A whole GPU.
    pub const ONE: Self = Self(10_000);

    /// From ten-thousandths.
    #[must_use]
    pub const fn from_ten_thousandths(parts: u32) -> Self {
        Self(parts)
    }

    /// In ten-thousandths.
    #[must_use]
    pub const fn ten_thousandths(self) -> u32 {
        self.0
    }

    /// Is it more than nothing and less than a whole GPU?
    #[must_use]
    pub const fn is_part(self) -> bool {
        self.0 > 0 && self.0 < Self::ONE.0
    }

    /// The memory that this part of a GPU of `total_bytes` may hold: `⌊part · total⌋`, rounded down to whole granules.
    ///
    /// A whole GPU keeps its exact total: there is no neighbor to share the last partial granule with.
    #[must_use]
    pub fn of_bytes(self, total_bytes: u64) -> u64 {
        if self >= Self::ONE {
            return total_bytes;
        }
        let exact = u128::from(total_bytes) * u128::from(self.0) / u128::from(Self::ONE.0);
        // `exact` ≤ `total_bytes`, so it fits.
        whole_granules(u64::try_from(exact).unwrap_or(total_bytes))
    }

    /// The smallest number of `units` equal parts of a GPU that is at least this part.
    #[must_use]
    pub const fn of_units(self, units: u32) -> u32 {
        (self.0 * units).div_ceil(Self::ONE.0)
    }
}

impl From<Milli> for Fraction {
    fn from(milli: Milli) -> Self {
        Self(milli.0.saturating_mul(10))
    }
}

/// As users write it: `0.25`, `0.0625`.
impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / Self::ONE.0, self.0 % Self::ONE.0);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:04}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl Serialize for Fraction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.0 / 10, self.0 % 10) {
            (milli, 0) => serializer.serialize_u32(milli),
            _ => serializer.serialize_f64(f64::from(self.0) / 10.0),
        }
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Thousandths)
    }
}

struct Thousandths;

impl Visitor<'_> for Thousandths {
    type Value = Fraction;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("thousandths of a GPU with at most one decimal")
    }

    fn visit_u64<E: de::Error>(self, milli: u64) -> Result<Fraction, E> {
        let parts = u32::try_from(milli).ok().and_then(|milli| milli.checked_mul(10));
        parts.map(Fraction).ok_or_else(|| E::custom("more thousandths than any GPU has"))
    }

    fn visit_f64<E: de::Error>(self, milli: f64) -> Result<Fraction, E> {
        // The text of a number is exact where its binary form is not.
        let text = format!("{milli:.1}");
        let parts = text.replacen('.', "", 1).parse().map_err(|_| E::custom("not a part of a GPU"))?;
        Ok(Fraction(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_a_decimal() {
        for (text, parts) in [("0.0625", 625), ("0.25", 2500), ("0.0001", 1), ("1", 10_000)] {
            assert_eq!(Fraction::from_ten_thousandths(parts).to_string(), text);
        }
    }

    /// Files of earlier versions have thousandths.
    #[test]
    fn stored_in_thousandths() {
        for (json, part) in [("500", 5000), ("62.5", 625), ("0.1", 1), ("999.9", 9999)] {
            let part = Fraction(part);
            assert_eq!(serde_json::from_str::<Fraction>(json).unwrap(), part);
            assert_eq!(serde_json::to_string(&part).unwrap(), json);
        }
    }

    #[test]
    fn sixteen_sixteenths_fit() {
        let part = Fraction::from_ten_thousandths(625);
        for total in [15_360u64, 24_576, 40_959, 81_559, 143_771].map(|mib| mib << 20) {
            assert!(part.of_bytes(total) * 16 <= total, "{total}");
        }
    }
}
