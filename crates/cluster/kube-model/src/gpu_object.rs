//! GPU objects: what `kubectl get gpus.cantle.dev` shows of the GPUs of a node. Pure.
//!
//! Kubernetes prints no column of a ResourceSlice that says what is free, and knows nothing of GPUs on the classic path. So
//! the driver of a node writes one object for each of its GPUs (docs/adr/0051). Nothing reads them but people: what is
//! allocated is decided without them.

use cantle_decide::Offer;
use cantle_model::{Fraction, Lease, Share, Slice, whole_granules};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use serde::{Deserialize, Serialize};

use crate::ObjectExt as _;
use crate::dra::devices::is_foreign;
use crate::object::node_owner;

/// The mode of a GPU without slices that others use: processes outside of cantle, or a pod of another device plugin.
const FOREIGN: &str = "foreign";
/// Foreign use is shown in steps of this.
const FOREIGN_STEP_BYTES: u64 = 256 << 20;
/// The health of a GPU that answers.
const HEALTHY: &str = "Healthy";
/// The health of one that does not: the word of the taint that its devices get.
const LOST: &str = "Lost";

/// A GPU of a node, as `kubectl` shows it. The chart has the definition (`files/gpu-objects.yaml`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuObject {
    api_version: String,
    kind: String,
    /// Its name is that of the node, `-gpu-` and the index: `kubectl` lists the GPUs of a node together.
    pub metadata: ObjectMeta,
    /// Which GPU it is.
    pub spec: GpuObjectSpec,
    /// Its present state.
    #[serde(default)]
    pub status: GpuObjectStatus,
}

/// Which GPU it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuObjectSpec {
    /// Its node.
    pub node_name: String,
    /// Its index there.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Its memory, as a quantity.
    pub memory: String,
}

/// The present state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuObjectStatus {
    /// `idle`, `shared`, `whole`, `mig` or `foreign`.
    pub mode: String,
    /// Memory that new slices can have, as a quantity.
    pub free: String,
    /// Memory that processes outside of slices hold, as a quantity.
    pub foreign: String,
    /// The number of slices on it.
    pub slices: u32,
    /// `Healthy` or `Lost`.
    pub health: String,
}

impl Resource for GpuObject {
    const API_VERSION: &'static str = "cantle.dev/v1alpha1";
    const GROUP: &'static str = "cantle.dev";
    const KIND: &'static str = "GPU";
    const VERSION: &'static str = "v1alpha1";
    const URL_PATH_SEGMENT: &'static str = "gpus";
    type Scope = ClusterResourceScope;
}

impl Metadata for GpuObject {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An action on an object.
#[derive(Clone, Debug, PartialEq)]
pub enum GpuObjectAction {
    /// Write it, whether it exists or not.
    Apply(Box<GpuObject>),
    /// Delete the one of this name: the node has no such GPU.
    Delete(String),
}

/// The objects of a node with these GPUs, of which these leases have slices.
#[must_use]
pub fn gpu_objects(node: &Node, offers: &[Offer], leases: &[Lease]) -> Vec<GpuObject> {
    let object = |offer: &Offer| {
        let of_gpu = |slice: &&Slice| slice.gpu == offer.gpu.uuid;
        let slices: Vec<&Slice> = leases.iter().flat_map(|lease| &lease.slices).filter(of_gpu).collect();
        let node_name = node.name_any();
        let metadata = ObjectMeta {
            name: Some(format!("{node_name}-gpu-{}", offer.gpu.index)),
            owner_references: Some(vec![node_owner(node)]),
            ..ObjectMeta::default()
        };
        let spec = GpuObjectSpec {
            node_name,
            index: offer.gpu.index,
            uuid: offer.gpu.uuid.0.clone(),
            model: offer.gpu.model.clone(),
            memory: quantity(offer.gpu.memory_bytes),
        };
        GpuObject {
            api_version: GpuObject::API_VERSION.to_owned(),
            kind: GpuObject::KIND.to_owned(),
            metadata,
            spec,
            status: status(offer, &slices),
        }
    };
    offers.iter().map(object).collect()
}

/// The actions after which exactly these objects of the node exist.
#[must_use]
pub fn steps(wanted: &[GpuObject], existing: &[GpuObject]) -> Vec<GpuObjectAction> {
    let named = |among: &[GpuObject], name: &str| among.iter().find(|each| each.name_any() == name).cloned();
    let changed = wanted.iter().filter(|object| {
        named(existing, &object.name_any()).is_none_or(|there| !is_as_wanted(&there, object))
    });
    let gone = existing.iter().map(|there| there.name_any()).filter(|name| named(wanted, name).is_none());
    let apply = changed.map(|object| GpuObjectAction::Apply(Box::new(object.clone())));
    apply.chain(gone.map(GpuObjectAction::Delete)).collect()
}

/// The API server adds to the metadata. An owner of another UID is a former node of the same name.
fn is_as_wanted(there: &GpuObject, wanted: &GpuObject) -> bool {
    let has_owner = |uid: &String| there.owner_references().iter().any(|owner| owner.uid == *uid);
    (&there.spec, &there.status) == (&wanted.spec, &wanted.status)
        && wanted.owner_references().iter().all(|owner| has_owner(&owner.uid))
}

fn status(offer: &Offer, slices: &[&Slice]) -> GpuObjectStatus {
    let of = GpuMemoryUse::of(offer, slices);
    GpuObjectStatus {
        mode: of.mode.to_owned(),
        free: quantity(of.free_bytes),
        foreign: quantity(of.foreign_bytes),
        slices: u32::try_from(slices.len()).unwrap_or(u32::MAX),
        health: if offer.closed { LOST } else { HEALTHY }.to_owned(),
    }
}

/// The use of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemoryUse {
    /// `idle`, `shared`, `whole`, `mig` or `foreign`.
    pub mode: &'static str,
    /// Bytes that slices count.
    pub allocated_bytes: u64,
    /// Bytes that processes outside of slices hold, in steps of 256 MiB.
    pub foreign_bytes: u64,
    /// Bytes that new slices can have.
    pub free_bytes: u64,
}

