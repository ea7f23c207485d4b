//! Reads a pod's request, in the formats of ClearML (CFGI, and the older resource) and of Run:ai.

use std::collections::BTreeMap;

use cantle_model::GRANULE_BYTES;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::containers::ContainerList;
use super::{Denial, Rules, compute};
use crate::claim::claim_of;
use crate::names::MIG_RESOURCE;
use crate::slice_name::{MAX_DEVICES, MAX_MIB, PARTS, SliceName, is_profile};

/// ClearML's label.
pub const LABEL: &str = "clearml-injector/fraction";
/// ClearML's older resource; `-N` may follow.
const FRACTION: &str = "clear.ml/fraction";
pub(super) use crate::names::GPU_RESOURCE as GPU;

const GPU_FRACTION: &str = "gpu-fraction";
const GPU_MEMORY: &str = "gpu-memory";
const NUM_DEVICES: &str = "gpu-fraction-num-devices";
const MIG_PROFILE: &str = "mig-profile";
/// Run:ai's word for the container that gets the GPU.
pub(crate) const CONTAINER_NAME: &str = "gpu-fraction-container-name";

/// Run:ai's words; as labels they mean nothing.
pub(super) const ANNOTATIONS: [&str; 5] =
    [GPU_FRACTION, GPU_MEMORY, NUM_DEVICES, MIG_PROFILE, CONTAINER_NAME];

/// Less than a granule is nothing.
const LEAST_MIB: u64 = GRANULE_BYTES >> 20;

const FRACTIONS: [&str; 8] = ["0.0625", "0.125", "0.250", "0.375", "0.500", "0.625", "0.750", "0.875"];
const FRACTIONS_RIGHT: &str =
    "0.125, 0.250, 0.375, 0.500, 0.625, 0.750, 0.875, 0.0625, or a whole number of GPUs such as 1 or 2.0";

/// The pod's request, and the field that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatedRequest {
    pub(crate) slice_name: SliceName,
    /// For messages: `label clearml-injector/fraction "0.500"`.
    pub(crate) by: String,
    /// In ClearML's words, which may come with `nvidia.com/gpu`.
    pub(crate) clearml: bool,
}

pub(crate) fn is_fraction_key(key: &str) -> bool {
    key.starts_with(FRACTION)
}

/// Limits and requests of a container: the same key twice only if the amounts differ.
pub(crate) fn amounts(container: &Container) -> Vec<(&str, &str)> {
    let resources = container.resources.as_ref();
    let maps = resources.into_iter().flat_map(|r| [&r.limits, &r.requests]).flatten();
    let mut all: Vec<_> = maps.flatten().map(|(key, amount)| (key.as_str(), amount.0.as_str())).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// All requests of the pod must agree.
pub(crate) fn asked(pod: &Pod, rules: &Rules) -> Result<Option<StatedRequest>, Denial> {
    let compute = compute::stated(pod)?;
    let mut found = by_label(pod)?;
    found.extend(by_resource(pod, rules)?);
    found.extend(by_annotation(pod)?);
    if let Some(other) = found.iter().find(|other| other.slice_name != found[0].slice_name) {
        return Err(Denial::Contradiction { one: found[0].by.clone(), other: other.by.clone() });
    }
    match found.into_iter().next() {
        Some(first) => {
            let slice_name = compute::of_slice(first.slice_name, compute)?;
            Ok(Some(StatedRequest { slice_name, ..first }))
        }
        // It would be ignored.
        None if compute.is_enforced() => Err(Denial::ComputeOfNothing(compute.mode)),
        None => Ok(None),
    }
}

/// A pod's request to cantle, in any format: by injection, by a claim of cantle, or as a MIG instance. Nothing of what
/// makes no sense: such a pod is refused.
pub fn slice_of(pod: &Pod) -> Option<SliceName> {
    let asked = || asked(pod, &Rules::default()).ok().flatten().map(|asked| asked.slice_name);
    let instance = || {
        let mut all = ContainerList::containers(pod).flat_map(|(_, _, container)| amounts(container));
        let profile = all.find_map(|(key, _)| key.strip_prefix(MIG_RESOURCE))?;
        is_profile(profile).then(|| SliceName::Mig { profile: profile.to_owned() })
    };
    asked().or_else(|| Some(claim_of(pod)?.slice)).or_else(instance)
}

/// The number of whole GPUs that a pod requests as NVIDIA's resource.
pub fn gpus_of(pod: &Pod) -> u32 {
    let limits = ContainerList::containers(pod).filter_map(|(_, _, container)| {
        container.resources.as_ref()?.limits.as_ref()?.get(GPU)?.0.parse::<u32>().ok()
    });
    limits.fold(0, u32::saturating_add)
}

fn by_label(pod: &Pod) -> Result<Vec<StatedRequest>, Denial> {
    let Some(given) = pod.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)) else {
        return Ok(Vec::new());
    };
    let what = format!("label {LABEL}");
    let slice_name = documented(given).ok_or_else(|| Denial::malformed(&what, given, FRACTIONS_RIGHT))?;
    Ok(vec![StatedRequest { slice_name, by: format!("{what} \"{given}\""), clearml: true }])
}

