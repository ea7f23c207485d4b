//! Reports on a cluster without a cantle server: the holders of its GPUs, and why a pod waits. Pure.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use serde::Serialize;

use super::{ClusterView, PodSlices, ViewGpu};
use crate::inject::{missing_slice, slice_of};
use crate::nominate::{Nominator, group_of, is_held};
use crate::{ObjectExt as _, SliceName, gpu_quota, phase};

/// A GPU of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuReport {
    /// Its node.
    pub node: String,
    /// Its index there.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// `open`, or why nothing new starts on it.
    pub state: String,
    /// Thousandths of it that pods have.
    pub given_milli: u32,
    /// Memory in bytes that pods may use.
    pub given_bytes: u64,
    /// All of its memory in bytes.
    pub memory_bytes: u64,
    /// The holder of a slice of it: `namespace/name`.
    pub pods: Vec<String>,
}

/// A namespace of a cluster, as far as GPUs are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceReport {
    /// Its name.
    pub namespace: String,
    /// Thousandths of GPUs that its pods have.
    pub given_milli: u32,
    /// The limit of its ResourceQuotas on `requests.nvidia.com/gpu`, in GPUs; none without such a quota.
    pub quota_gpus: Option<String>,
    /// GPU memory in bytes that its pods may use.
    pub given_bytes: u64,
    /// Pods that have slices.
    pub running: u32,
    /// Pods that wait for slices.
    pub waiting: u32,
}

/// The state of a pod that requests a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodReport {
    /// `namespace/name`
    pub pod: String,
    /// `waiting`, `placed`, or its phase.
    pub state: String,
    /// Its request; none if it requests no slice.
    pub request: Option<String>,
    /// Why it is in that state.
    pub reason: String,
    /// The missing resources of each node with GPUs, while the pod waits.
    pub nodes: Vec<NodeReport>,
}

/// The missing resources of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Its name.
    pub node: String,
    /// Why the pod does not go there.
    pub reason: String,
}

/// All GPUs, by node and index.
#[must_use]
pub fn gpus(view: &ClusterView) -> Vec<GpuReport> {
    let of = |node: &super::ViewNode, gpu: &ViewGpu| {
        let gpu_offer = &gpu.offer.gpu;
        let holders = || view.holdings.iter().filter(|holding| holding.node == node.name);
        let slices = || {
            let all = holders().flat_map(|holding| holding.slices.iter().map(move |slice| (holding, slice)));
            all.filter(|(_, slice)| slice.gpu == gpu_offer.uuid)
        };
        let state = match (gpu.offer.closed, node.is_open) {
            (true, _) => "lost, or held by somebody else",
            (false, false) => "its node is cordoned or not ready",
            (false, true) => "open",
        };
        GpuReport {
            node: node.name.clone(),
            index: gpu_offer.index,
            uuid: gpu_offer.uuid.0.clone(),
            model: gpu_offer.model.clone(),
            state: state.to_owned(),
            given_milli: slices().map(|(_, slice)| slice.milli.0).sum(),
            given_bytes: slices().map(|(_, slice)| slice.memory_limit_bytes).sum(),
            memory_bytes: gpu_offer.memory_bytes,
            pods: slices().map(|(holding, _)| holding.name.clone()).collect(),
        }
    };
    view.nodes.iter().flat_map(|node| node.gpus.iter().map(move |gpu| of(node, gpu))).collect()
}

/// All namespaces that have pods with slices, that wait for some, or that have a quota.
#[must_use]
pub fn namespaces(
    view: &ClusterView,
    pods: &[impl Borrow<Pod>],
    quotas: &[ResourceQuota],
) -> Vec<NamespaceReport> {
    let mut all: BTreeMap<String, NamespaceReport> = BTreeMap::new();
    for PodSlices { name, slices, .. } in &view.holdings {
        let namespace = name.split('/').next().unwrap_or_default();
        let report = all.entry(namespace.to_owned()).or_default();
        report.running += 1;
        report.given_milli += slices.iter().map(|slice| slice.milli.0).sum::<u32>();
        report.given_bytes += slices.iter().map(|slice| slice.memory_limit_bytes).sum::<u64>();
    }
    for pod in pods.iter().map(Borrow::<Pod>::borrow).filter(|pod| waits(view, pod)) {
        all.entry(pod.namespace().unwrap_or_default()).or_default().waiting += 1;
    }
    for (namespace, quotas) in gpu_quota::quotas(view, quotas, pods, &BTreeSet::new()) {
        let least = quotas.iter().map(|quota| quota.hard).min();
        all.entry(namespace).or_default().quota_gpus = least.map(gpu_quota::gpus);
    }
    all.into_iter().map(|(namespace, report)| NamespaceReport { namespace, ..report }).collect()
}