impl GpuMemoryUse {
    /// Of a GPU with these slices.
    #[must_use]
    pub fn of(offer: &Offer, slices: &[&Slice]) -> Self {
        let is_strangers = is_foreign(offer) && slices.is_empty();
        Self {
            mode: if is_strangers { FOREIGN } else { offer.mode(slices).word() },
            allocated_bytes: slices.iter().map(|slice| counted_bytes(offer, slice)).sum(),
            foreign_bytes: foreign_bytes(offer),
            free_bytes: free_bytes(offer, slices),
        }
    }
}

/// In steps, so that a process that allocates does not have the object written every few seconds.
fn foreign_bytes(offer: &Offer) -> u64 {
    offer.foreign_bytes.next_multiple_of(FOREIGN_STEP_BYTES).min(offer.gpu.memory_bytes)
}

/// Memory that new slices can have: nothing of a GPU that takes none.
fn free_bytes(offer: &Offer, slices: &[&Slice]) -> u64 {
    if offer.closed {
        return 0;
    }
    let counted: u64 = slices.iter().map(|slice| counted_bytes(offer, slice)).sum();
    whole_granules(offer.gpu.memory_bytes.saturating_sub(counted).saturating_sub(foreign_bytes(offer)))
}

/// As kube-scheduler counts it: a share with a compute share by the greater of the two (ADR 0029), a MIG instance by its
/// part of the GPU's placement grid.
fn counted_bytes(offer: &Offer, slice: &Slice) -> u64 {
    let total = offer.gpu.memory_bytes;
    match (&slice.mig, &offer.table) {
        (Some(mig), Some(table)) => total / u64::from(table.units.max(1)) * u64::from(mig.size),
        (None, _) if slice.milli > Share::of(slice.memory_limit_bytes, total).milli => {
            Fraction::from(slice.milli).of_bytes(total)
        }
        _ => slice.memory_limit_bytes,
    }
}

