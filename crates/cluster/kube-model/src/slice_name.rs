//! The requests that a pod can make, and the name of each.
//!
//! The name contains the whole request, so the webhook creates nothing: it writes the name into the pod, and the
//! controller can create the claim from the name alone.

use std::fmt;
use std::str::FromStr;

use cantle_mig::Table;
use cantle_model::{Bytes, ComputeError, ComputeMode, ComputeRequest, Fraction, GpuRequest, Milli};

use crate::names::resource_of_profile;

/// Parts that a whole GPU has in [`SliceName::Fraction`]: enough for 0.0625.
pub const PARTS: u32 = 10_000;

/// Devices that one claim may have: Kubernetes' own limit.
pub const MAX_DEVICES: u32 = 32;

/// The request of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SliceName {
    /// This part of each of some GPUs.
    Fraction {
        /// Of [`PARTS`]; less than that.
        parts: u32,
        /// How many GPUs.
        gpus: u32,
    },
    /// This much memory of each of some GPUs.
    Memory {
        /// Memory in MiB.
        mib: u64,
        /// How many GPUs.
        gpus: u32,
    },
    /// Whole GPUs.
    Whole {
        /// How many.
        gpus: u32,
    },
    /// One instance of a MIG profile.
    Mig {
        /// Its name as objects can be named: `1g.10gb.me` for `1g.10gb+me`.
        profile: String,
    },
    /// A slice of one GPU with a share of its compute time.
    Compute {
        /// The slice: a part of one GPU, an amount of its memory, or all of it.
        slice: Box<Self>,
        /// The share; [`ComputeMode::Even`] is none.
        compute: ComputeRequest,
    },
}

impl SliceName {
    /// The same with a share of compute time. A share of memory has the part that follows from the GPU's size, and no other: what it
    /// counts would depend on the GPU.
    ///
    /// # Errors
    /// [`UnkeepableShare`] if the share cannot be kept on it.
    pub fn with_compute(self, compute: ComputeRequest) -> Result<Self, UnkeepableShare> {
        compute.check(&self.slice_request([]))?;
        if compute.is_enforced() && self.devices() > 1 {
            return Err(ComputeError::SeveralGpus { mode: compute.mode, count: self.devices() }.into());
        }
        let is_amount = matches!(self, Self::Memory { .. });
        if is_amount && (compute.request.is_some() || compute.limit.is_some()) {
            return Err(UnkeepableShare::OfAmount);
        }
        Ok(if compute.is_enforced() { Self::Compute { slice: Box::new(self), compute } } else { self })
    }

    /// The share of compute time that is requested.
    #[must_use]
    pub fn compute(&self) -> ComputeRequest {
        if let Self::Compute { compute, .. } = self { *compute } else { ComputeRequest::default() }
    }

    /// The request without its compute share.
    #[must_use]
    pub fn slice(&self) -> &Self {
        if let Self::Compute { slice, .. } = self { slice } else { self }
    }

    /// The request for memory that is spelled so, given the MIG tables of the GPUs in question.
    #[must_use]
    pub fn slice_request<'a>(&self, tables: impl IntoIterator<Item = &'a Table>) -> GpuRequest {
        self.slice().request(tables)
    }

    /// Its count, given the MIG tables of the GPUs in question: of memory and compute the greater part.
    #[must_use]
    pub fn request<'a>(&self, tables: impl IntoIterator<Item = &'a Table>) -> GpuRequest {
        match self {
            Self::Compute { slice, compute } => counted(slice.request([]), *compute),
            Self::Fraction { parts, .. } => GpuRequest::Fraction(Fraction::from_ten_thousandths(*parts)),
            Self::Memory { mib, .. } => GpuRequest::Memory(Bytes(*mib << 20)),
            Self::Whole { gpus } => GpuRequest::Gpus(*gpus),
            Self::Mig { profile } => {
                GpuRequest::MigProfile(profile_of(profile, tables).unwrap_or(profile).to_owned())
            }
        }
    }

    /// The number of its GPUs.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        match self {
            Self::Whole { gpus } => *gpus,
            Self::Fraction { .. } | Self::Memory { .. } | Self::Mig { .. } | Self::Compute { .. } => {
                self.devices()
            }
        }
    }

    /// The number of GPUs of which a part is requested.
    #[must_use]
    pub const fn devices(&self) -> u32 {
        match self {
            Self::Fraction { gpus, .. } | Self::Memory { gpus, .. } => *gpus,
            Self::Whole { .. } | Self::Mig { .. } | Self::Compute { .. } => 1,
        }
    }
}

