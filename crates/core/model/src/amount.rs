//! Amounts: thousandths of a GPU and bytes of its memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Memory of a slice is allocated in this unit: 2 MiB, the driver's own physical granularity.
pub const GRANULE_BYTES: u64 = 2 * 1024 * 1024;

/// The largest multiple of [`GRANULE_BYTES`] that is at most `bytes`.
#[must_use]
pub const fn whole_granules(bytes: u64) -> u64 {
    bytes - bytes % GRANULE_BYTES
}

/// A number of things, for people: `1 GPU`, `1.5 GPUs`, `0 GPUs`.
#[must_use]
pub fn counted(number: impl fmt::Display, what: &str) -> String {
    let number = number.to_string();
    let ending = if number == "1" { "" } else { "s" };
    format!("{number} {what}{ending}")
}

/// Thousandths of a GPU (`1000` = one whole GPU). Several GPUs add up: two whole ones are `2000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Milli(pub u32);

impl Milli {
    /// One whole GPU.
    pub const ONE: Self = Self(1000);

    /// `self - other`, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Add for Milli {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl std::iter::Sum for Milli {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(0), |a, b| a + b)
    }
}

/// As users write it: `0.25`, `1`, `2.75`.
impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// Parses a decimal with at most three digits after the point. Sign and exponent are refused; the range is the caller's.
impl FromStr for Milli {
    type Err = AmountError;
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let bad = || AmountError::NotAFraction(text.to_owned());
        let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if (whole.is_empty() && rest.is_empty()) || !all_digits(whole) || !all_digits(rest) {
            return Err(bad());
        }
        let rest = rest.trim_end_matches('0');
        if rest.len() > 3 {
            return Err(AmountError::TooFine(text.to_owned()));
        }
        let whole: u32 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad())? };
        let thousandths: u32 = format!("{rest:0<3}").parse().map_err(|_| bad())?;
        whole.checked_mul(1000).and_then(|m| m.checked_add(thousandths)).map(Self).ok_or_else(bad)
    }
}

/// An amount of memory in bytes, written as a Kubernetes quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 14] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
];

/// `4G` = 4·10⁹, `4Gi` = 4·2³⁰ (`4GB`, `4GiB` too); decimals are allowed, a bare number is not.
impl FromStr for Bytes {
    type Err = AmountError;
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if unit.is_empty() && !number.is_empty() {
            return Err(AmountError::NoUnit(text.to_owned()));
        }
        let bad = || AmountError::NotAQuantity(text.to_owned());
        let &(_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let (whole, rest) = number.split_once('.').unwrap_or((number, ""));
        if rest.contains('.') || rest.len() > 9 || whole.is_empty() {
            return Err(bad());
        }
        let scale = 10u128.pow(u32::try_from(rest.len()).unwrap_or(0));
        let value: u128 = format!("{whole}{rest}").parse().map_err(|_| bad())?;
        u64::try_from(value * u128::from(factor) / scale).map(Self).map_err(|_| bad())
    }
}

/// In binary units with at most two decimals: `19.5 GiB`, `512 MiB`; exact bytes are for JSON.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(&str, u64); 4] =
            [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let Some(&(name, unit)) = NAMES.iter().find(|(_, unit)| self.0 >= *unit) else {
            return write!(f, "{} B", self.0);
        };
        let hundredths = u128::from(self.0) * 100 / u128::from(unit);
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        let decimals = format!("{rest:02}");
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{whole} {name}"),
            decimals => write!(f, "{whole}.{decimals} {name}"),
        }
    }
}

/// Why a text is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Not a plain decimal number.
    #[error("\"{0}\" is not a number of GPUs; write a decimal such as 0.5")]
    NotAFraction(String),
    /// More than three digits after the point.
    #[error("\"{0}\" is finer than a thousandth of a GPU; the smallest step is 0.001")]
    TooFine(String),
    /// A number without a unit is ambiguous.
    #[error("\"{0}\" has no unit; write {0}G (10^9 bytes each) or {0}Gi (2^30 bytes each)")]
    NoUnit(String),
    /// Not a quantity at all.
    #[error("\"{0}\" is not an amount of memory; write a quantity such as 4G, 4Gi or 512Mi")]
    NotAQuantity(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fraction;

    #[test]
    fn fractions_round_trip() {
        for (text, milli) in [("0.25", 250), ("1", 1000), ("2.75", 2750), ("0.001", 1), (".5", 500)] {
            assert_eq!(text.parse(), Ok(Milli(milli)), "{text}");
        }
        assert_eq!(Milli(2750).to_string(), "2.75");
        assert_eq!(Milli(1000).to_string(), "1");
        assert_eq!(Milli(1).to_string(), "0.001");
    }

    #[test]
    fn fractions_refuse_what_is_not_one() {
        for text in ["", ".", "-1", "1e3", "abc", "1.2.3", "٣", "99999999999"] {
            assert!(matches!(text.parse::<Milli>(), Err(AmountError::NotAFraction(_))), "{text}");
        }
        assert_eq!("0.0001".parse::<Milli>(), Err(AmountError::TooFine("0.0001".into())));
        assert_eq!("0.5000".parse(), Ok(Milli(500)), "trailing zeros add nothing");
    }

    #[test]
    fn quantities() {
        for (text, bytes) in [
            ("4G", 4_000_000_000),
            ("4GB", 4_000_000_000),
            ("4Gi", 4 << 30),
            ("4GiB", 4 << 30),
            ("1.5Gi", 3 << 29),
            ("512Mi", 512 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!("8".parse::<Bytes>(), Err(AmountError::NoUnit("8".into())));
        for text in ["", "G", "4g", "4 G", "-4G", "1.2.3G", "4X", "99999999999999999999G"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(Bytes(20 << 30).to_string(), "20 GiB");
        assert_eq!(Bytes((19 << 30) + (1 << 29)).to_string(), "19.5 GiB");
        assert_eq!(Bytes(100).to_string(), "100 B");
    }

    #[test]
    fn a_share_rounds_down_to_granules() {
        let total = 40_960u64 << 20;
        assert_eq!(Fraction::from(Milli(500)).of_bytes(total), 20_480 << 20);
        assert_eq!(Fraction::from(Milli(125)).of_bytes(15_360 << 20), 1_920 << 20);
        let third = Fraction::from(Milli(333)).of_bytes(total);
        assert_eq!(third % GRANULE_BYTES, 0);
        assert!(third <= total * 333 / 1000 && total * 333 / 1000 - third < GRANULE_BYTES);
        assert_eq!(Fraction::ONE.of_bytes(total + 5), total + 5, "a whole GPU is not rounded");
    }
}
