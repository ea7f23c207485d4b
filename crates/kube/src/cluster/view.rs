//! The GPUs of a cluster and who has what of them, read from its objects. Pure.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid, Milli, Slice};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;

use super::pool::Pool;
use crate::KubeError;
use crate::classic::Book;
use crate::inject::{GPU, gpus_of};
use crate::names::DRIVER;

/// What NVIDIA's feature discovery says of a node's GPUs.
const PRODUCT: &str = "nvidia.com/gpu.product";
const MEMORY_MIB: &str = "nvidia.com/gpu.memory";
const REPLICAS: &str = "nvidia.com/gpu.replicas";

/// A cluster at one moment.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// By name.
    pub(crate) nodes: Vec<ViewNode>,
    /// What is given out.
    pub(crate) holdings: Vec<Holding>,
    /// Does cantle's extender place pods here? Then a share may be a MIG instance, too.
    pub(crate) is_classic: bool,
    /// Is `nvidia.com/gpu` a claim on a whole GPU of cantle's (`deviceClasses.gpuResource` in the chart)?
    pub(crate) gpu_is_claimed: bool,
}

/// A node.
#[derive(Debug)]
pub(crate) struct ViewNode {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// May new pods go there?
    pub(crate) is_open: bool,
    pub(crate) gpus: Vec<ViewGpu>,
}

/// A GPU and what can be had of it.
#[derive(Clone, Debug)]
pub(crate) struct ViewGpu {
    pub(crate) gpu: Gpu,
    /// Shares, and the whole of it.
    pub(crate) shares: bool,
    /// MIG instances.
    pub(crate) table: Option<Arc<Table>>,
    /// NVIDIA's device plugin gives it out, whole.
    pub(crate) by_plugin: bool,
    /// It does not answer: nobody new is to come here.
    pub(crate) is_lost: bool,
}

/// What a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) node: String,
    /// UID of the pod; empty if that is not known.
    pub(crate) pod: String,
    /// `namespace/name`, for people.
    pub(crate) name: String,
    pub(crate) slices: Vec<Slice>,
}

impl View {
    /// Of what the API server has.
    ///
    /// # Errors
    /// [`KubeError::Object`] if a node's annotation is not as cantle writes it.
    pub(crate) fn of(
        nodes: &[impl Borrow<Node>],
        slices: &[impl Borrow<ResourceSlice>],
        claims: &[impl Borrow<ResourceClaim>],
        pods: &[impl Borrow<Pod>],
    ) -> Result<Self, KubeError> {
        let mut by_node: BTreeMap<&str, Vec<&ResourceSlice>> = BTreeMap::new();
        for slice in slices.iter().map(Borrow::borrow).filter(|slice| slice.spec.driver == DRIVER) {
            by_node.entry(slice.spec.node_name.as_deref().unwrap_or_default()).or_default().push(slice);
        }
        let pools: BTreeMap<&str, Pool> =
            by_node.into_iter().map(|(node, slices)| (node, Pool::of(&slices))).collect();
        let mut view = Self::default();
        view.holdings.extend(claims.iter().flat_map(|claim| holdings(claim.borrow(), &pools)));
        for node in nodes.iter().map(Borrow::<Node>::borrow) {
            let gpus = pools.get(node.name_any().as_str()).map(Pool::gpus).unwrap_or_default();
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
    ) -> Result<(), KubeError> {
        let book = Book::of(node)?;
        self.is_classic |= !book.gpus.is_empty();
        gpus.extend(book.gpus.into_iter().map(|offered| ViewGpu {
            shares: !offered.gpu.mig || offered.switches,
            gpu: offered.gpu,
            table: offered.table.map(Arc::new),
            by_plugin: false,
            is_lost: false,
        }));
        self.holdings.extend(book.placements.into_iter().map(|(pod, placement)| Holding {
            node: book.node.clone(),
            pod,
            name: placement.pod,
            slices: placement.slices,
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

fn is_open(node: &Node) -> bool {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let conditions = node.status.iter().flat_map(|status| &status.conditions).flatten();
    !cordoned && conditions.into_iter().any(|each| each.type_ == "Ready" && each.status == "True")
}

/// What a claim was given on our devices, by node.
fn holdings(claim: &ResourceClaim, pools: &BTreeMap<&str, Pool>) -> Vec<Holding> {
    let Some(status) = &claim.status else { return Vec::new() };
    let results =
        status.allocation.iter().filter_map(|given| given.devices.as_ref()?.results.as_ref()).flatten();
    let mut by_node: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    for result in results.filter(|result| result.driver == DRIVER) {
        if let Some(slice) = pools.get(result.pool.as_str()).and_then(|pool| pool.slice(result)) {
            by_node.entry(&result.pool).or_default().push(slice);
        }
    }
    // Made for one pod it belongs to that; one that several pods share, to the first.
    let owner = claim.owner_references().iter().find(|owner| owner.kind == "Pod");
    let user = status.reserved_for.iter().flatten().next();
    let (pod, name) = match (owner, user) {
        (Some(owner), _) => (owner.uid.clone(), owner.name.clone()),
        (None, Some(user)) => (user.uid.clone(), user.name.clone()),
        (None, None) => (String::new(), claim.name_any()),
    };
    let name = format!("{}/{name}", claim.namespace().unwrap_or_default());
    let of = |(node, slices): (&str, Vec<Slice>)| Holding {
        node: node.to_owned(),
        pod: pod.clone(),
        name: name.clone(),
        slices,
    };
    by_node.into_iter().map(of).collect()
}

/// GPUs that NVIDIA's device plugin gives out whole. Time slices of it are no GPUs: nobody knows what one is worth.
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
    (0..count)
        .map(|index| ViewGpu { gpu: gpu(index), shares: true, table: None, by_plugin: true, is_lost: false })
        .collect()
}

/// The plugin does not say which GPU a pod has, and they are all alike: the first pod has the first ones.
fn plugin_holdings(node: &Node, gpus: &[ViewGpu], pods: &[impl Borrow<Pod>]) -> Vec<Holding> {
    let name = node.name_any();
    let here = pods.iter().map(Borrow::<Pod>::borrow).filter(|pod| {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&name) && gpus_of(pod) > 0
    });
    let mut here: Vec<&Pod> = if gpus.is_empty() { Vec::new() } else { here.collect() };
    here.sort_by_key(|pod| (pod.creation_timestamp(), pod.uid()));
    let mut free = gpus.iter().map(|seen| &seen.gpu);
    let slice = |gpu: &Gpu| Slice {
        gpu: gpu.uuid.clone(),
        milli: Milli::ONE,
        memory_limit_bytes: gpu.memory_bytes,
        mig: None,
    };
    let holding = |pod: &Pod| Holding {
        node: name.clone(),
        pod: pod.uid().unwrap_or_default(),
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        slices: free.by_ref().take(gpus_of(pod) as usize).map(slice).collect(),
    };
    here.into_iter().map(holding).collect()
}