/// The count of a slice with a share of compute time: of its memory's part and the part that it names the greater.
pub(crate) fn counted(slice: GpuRequest, compute: ComputeRequest) -> GpuRequest {
    let GpuRequest::Fraction(memory) = slice else { return slice };
    let part = compute.named_part().map_or(memory, |part| memory.max(part.into()));
    if part.is_part() { GpuRequest::Fraction(part) } else { GpuRequest::Gpus(1) }
}

/// `cantle-fraction-5000`, `cantle-memory-4096-x2`, `cantle-whole-2`, `cantle-mig-1g.10gb`,
/// `cantle-fraction-2500-fair-r0500-l0750` (with 0.5 of the compute time, and 0.75 at most).
impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpus = match self {
            Self::Fraction { parts, gpus } => {
                write!(f, "cantle-fraction-{parts:04}")?;
                *gpus
            }
            Self::Memory { mib, gpus } => {
                write!(f, "cantle-memory-{mib}")?;
                *gpus
            }
            Self::Whole { gpus } => return write!(f, "cantle-whole-{gpus}"),
            Self::Mig { profile } => return write!(f, "cantle-mig-{profile}"),
            Self::Compute { slice, compute } => {
                write!(f, "{slice}-{}", compute.mode)?;
                for (letter, part) in [("r", compute.request), ("l", compute.limit)] {
                    if let Some(part) = part {
                        write!(f, "-{letter}{:04}", part.0)?;
                    }
                }
                return Ok(());
            }
        };
        if gpus == 1 { Ok(()) } else { write!(f, "-x{gpus}") }
    }
}

/// Why a slice cannot have the share of compute time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnkeepableShare {
    /// As on machines.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// The part of a GPU that an amount of memory is depends on the GPU.
    #[error(
        "with an amount of memory the share follows from the amount; for another share ask for a fraction"
    )]
    OfAmount,
}

/// A name that no request has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not the name of a slice")]
pub struct SliceNameError(String);

impl FromStr for SliceName {
    type Err = SliceNameError;

    fn from_str(name: &str) -> Result<Self, SliceNameError> {
        let slice = read(name).ok_or_else(|| SliceNameError(name.to_owned()))?;
        // One request has one name: what would be written differently was not written by us.
        if slice.to_string() == name { Ok(slice) } else { Err(SliceNameError(name.to_owned())) }
    }
}

/// Hexadecimal digits that tell claims for the same slice apart.
const UNIQUE_DIGITS: usize = 16;

/// The name of a claim for such a slice: `cantle-fraction-5000-9f86d081884c7d65`. `unique` is a random UUID.
pub(crate) fn claim_name(slice: &SliceName, unique: &str) -> String {
    let digits = unique.chars().filter(char::is_ascii_hexdigit).take(UNIQUE_DIGITS).collect::<String>();
    format!("{slice}-{:0>UNIQUE_DIGITS$}", digits.to_ascii_lowercase())
}

/// The slice that a claim of this name is for.
pub(crate) fn slice_of_claim_name(name: &str) -> Option<SliceName> {
    let (slice, unique) = name.rsplit_once('-')?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (unique.len() == UNIQUE_DIGITS && unique.bytes().all(is_digit)).then(|| slice.parse().ok())?
}

/// Does a claim or a template of this name belong to the injector? `webhook-policies.yaml` has the same expression.
pub(crate) fn is_reserved(name: &str) -> bool {
    let kinds = ["fraction", "memory", "whole", "mig"];
    let kind = name.strip_prefix("cantle-").and_then(|rest| rest.split_once('-')).map(|(kind, _)| kind);
    kind.is_some_and(|kind| kinds.contains(&kind))
}

