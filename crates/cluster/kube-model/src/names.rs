//! Names of cantle's labels, annotations and resources in a cluster. Changing one breaks the manifests of users.

use k8s_openapi::api::core::v1::Node;

/// The DRA driver; also the domain of its devices' attributes.
pub const DRIVER: &str = "gpu.cantle.dev";

/// Kind of a device (attribute `kind`): a GPU that many claims share, each with its part of the memory, or one with all of it.
pub const KIND_SHARED: &str = "shared";
/// Capacity of a shared device that is there for its name: of 64 GiB `gpu.cantle.dev/mib_65536`. A request that names it is for
/// devices of that size, which kube-scheduler sees without an expression (CEL). Nothing of it is used up.
#[must_use]
pub fn size_marker(mib: u64) -> String {
    format!("{DRIVER}/mib_{mib}")
}

/// Capacity of a shared device whose node keeps shares of compute time. A claim with such a share names it, so that it is
/// allocated nowhere else; claims consume nothing of it.
pub const COMPUTE_MARKER: &str = "gpu.cantle.dev/compute";

/// Kind of a device: a place for a MIG instance (attribute `profile` has its profile).
pub const KIND_MIG: &str = "mig";

/// ClearML's label of nodes whose GPUs serve MIG instances.
pub const PARTITIONING: &str = "cdmo.clear.ml/gpu-partitioning";
/// Its only value.
pub const PARTITIONING_MIG: &str = "mig";

/// Taint of the devices of a GPU that does not answer.
pub const TAINT_LOST: &str = "gpu.cantle.dev/lost";

/// Taint of the devices of a GPU of whose memory processes outside of slices hold more than [`FOREIGN_PART`].
pub const TAINT_FOREIGN: &str = "gpu.cantle.dev/foreign";
/// One of this many parts of a GPU's memory: as much as the smallest slice that ClearML's label names.
pub const FOREIGN_PART: u64 = 16;

/// The device class of whole GPUs.
pub const CLASS_WHOLE: &str = "whole.gpu.cantle.dev";
/// The device class of shares.
pub const CLASS_SHARED: &str = "shared.gpu.cantle.dev";

/// Scheduling gate of a pod with a claim, until its namespace's quota allows it and the node is nominated that kube-scheduler tries first.
pub const PACKING_GATE: &str = "cantle.dev/packing";

/// On the classic path, the resource that a pod with a slice asks for: always 1 of it.
pub const SLICE_RESOURCE: &str = "cantle.dev/slice";
/// Annotation of a node: the GPUs that cantle allocates there.
pub const GPUS_ANNOTATION: &str = "cantle.dev/gpus";
/// Annotation of a node: when room came free there that pods waited for.
pub const FREED_ANNOTATION: &str = "cantle.dev/freed";
/// Annotation of a node: what of them was given to which pod.
pub const PLACEMENTS_ANNOTATION: &str = "cantle.dev/placements";
/// Annotation of a node: the pods that reserve GPUs of it, where another device plugin gives them out.
pub const RESERVATIONS_ANNOTATION: &str = "cantle.dev/reservations";
/// Namespace of the pods that reserve GPUs.
pub const RESERVATION_NAMESPACE: &str = "cantle-reservation";

/// Condition of a node where NVIDIA's daemon of KAI and Run:ai sets limits of the driver for fractions of GPUs (`NvFractions`).
pub const FRACTIONING_CONDITION: &str = "gpu-fractioning.nvidia.com/Ready";

/// Does that daemon report that it works on this node?
#[must_use]
pub fn is_fractioned(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions).flatten();
    conditions.into_iter().any(|each| each.type_ == FRACTIONING_CONDITION && each.status == "True")
}

/// The resource of NVIDIA's device plugin.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// Its name in a ResourceQuota.
pub const QUOTA_RESOURCE: &str = "requests.nvidia.com/gpu";

/// The device class of a MIG profile: `mig-1g.10gb.gpu.cantle.dev`. A `+` in a profile's name cannot be in the name of
/// an object; it becomes `.`, as in NVIDIA's resource names.
#[must_use]
pub fn class_of_profile(profile: &str) -> String {
    format!("mig-{}.{DRIVER}", profile.replace('+', "."))
}

/// Prefix of the resource names for MIG profiles.
pub const MIG_RESOURCE: &str = "nvidia.com/mig-";

/// The resource that pods request under `limits` to get a MIG profile: `nvidia.com/mig-1g.10gb`.
#[must_use]
pub fn resource_of_profile(profile: &str) -> String {
    format!("{MIG_RESOURCE}{}", profile.replace('+', "."))
}

/// Attribute of devices: the number of the GPU's group on its node that NVLink joins.
pub const NVLINK_GROUP: &str = "nvlinkGroup";
/// Attribute of devices: the number of the GPU's group on its node with one NUMA node.
pub const NUMA_GROUP: &str = "numaGroup";
/// Label of nodes, and in the selectors of pods, that names the kind of the GPUs: NVIDIA's feature discovery writes it.
pub(crate) const PRODUCT: &str = "nvidia.com/gpu.product";