fn waits(view: &ClusterView, pod: &Pod) -> bool {
    phase::phase(pod) == "Pending" && slice_of(pod).is_some() && held_by(view, pod).is_none()
}

fn held_by<'a>(view: &'a ClusterView, pod: &Pod) -> Option<&'a PodSlices> {
    let uid = pod.uid()?;
    view.holdings.iter().find(|holding| holding.pod == uid)
}

/// The waiting pods that kube-scheduler places together with `pod`, which is the first of them.
fn group<'a>(view: &ClusterView, pods: &'a [impl Borrow<Pod>], pod: &'a Pod) -> Vec<&'a Pod> {
    let group = group_of(pod);
    let is_of_it =
        |other: &&Pod| group.is_some() && group_of(other) == group && other.metadata.uid != pod.metadata.uid;
    let others = pods.iter().map(Borrow::<Pod>::borrow).filter(is_of_it).filter(|other| waits(view, other));
    std::iter::once(pod).chain(others).collect()
}

/// Why `pod` waits, or what it has. `nodes` and `pods` are all of the cluster; `beyond` is what a quota holds it for.
#[must_use]
pub fn pod(
    view: &ClusterView,
    nodes: &[impl Borrow<Node>],
    pods: &[impl Borrow<Pod>],
    pod: &Pod,
    beyond: Option<&str>,
) -> PodReport {
    let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let slice_name = slice_of(pod);
    let request = slice_name.as_ref().map(describe);
    let report = |state: &str, reason: String, nodes: Vec<NodeReport>| PodReport {
        pod: name.clone(),
        state: state.to_owned(),
        request: request.clone(),
        reason,
        nodes,
    };
    let phase = phase::phase(pod).to_lowercase();
    if slice_name.is_none() {
        return report(&phase, "it asks for no slice of a GPU".to_owned(), Vec::new());
    }
    if let Some(missing) = missing_slice(pod) {
        return report(&phase, missing, Vec::new());
    }
    if let Some(held) = held_by(view, pod) {
        let slice = |slice: &cantle_model::Slice| {
            let memory = cantle_model::Bytes(slice.memory_limit_bytes);
            format!("{} GPU, {memory}, of {} on node {}", slice.milli, slice.gpu.0, held.node)
        };
        let slices: Vec<String> = held.slices.iter().map(slice).collect();
        let state = if phase == "pending" { "placed" } else { &phase };
        return report(state, format!("it has {}", slices.join("; ")), Vec::new());
    }
    if phase != "pending" {
        return report(&phase, "it has no slice any more".to_owned(), Vec::new());
    }
    let placed = placed(pods);
    let nominator = Nominator::new(view, nodes, &placed);
    let none = BTreeMap::new();
    let with_gpus = || view.nodes.iter().filter(|node| node.gpus.iter().any(|gpu| !gpu.by_plugin));
    let of = |node: &super::ViewNode| {
        let reason = nominator.lacks(pod, &none, Some(node)).unwrap_or_else(|| "has room".to_owned());
        NodeReport { node: node.name.clone(), reason }
    };
    let reason = match (
        beyond.map(str::to_owned).or_else(|| held_back(pod)),
        nominator.group_lacks(&group(view, pods, pod), &none, None),
    ) {
        (Some(gates), _) => gates,
        (None, Some(lacks)) if with_gpus().next().is_some() => lacks,
        (None, Some(_)) => "no node offers GPUs of cantle's".to_owned(),
        (None, None) => {
            says(pod).unwrap_or_else(|| "there is room: kube-scheduler has not placed it yet".to_owned())
        }
    };
    report("waiting", reason, with_gpus().map(of).collect())
}

/// Pods that have a place and are not over.
pub fn placed(pods: &[impl Borrow<Pod>]) -> Vec<&Pod> {
    let is_placed =
        |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) && !phase::has_ended(pod);
    pods.iter().map(Borrow::<Pod>::borrow).filter(is_placed).collect()
}

