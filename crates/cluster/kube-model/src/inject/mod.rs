//! The injector: gives a claim to a pod that requests a share of a GPU with ClearML's or Run:ai's labels. Pure: an
//! `AdmissionReview` in, an answer out. It creates nothing, so a dry run needs no special handling.

mod compute;
mod containers;
mod denial;
mod guard;
mod marks;
mod overlooked;
mod read;
mod read_back;
mod review;
mod target;
#[cfg(test)]
pub(crate) mod tests;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

pub use compute::{ANNOTATIONS as COMPUTE_ANNOTATIONS, annotations as compute_annotations};
pub use denial::Denial;
pub use guard::{InjectionMode, Rules};
pub use overlooked::overlooked;
pub use read::{LABEL, gpus_of, slice_of};
pub use read_back::missing_slice;
pub use review::{Answer, Question, ReviewOutcome, answer};

use crate::names::{PACKING_GATE, SLICE_RESOURCE};
use crate::slice_name::claim_name;
use containers::ContainerList;
use target::TargetContainer;

pub(crate) use target::CLAIM;

/// Label of a pod that has got a slice: the name of the slice.
pub const SLICE_LABEL: &str = "cantle.dev/slice";

/// Keeps NVIDIA's container runtime from adding GPUs by environment variables, in addition to the claim.
const NO_DEVICES: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "void");

/// The pod with its claim. Correct fields do not change, so a second call changes nothing but the name of the claim. `unique`, a
/// random UUID, becomes a part of that name: a copy of a pod must not share the claim of the first.
///
/// # Errors
/// If the pod's request is invalid, contradicts itself, or would evade the limit.
pub fn inject(pod: &Value, rules: &Rules, unique: &str) -> Result<Value, Denial> {
    inject_with_warning(pod, rules, unique).map(|(changed, _)| changed)
}

/// The same, with what its user should know.
fn inject_with_warning(pod: &Value, rules: &Rules, unique: &str) -> Result<(Value, Option<String>), Denial> {
    let typed: Pod = serde_json::from_value(pod.clone()).map_err(|e| Denial::NotAPod(e.to_string()))?;
    let Some(asked) = read::asked(&typed, rules)? else {
        return Ok((pod.clone(), None));
    };
    guard::check(&typed, rules)?;
    check_placement(&typed, rules)?;
    let target = target::find(&typed, &asked, rules)?;
    target::check_other_devices(&typed, &asked, &target, rules)?;
    let mut changed = pod.clone();
    for list in ContainerList::ALL {
        for container in each(&mut changed, list) {
            strip(container, rules);
            hide_gpus(container);
        }
    }
    match &rules.mode {
        InjectionMode::Claim => {
            claim(&mut changed, &target, &claim_name(&asked.slice_name, unique));
            if rules.packs {
                let gates = &mut changed["spec"]["schedulingGates"];
                add(gates, PACKING_GATE, json!({"name": PACKING_GATE}));
            }
        }
        InjectionMode::Classic { scheduler, .. } => slot(&mut changed, &target, scheduler)?,
    }
    changed["metadata"]["labels"][SLICE_LABEL] = json!(asked.slice_name.to_string());
    let TargetContainer { name, others, .. } = target;
    let warning = others.map(|others| {
        format!(
            "container {name} gets the GPU, and {others} gets none: name the one that needs it in annotation {}",
            read::CONTAINER_NAME
        )
    });
    Ok((changed, warning))
}

/// Containers added to a running pod (`kubectl debug`) get no GPU, and may not reach for one.
///
/// # Errors
/// If a new one would get around the limit.
pub fn inject_ephemeral(pod: &Value, old: &Value, rules: &Rules) -> Result<Value, Denial> {
    let of =
        |pod: &Value| serde_json::from_value::<Pod>(pod.clone()).map_err(|e| Denial::NotAPod(e.to_string()));
    let known: Vec<String> =
        of(old)?.spec.into_iter().flat_map(|s| s.ephemeral_containers).flatten().map(|c| c.name).collect();
    guard::check_ephemeral(&of(pod)?, &known, rules)?;
    let mut changed = pod.clone();
    let list = changed.pointer_mut("/spec/ephemeralContainers").and_then(Value::as_array_mut);
    for container in list.into_iter().flatten() {
        // Those that are there cannot be changed any more.
        if !known.iter().any(|name| container["name"] == **name) {
            hide_gpus(container);
        }
    }
    Ok(changed)
}

/// A scheduler allocates claims, and a pod that names its node has no scheduler.
fn check_placement(pod: &Pod, rules: &Rules) -> Result<(), Denial> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
    match node {
        Some(node) if rules.mode == InjectionMode::Claim => Err(Denial::NamedNode(node)),
        _ => Ok(()),
    }
}

fn each(pod: &mut Value, list: ContainerList) -> impl Iterator<Item = &mut Value> {
    pod["spec"].get_mut(list.key()).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Removes the resources that the slice replaces.
fn strip(container: &mut Value, rules: &Rules) {
    for kind in ["limits", "requests"] {
        if let Some(amounts) =
            container.pointer_mut(&format!("/resources/{kind}")).and_then(Value::as_object_mut)
        {
            amounts.retain(|key, _| !rules.is_asking(key) && key != read::GPU);
        }
    }
}

fn hide_gpus(container: &mut Value) {
    let (name, value) = NO_DEVICES;
    add(&mut container["env"], name, json!({"name": name, "value": value}));
}

fn claim(pod: &mut Value, target: &TargetContainer, name: &str) {
    let spec = &mut pod["spec"];
    put(&mut spec["resourceClaims"], CLAIM, json!({"name": CLAIM, "resourceClaimName": name}));
    let container = &mut spec[target.list.key()][target.at];
    add(&mut container["resources"]["claims"], CLAIM, json!({"name": CLAIM}));
}

/// One slot of the node; the label has the size of the slice.
fn slot(pod: &mut Value, target: &TargetContainer, scheduler: &str) -> Result<(), Denial> {
    let spec = &mut pod["spec"];
    match spec["schedulerName"].as_str() {
        None | Some("" | "default-scheduler") => spec["schedulerName"] = json!(scheduler),
        Some(given) if given == scheduler => {}
        Some(given) => {
            let (given, right) = (given.to_owned(), scheduler.to_owned());
            return Err(Denial::ForeignScheduler { given, right });
        }
    }
    spec[target.list.key()][target.at]["resources"]["limits"][SLICE_RESOURCE] = json!("1");
    Ok(())
}

/// Puts `entry` at the end of a list that may be missing, unless it has one of that name.
fn add(list: &mut Value, name: &str, entry: Value) {
    if !list.as_array().is_some_and(|list| list.iter().any(|entry| entry["name"] == name)) {
        put(list, name, entry);
    }
}

/// Puts `entry` in the place of the one of that name, else at the end of a list that may be missing.
fn put(list: &mut Value, name: &str, entry: Value) {
    if list.is_null() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|entry| entry["name"] == name) {
        Some(there) => *there = entry,
        None => list.push(entry),
    }
}
