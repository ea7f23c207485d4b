//! Which container gets the GPU, and whether another one reaches for one too.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::read::{Asked, CONTAINER_NAME, GPU, amounts, devices};
use super::{Denial, Rules};
use crate::ask::{Ask, PARTS};
use crate::names::SLICE_RESOURCE;

/// Name of the claim in a pod.
pub(crate) const CLAIM: &str = "cantle-gpu";

/// The lists of containers that a pod is created with. Sidecars are init containers that keep running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Init,
    Main,
}

impl List {
    pub(super) const ALL: [Self; 2] = [Self::Main, Self::Init];

    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Init => "initContainers",
            Self::Main => "containers",
        }
    }

    /// All containers of a pod, the main ones first.
    pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = (Self, usize, &Container)> {
        let spec = pod.spec.iter();
        spec.flat_map(|spec| {
            let main = spec.containers.iter().enumerate().map(|(at, c)| (Self::Main, at, c));
            let init = spec.init_containers.iter().flatten().enumerate().map(|(at, c)| (Self::Init, at, c));
            main.chain(init)
        })
    }
}

/// The container that gets the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) list: List,
    pub(super) at: usize,
    pub(super) name: String,
}

/// By name if the pod says so, else the one that asks by its resources, else the first.
pub(super) fn find(pod: &Pod, asked: &Asked, rules: &Rules) -> Result<Seat, Denial> {
    let all: Vec<Seat> =
        List::containers(pod).map(|(list, at, c)| Seat { list, at, name: c.name.clone() }).collect();
    let names = |which: &[&Seat]| which.iter().map(|seat| seat.name.as_str()).collect::<Vec<_>>().join(", ");
    let that = |is: &dyn Fn(&Container) -> bool| -> Vec<&Seat> {
        let matches = List::containers(pod).zip(&all).filter(|((_, _, container), _)| is(container));
        matches.map(|(_, seat)| seat).collect()
    };
    let has_claim = that(&|container| {
        let claims = container.resources.as_ref().and_then(|r| r.claims.as_ref());
        claims.is_some_and(|claims| claims.iter().any(|claim| claim.name == CLAIM))
    });
    let is_asking = |key: &str| rules.is_asking(key) || key == GPU || key == SLICE_RESOURCE;
    let asking = that(&|c| amounts(c).iter().any(|(key, _)| is_asking(key)));
    let chosen = match pod.metadata.annotations.as_ref().and_then(|a| a.get(CONTAINER_NAME)) {
        Some(given) => {
            all.iter().find(|seat| seat.name == *given).ok_or_else(|| Denial::NoSuchContainer {
                given: given.clone(),
                containers: names(&all.iter().collect::<Vec<_>>()),
            })?
        }
        None => match (has_claim.as_slice(), asking.as_slice()) {
            ([seat, ..], _) | ([], [seat]) => seat,
            ([], [_, _, ..]) => return Err(Denial::SeveralContainers(names(&asking))),
            ([], []) => all.first().ok_or_else(|| Denial::NotAPod("it has no containers".to_owned()))?,
        },
    };
    if let Some(other) = has_claim.iter().chain(&asking).find(|seat| seat.name != chosen.name) {
        return Err(if has_claim.contains(other) {
            Denial::ForeignClaim(other.name.clone())
        } else {
            Denial::SeveralContainers(names(&[chosen, other]))
        });
    }
    check_claim(pod, asked)?;
    Ok(chosen.clone())
}

/// A claim of this name is there after an earlier call, and then it is for the same.
fn check_claim(pod: &Pod, asked: &Asked) -> Result<(), Denial> {
    let claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims).flatten();
    for claim in claims.filter(|claim| claim.name == CLAIM) {
        let template = claim.resource_claim_template_name.as_deref().unwrap_or("of no template");
        if template != asked.ask.to_string() {
            let one = format!("resource claim \"{CLAIM}\" ({template})");
            return Err(Denial::Contradiction { one, other: asked.by.clone() });
        }
    }
    Ok(())
}

/// Other resources of NVIDIA's, in any container, beside what the pod asks for. ClearML's manifests have `nvidia.com/gpu`
/// beside the fraction: 1, or an eighth of a GPU each (their time slicing); the claim stands for it.
pub(super) fn check_other_devices(
    pod: &Pod,
    asked: &Asked,
    seat: &Seat,
    rules: &Rules,
) -> Result<(), Denial> {
    for (list, at, container) in List::containers(pod) {
        for (key, given) in amounts(container) {
            let is_gpu = key == GPU && (list, at) == (seat.list, seat.at);
            let is_asked = rules.is_asking(key) || (is_gpu && asked.clearml && stands_for(&asked.ask, given));
            if is_asked || !key.starts_with("nvidia.com/") {
                continue;
            }
            let one = format!("resource {key} \"{given}\" of container {}", container.name);
            return Err(Denial::Contradiction { one, other: asked.by.clone() });
        }
    }
    Ok(())
}

fn stands_for(ask: &Ask, given: &str) -> bool {
    let Some(count) = devices(given) else { return false };
    match *ask {
        Ask::Fraction { parts, .. } => count == 1 || count * PARTS == 8 * parts,
        Ask::Whole { gpus } => count == gpus || count == 8 * gpus,
        Ask::Memory { .. } | Ask::Mig { .. } => false,
    }
}