/// The profile of these tables that can be named so. A `+` in a profile's name cannot be in the name of an object.
pub fn profile_of<'a>(name: &str, tables: impl IntoIterator<Item = &'a Table>) -> Option<&'a str> {
    let resource = resource_of_profile(name);
    let mut known = tables.into_iter().flat_map(|table| &table.profiles).map(|profile| profile.name.as_str());
    known.find(|known| resource_of_profile(known) == resource)
}

fn read(name: &str) -> Option<SliceName> {
    if let Some((slice, compute)) = split_compute(name) {
        return read(slice)?.with_compute(compute?).ok();
    }
    let (kind, rest) = name.strip_prefix("cantle-")?.split_once('-')?;
    let (amount, gpus) = rest.split_once("-x").unwrap_or((rest, "1"));
    let devices = |text: &str| text.parse().ok().filter(|gpus| (1..=MAX_DEVICES).contains(gpus));
    match kind {
        "fraction" => {
            let parts = amount.parse().ok().filter(|parts| (1..PARTS).contains(parts))?;
            Some(SliceName::Fraction { parts, gpus: devices(gpus)? })
        }
        "memory" => {
            let mib = amount.parse().ok().filter(|mib| (MIN_MIB..=MAX_MIB).contains(mib))?;
            Some(SliceName::Memory { mib, gpus: devices(gpus)? })
        }
        "whole" => Some(SliceName::Whole { gpus: devices(rest)? }),
        "mig" => is_profile(rest).then(|| SliceName::Mig { profile: rest.to_owned() }),
        _ => None,
    }
}

/// The parts of a name with a share of compute time; the share is none if it cannot be read. Words of a MIG profile are
/// not ours.
fn split_compute(name: &str) -> Option<(&str, Option<ComputeRequest>)> {
    let of = |mode: ComputeMode| {
        let (slice, rest) = name.split_once(&format!("-{mode}"))?;
        Some((slice, read_compute(mode, rest)))
    };
    if name.starts_with("cantle-mig-") {
        return None;
    }
    of(ComputeMode::Fair).or_else(|| of(ComputeMode::Strict))
}

fn read_compute(mode: ComputeMode, rest: &str) -> Option<ComputeRequest> {
    let mut compute = ComputeRequest { mode, ..ComputeRequest::default() };
    for word in rest.split('-').skip(1) {
        let (letter, number) = word.split_at_checked(1)?;
        let part = Milli(number.parse().ok().filter(|part| (1..=1000).contains(part))?);
        match letter {
            "r" => compute.request = Some(part),
            "l" => compute.limit = Some(part),
            _ => return None,
        }
    }
    Some(compute)
}

/// The smallest amount of memory in MiB: one granule.
pub(crate) const MIN_MIB: u64 = 2;

/// More than any GPU has, by far: 16 TiB. A limit keeps sums and names small.
pub(crate) const MAX_MIB: u64 = 1 << 24;

