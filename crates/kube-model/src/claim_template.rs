//! What a claim template looks like, from its name and from the GPUs that the cluster has.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::names::{CLASS_SHARED, CLASS_WHOLE, DRIVER, class_of_profile};
use crate::template_name::TemplateName;

/// Sizes of GPUs that one template can be for: Kubernetes allows no more alternatives in a request.
pub const MAX_SIZES: usize = 8;

/// More memory than any GPU has, for amounts that do not depend on the GPU.
const ANY_MIB: u64 = 1 << 40;

/// A template is known by namespace and name.
pub type TemplateKey = (String, TemplateName);

/// Memory in MiB of shared GPUs, and how many have it.
pub type GpuSizes = BTreeMap<u64, usize>;

/// The `spec` of the template; none while a fraction can't be turned into an amount because there is no GPU yet.
///
/// A claim names an amount of memory, so a fraction is one alternative per size of GPU. Smaller GPUs come first: big ones
/// stay for those that need them.
#[must_use]
pub fn spec(template: &TemplateName, sizes: &GpuSizes) -> Option<Value> {
    let (request, gpus) = match template {
        TemplateName::Fraction { gpus, .. } => {
            let sizes = alternatives(sizes);
            let of = |total: &u64| share_of_size(*total, shared_mib(template, *total), *gpus);
            let requests: Vec<Value> = sizes.iter().map(of).collect();
            if requests.is_empty() {
                return None;
            }
            (json!({"name": "gpu", "firstAvailable": requests}), *gpus)
        }
        TemplateName::Memory { gpus, .. } => {
            let mut device = devices(CLASS_SHARED, *gpus);
            device["capacity"] = memory(shared_mib(template, ANY_MIB));
            (json!({"name": "gpu", "exactly": device}), *gpus)
        }
        // Two whole GPUs are never the same one.
        TemplateName::Whole { gpus } => (json!({"name": "gpu", "exactly": devices(CLASS_WHOLE, *gpus)}), 1),
        TemplateName::Mig { profile } => {
            (json!({"name": "gpu", "exactly": devices(&class_of_profile(profile), 1)}), 1)
        }
    };
    let mut claim = json!({"requests": [request]});
    if gpus > 1 {
        // Without it, several shares of one claim could be of the same GPU.
        claim["constraints"] = json!([{"distinctAttribute": format!("{DRIVER}/uuid"), "requests": ["gpu"]}]);
    }
    Some(json!({"spec": {"devices": claim}}))
}

/// MiB that `template` gets of a GPU that has `total_mib`, as on machines without Kubernetes; none if that GPU is too small.
fn shared_mib(template: &TemplateName, total_mib: u64) -> u64 {
    let share = template.request([]).share_of(total_mib << 20);
    share.map_or(0, |share| share.memory_limit_bytes >> 20)
}

fn share_of_size(total_mib: u64, mib: u64, gpus: u32) -> Value {
    let size = quantity(total_mib);
    let cel = format!("device.capacity['{DRIVER}'].memory.compareTo(quantity('{size}')) == 0");
    let mut device = devices(CLASS_SHARED, gpus);
    device["name"] = json!(format!("m{total_mib}"));
    device["selectors"] = json!([{"cel": {"expression": cel}}]);
    device["capacity"] = memory(mib);
    device
}

/// What the API server would add is written out, so that what it gives back compares equal.
fn devices(class: &str, count: u32) -> Value {
    json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count})
}

fn memory(mib: u64) -> Value {
    json!({"requests": {"memory": quantity(mib)}})
}

/// The sizes that most GPUs have, the smallest first.
fn alternatives(sizes: &GpuSizes) -> BTreeSet<u64> {
    let mut common: Vec<(usize, u64)> = sizes.iter().map(|(size, count)| (*count, *size)).collect();
    common.sort_unstable_by(|a, b| b.cmp(a));
    common.into_iter().take(MAX_SIZES).map(|(_, size)| size).collect()
}

/// As the API server writes it: in the largest unit that leaves no fraction.
fn quantity(mib: u64) -> String {
    let units = ["Mi", "Gi", "Ti"];
    let mut amount = mib;
    let mut at = 0;
    while amount != 0 && amount.is_multiple_of(1024) && at + 1 < units.len() {
        amount /= 1024;
        at += 1;
    }
    format!("{amount}{}", units[at])
}

/// What to do with a template.
#[derive(Debug, Clone, PartialEq)]
pub enum TemplateAction {
    /// Make it.
    Create(TemplateKey, Value),
    /// There are GPUs that it is not for, so delete it and create it again: a template can't be changed. Claims that came
    /// from the old one stay as they are.
    Replace(TemplateKey, Value),
}

