//! Builds a claim template from its name and from the GPUs that the cluster has.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use crate::ObjectExt as _;
use crate::dra::ComputeParameters;
use crate::inject::CLAIM;
use crate::names::{CLASS_SHARED, CLASS_WHOLE, COMPUTE_MARKER, DRIVER, class_of_profile, size_marker};
use crate::template_name::TemplateName;

/// Sizes of GPUs that one template can be for: Kubernetes allows no more alternatives in a request.
pub const MAX_SIZES: usize = 8;

/// More memory than any GPU has, for amounts that do not depend on the GPU.
const ANY_MIB: u64 = 1 << 40;

/// Annotation of a claim that was made for a pod: its name there.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

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
    let mut claim = devices_of(template, sizes)?;
    if let TemplateName::Compute { slice, .. } = template {
        let request = &mut claim["requests"][0];
        let alternatives = request.get_mut("firstAvailable").and_then(Value::as_array_mut);
        match alternatives {
            Some(all) => all.iter_mut().for_each(only_where_shares_are_kept),
            None => only_where_shares_are_kept(&mut request["exactly"]),
        }
        let parameters = ComputeParameters::of(slice, template.compute());
        claim["config"] =
            json!([{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}]);
    }
    Some(json!({"spec": {"devices": claim}}))
}

fn only_where_shares_are_kept(device: &mut Value) {
    device["capacity"]["requests"][COMPUTE_MARKER] = json!("0");
}

