//! Finds the container that gets the GPU, and checks that no other one requests a GPU too.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::containers::ContainerList;
use super::read::{CONTAINER_NAME, GPU, StatedRequest, amounts, devices};
use super::{Denial, Rules};
use crate::claim::claim_of;
use crate::names::SLICE_RESOURCE;
use crate::slice_name::{PARTS, SliceName};

/// Name of the claim in a pod.
pub(crate) const CLAIM: &str = "cantle-gpu";

/// The container that `kubectl logs` and `kubectl exec` mean where none is named. Argo Workflows and service meshes set it.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// Containers next to a user's, by the names that their programs give them: proxies of service meshes, KServe's and Knative's
/// proxy, and those of secrets and databases. None of them uses a GPU.
const SIDECARS: [&str; 12] = [
    "cloud-sql-proxy",
    "cloudsql-proxy",
    "consul-dataplane",
    "daprd",
    "envoy",
    "istio-proxy",
    "kuma-sidecar",
    "linkerd-proxy",
    "osm-envoy",
    "queue-proxy",
    "vault-agent",
    "vso-agent",
];
/// Argo Workflows' own container, and the user's next to it.
const ARGO: [&str; 2] = ["wait", "main"];

/// The container that gets the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetContainer {
    pub(crate) list: ContainerList,
    pub(crate) at: usize,
    pub(crate) name: String,
    /// The other containers that could have been meant, where nothing says which; for people.
    pub(crate) others: Option<String>,
}

/// The one that the pod names, else the one that requests GPUs in its resources, else the pod's default container, else the first
/// that is no known sidecar.
pub(crate) fn find(pod: &Pod, asked: &StatedRequest, rules: &Rules) -> Result<TargetContainer, Denial> {
    let all: Vec<TargetContainer> = ContainerList::containers(pod)
        .map(|(list, at, c)| TargetContainer { list, at, name: c.name.clone(), others: None })
        .collect();
    let names = |which: &[&TargetContainer]| {
        which.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let that = |is: &dyn Fn(&Container) -> bool| -> Vec<&TargetContainer> {
        let matches = ContainerList::containers(pod).zip(&all).filter(|((_, _, container), _)| is(container));
        matches.map(|(_, target)| target).collect()
    };
    let has_claim = that(&|container| {
        let claims = container.resources.as_ref().and_then(|r| r.claims.as_ref());
        claims.is_some_and(|claims| claims.iter().any(|claim| claim.name == CLAIM))
    });
    let is_asking = |key: &str| rules.is_asking(key) || key == GPU || key == SLICE_RESOURCE;
    let asking = that(&|c| amounts(c).iter().any(|(key, _)| is_asking(key)));
    let chosen = match pod.metadata.annotations.as_ref().and_then(|a| a.get(CONTAINER_NAME)) {
        Some(given) => {
            all.iter().find(|target| target.name == *given).ok_or_else(|| Denial::NoSuchContainer {
                given: given.clone(),
                containers: names(&all.iter().collect::<Vec<_>>()),
            })?
        }
        None => match (has_claim.as_slice(), asking.as_slice()) {
            ([target, ..], _) | ([], [target]) => target,
            ([], [_, _, ..]) => return Err(Denial::SeveralContainers(names(&asking))),
            ([], []) => &unasked(pod, &all)?,
        },
    };
    if let Some(other) = has_claim.iter().chain(&asking).find(|target| target.name != chosen.name) {
        return Err(if has_claim.contains(other) {
            Denial::ForeignClaim(other.name.clone())
        } else {
            Denial::SeveralContainers(names(&[chosen, other]))
        });
    }
    check_claim(pod, asked)?;
    Ok(chosen.clone())
}

/// The one of a pod of which no container asks.
fn unasked(pod: &Pod, all: &[TargetContainer]) -> Result<TargetContainer, Denial> {
    let mains = || all.iter().filter(|target| target.list == ContainerList::Main);
    let default = pod.metadata.annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    if let Some(default) = default.and_then(|name| mains().find(|target| target.name == *name)) {
        return Ok(default.clone());
    }
    let is_argo = ARGO.iter().all(|name| mains().any(|target| target.name == *name));
    let is_sidecar =
        |target: &&TargetContainer| SIDECARS.contains(&&*target.name) || is_argo && target.name == ARGO[0];
    let mut candidates: Vec<&TargetContainer> = mains().filter(|target| !is_sidecar(target)).collect();
    if candidates.is_empty() {
        candidates = mains().collect();
    }
    match candidates.as_slice() {
        [] => Err(Denial::NotAPod("it has no containers".to_owned())),
        [one] => Ok((*one).clone()),
        [first, others @ ..] => {
            let names: Vec<&str> = others.iter().map(|target| target.name.as_str()).collect();
            Ok(TargetContainer { others: Some(names.join(", ")), ..(*first).clone() })
        }
    }
}

/// A claim of this name is there after an earlier call, and then it is for the same.
fn check_claim(pod: &Pod, asked: &StatedRequest) -> Result<(), Denial> {
    let mut claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims).flatten();
    let Some(claim) = claims.find(|claim| claim.name == CLAIM) else { return Ok(()) };
    if claim_of(pod).is_some_and(|reference| reference.slice == asked.slice_name) {
        return Ok(());
    }
    let named = claim.resource_claim_name.as_deref().or(claim.resource_claim_template_name.as_deref());
    let one = format!("resource claim \"{CLAIM}\" ({})", named.unwrap_or("of no name"));
    Err(Denial::Contradiction { one, other: asked.by.clone() })
}

/// Other resources of NVIDIA's, in any container, in addition to what the pod asks for. ClearML's manifests have `nvidia.com/gpu`
/// next to the fraction: 1, or an eighth of a GPU each (their time slicing); the claim replaces it.
pub(crate) fn check_other_devices(
    pod: &Pod,
    asked: &StatedRequest,
    target: &TargetContainer,
    rules: &Rules,
) -> Result<(), Denial> {
    for (list, at, container) in ContainerList::containers(pod) {
        for (key, given) in amounts(container) {
            let is_gpu = key == GPU && (list, at) == (target.list, target.at);
            let is_asked =
                rules.is_asking(key) || (is_gpu && asked.clearml && stands_for(&asked.slice_name, given));
            if is_asked || !key.starts_with("nvidia.com/") {
                continue;
            }
            let one = format!("resource {key} \"{given}\" of container {}", container.name);
            return Err(Denial::Contradiction { one, other: asked.by.clone() });
        }
    }
    Ok(())
}

fn stands_for(slice_name: &SliceName, given: &str) -> bool {
    let Some(count) = devices(given) else { return false };
    match *slice_name.slice() {
        SliceName::Fraction { parts, .. } => count == 1 || count * PARTS == 8 * parts,
        SliceName::Whole { gpus } => count == gpus || count == 8 * gpus,
        SliceName::Memory { .. } | SliceName::Mig { .. } | SliceName::Compute { .. } => false,
    }
}