/// What is missing or outdated, of those that pods wait for.
#[must_use]
pub fn steps(
    wanted: &BTreeSet<TemplateKey>,
    existing: &BTreeMap<TemplateKey, Value>,
    sizes: &GpuSizes,
) -> Vec<TemplateAction> {
    let step = |key: &TemplateKey| {
        let spec = spec(&key.1, sizes)?;
        match existing.get(key) {
            None => Some(TemplateAction::Create(key.clone(), spec)),
            Some(there) if !covers(there, &spec) => Some(TemplateAction::Replace(key.clone(), spec)),
            Some(_) => None,
        }
    };
    wanted.iter().filter_map(step).collect()
}

/// Has `there` all that `wanted` has? It may have more: later versions of Kubernetes fill in more, and sizes of GPUs that
/// are away for a moment do no harm.
fn covers(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| there.get(key).is_some_and(|there| covers(there, value)))
        }
        (Value::Array(there), Value::Array(wanted)) => {
            wanted.iter().all(|wanted| there.iter().any(|there| covers(there, wanted)))
        }
        _ => there == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half() -> TemplateName {
        TemplateName::Fraction { parts: 5000, gpus: 1 }
    }

    #[test]
    fn a_fraction_is_an_amount_of_each_size() {
        let sizes = GpuSizes::from([(81_920, 4), (40_960, 2)]);
        let spec = spec(&half(), &sizes).unwrap();
        let first = &spec["spec"]["devices"]["requests"][0]["firstAvailable"];
        assert_eq!(first.as_array().unwrap().len(), 2);
        assert_eq!(first[0]["name"], "m40960");
        assert_eq!(first[0]["capacity"]["requests"]["memory"], "20Gi");
        assert_eq!(
            first[0]["selectors"][0]["cel"]["expression"],
            "device.capacity['gpu.cantle.dev'].memory.compareTo(quantity('40Gi')) == 0"
        );
        assert_eq!(first[1]["capacity"]["requests"]["memory"], "40Gi");
        assert!(spec["spec"]["devices"].get("constraints").is_none());
    }

    #[test]
    fn several_gpus_are_different_ones() {
        let spec = spec(&TemplateName::Memory { mib: 4095, gpus: 2 }, &GpuSizes::new()).unwrap();
        let devices = &spec["spec"]["devices"];
        assert_eq!(
            devices["requests"][0]["exactly"]["capacity"]["requests"]["memory"], "4094Mi",
            "whole granules, as on machines"
        );
        assert_eq!(devices["requests"][0]["exactly"]["count"], 2);
        assert_eq!(devices["constraints"][0]["distinctAttribute"], "gpu.cantle.dev/uuid");
    }

    #[test]
    fn more_sizes_than_a_request_can_name() {
        let sizes: GpuSizes = (1..=12).map(|at| (at * 8192, if at == 3 { 1 } else { 5 })).collect();
        let kept = alternatives(&sizes);
        assert_eq!(kept.len(), MAX_SIZES);
        assert!(!kept.contains(&(3 * 8192)), "the rare size goes first");
    }

    #[test]
    fn templates_follow_the_gpus() {
        let key = ("team".to_owned(), half());
        let wanted = BTreeSet::from([key.clone()]);
        let none = BTreeMap::new();
        assert!(steps(&wanted, &none, &GpuSizes::new()).is_empty(), "no GPU yet, so no amount yet");
        let small = GpuSizes::from([(40_960, 1)]);
        let made = spec(&half(), &small).unwrap();
        assert_eq!(steps(&wanted, &none, &small), [TemplateAction::Create(key.clone(), made.clone())]);
        let mut there = made;
        there["spec"]["devices"]["config"] = json!([]);
        let existing = BTreeMap::from([(key.clone(), there)]);
        assert!(steps(&wanted, &existing, &small).is_empty());
        let both = GpuSizes::from([(40_960, 1), (81_920, 1)]);
        let for_both = spec(&half(), &both).unwrap();
        assert_eq!(
            steps(&wanted, &existing, &both),
            [TemplateAction::Replace(key.clone(), for_both.clone())]
        );
        let existing = BTreeMap::from([(key, for_both)]);
        assert!(
            steps(&wanted, &existing, &small).is_empty(),
            "a size that is away for a moment may come back"
        );
    }

    #[test]
    fn quantities_as_the_api_server_writes_them() {
        for (mib, text) in [
            (2, "2Mi"),
            (1024, "1Gi"),
            (20_480, "20Gi"),
            (40_958, "40958Mi"),
            (1 << 20, "1Ti"),
            (1 << 21, "2Ti"),
        ] {
            assert_eq!(quantity(mib), text);
        }
    }
}
