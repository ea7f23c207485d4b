//! The modes of dividing a GPU's compute time, and a slice's share of it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{GpuRequest, Milli, Slice};

/// The division of a shared GPU's compute time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeMode {
    /// The driver's own time-slicing: equal among the busy ones.
    #[default]
    Even,
    /// By weight of the slice; idle time is lent.
    Fair,
    /// By weight, never more than the slice's part.
    Strict,
}

impl ComputeMode {
    /// All of them, in the order of their numbers ([`Self::number`]).
    const ALL: [Self; 3] = [Self::Even, Self::Fair, Self::Strict];

    /// A number for files that no words fit into.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Even => 0,
            Self::Fair => 1,
            Self::Strict => 2,
        }
    }

    /// The mode of a number; `Even` for one that is none's.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|mode| mode.number() == number).unwrap_or_default()
    }

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Fair => "fair",
            Self::Strict => "strict",
        }
    }
}

impl std::str::FromStr for ComputeMode {
    type Err = ComputeError;
    fn from_str(text: &str) -> Result<Self, ComputeError> {
        let found = Self::ALL.into_iter().find(|mode| mode.word() == text);
        found.ok_or_else(|| ComputeError::Mode(text.to_owned()))
    }
}

impl fmt::Display for ComputeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A task's request for its GPU's compute time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ComputeRequest {
    /// The mode of division.
    pub mode: ComputeMode,
    /// The part when others compete; the slice's fraction if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Milli>,
    /// The part that is never exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Milli>,
}

/// A slice's share of its GPU's compute time. A slice without one has the driver's equal part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeShare {
    /// Fair or strict.
    pub mode: ComputeMode,
    /// Its weight, in thousandths of the GPU.
    pub request_milli: Milli,
    /// Its cap, in thousandths of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_milli: Option<Milli>,
}

impl ComputeRequest {
    /// Parses a part of one GPU, as `--compute-request` and `--compute-limit` take it. `what` names it in errors.
    ///
    /// # Errors
    /// If it is no decimal above 0 and at most 1.
    pub fn part(what: &'static str, text: &str) -> Result<Milli, ComputeError> {
        let part: Option<Milli> = text.parse().ok();
        part.filter(|part| (1..=1000).contains(&part.0))
            .ok_or_else(|| ComputeError::Part(what, text.to_owned()))
    }

    /// Is anything but the driver's division asked for?
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.mode != ComputeMode::Even
    }

    /// The part of a GPU's compute time that it names; none if that follows from the slice.
    #[must_use]
    pub fn named_part(&self) -> Option<Milli> {
        self.request.filter(|_| self.is_enforced())
    }

    /// Checks what can be checked before a GPU is known. A request above the fraction is no contradiction: such a slice counts as the
    /// greater of the two.
    ///
    /// # Errors
    /// [`ComputeError`] names the contradiction.
    pub fn check(&self, request: &GpuRequest) -> Result<(), ComputeError> {
        if !self.is_enforced() {
            return match (self.request, self.limit) {
                (None, None) => Ok(()),
                _ => Err(ComputeError::Even),
            };
        }
        if let (Some(request), Some(limit)) = (self.request, self.limit)
            && limit < request
        {
            return Err(ComputeError::LimitBelow { limit, request });
        }
        match request {
            GpuRequest::MigProfile(_) => Err(ComputeError::Mig(self.mode)),
            GpuRequest::Gpus(count) if *count > 1 => {
                Err(ComputeError::SeveralGpus { mode: self.mode, count: *count })
            }
            GpuRequest::Fraction(part) => {
                let slice = Milli(part.ten_thousandths().div_ceil(10));
                self.share(self.request.map_or(slice, |request| slice.max(request))).map(|_| ())
            }
            GpuRequest::Gpus(_) => self.share(Milli::ONE).map(|_| ()),
            GpuRequest::Memory(_) => Ok(()),
        }
    }

    /// Its terms for the slices that a task got; none for the driver's division.
    ///
    /// # Errors
    /// [`ComputeError`] if it cannot be kept there.
    pub fn share_of(&self, slices: &[Slice]) -> Result<Option<ComputeShare>, ComputeError> {
        match slices {
            [] => Ok(None),
            _ if !self.is_enforced() => Ok(None),
            _ if slices.iter().any(|slice| slice.mig.is_some()) => Err(ComputeError::Mig(self.mode)),
            [slice] => self.share(slice.milli).map(Some),
            _ => {
                let count = u32::try_from(slices.len()).unwrap_or(u32::MAX);
                Err(ComputeError::SeveralGpus { mode: self.mode, count })
            }
        }
    }

    /// A slice is promised no more compute than it counts, so that a GPU is never promised more than once. The scheduler makes a slice
    /// count as much as its request ([`Self::named_part`]) unless its queue fixes the size of slices.
    fn share(&self, slice: Milli) -> Result<ComputeShare, ComputeError> {
        let request = self.request.unwrap_or(slice);
        if request > slice {
            return Err(ComputeError::AboveSlice { request, slice });
        }
        let limit = match (self.mode, self.limit) {
            (ComputeMode::Strict, Some(limit)) if limit != request => {
                return Err(ComputeError::StrictLimit { limit, request });
            }
            (ComputeMode::Strict, _) => Some(request),
            (_, limit) => limit,
        };
        if let Some(limit) = limit.filter(|limit| *limit < request) {
            return Err(ComputeError::LimitBelow { limit, request });
        }
        Ok(ComputeShare { mode: self.mode, request_milli: request, limit_milli: limit })
    }
}

