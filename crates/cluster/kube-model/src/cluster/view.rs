//! The GPUs of a cluster and their allocations, read from its objects. Pure.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use cantle_decide::Offer;
use cantle_model::{Gpu, GpuUuid, Milli, Slice};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};

use super::pool::NodeDevices;
use crate::classic::record::{NodeRecord, OfferedGpu, PluginHolder};
use crate::inject::gpus_of;
use crate::names::GPU_RESOURCE as GPU;
use crate::names::{CLASS_WHOLE, DRIVER, PRODUCT};
use crate::{ObjectError, ObjectExt as _};

/// The labels of NVIDIA's feature discovery about a node's GPUs.
const MEMORY_MIB: &str = "nvidia.com/gpu.memory";
const REPLICAS: &str = "nvidia.com/gpu.replicas";

/// kube-scheduler's annotation of a claim that it makes for an extended resource of a pod.
const OF_RESOURCE: &str = "resource.kubernetes.io/extended-resource-claim";

/// A cluster at one moment.
#[derive(Debug, Default)]
pub struct ClusterView {
    /// By name.
    pub nodes: Vec<ViewNode>,
    /// The allocations.
    pub holdings: Vec<PodSlices>,
    /// Does cantle's extender place pods here? Then a share may be a MIG instance, too.
    pub is_classic: bool,
    /// Is `nvidia.com/gpu` a claim on a whole GPU of cantle's (`deviceClasses.gpuResource` in the chart)?
    pub gpu_is_claimed: bool,
}

/// A node.
#[derive(Clone, Debug)]
pub struct ViewNode {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// May new pods go there?
    pub is_open: bool,
    /// Its GPUs.
    pub gpus: Vec<ViewGpu>,
}

/// A GPU of a cluster.
#[derive(Clone, Debug)]
pub struct ViewGpu {
    /// Its free capacity.
    pub offer: Offer,
    /// NVIDIA's device plugin gives it out, whole.
    pub by_plugin: bool,
}

/// The allocation of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSlices {
    /// Name of the node.
    pub node: String,
    /// UID of the pod; empty if that is not known.
    pub pod: String,
    /// `namespace/name`, for people.
    pub name: String,
    /// Its slices there.
    pub slices: Vec<Slice>,
    /// Is it the allocation of a claim on cantle's devices, and not one that represents `nvidia.com/gpu`?
    pub by_claim: bool,
}

impl ClusterView {
    /// Of what the API server has.
    ///
    /// # Errors
    /// [`ObjectError`] if a node's annotation is not as cantle writes it.
    pub fn of(
        nodes: &[impl Borrow<Node>],
        slices: &[impl Borrow<ResourceSlice>],
        claims: &[impl Borrow<ResourceClaim>],
        pods: &[impl Borrow<Pod>],
    ) -> Result<Self, ObjectError> {
        let mut by_node: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices.iter().map(Borrow::borrow).filter(|slice| slice.spec.driver == DRIVER) {
            by_node.entry(slice.spec.node_name.as_deref().unwrap_or_default()).or_default().push(slice);
        }
        let pools: BTreeMap<&str, NodeDevices> =
            by_node.into_iter().map(|(node, slices)| (node, NodeDevices::of(&slices))).collect();
        let mut view = Self::default();
        view.holdings.extend(claims.iter().flat_map(|claim| holdings(claim.borrow(), &pools)));
        for node in nodes.iter().map(Borrow::<Node>::borrow) {
            let gpus = pools.get(node.name_any().as_str()).map(NodeDevices::gpus).unwrap_or_default();
            view.add(node, gpus, pods)?;
        }
        view.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(view)
    }