/// Has `text` the form of a MIG profile's name, such as `1g.10gb`, `1g.10gb+me` or `1g.10gb.me`?
#[must_use]
pub(crate) fn is_profile(text: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.len() <= 4 && text.bytes().all(|b| b.is_ascii_digit());
    let Some((compute, rest)) = text.split_once("g.") else { return false };
    let Some((memory, extra)) = rest.split_once("gb") else { return false };
    let extra_is_name = match extra.split_at_checked(1) {
        None => true,
        Some((sign, words)) => {
            matches!(sign, "+" | "-" | ".")
                && words.len() <= 16
                && words
                    .split('.')
                    .all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase()))
        }
    };
    number(compute) && number(memory) && extra_is_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_all() {
        let profile = "1g.10gb.me".to_owned();
        for (slice_name, name) in [
            (SliceName::Fraction { parts: 625, gpus: 1 }, "cantle-fraction-0625"),
            (SliceName::Fraction { parts: 6250, gpus: 2 }, "cantle-fraction-6250-x2"),
            (SliceName::Memory { mib: 4096, gpus: 1 }, "cantle-memory-4096"),
            (SliceName::Whole { gpus: 2 }, "cantle-whole-2"),
            (SliceName::Mig { profile }, "cantle-mig-1g.10gb.me"),
        ] {
            assert_eq!(slice_name.to_string(), name);
            assert_eq!(name.parse(), Ok(slice_name));
        }
    }

    #[test]
    fn names_say_the_compute_too() {
        let compute = ComputeRequest { mode: ComputeMode::Fair, ..ComputeRequest::default() };
        let half = ComputeRequest { request: Some(Milli(500)), limit: Some(Milli(750)), ..compute };
        let strict = ComputeRequest { mode: ComputeMode::Strict, request: Some(Milli::ONE), limit: None };
        let quarter = || SliceName::Fraction { parts: 2500, gpus: 1 };
        let memory = SliceName::Memory { mib: 4096, gpus: 1 };
        for (slice, compute, name, counts) in [
            (quarter(), compute, "cantle-fraction-2500-fair", "0.25 GPU"),
            (quarter(), half, "cantle-fraction-2500-fair-r0500-l0750", "0.5 GPU"),
            (quarter(), strict, "cantle-fraction-2500-strict-r1000", "1 GPU"),
            (memory, compute, "cantle-memory-4096-fair", "4 GiB of GPU memory"),
            (SliceName::Whole { gpus: 1 }, compute, "cantle-whole-1-fair", "1 GPU"),
        ] {
            let slice_name = slice.clone().with_compute(compute).unwrap();
            assert_eq!(slice_name.to_string(), name);
            assert_eq!(slice_name.request([]).to_string(), counts, "the greater part of memory and compute");
            assert_eq!((slice_name.slice(), slice_name.compute()), (&slice, compute));
            assert_eq!(name.parse(), Ok(slice_name));
        }
        assert_eq!(quarter().with_compute(ComputeRequest::default()), Ok(quarter()), "even is no share");
        for wrong in [
            "cantle-fraction-2500-even",
            "cantle-fraction-2500-fair-r500",
            "cantle-fraction-2500-fair-r0000",
            "cantle-fraction-2500-fair-l0100",
            "cantle-fraction-2500-fair-l0750-r0500",
            "cantle-fraction-2500-fair-fair",
            "cantle-fraction-2500-x2-fair",
            "cantle-memory-4096-fair-r0500",
            "cantle-whole-2-fair",
            "cantle-fair",
        ] {
            assert!(wrong.parse::<SliceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_claims() {
        for name in
            ["cantle-fraction-5000", "cantle-memory-4096-x2", "cantle-mig-1g.10gb.me", "cantle-whole-1-fair"]
        {
            let slice: SliceName = name.parse().unwrap();
            let claim = claim_name(&slice, "9F86D081-884c-4d65-9a2f-eaa0c55ad015");
            assert_eq!(claim, format!("{name}-9f86d081884c4d65"));
            assert_eq!(slice_of_claim_name(&claim), Some(slice.clone()));
            assert_eq!(claim_name(&slice, "1"), format!("{name}-0000000000000001"));
            for other in [
                name.to_owned(),
                format!("{claim}0"),
                format!("x{claim}"),
                format!("{name}-9f86d081884c4d6g"),
            ] {
                assert_eq!(slice_of_claim_name(&other), None, "{other}");
            }
        }
    }

    #[test]
    fn other_names_are_not_ours() {
        for name in [
            "",
            "cantle-",
            "cantle-fraction-",
            "cantle-fraction-5",
            "cantle-fraction-0000",
            "cantle-fraction-10000",
            "cantle-fraction-5000-x0",
            "cantle-fraction-5000-x1",
            "cantle-fraction-5000-x33",
            "cantle-memory-0",
            "cantle-memory-04",
            "cantle-memory-99999999999",
            "cantle-whole-0",
            "cantle-mig-10gb",
            "cantle-mig-1g.10gb.",
            "team-fraction-5000",
        ] {
            assert!(name.parse::<SliceName>().is_err(), "{name}");
        }
    }
}