/// Gates that keep kube-scheduler from it.
fn held_back(pod: &Pod) -> Option<String> {
    if is_held(pod) {
        return Some("cantle's injector has not nominated a node yet (gate cantle.dev/packing)".to_owned());
    }
    let gates = pod.spec.iter().flat_map(|spec| &spec.scheduling_gates).flatten();
    let gates: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
    (!gates.is_empty()).then(|| format!("it has scheduling gates: {}", gates.join(", ")))
}

/// kube-scheduler's own words.
fn says(pod: &Pod) -> Option<String> {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions).flatten();
    let refused = conditions.filter(|each| each.type_ == "PodScheduled" && each.status == "False");
    let message = refused.filter_map(|each| each.message.clone()).next()?;
    Some(format!("cantle sees room, and kube-scheduler says: {message}"))
}

fn describe(slice_name: &SliceName) -> String {
    let request = match slice_name.compute() {
        even if !even.is_enforced() => slice_name.request([]).to_string(),
        share => format!("{} (compute {})", slice_name.slice_request([]), share.mode),
    };
    match slice_name.devices() {
        1 => request,
        devices => format!("{request} of each of {devices} GPUs"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
    use serde_json::{Value, json};

    use super::*;
    use crate::dra::node_slices;
    use crate::inject::tests::CALL;
    use crate::inject::{LABEL, Rules, inject};

    fn node(name: &str) -> Node {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        let node = json!({"metadata": {"name": name}, "status": {"conditions": conditions}});
        serde_json::from_value(node).unwrap()
    }

    fn pod_of(name: &str, label: &str) -> Pod {
        let metadata = json!({"name": name, "namespace": "team", "uid": format!("uid-{name}"), "labels": {LABEL: label}});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}});
        serde_json::from_value(inject(&pod, &Rules::default(), CALL).unwrap()).unwrap()
    }

    fn claim(pod: &str, device: &str, memory: &str) -> ResourceClaim {
        let result = json!({
            "request": "gpu", "driver": "gpu.cantle.dev", "pool": "a", "device": device, "consumedCapacity": {"memory": memory},
        });
        let owner: Value =
            json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": format!("uid-{pod}")});
        serde_json::from_value(json!({
            "metadata": {"name": format!("{pod}-claim"), "namespace": "team", "ownerReferences": [owner]},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }))
        .unwrap()
    }

    fn world() -> (ClusterView, Vec<Node>, Vec<ResourceSlice>) {
        let (nodes, slices) = (vec![node("a")], node_slices("a", 2, false, false));
        let claims = [claim("big", "gpu-0-shared", "60Gi"), claim("other", "gpu-1-shared", "40Gi")];
        let view = ClusterView::of(&nodes, &slices, &claims, &[] as &[Pod]).unwrap();
        (view, nodes, slices)
    }

    #[test]
    fn what_a_gpu_and_a_namespace_have() {
        let (view, ..) = world();
        let all = gpus(&view);
        let of = |at: usize| (all[at].given_milli, all[at].given_bytes >> 30, all[at].pods.join(" "));
        assert_eq!(
            (all.len(), of(0), of(1)),
            (2, (750, 60, "team/big".to_owned()), (500, 40, "team/other".to_owned()))
        );
        let waiting = [pod_of("late", "0.500"), pod_of("big", "0.750")];
        let [team] = namespaces(&view, &waiting, &[]).try_into().unwrap();
        assert_eq!((team.running, team.waiting, team.given_milli), (2, 1, 1250));
    }

    #[test]
    fn why_a_pod_waits_names_what_it_needs_and_what_is_free() {
        let (view, nodes, _) = world();
        let none: [Pod; 0] = [];
        let why = |name: &str, label: &str| pod(&view, &nodes, &none, &pod_of(name, label), None);
        let late = why("late", "0.750");
        assert_eq!((late.state.as_str(), late.request.as_deref()), ("waiting", Some("0.75 GPU")));
        assert!(late.reason.contains("0.75") && late.reason.contains("0.5"), "{}", late.reason);
        assert_eq!(late.nodes.len(), 1);
        let room = why("small", "0.125");
        assert!(
            room.reason.contains("has not placed it yet") && room.nodes[0].reason == "has room",
            "{room:?}"
        );
        let has = why("big", "0.750");
        assert_eq!((has.state.as_str(), has.nodes.len()), ("placed", 0));
        assert!(has.reason.contains("0.75 GPU, 60 GiB, of GPU-0 on node a"), "{}", has.reason);
        let plain: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": []}})).unwrap();
        assert_eq!(pod(&view, &nodes, &none, &plain, None).reason, "it asks for no slice of a GPU");
    }
}