    fn add(
        &mut self,
        node: &Node,
        mut gpus: Vec<ViewGpu>,
        pods: &[impl Borrow<Pod>],
    ) -> Result<(), ObjectError> {
        let record = NodeRecord::of(node)?;
        self.is_classic |= !record.gpus.is_empty();
        let is_torn = record.is_torn();
        self.holdings.extend(record.gpus.iter().filter_map(|offered| stranger(&record.node, offered, pods)));
        gpus.extend(record.gpus.iter().map(|offered| {
            let closed = matches!(offered.holder, Some(PluginHolder::Barred(_)))
                || is_torn && offered.together.is_some();
            ViewGpu { offer: Offer { closed, ..offered.offer() }, by_plugin: false }
        }));
        self.holdings.extend(record.placements.into_iter().map(|(pod, placement)| PodSlices {
            node: record.node.clone(),
            pod,
            name: placement.pod,
            slices: placement.slices,
            by_claim: false,
        }));
        if gpus.is_empty() {
            gpus = plugin_gpus(node);
            self.holdings.extend(plugin_holdings(node, &gpus, pods));
        }
        let (name, labels) = (node.name_any(), node.labels().clone());
        self.nodes.push(ViewNode { name, labels, is_open: is_open(node), gpus });
        Ok(())
    }
}

/// The foreign pod to which NVIDIA's device plugin gave this GPU, where cantle reserves GPUs from it.
fn stranger(node: &str, offered: &OfferedGpu, pods: &[impl Borrow<Pod>]) -> Option<PodSlices> {
    let name = offered.holder.as_ref()?.stranger()?;
    let is_it = |pod: &&Pod| name_of(pod) == name;
    let pod = pods.iter().map(Borrow::<Pod>::borrow).find(is_it).and_then(Pod::uid).unwrap_or_default();
    Some(PodSlices {
        node: node.to_owned(),
        pod,
        name: name.to_owned(),
        slices: vec![all_of(&offered.gpu)],
        by_claim: false,
    })
}

fn all_of(gpu: &Gpu) -> Slice {
    Slice { gpu: gpu.uuid.clone(), milli: Milli::ONE, memory_limit_bytes: gpu.memory_bytes, mig: None }
}

fn name_of(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

fn is_open(node: &Node) -> bool {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let conditions = node.status.iter().flat_map(|status| &status.conditions).flatten();
    !cordoned && conditions.into_iter().any(|each| each.type_ == "Ready" && each.status == "True")
}

/// The allocation of a claim on our devices, by node.
fn holdings(claim: &ResourceClaim, pools: &BTreeMap<&str, NodeDevices>) -> Vec<PodSlices> {
    let Some(status) = &claim.status else { return Vec::new() };
    let results =
        status.allocation.iter().filter_map(|given| given.devices.as_ref()?.results.as_ref()).flatten();
    let mut by_node: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    for result in results.filter(|result| result.driver == DRIVER) {
        if let Some(slice) = pools.get(result.pool.as_str()).and_then(|pool| pool.slice(result)) {
            by_node.entry(&result.pool).or_default().push(slice);
        }
    }
    // Kubernetes counts these as the resource that they represent.
    let is_resource = claim.metadata.annotations.iter().any(|all| all.contains_key(OF_RESOURCE));
    let classes = claim.spec.devices.iter().flat_map(|devices| &devices.requests).flatten();
    let mut classes = classes.filter_map(|request| request.exactly.as_ref());
    let by_claim = !(is_resource && classes.any(|exactly| exactly.device_class_name == CLASS_WHOLE));
    // Made for one pod it belongs to that; one that several pods share, to the first.
    let owner = claim.owner_references().iter().find(|owner| owner.kind == "Pod");
    let user = status.reserved_for.iter().flatten().next();
    let (pod, name) = match (owner, user) {
        (Some(owner), _) => (owner.uid.clone(), owner.name.clone()),
        (None, Some(user)) => (user.uid.clone(), user.name.clone()),
        (None, None) => (String::new(), claim.name_any()),
    };
    let name = format!("{}/{name}", claim.namespace().unwrap_or_default());
    let of = |(node, slices): (&str, Vec<Slice>)| PodSlices {
        node: node.to_owned(),
        pod: pod.clone(),
        name: name.clone(),
        slices,
        by_claim,
    };
    by_node.into_iter().map(of).collect()
}

/// GPUs that NVIDIA's device plugin allocates as a whole. Time slices of it are no GPUs: the worth of one is unknown.
fn plugin_gpus(node: &Node) -> Vec<ViewGpu> {
    let label = |name: &str| node.labels().get(name).map(String::as_str);
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get(GPU));
    let count: u32 = allocatable.and_then(|amount| amount.0.parse().ok()).unwrap_or(0);
    if label(REPLICAS).is_some_and(|replicas| replicas != "1") {
        return Vec::new();
    }
    let model = format!("{} (NVIDIA's device plugin)", label(PRODUCT).unwrap_or("GPU"));
    let mib: u64 = label(MEMORY_MIB).and_then(|text| text.parse().ok()).unwrap_or(1024);
    let gpu = |index| Gpu {
        uuid: GpuUuid(format!("{}/{index}", node.name_any())),
        index,
        model: model.clone(),
        memory_bytes: mib << 20,
        mig: false,
    };
    (0..count).map(|index| ViewGpu { offer: Offer::new(gpu(index)), by_plugin: true }).collect()
}