/// A value that ClearML documents, written as ClearML writes it.
fn documented(text: &str) -> Option<SliceName> {
    if FRACTIONS.contains(&text) {
        return decimal(text).map(|parts| SliceName::Fraction { parts, gpus: 1 });
    }
    let (whole, zeros) = text.split_once('.').unwrap_or((text, "0"));
    let is_whole =
        !whole.starts_with('0') && (1..=3).contains(&zeros.len()) && zeros.bytes().all(|b| b == b'0');
    is_whole.then(|| devices(whole)).flatten().map(|gpus| SliceName::Whole { gpus })
}

fn by_resource(pod: &Pod, rules: &Rules) -> Result<Vec<StatedRequest>, Denial> {
    let all = ContainerList::containers(pod).flat_map(|(_, _, container)| amounts(container));
    let asked = |(key, given): (&str, &str)| {
        let profile = key.strip_prefix(MIG_RESOURCE);
        let slice_name = match profile {
            Some(profile) => instance(key, profile, given)?,
            None => fraction(key, given)?,
        };
        Ok(StatedRequest {
            slice_name,
            by: format!("resource {key} \"{given}\""),
            clearml: profile.is_none(),
        })
    };
    all.filter(|(key, _)| rules.is_asking(key)).map(asked).collect()
}

fn fraction(key: &str, given: &str) -> Result<SliceName, Denial> {
    let number = &key[FRACTION.len()..];
    let is_key = number.is_empty() || number.strip_prefix('-').is_some_and(is_digits);
    if !is_key {
        return Err(Denial::malformed("a resource", key, "clear.ml/fraction-1"));
    }
    quantity(given).ok_or_else(|| Denial::malformed(&format!("resource {key}"), given, FRACTIONS_RIGHT))
}

fn instance(key: &str, profile: &str, given: &str) -> Result<SliceName, Denial> {
    if !is_profile(profile) {
        return Err(Denial::malformed("a resource", key, "a MIG profile's, such as nvidia.com/mig-1g.10gb"));
    }
    if given != "1" {
        return Err(Denial::malformed(&format!("resource {key}"), given, "1: a pod gets one instance"));
    }
    Ok(SliceName::Mig { profile: profile.to_owned() })
}

/// As [`documented`], but as amounts come from the API server: 0.5 as `500m`, 0.0625 as `62500u`.
fn quantity(text: &str) -> Option<SliceName> {
    let parts = match text.strip_suffix('m') {
        Some(milli) => number(milli)?.checked_mul(PARTS / 1000)?,
        None => match text.strip_suffix('u') {
            Some(micro) => number(micro).filter(|micro| micro % 100 == 0)? / 100,
            None => decimal(text)?,
        },
    };
    let listed = FRACTIONS.iter().any(|value| decimal(value) == Some(parts));
    match parts {
        _ if listed => Some(SliceName::Fraction { parts, gpus: 1 }),
        _ if parts % PARTS == 0 => {
            devices(&(parts / PARTS).to_string()).map(|gpus| SliceName::Whole { gpus })
        }
        _ => None,
    }
}

fn by_annotation(pod: &Pod) -> Result<Vec<StatedRequest>, Denial> {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let read =
        |name: &str, right: &str, read_as: &dyn Fn(&str) -> Option<SliceName>| match annotations.get(name) {
            None => Ok(None),
            Some(given) => {
                let what = format!("annotation {name}");
                let slice_name = read_as(given).ok_or_else(|| Denial::malformed(&what, given, right))?;
                Ok(Some(StatedRequest { slice_name, by: format!("{what} \"{given}\""), clearml: false }))
            }
        };
    let gpus = match annotations.get(NUM_DEVICES) {
        None => 1,
        Some(_) if !annotations.contains_key(GPU_FRACTION) && !annotations.contains_key(GPU_MEMORY) => {
            return Err(Denial::NothingToMultiply);
        }
        Some(given) => devices(given).ok_or_else(|| {
            Denial::malformed(&format!("annotation {NUM_DEVICES}"), given, "a number of GPUs from 1 to 32")
        })?,
    };
    let fraction = |text: &str| {
        let parts = decimal(text).filter(|parts| (1..PARTS).contains(parts))?;
        Some(SliceName::Fraction { parts, gpus })
    };
    let memory = |text: &str| {
        let mib = number(text).map(u64::from).filter(|mib| (LEAST_MIB..=MAX_MIB).contains(mib))?;
        Some(SliceName::Memory { mib, gpus })
    };
    let profile = |text: &str| is_profile(text).then(|| SliceName::Mig { profile: text.replace('+', ".") });
    let found = [
        read(GPU_FRACTION, "a decimal above 0 and below 1 with at most four places, such as 0.5", &fraction)?,
        read(GPU_MEMORY, "a whole number of MiB from 2 on, such as 4096", &memory)?,
        read(MIG_PROFILE, "the name of a MIG profile, such as 1g.10gb", &profile)?,
    ];
    Ok(found.into_iter().flatten().collect())
}

/// `0.5` in ten-thousandths. No sign, no exponent, at most four places.
fn decimal(text: &str) -> Option<u32> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(places) || places.len() > 4 {
        return None;
    }
    number(whole)?.checked_mul(PARTS)?.checked_add(number(&format!("{places:0<4}"))?)
}

pub(crate) fn devices(text: &str) -> Option<u32> {
    number(text).filter(|gpus| (1..=MAX_DEVICES).contains(gpus))
}

fn number(text: &str) -> Option<u32> {
    if is_digits(text) { text.parse().ok() } else { None }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}
