//! A task's request, and what it becomes on a GPU.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{AmountError, Bytes, Fraction, GRANULE_BYTES, Milli, counted, whole_granules};

/// A request for GPU. It becomes slices only when a GPU is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuRequest {
    /// A part of one GPU: more than 0, less than 1.
    Fraction(Fraction),
    /// An amount of memory of one GPU.
    Memory(Bytes),
    /// A number of whole GPUs.
    Gpus(u32),
    /// A named MIG profile, e.g. `2g.10gb`.
    MigProfile(String),
}

impl GpuRequest {
    /// From `--gpu F`: a decimal > 0 and ≤ 1 in steps of 0.001.
    ///
    /// # Errors
    /// Names the range if the number is outside it.
    pub fn from_fraction(text: &str) -> Result<Self, RequestError> {
        let milli: Milli = text.parse()?;
        match milli {
            Milli(1..1000) => Ok(Self::Fraction(milli.into())),
            Milli::ONE => Ok(Self::Gpus(1)),
            _ => Err(RequestError::Range(text.to_owned())),
        }
    }

    /// From `--gpu-memory M`: a quantity of at least one granule (2 MiB).
    ///
    /// # Errors
    /// Says what is wrong with the quantity.
    pub fn from_memory(text: &str) -> Result<Self, RequestError> {
        let bytes: Bytes = text.parse()?;
        if bytes.0 < GRANULE_BYTES {
            return Err(RequestError::TooSmall(text.to_owned()));
        }
        Ok(Self::Memory(bytes))
    }

    /// From `--gpus N`: at least one.
    ///
    /// # Errors
    /// Says what would be right.
    pub fn from_gpus(text: &str) -> Result<Self, RequestError> {
        match text.parse::<u32>() {
            Ok(n) if (1..=64).contains(&n) => Ok(Self::Gpus(n)),
            _ => Err(RequestError::Count(text.to_owned())),
        }
    }

    /// The number of its GPUs.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        match self {
            Self::Gpus(n) => *n,
            Self::Fraction(_) | Self::Memory(_) | Self::MigProfile(_) => 1,
        }
    }

    /// The share of one GPU without MIG of `memory_bytes` that the request takes; `None` if such a GPU cannot serve it
    /// (too little memory, or a MIG profile). The one place where requests become amounts.
    ///
    /// Bytes decide: a limit is the requested amount, rounded down to whole granules. Its count follows from it
    /// ([`Share::of`]), so that the same bytes are the same slice in every spelling of a request.
    #[must_use]
    pub fn share_of(&self, memory_bytes: u64) -> Option<Share> {
        match self {
            Self::Fraction(part) => Some(Share::of(part.of_bytes(memory_bytes), memory_bytes))
                .filter(|share| share.memory_limit_bytes > 0),
            Self::Gpus(_) => Some(Share::of(memory_bytes, memory_bytes)),
            Self::Memory(Bytes(asked)) => {
                let limit = whole_granules(*asked);
                (limit > 0 && limit <= memory_bytes).then(|| Share::of(limit, memory_bytes))
            }
            Self::MigProfile(_) => None,
        }
    }
}

/// As a waiting reason names it: `0.5 GPU`, `2 GPUs`, `4 GB of GPU memory`.
impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(part) => write!(f, "{part} GPU"),
            Self::Gpus(n) => f.write_str(&counted(n, "GPU")),
            Self::Memory(bytes) => write!(f, "{bytes} of GPU memory"),
            Self::MigProfile(profile) => write!(f, "a {profile} MIG instance"),
        }
    }
}

/// The share of one GPU that a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Thousandths of the GPU it is counted as.
    pub milli: Milli,
    /// Memory limit in bytes.
    pub memory_limit_bytes: u64,
}

impl Share {
    /// The same with at least this much of the GPU's compute time. The count of the slice covers both.
    #[must_use]
    pub fn with_compute(self, part: Option<Milli>) -> Self {
        Self { milli: part.map_or(self.milli, |part| self.milli.max(part)), ..self }
    }

