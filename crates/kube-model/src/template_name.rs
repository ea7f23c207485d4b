//! What a pod can ask of GPUs, and the name of the claim template that stands for it.
//!
//! The name says all there is to know, so the webhook creates nothing: it writes the name into the pod, and whoever looks
//! after templates can make the template from the name alone.

use std::fmt;
use std::str::FromStr;

use cantle_mig::Table;
use cantle_model::{Bytes, Fraction, GpuRequest};

use crate::names::resource_of_profile;

/// Parts that a whole GPU has in [`TemplateName::Fraction`]: enough for 0.0625.
pub const PARTS: u32 = 10_000;

/// Devices that one claim may have: Kubernetes' own limit.
pub const MAX_DEVICES: u32 = 32;

/// What a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateName {
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
}

impl TemplateName {
    /// The request that is spelled so, given the MIG tables of the GPUs in question.
    #[must_use]
    pub fn request<'a>(&self, tables: impl IntoIterator<Item = &'a Table>) -> GpuRequest {
        match self {
            Self::Fraction { parts, .. } => GpuRequest::Fraction(Fraction::from_ten_thousandths(*parts)),
            Self::Memory { mib, .. } => GpuRequest::Memory(Bytes(*mib << 20)),
            Self::Whole { gpus } => GpuRequest::Gpus(*gpus),
            Self::Mig { profile } => {
                GpuRequest::MigProfile(profile_of(profile, tables).unwrap_or(profile).to_owned())
            }
        }
    }

    /// How many GPUs it is on.
    #[must_use]
    pub const fn gpus(&self) -> u32 {
        match self {
            Self::Whole { gpus } => *gpus,
            Self::Fraction { .. } | Self::Memory { .. } | Self::Mig { .. } => self.devices(),
        }
    }

    /// Of how many GPUs a part is wanted.
    #[must_use]
    pub const fn devices(&self) -> u32 {
        match self {
            Self::Fraction { gpus, .. } | Self::Memory { gpus, .. } => *gpus,
            Self::Whole { .. } | Self::Mig { .. } => 1,
        }
    }
}

/// The template's name: `cantle-fraction-5000`, `cantle-memory-4096-x2`, `cantle-whole-2`, `cantle-mig-1g.10gb`.
impl fmt::Display for TemplateName {
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
        };
        if gpus == 1 { Ok(()) } else { write!(f, "-x{gpus}") }
    }
}

/// A name that no ask has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not the name of one of cantle's claim templates")]
pub struct TemplateNameError(String);

impl FromStr for TemplateName {
    type Err = TemplateNameError;

    fn from_str(name: &str) -> Result<Self, TemplateNameError> {
        let template = read(name).ok_or_else(|| TemplateNameError(name.to_owned()))?;
        // One ask has one name: what would be written differently was not written by us.
        if template.to_string() == name { Ok(template) } else { Err(TemplateNameError(name.to_owned())) }
    }
}

/// The profile of these tables that can be named so. A `+` in a profile's name can't be in the name of an object.
pub fn profile_of<'a>(name: &str, tables: impl IntoIterator<Item = &'a Table>) -> Option<&'a str> {
    let resource = resource_of_profile(name);
    let mut known = tables.into_iter().flat_map(|table| &table.profiles).map(|profile| profile.name.as_str());
    known.find(|known| resource_of_profile(known) == resource)
}

fn read(name: &str) -> Option<TemplateName> {
    let (kind, rest) = name.strip_prefix("cantle-")?.split_once('-')?;
    let (amount, gpus) = rest.split_once("-x").unwrap_or((rest, "1"));
    let devices = |text: &str| text.parse().ok().filter(|gpus| (1..=MAX_DEVICES).contains(gpus));
    match kind {
        "fraction" => {
            let parts = amount.parse().ok().filter(|parts| (1..PARTS).contains(parts))?;
            Some(TemplateName::Fraction { parts, gpus: devices(gpus)? })
        }
        "memory" => {
            let mib = amount.parse().ok().filter(|mib| (MIN_MIB..=MAX_MIB).contains(mib))?;
            Some(TemplateName::Memory { mib, gpus: devices(gpus)? })
        }
        "whole" => Some(TemplateName::Whole { gpus: devices(rest)? }),
        "mig" => is_profile(rest).then(|| TemplateName::Mig { profile: rest.to_owned() }),
        _ => None,
    }
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
        for (template, name) in [
            (TemplateName::Fraction { parts: 625, gpus: 1 }, "cantle-fraction-0625"),
            (TemplateName::Fraction { parts: 6250, gpus: 2 }, "cantle-fraction-6250-x2"),
            (TemplateName::Memory { mib: 4096, gpus: 1 }, "cantle-memory-4096"),
            (TemplateName::Whole { gpus: 2 }, "cantle-whole-2"),
            (TemplateName::Mig { profile }, "cantle-mig-1g.10gb.me"),
        ] {
            assert_eq!(template.to_string(), name);
            assert_eq!(name.parse(), Ok(template));
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
            assert!(name.parse::<TemplateName>().is_err(), "{name}");
        }
    }
}
