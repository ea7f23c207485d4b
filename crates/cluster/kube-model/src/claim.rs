//! Builds the claim of a pod from the name of its slice and from the GPUs that the cluster has.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use crate::ObjectExt as _;
use crate::dra::ComputeParameters;
use crate::inject::CLAIM;
use crate::names::{
    CLASS_SHARED, CLASS_WHOLE, COMPUTE_MARKER, DRIVER, NUMA_GROUP, NVLINK_GROUP, class_of_profile,
    size_marker,
};
use crate::slice_name::{SliceName, claim_name, slice_of_claim_name};

/// Sizes of GPUs that one claim can be for: Kubernetes allows no more alternatives in a request.
pub const MAX_SIZES: usize = 8;

/// More memory than any GPU has, for amounts that do not depend on the GPU.
const ANY_MIB: u64 = 1 << 40;

/// Annotation of a claim that was made for a pod: its name there.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";

/// kube-scheduler adds it before it allocates a claim. A claim that has it from the start costs one call less.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// Memory in MiB of shared GPUs, and how many have it.
pub type GpuSizes = BTreeMap<u64, usize>;

/// A pod's reference to its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReference {
    /// Name of the claim.
    pub name: String,
    /// The slice that it is for.
    pub slice: SliceName,
}

/// The claim that the injector gave this pod; none if it gave it none.
///
/// cantle 0.1 named a template instead. Then Kubernetes chooses the name of the claim, unless it finds one whose annotation
/// says that it is the pod's.
#[must_use]
pub fn claim_of(pod: &Pod) -> Option<ClaimReference> {
    let mut claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims).flatten();
    let claim = claims.find(|claim| claim.name == CLAIM)?;
    if let Some(name) = &claim.resource_claim_name {
        return Some(ClaimReference { name: name.clone(), slice: slice_of_claim_name(name)? });
    }
    let slice: SliceName = claim.resource_claim_template_name.as_ref()?.parse().ok()?;
    let mut known = pod.status.iter().flat_map(|status| &status.resource_claim_statuses).flatten();
    let known =
        known.find(|status| status.name == CLAIM).and_then(|status| status.resource_claim_name.clone());
    let name = known.unwrap_or_else(|| claim_name(&slice, pod.metadata.uid.as_deref().unwrap_or_default()));
    Some(ClaimReference { name, slice })
}

/// Does a claim end with the pod that names it so? One that a user created can serve other pods.
pub(crate) fn ends_with_pod(claim: &PodResourceClaim) -> bool {
    claim.resource_claim_name.as_deref().is_none_or(|name| slice_of_claim_name(name).is_some())
}

/// The claim itself, to be created; none while a fraction cannot be turned into an amount because there is no GPU yet.
#[must_use]
pub fn claim(pod: &Pod, reference: &ClaimReference, sizes: &GpuSizes) -> Option<Value> {
    let spec = spec(&reference.slice, sizes)?;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid(), "controller": true});
    let metadata = json!({
        "name": reference.name,
        "namespace": pod.namespace(),
        "annotations": {POD_CLAIM: CLAIM},
        "finalizers": [FINALIZER],
        "ownerReferences": [owner],
    });
    Some(
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}),
    )
}

/// Does this claim belong to this pod?
#[must_use]
pub fn is_owned_by(claim: &ResourceClaim, pod: &Pod) -> bool {
    let uid = pod.uid();
    claim.owner_references().iter().any(|owner| owner.kind == "Pod" && Some(&owner.uid) == uid.as_ref())
}

/// The `spec` of the claim.
///
/// A claim names an amount of memory, so a fraction is one alternative per size of GPU. Smaller GPUs come first: big ones
/// stay for those that need them.
#[must_use]
pub fn spec(slice: &SliceName, sizes: &GpuSizes) -> Option<Value> {
    let mut claim = devices_of(slice, sizes)?;
    if let SliceName::Compute { slice: amount, .. } = slice {
        let request = &mut claim["requests"][0];
        let alternatives = request.get_mut("firstAvailable").and_then(Value::as_array_mut);
        match alternatives {
            Some(all) => all.iter_mut().for_each(only_where_shares_are_kept),
            None => only_where_shares_are_kept(&mut request["exactly"]),
        }
        let parameters = ComputeParameters::of(amount, slice.compute());
        claim["config"] =
            json!([{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}]);
    }
    Some(json!({"devices": claim}))
}