/// In MiB, as the node's ResourceSlices have it.
fn quantity(bytes: u64) -> String {
    format!("{}Mi", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cantle_model::{GpuRequest, Holder, LeaseId, MigInstance, Milli, TaskId};
    use serde_json::{Value, json};

    use super::*;
    use crate::dra::devices::tests::offers;

    const GIB: u64 = 1 << 30;

    fn node(uid: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "uid": uid}})).unwrap()
    }

    fn lease(slices: Vec<Slice>) -> Lease {
        let owner = Holder { pid: 1, start_ticks: 1 };
        Lease::new(LeaseId::from("a"), TaskId::from("a"), slices, owner)
    }

    fn slice(gpu: &str, request: &GpuRequest) -> Slice {
        let Share { milli, memory_limit_bytes } = request.share_of(80 * GIB).unwrap();
        Slice { gpu: gpu.into(), milli, memory_limit_bytes, mig: None }
    }

    fn fraction(gpu: &str, parts: u32) -> Slice {
        slice(gpu, &GpuRequest::Fraction(Fraction::from_ten_thousandths(parts)))
    }

    fn instance(start: u32, size: u32) -> Slice {
        let mig = MigInstance { profile: format!("{size}g"), start, size, uuid: String::new() };
        Slice { gpu: "GPU-0".into(), milli: Milli(1), memory_limit_bytes: GIB, mig: Some(mig) }
    }

    /// Mode, free GiB and slices.
    fn shown(offers: &[Offer], leases: &[Lease]) -> Vec<(String, u64, u32)> {
        let gib = |text: &str| text.strip_suffix("Mi").unwrap().parse::<u64>().unwrap() >> 10;
        let of = |object: GpuObject| (object.status.mode, gib(&object.status.free), object.status.slices);
        gpu_objects(&node("u"), offers, leases).into_iter().map(of).collect()
    }

    fn row(mode: &str, free_gib: u64, slices: u32) -> (String, u64, u32) {
        (mode.to_owned(), free_gib, slices)
    }

    #[test]
    fn what_a_gpu_has_left() {
        let all = offers(3, false, false);
        let two = [lease(vec![fraction("GPU-0", 5000)]), lease(vec![fraction("GPU-0", 1250)])];
        let whole = lease(vec![slice("GPU-1", &GpuRequest::Gpus(1))]);
        let leases = [&two[..], &[whole]].concat();
        assert_eq!(shown(&all, &leases), [row("shared", 30, 2), row("whole", 0, 1), row("idle", 80, 0)]);
        // One lease, a slice of each of two GPUs.
        let of_two = lease(vec![fraction("GPU-0", 2500), fraction("GPU-2", 2500)]);
        assert_eq!(shown(&all, &[of_two]), [row("shared", 60, 1), row("idle", 80, 0), row("shared", 60, 1)]);
    }

    #[test]
    fn a_greater_share_of_compute_time_counts() {
        let compute = Slice { milli: Milli(750), ..fraction("GPU-0", 2500) };
        assert_eq!(shown(&offers(1, false, false), &[lease(vec![compute])]), [row("shared", 20, 1)]);
    }

    #[test]
    fn instances_count_by_their_part_of_the_grid() {
        let leases = [lease(vec![instance(0, 4)]), lease(vec![instance(6, 1)])];
        assert_eq!(shown(&offers(1, true, false), &leases), [row("mig", 30, 2)]);
        assert_eq!(shown(&offers(1, true, false), &[]), [row("mig", 80, 0)], "it serves nothing else");
        assert_eq!(shown(&offers(1, true, true), &[]), [row("idle", 80, 0)], "it can change");
        let full = lease(vec![instance(0, 8)]);
        assert_eq!(shown(&offers(1, true, true), &[full]), [row("mig", 0, 1)]);
    }

    #[test]
    fn nothing_is_free_of_a_gpu_that_takes_no_slice() {
        let mut all = offers(2, true, true);
        all[0].closed = true;
        all[1] = all[1].clone().exhausted();
        let objects = gpu_objects(&node("u"), &all, &[]);
        let health: Vec<&str> = objects.iter().map(|object| object.status.health.as_str()).collect();
        assert_eq!(health, [LOST, HEALTHY]);
        assert_eq!(shown(&all, &[]), [row("idle", 0, 0), row("foreign", 0, 0)]);
    }

    #[test]
    fn foreign_use_is_shown_and_not_free() {
        let mut all = offers(3, false, false);
        all[0].foreign_bytes = 20 * GIB + 1;
        all[1].foreign_bytes = 20 * GIB;
        all[2].foreign_bytes = 100 << 20;
        let leases = [lease(vec![fraction("GPU-1", 5000)])];
        let foreign: Vec<String> =
            gpu_objects(&node("u"), &all, &leases).into_iter().map(|object| object.status.foreign).collect();
        assert_eq!(foreign, ["20736Mi", "20480Mi", "256Mi"]);
        assert_eq!(shown(&all, &leases), [row("foreign", 59, 0), row("shared", 20, 1), row("idle", 79, 0)]);
    }

    #[test]
    fn nothing_is_written_while_nothing_changes() {
        let all = offers(2, false, false);
        let before = gpu_objects(&node("u"), &all, &[]);
        let after = gpu_objects(&node("u"), &all, &[lease(vec![fraction("GPU-1", 5000)])]);
        let read = |objects: &[GpuObject]| -> Vec<GpuObject> {
            // As the API server gives them back.
            let with_version = |object: &GpuObject| {
                let mut there = object.clone();
                there.metadata.resource_version = Some("7".to_owned());
                there
            };
            objects.iter().map(with_version).collect()
        };
        assert_eq!(steps(&before, &read(&before)), []);
        assert_eq!(steps(&after, &read(&before)), [GpuObjectAction::Apply(Box::new(after[1].clone()))]);
        // A GPU was taken out.
        assert_eq!(steps(&before[..1], &read(&before)), [GpuObjectAction::Delete("n-gpu-1".to_owned())]);
        // The node was deleted and created again, so its former objects are about to go.
        let again = gpu_objects(&node("v"), &all, &[]);
        assert_eq!(steps(&again, &read(&before)).len(), 2);
    }

    /// The API server drops a field that the chart's definition lacks.
    #[test]
    fn the_chart_defines_every_field() {
        let definition = include_str!("../../../../charts/cantle/files/gpu-objects.yaml");
        let definition: Value = serde_saphyr::from_str(definition).unwrap();
        let names = &definition["spec"]["names"];
        assert_eq!((&definition["spec"]["group"], &names["kind"]), (&json!(GpuObject::GROUP), &json!("GPU")));
        assert_eq!(names["plural"], json!(GpuObject::URL_PATH_SEGMENT));
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["name"], json!(GpuObject::VERSION));
        let schema = &version["schema"]["openAPIV3Schema"]["properties"];
        let object = json!(gpu_objects(&node("u"), &offers(1, false, false), &[])[0]);
        for part in ["spec", "status"] {
            let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(keys(&schema[part]["properties"]), keys(&object[part]), "{part}");
        }
        let modes = schema["status"]["properties"]["mode"]["enum"].as_array().unwrap();
        assert!(modes.contains(&json!(FOREIGN)) && modes.contains(&object["status"]["mode"]));
    }
}