/// Requests for what `template` counts, and constraints.
fn devices_of(template: &TemplateName, sizes: &GpuSizes) -> Option<Value> {
    let (request, gpus) = match template {
        TemplateName::Compute { slice, .. } if matches!(**slice, TemplateName::Fraction { .. }) => {
            (shares_of_sizes(template, sizes, 1)?, 1)
        }
        TemplateName::Compute { slice, .. } => return devices_of(slice, sizes),
        TemplateName::Fraction { gpus, .. } => (shares_of_sizes(template, sizes, *gpus)?, *gpus),
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
    Some(claim)
}

/// A part of a GPU, as one alternative per size.
fn shares_of_sizes(template: &TemplateName, sizes: &GpuSizes, gpus: u32) -> Option<Value> {
    let of = |total: &u64| share_of_size(*total, shared_mib(template, *total), gpus);
    let requests: Vec<Value> = alternatives(sizes).iter().map(of).collect();
    (!requests.is_empty()).then(|| json!({"name": "gpu", "firstAvailable": requests}))
}

/// MiB that `template` gets of a GPU that has `total_mib`, as on machines without Kubernetes; none if that GPU is too small.
fn shared_mib(template: &TemplateName, total_mib: u64) -> u64 {
    let share = template.request([]).share_of(total_mib << 20);
    share.map_or(0, |share| share.memory_limit_bytes >> 20)
}

fn share_of_size(total_mib: u64, mib: u64, gpus: u32) -> Value {
    let mut device = devices(CLASS_SHARED, gpus);
    device["name"] = json!(format!("m{total_mib}"));
    device["capacity"] = memory(mib);
    device["capacity"]["requests"][size_marker(total_mib)] = json!("0");
    device
}

/// Defaults of the API server are written out, so that its copy compares equal.
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

/// An action on a template.
#[derive(Debug, Clone, PartialEq)]
pub enum TemplateAction {
    /// Make it.
    Create(TemplateKey, Value),
    /// It does not cover all GPUs, or another program created it. A template can't be changed: it is created again when it
    /// is gone and a pod waits for it.
    Remove(TemplateKey),
}

/// `existing` has null for templates of others under cantle's names.
///
/// The templates that pods wait for and that are missing, and all outdated ones: the first pod that requests a template
/// gets its claim from it before it can be renewed.
#[must_use]
pub fn steps(
    wanted: &BTreeSet<TemplateKey>,
    existing: &BTreeMap<TemplateKey, Value>,
    sizes: &GpuSizes,
) -> Vec<TemplateAction> {
    let step = |key: &TemplateKey| match existing.get(key) {
        None => Some(TemplateAction::Create(key.clone(), spec(&key.1, sizes)?)),
        Some(Value::Null) => Some(TemplateAction::Remove(key.clone())),
        Some(there) if !is_current(there, &key.1, sizes) => Some(TemplateAction::Remove(key.clone())),
        Some(_) => None,
    };
    let all: BTreeSet<&TemplateKey> = wanted.iter().chain(existing.keys()).collect();
    all.into_iter().filter_map(step).collect()
}

/// Is `there` what the template of this name has to be, and nothing else? Sizes of GPUs that are away for a moment do no harm.
/// Without GPUs nothing better is known.
#[must_use]
pub fn is_current(there: &Value, template: &TemplateName, sizes: &GpuSizes) -> bool {
    let alternatives = there.pointer("/spec/devices/requests/0/firstAvailable").and_then(Value::as_array);
    let names = alternatives.into_iter().flatten().filter_map(|each| each["name"].as_str());
    let mut all: GpuSizes =
        names.filter_map(|name| Some((name.strip_prefix('m')?.parse().ok()?, 0))).collect();
    all.extend(sizes);
    spec(template, &all).is_none_or(|wanted| is_same(there, &wanted))
}

/// The `spec` for a pod's claim that was made of `template` for GPUs that are others now; none if the claim is as it has to be, if it
/// has been allocated, or if it is not the injector's. Such a claim fits nowhere, however long its pod waits.
#[must_use]
pub fn renewed(claim: &ResourceClaim, template: &TemplateName, sizes: &GpuSizes) -> Option<Value> {
    let is_ours = claim.annotations().get(POD_CLAIM).is_some_and(|name| name == CLAIM);
    let is_given = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    if !is_ours || is_given || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let there = json!({"spec": claim.spec});
    if is_current(&there, template, sizes) {
        return None;
    }
    spec(template, sizes).map(|mut wanted| wanted["spec"].take())
}

/// Objects may have more: later versions of Kubernetes fill in more.
fn is_same(there: &Value, wanted: &Value) -> bool {
    match (there, wanted) {
        (Value::Object(there), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| there.get(key).is_some_and(|there| is_same(there, value)))
        }
        (Value::Array(there), Value::Array(wanted)) => {
            there.len() == wanted.len()
                && wanted.iter().all(|wanted| there.iter().any(|there| is_same(there, wanted)))
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
        assert_eq!(first[0]["capacity"]["requests"]["gpu.cantle.dev/mib_40960"], "0", "only of that size");
        assert_eq!(first[1]["capacity"]["requests"]["memory"], "40Gi");
        assert!(spec["spec"]["devices"].get("constraints").is_none());
    }

    #[test]
    fn a_share_of_compute_counts_its_greater_part_and_says_the_rest() {
        let sizes = GpuSizes::from([(40_960, 2)]);
        let template: TemplateName = "cantle-fraction-2500-fair-r0750".parse().unwrap();
        let all = spec(&template, &sizes).unwrap();
        let devices = &all["spec"]["devices"];
        let first = &devices["requests"][0]["firstAvailable"][0]["capacity"]["requests"];
        assert_eq!(first["memory"], "30Gi", "the scheduler counts 0.75");
        assert_eq!(first["gpu.cantle.dev/compute"], "0", "only where shares are kept");
        let said = json!({"compute": "fair", "computeRequest": "0.75", "fraction": "0.25"});
        assert_eq!(devices["config"][0]["opaque"], json!({"driver": "gpu.cantle.dev", "parameters": said}));
        let whole: TemplateName = "cantle-whole-1-strict".parse().unwrap();
        let whole = spec(&whole, &sizes).unwrap();
        let exactly = &whole["spec"]["devices"]["requests"][0]["exactly"];
        assert_eq!(exactly["deviceClassName"], CLASS_WHOLE);
        assert_eq!(exactly["capacity"]["requests"], json!({"gpu.cantle.dev/compute": "0"}));
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
        assert_eq!(steps(&wanted, &existing, &both), [TemplateAction::Remove(key.clone())]);
        let existing = BTreeMap::from([(key, for_both)]);
        assert!(
            steps(&wanted, &existing, &small).is_empty(),
            "a size that is away for a moment may come back"
        );
    }

    #[test]
    fn templates_that_nobody_waits_for_are_renewed_too() {
        let key = ("team".to_owned(), half());
        let small = spec(&half(), &GpuSizes::from([(40_960, 1)])).unwrap();
        let existing = BTreeMap::from([(key.clone(), small)]);
        let large = GpuSizes::from([(81_558, 2)]);
        let removed = [TemplateAction::Remove(key.clone())];
        let none = BTreeSet::new();
        assert_eq!(
            steps(&none, &existing, &large),
            removed,
            "the next pod's claim would be for 40 GiB alone"
        );
        assert!(steps(&none, &existing, &GpuSizes::new()).is_empty(), "nothing better is known");
        let foreign = BTreeMap::from([(key, Value::Null)]);
        assert_eq!(steps(&none, &foreign, &GpuSizes::new()), removed, "somebody else's");
    }

    #[test]
    fn the_claim_of_a_pod_that_waits_is_renewed_for_other_gpus() {
        let (small, large) = (GpuSizes::from([(40_960, 1)]), GpuSizes::from([(81_920, 2)]));
        let claim = |of: &GpuSizes, name: &str, status: Value| -> ResourceClaim {
            let spec = spec(&half(), of).unwrap()["spec"].take();
            let metadata = json!({"name": "c", "annotations": {POD_CLAIM: name}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
        };
        let waits = claim(&small, CLAIM, json!({}));
        let wanted = spec(&half(), &large).unwrap()["spec"].take();
        assert_eq!(renewed(&waits, &half(), &large), Some(wanted));
        assert_eq!(renewed(&waits, &half(), &small), None, "it fits");
        assert_eq!(renewed(&waits, &half(), &GpuSizes::new()), None, "nothing better is known");
        let given = json!({"allocation": {"devices": {"results": []}}});
        assert_eq!(renewed(&claim(&small, CLAIM, given), &half(), &large), None, "it has its share");
        assert_eq!(renewed(&claim(&small, "other", json!({})), &half(), &large), None, "the user's own");
    }

    /// A template of another program under one of cantle's names.
    #[test]
    fn a_template_with_more_than_it_should_have_is_not_ours() {
        let (key, sizes) = (("team".to_owned(), half()), GpuSizes::from([(40_960, 1)]));
        let right = spec(&half(), &sizes).unwrap();
        let whole = spec(&TemplateName::Whole { gpus: 1 }, &sizes).unwrap();
        let mut more = right.clone();
        let alternatives = more.pointer_mut("/spec/devices/requests/0/firstAvailable").unwrap();
        let all = json!({"name": "all", "deviceClassName": CLASS_WHOLE});
        alternatives.as_array_mut().unwrap().insert(0, all);
        let mut two = right.clone();
        let request = json!({"name": "other", "exactly": {"deviceClassName": CLASS_WHOLE}});
        two.pointer_mut("/spec/devices/requests").unwrap().as_array_mut().unwrap().push(request);
        let mut larger = right;
        larger.pointer_mut("/spec/devices/requests/0/firstAvailable/0/capacity").unwrap()["requests"]["memory"] =
            json!("40Gi");
        for foreign in [whole, more, two, larger] {
            let existing = BTreeMap::from([(key.clone(), foreign.clone())]);
            assert_eq!(
                steps(&BTreeSet::new(), &existing, &sizes),
                [TemplateAction::Remove(key.clone())],
                "{foreign}"
            );
        }
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