/// The plugin does not report which GPU a pod has, and all GPUs are alike: the first pod has the first ones.
fn plugin_holdings(node: &Node, gpus: &[ViewGpu], pods: &[impl Borrow<Pod>]) -> Vec<PodSlices> {
    let name = node.name_any();
    let here = pods.iter().map(Borrow::<Pod>::borrow).filter(|pod| {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name) && gpus_of(pod) > 0
    });
    let mut here: Vec<&Pod> = if gpus.is_empty() { Vec::new() } else { here.collect() };
    here.sort_by_key(|pod| (pod.creation_timestamp(), pod.uid()));
    let mut free = gpus.iter().map(|seen| &seen.offer.gpu);
    let holding = |pod: &Pod| PodSlices {
        node: name.clone(),
        pod: pod.uid().unwrap_or_default(),
        name: name_of(pod),
        slices: free.by_ref().take(gpus_of(pod) as usize).map(all_of).collect(),
        by_claim: false,
    };
    here.into_iter().map(holding).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_string};

    use super::*;
    use crate::names::{GPUS_ANNOTATION, PLACEMENTS_ANNOTATION, RESERVATION_NAMESPACE};

    const GIB: u64 = 1 << 30;

    fn node(annotations: &Value, labels: &Value, gpus: u32) -> Node {
        let status = json!({
            "allocatable": {"nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        let metadata = json!({"name": "n", "annotations": annotations, "labels": labels});
        from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    fn pod(name: &str, made: &str, gpus: u32) -> Pod {
        let limits = json!({"nvidia.com/gpu": gpus.to_string()});
        let containers = json!([{"name": "c", "resources": {"limits": limits}}]);
        let metadata = json!({"name": name, "namespace": "team", "uid": format!("uid-{name}"), "creationTimestamp": made});
        from_value(json!({"metadata": metadata, "spec": {"nodeName": "n", "containers": containers}}))
            .unwrap()
    }

    fn view(node: Node, pods: &[Pod]) -> ClusterView {
        ClusterView::of(&[node], &[] as &[ResourceSlice], &[] as &[ResourceClaim], pods).unwrap()
    }

    fn held(view: &ClusterView) -> Vec<(&str, &str, Vec<&str>)> {
        fn of(PodSlices { pod, name, slices, .. }: &PodSlices) -> (&str, &str, Vec<&str>) {
            let gpus = slices.iter().map(|slice| slice.gpu.0.as_str()).collect();
            (pod, name, gpus)
        }
        view.holdings.iter().map(of).collect()
    }

    fn offered(index: u32, holder: Option<PluginHolder>) -> OfferedGpu {
        let gpu = Gpu {
            uuid: GpuUuid(format!("GPU-{index}")),
            index,
            model: "A100".to_owned(),
            memory_bytes: 40 * GIB,
            mig: false,
        };
        OfferedGpu { gpu, table: None, switches: false, holder, together: None }
    }

    /// Where cantle reserves GPUs, the kubelet reports which pod has which GPU; a reservation of cantle's
    /// is not a use.
    #[test]
    fn gpus_that_other_pods_took_are_theirs() {
        let reserved = PluginHolder::Pod(format!("{RESERVATION_NAMESPACE}/gpu-0.n"));
        let gpus = [
            offered(0, Some(reserved)),
            offered(1, Some(PluginHolder::Pod("team/b".to_owned()))),
            offered(2, Some(PluginHolder::Barred("why".to_owned()))),
            offered(3, Some(PluginHolder::Nobody)),
        ];
        let share = json!({"gpu": "GPU-0", "milli": 500, "memory_limit_bytes": 20 * GIB, "mig": null});
        let placement =
            json!({"pod": "team/a", "ask": "cantle-fraction-5000", "slices": [share], "placed_ms": 0});
        let annotations = json!({
            GPUS_ANNOTATION: to_string(&gpus).unwrap(),
            PLACEMENTS_ANNOTATION: json!({"uid-a": placement}).to_string(),
        });
        let seen = view(node(&annotations, &json!({}), 4), &[pod("b", "2026-01-01T00:00:00Z", 1)]);
        assert_eq!(held(&seen), [("uid-b", "team/b", vec!["GPU-1"]), ("uid-a", "team/a", vec!["GPU-0"])]);
        let closed: Vec<u32> = seen.nodes[0]
            .gpus
            .iter()
            .filter(|seen| seen.offer.closed)
            .map(|seen| seen.offer.gpu.index)
            .collect();
        assert_eq!(closed, [2], "no pod can have all of it");
    }

    /// Nothing new starts on time-sliced GPUs while another pod has a replica of any.
    #[test]
    fn torn_gpus_are_out_of_reach() {
        let closed = |holders: [PluginHolder; 2]| {
            let gpus = [0, 1].map(|index: u32| OfferedGpu {
                together: Some(8),
                ..offered(index, Some(holders[index as usize].clone()))
            });
            let annotations = json!({GPUS_ANNOTATION: to_string(&gpus).unwrap()});
            let seen = view(node(&annotations, &json!({}), 8), &[]);
            seen.nodes[0].gpus.iter().map(|seen| seen.offer.closed).collect::<Vec<_>>()
        };
        assert_eq!(closed([PluginHolder::Nobody, PluginHolder::Nobody]), [false, false]);
        assert_eq!(closed([PluginHolder::Nobody, PluginHolder::Pod("team/b".to_owned())]), [true, true]);
    }

    #[test]
    fn gpus_of_nvidias_plugin_alone_are_held_in_the_order_of_the_pods() {
        let labels = json!({"nvidia.com/gpu.product": "L4", "nvidia.com/gpu.memory": "23034"});
        let pods = [pod("late", "2026-01-02T00:00:00Z", 1), pod("early", "2026-01-01T00:00:00Z", 2)];
        let seen = view(node(&json!({}), &labels, 4), &pods);
        let gpus = &seen.nodes[0].gpus;
        assert_eq!((gpus.len(), gpus[0].offer.gpu.memory_bytes, gpus[0].by_plugin), (4, 23_034 << 20, true));
        let early = ("uid-early", "team/early", vec!["n/0", "n/1"]);
        assert_eq!(held(&seen), [early, ("uid-late", "team/late", vec!["n/2"])]);
        let sliced = json!({"nvidia.com/gpu.replicas": "8"});
        let seen = view(node(&json!({}), &sliced, 8), &pods);
        assert!(seen.nodes[0].gpus.is_empty() && seen.holdings.is_empty(), "its value is unknown");
    }
}