/// Why a request for compute cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// Not a mode.
    #[error("\"{0}\" is not a compute mode; write even, fair or strict")]
    Mode(String),
    /// Outside 0 < F ≤ 1.
    #[error("{0} {1} is not a part of one GPU; write a decimal above 0 and at most 1, such as 0.5")]
    Part(&'static str, String),
    /// Without a mode that has them.
    #[error("--compute-request and --compute-limit have no meaning with --compute even; add --compute fair")]
    Even,
    /// A cap below what is promised.
    #[error(
        "the compute limit {limit} is below the compute request {request}; a limit is at least the request"
    )]
    LimitBelow {
        /// The limit.
        limit: Milli,
        /// The request, given or that of the slice.
        request: Milli,
    },
    /// Strict with another limit.
    #[error(
        "--compute strict means that the limit is the request ({request}), not {limit}; for another limit use --compute fair"
    )]
    StrictLimit {
        /// The limit.
        limit: Milli,
        /// The request.
        request: Milli,
    },
    /// More than the slice.
    #[error(
        "the compute request {request} is above the slice's part of the GPU, {slice}, which the queue gives; ask for at most {slice}"
    )]
    AboveSlice {
        /// The request.
        request: Milli,
        /// The slice.
        slice: Milli,
    },
    /// On a MIG instance.
    #[error(
        "--compute {0} is for shared GPUs; a MIG instance has its own part of the hardware, which keeps its compute share"
    )]
    Mig(ComputeMode),
    /// On several GPUs.
    #[error(
        "--compute {mode} is available for one GPU only, not for {count}; without it the driver divides the time"
    )]
    SeveralGpus {
        /// The request.
        mode: ComputeMode,
        /// On how many.
        count: u32,
    },
    /// Nothing would enforce it there.
    #[error(
        "--compute {mode} cannot be kept by {what}; run the task by mount namespace (as root) or in a container of cantle's"
    )]
    Unenforceable {
        /// The request.
        mode: ComputeMode,
        /// The mechanism that cannot enforce it.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuUuid;

    fn fair(request: Option<u32>, limit: Option<u32>) -> ComputeRequest {
        ComputeRequest { mode: ComputeMode::Fair, request: request.map(Milli), limit: limit.map(Milli) }
    }

    fn half() -> GpuRequest {
        GpuRequest::Fraction(Milli(500).into())
    }

    #[test]
    fn a_part_is_above_0_and_at_most_1() {
        assert_eq!(ComputeRequest::part("--compute-request", "0.3"), Ok(Milli(300)));
        for wrong in ["0", "1.1", "-1", "x", ""] {
            let error = ComputeRequest::part("--compute-request", wrong).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--compute-request {wrong} is not a part of one GPU")),
                "{error}"
            );
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let says = |compute: ComputeRequest| compute.check(&half()).unwrap_err();
        assert_eq!(
            says(fair(Some(400), Some(300))),
            ComputeError::LimitBelow { limit: Milli(300), request: Milli(400) }
        );
        assert_eq!(
            says(fair(None, Some(300))),
            ComputeError::LimitBelow { limit: Milli(300), request: Milli(500) }
        );
        assert_eq!(fair(Some(600), None).check(&half()), Ok(()), "it counts as 0.6");
        assert_eq!(
            says(fair(Some(600), Some(550))),
            ComputeError::LimitBelow { limit: Milli(550), request: Milli(600) }
        );
        let even = ComputeRequest { mode: ComputeMode::Even, ..fair(Some(100), None) };
        assert_eq!(says(even), ComputeError::Even);
        let strict = ComputeRequest { mode: ComputeMode::Strict, ..fair(Some(300), Some(400)) };
        assert_eq!(says(strict), ComputeError::StrictLimit { limit: Milli(400), request: Milli(300) });
        let profile = GpuRequest::MigProfile("2g.10gb".to_owned());
        assert!(
            fair(None, None).check(&profile).unwrap_err().to_string().contains("keeps its compute share")
        );
        assert!(
            fair(None, None)
                .check(&GpuRequest::Gpus(2))
                .unwrap_err()
                .to_string()
                .contains("one GPU only, not for 2")
        );
    }

    #[test]
    fn the_request_defaults_to_the_slice() {
        let slice =
            Slice { gpu: GpuUuid("GPU-1".into()), milli: Milli(300), memory_limit_bytes: 1 << 30, mig: None };
        let strict = ComputeRequest { mode: ComputeMode::Strict, ..ComputeRequest::default() };
        let share = strict.share_of(std::slice::from_ref(&slice)).unwrap().unwrap();
        assert_eq!((share.request_milli, share.limit_milli), (Milli(300), Some(Milli(300))));
        let above = fair(Some(400), None).share_of(std::slice::from_ref(&slice));
        assert_eq!(above, Err(ComputeError::AboveSlice { request: Milli(400), slice: Milli(300) }));
        assert_eq!(ComputeRequest::default().share_of(&[slice]), Ok(None));
        assert_eq!(ComputeMode::from_number(ComputeMode::Strict.number()), ComputeMode::Strict);
    }
}