    /// A share of `limit_bytes`, a whole number of granules, of a GPU of `total_bytes`.
    ///
    /// It counts as the largest number of thousandths that mean no more memory than that: 0.333 of a GPU counts as 333,
    /// whether it was asked for as a fraction or as its bytes, and three shares of a third each fit.
    #[must_use]
    pub fn of(limit_bytes: u64, total_bytes: u64) -> Self {
        // ⌊m · total / 1000⌋, rounded down to granules, is at most `limit` exactly if m · total < (limit + granule) · 1000.
        let below = (u128::from(limit_bytes) + u128::from(GRANULE_BYTES)) * 1000;
        let milli = below.saturating_sub(1) / u128::from(total_bytes.max(1));
        let milli =
            if limit_bytes >= total_bytes { 1000 } else { u32::try_from(milli).unwrap_or(999).clamp(1, 999) };
        Self { milli: Milli(milli), memory_limit_bytes: limit_bytes }
    }
}

/// The required isolation of the slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Any isolation that the GPU offers.
    #[default]
    Any,
    /// A MIG instance only.
    Mig,
    /// A shared GPU only.
    Shared,
}

/// Why a request cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not an amount.
    #[error(transparent)]
    Amount(#[from] AmountError),
    /// Outside 0 < F ≤ 1.
    #[error(
        "--gpu {0} is out of range; a part of one GPU is more than 0 and at most 1 (whole GPUs: --gpus N)"
    )]
    Range(String),
    /// Less than a granule.
    #[error("--gpu-memory {0} is less than 2Mi, the smallest slice")]
    TooSmall(String),
    /// Not a count of GPUs.
    #[error("--gpus {0} is not a number of GPUs; write a whole number from 1 to 64")]
    Count(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_range() {
        assert_eq!(GpuRequest::from_fraction("0.5"), Ok(GpuRequest::Fraction(Milli(500).into())));
        assert_eq!(GpuRequest::from_fraction("1"), Ok(GpuRequest::Gpus(1)));
        for text in ["0", "1.001", "2"] {
            assert_eq!(GpuRequest::from_fraction(text), Err(RequestError::Range(text.into())));
        }
    }

    #[test]
    fn memory_counts_as_the_share_that_it_is() {
        let total = 40_960u64 << 20;
        let share = GpuRequest::from_memory("4G").unwrap().share_of(total).unwrap();
        assert_eq!(share.memory_limit_bytes, 4_000_000_000 / GRANULE_BYTES * GRANULE_BYTES);
        assert_eq!(share.milli, Milli(93));
        assert!(GpuRequest::from_memory("41Gi").unwrap().share_of(total).is_none());
        let all = GpuRequest::from_memory("40Gi").unwrap().share_of(total).unwrap();
        assert_eq!(all.milli, Milli::ONE);
    }

    /// For every size of GPU that there is: however a share is spelled, it is the same share.
    #[test]
    fn the_same_bytes_are_the_same_share() {
        for total in
            [4_096u64, 8_192, 15_360, 16_384, 23_034, 24_576, 40_960, 46_068, 81_559, 143_771, 183_359]
        {
            let total = total << 20;
            for milli in 1..1000 {
                let asked = GpuRequest::Fraction(Milli(milli).into()).share_of(total).unwrap();
                assert_eq!(asked.milli, Milli(milli), "{total}");
                let by_bytes = GpuRequest::Memory(Bytes(asked.memory_limit_bytes)).share_of(total);
                assert_eq!(by_bytes, Some(asked), "{milli} of {total}");
            }
        }
    }

    #[test]
    fn shares_that_fit_by_their_bytes_fit() {
        let total = 40_960u64 << 20;
        for parts in 1..=64 {
            let each = GpuRequest::Memory(Bytes(total / parts)).share_of(total).unwrap();
            assert!(u64::from(each.milli.0) * parts <= 1000, "{parts}");
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        assert_eq!(
            GpuRequest::from_memory("8").unwrap_err().to_string(),
            "\"8\" has no unit; write 8G (10^9 bytes each) or 8Gi (2^30 bytes each)"
        );
        assert!(GpuRequest::from_gpus("0").is_err());
        assert!(GpuRequest::from_gpus("x").is_err());
    }
}