fn only_where_shares_are_kept(device: &mut Value) {
    device["capacity"]["requests"][COMPUTE_MARKER] = json!("0");
}

/// Requests for what `slice` counts, and constraints.
fn devices_of(slice: &SliceName, sizes: &GpuSizes) -> Option<Value> {
    let (request, gpus) = match slice {
        SliceName::Compute { slice: amount, .. } if matches!(**amount, SliceName::Fraction { .. }) => {
            (shares_of_sizes(slice, sizes, 1)?, 1)
        }
        SliceName::Compute { slice: amount, .. } => return devices_of(amount, sizes),
        SliceName::Fraction { gpus, .. } => (shares_of_sizes(slice, sizes, *gpus)?, *gpus),
        SliceName::Memory { gpus, .. } => {
            let mut device = devices(CLASS_SHARED, *gpus);
            device["capacity"] = memory(shared_mib(slice, ANY_MIB));
            (json!({"name": "gpu", "exactly": device}), *gpus)
        }
        SliceName::Whole { gpus } if *gpus > 1 => return Some(well_connected(*gpus)),
        // Two whole GPUs are never the same one.
        SliceName::Whole { gpus } => (json!({"name": "gpu", "exactly": devices(CLASS_WHOLE, *gpus)}), 1),
        SliceName::Mig { profile } => {
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

/// Whole GPUs: those that NVLink joins if there are as many free, else those of one NUMA node, else any.
fn well_connected(gpus: u32) -> Value {
    let named = |name: &str| {
        let mut device = devices(CLASS_WHOLE, gpus);
        device["name"] = json!(name);
        device
    };
    let alternatives = [("linked", Some(NVLINK_GROUP)), ("near", Some(NUMA_GROUP)), ("any", None)];
    let constraint = |(name, group): (&str, Option<&str>)| {
        let attribute = format!("{DRIVER}/{}", group?);
        Some(json!({"matchAttribute": attribute, "requests": [format!("gpu/{name}")]}))
    };
    let requests: Vec<Value> = alternatives.iter().map(|(name, _)| named(name)).collect();
    let constraints: Vec<Value> = alternatives.into_iter().filter_map(constraint).collect();
    json!({"requests": [{"name": "gpu", "firstAvailable": requests}], "constraints": constraints})
}

/// A part of a GPU, as one alternative per size.
fn shares_of_sizes(slice: &SliceName, sizes: &GpuSizes, gpus: u32) -> Option<Value> {
    let of = |total: &u64| share_of_size(*total, shared_mib(slice, *total), gpus);
    let requests: Vec<Value> = alternatives(sizes).iter().map(of).collect();
    (!requests.is_empty()).then(|| json!({"name": "gpu", "firstAvailable": requests}))
}

/// MiB that `slice` gets of a GPU that has `total_mib`, as on machines without Kubernetes; none if that GPU is too small.
fn shared_mib(slice: &SliceName, total_mib: u64) -> u64 {
    let share = slice.request([]).share_of(total_mib << 20);
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

/// Is a claim for other GPUs than there are, so that it fits nowhere, however long its pod waits? Not one that has been allocated,
/// or that is not the injector's. Sizes of GPUs that are away for a moment do no harm.
#[must_use]
pub fn is_outdated(claim: &ResourceClaim, slice: &SliceName, sizes: &GpuSizes) -> bool {
    if !is_waiting(claim) {
        return false;
    }
    let there = json!(claim.spec);
    let alternatives = there.pointer("/devices/requests/0/firstAvailable").and_then(Value::as_array);
    let names = alternatives.into_iter().flatten().filter_map(|each| each["name"].as_str());
    let mut all: GpuSizes =
        names.filter_map(|name| Some((name.strip_prefix('m')?.parse().ok()?, 0))).collect();
    all.extend(sizes);
    // Without GPUs nothing better is known.
    spec(slice, sizes).is_some() && spec(slice, &all).is_some_and(|wanted| !is_same(&there, &wanted))
}

/// Is it a claim of the injector's that has not been allocated, and stays?
#[must_use]
pub fn is_waiting(claim: &ResourceClaim) -> bool {
    let is_ours = claim.annotations().get(POD_CLAIM).is_some_and(|name| name == CLAIM);
    let is_given = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    is_ours && !is_given && claim.metadata.deletion_timestamp.is_none()
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

    fn half() -> SliceName {
        SliceName::Fraction { parts: 5000, gpus: 1 }
    }

    #[test]
    fn a_fraction_is_an_amount_of_each_size() {
        let sizes = GpuSizes::from([(81_920, 4), (40_960, 2)]);
        let spec = spec(&half(), &sizes).unwrap();
        let first = &spec["devices"]["requests"][0]["firstAvailable"];
        assert_eq!(first.as_array().unwrap().len(), 2);
        assert_eq!(first[0]["name"], "m40960");
        assert_eq!(first[0]["capacity"]["requests"]["memory"], "20Gi");
        assert_eq!(first[0]["capacity"]["requests"]["gpu.cantle.dev/mib_40960"], "0", "only of that size");
        assert_eq!(first[1]["capacity"]["requests"]["memory"], "40Gi");
        assert!(spec["devices"].get("constraints").is_none());
    }

    #[test]
    fn whole_gpus_are_the_best_connected_ones_that_are_free() {
        let spec = spec(&SliceName::Whole { gpus: 2 }, &GpuSizes::new()).unwrap();
        let alternatives = &spec["devices"]["requests"][0]["firstAvailable"];
        let named: Vec<&str> =
            alternatives.as_array().unwrap().iter().filter_map(|each| each["name"].as_str()).collect();
        assert_eq!(named, ["linked", "near", "any"]);
        assert_eq!(alternatives[0]["count"], 2);
        let constraints = json!([
            {"matchAttribute": "gpu.cantle.dev/nvlinkGroup", "requests": ["gpu/linked"]},
            {"matchAttribute": "gpu.cantle.dev/numaGroup", "requests": ["gpu/near"]},
        ]);
        assert_eq!(spec["devices"]["constraints"], constraints);
    }

    #[test]
    fn a_share_of_compute_counts_its_greater_part_and_says_the_rest() {
        let sizes = GpuSizes::from([(40_960, 2)]);
        let slice: SliceName = "cantle-fraction-2500-fair-r0750".parse().unwrap();
        let all = spec(&slice, &sizes).unwrap();
        let devices = &all["devices"];
        let first = &devices["requests"][0]["firstAvailable"][0]["capacity"]["requests"];
        assert_eq!(first["memory"], "30Gi", "the scheduler counts 0.75");
        assert_eq!(first["gpu.cantle.dev/compute"], "0", "only where shares are kept");
        let said = json!({"compute": "fair", "computeRequest": "0.75", "fraction": "0.25"});
        assert_eq!(devices["config"][0]["opaque"], json!({"driver": "gpu.cantle.dev", "parameters": said}));
        let whole: SliceName = "cantle-whole-1-strict".parse().unwrap();
        let whole = spec(&whole, &sizes).unwrap();
        let exactly = &whole["devices"]["requests"][0]["exactly"];
        assert_eq!(exactly["deviceClassName"], CLASS_WHOLE);
        assert_eq!(exactly["capacity"]["requests"], json!({"gpu.cantle.dev/compute": "0"}));
    }

    #[test]
    fn several_gpus_are_different_ones() {
        let spec = spec(&SliceName::Memory { mib: 4095, gpus: 2 }, &GpuSizes::new()).unwrap();
        let devices = &spec["devices"];
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

    fn pod(claim: &Value, status: &Value) -> Pod {
        let metadata =
            json!({"name": "p", "namespace": "team", "uid": "0badcafe-0000-4000-8000-000000000000"});
        let spec = json!({"containers": [{"name": "main"}], "resourceClaims": [claim]});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn the_claim_of_a_pod() {
        let name = "cantle-fraction-5000-9f86d081884c7d65";
        let pod = pod(&json!({"name": CLAIM, "resourceClaimName": name}), &json!({}));
        let reference = claim_of(&pod).unwrap();
        assert_eq!(reference, ClaimReference { name: name.to_owned(), slice: half() });
        assert_eq!(claim(&pod, &reference, &GpuSizes::new()), None, "no GPU yet, so no amount yet");
        let sizes = GpuSizes::from([(40_960, 1)]);
        let made: ResourceClaim = serde_json::from_value(claim(&pod, &reference, &sizes).unwrap()).unwrap();
        assert_eq!((made.name_any(), made.namespace()), (name.to_owned(), Some("team".to_owned())));
        assert!(is_owned_by(&made, &pod) && !is_outdated(&made, &half(), &sizes));
        let claims = |pod: &Pod| pod.spec.clone().unwrap().resource_claims.unwrap();
        assert!(claims(&pod).iter().all(ends_with_pod));
        let shared = self::pod(&json!({"name": "mine", "resourceClaimName": "mine"}), &json!({}));
        assert!(!claims(&shared).iter().all(ends_with_pod), "other pods may use it");
        let mut other = pod;
        other.metadata.uid = Some("another pod of that name".to_owned());
        assert!(!is_owned_by(&made, &other));
    }

    /// As cantle 0.1 injected it.
    #[test]
    fn the_claim_of_a_pod_that_names_a_template() {
        let of = |claim: Value, status: Value| claim_of(&pod(&claim, &status));
        let named = json!({"name": CLAIM, "resourceClaimTemplateName": "cantle-fraction-5000"});
        let status =
            json!({"resourceClaimStatuses": [{"name": CLAIM, "resourceClaimName": "p-cantle-gpu-x7k2p"}]});
        assert_eq!(of(named.clone(), status).unwrap().name, "p-cantle-gpu-x7k2p");
        assert_eq!(of(named, json!({})).unwrap().name, "cantle-fraction-5000-0badcafe00004000");
        for foreign in [
            json!({"name": CLAIM, "resourceClaimName": "mine"}),
            json!({"name": CLAIM, "resourceClaimTemplateName": "mine"}),
            json!({"name": "mine", "resourceClaimTemplateName": "cantle-fraction-5000"}),
        ] {
            assert_eq!(of(foreign, json!({})), None);
        }
    }

    #[test]
    fn the_claim_of_a_pod_that_waits_is_outdated_when_the_gpus_are_others() {
        let (small, large) = (GpuSizes::from([(40_960, 1)]), GpuSizes::from([(81_920, 2)]));
        let claim = |of: &GpuSizes, name: &str, status: Value| -> ResourceClaim {
            let metadata = json!({"name": "c", "annotations": {POD_CLAIM: name}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec(&half(), of), "status": status}))
                .unwrap()
        };
        let waits = claim(&small, CLAIM, json!({}));
        assert!(is_outdated(&waits, &half(), &large));
        assert!(!is_outdated(&waits, &half(), &small), "it fits");
        assert!(!is_outdated(&waits, &half(), &GpuSizes::new()), "nothing better is known");
        let both = GpuSizes::from([(40_960, 1), (81_920, 1)]);
        assert!(is_outdated(&waits, &half(), &both), "the new GPUs would not do for it");
        assert!(!is_outdated(&claim(&both, CLAIM, json!({})), &half(), &small), "a size may come back");
        let given = json!({"allocation": {"devices": {"results": []}}});
        assert!(!is_outdated(&claim(&small, CLAIM, given), &half(), &large), "it has its share");
        assert!(!is_outdated(&claim(&small, "other", json!({})), &half(), &large), "the user's own");
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
