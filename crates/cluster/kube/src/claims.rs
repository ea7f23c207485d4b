//! Says which claims waiting pods lack, and which have to be created again: those for GPUs that are not there any more, and those of pods
//! that kube-scheduler has missed ([`crate::missed`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{Device, ResourceClaim, ResourceSlice};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::Instant;

use crate::KubeError;
use crate::api_status::is_namespace_terminating;
use crate::waiting::Counted;
use cantle_kube_model::claim::{
    FINALIZER, GpuSizes, MAX_SIZES, claim, claim_of, is_outdated, is_owned_by, is_waiting,
};
use cantle_kube_model::names::KIND_SHARED;

/// A claim that was created is seen after this at the latest, and one that was refused is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The actions on claims that waiting pods need.
#[derive(Default)]
pub(crate) struct ClaimWork {
    /// To be created, by the pods' UIDs.
    pub(crate) missing: BTreeMap<String, ResourceClaim>,
    /// To be deleted, so that others can take their names.
    pub(crate) replaced: Vec<Replaced>,
    /// Why a pod gets no claim, by the pods' UIDs.
    pub(crate) refused: BTreeMap<String, String>,
}

/// A claim that another one is created for.
pub(crate) struct Replaced {
    claim: Arc<ResourceClaim>,
    /// [`Counted::Outdated`] or [`Counted::Missed`].
    pub(crate) cause: Counted,
}

/// Follows the claims of waiting pods.
#[derive(Default)]
pub(crate) struct Claims {
    sizes: GpuSizes,
    /// Claims that fit these sizes, by their UIDs.
    fitting: BTreeSet<String>,
    /// When a claim was created, or why it was refused, by the pods' UIDs.
    tried: BTreeMap<String, (Instant, Option<String>)>,
}

impl Claims {
    /// The actions on claims that `waiting` pods need. `known` has all claims of the cluster. `missed`: the UIDs of pods that need a new claim.
    pub(crate) fn work(
        &mut self,
        waiting: &[Arc<Pod>],
        known: &Store<ResourceClaim>,
        slices: &[Arc<ResourceSlice>],
        missed: &BTreeSet<String>,
    ) -> Result<ClaimWork, KubeError> {
        let sizes = sizes(slices);
        if sizes != self.sizes {
            if sizes.len() > MAX_SIZES {
                let kinds = sizes.len();
                tracing::warn!(
                    "GPUs of {kinds} sizes; a fraction can be of {MAX_SIZES} at most: the most common ones are used"
                );
            }
            (self.sizes, self.fitting) = (sizes, BTreeSet::new());
        }
        let (mut work, mut fitting) = (ClaimWork::default(), BTreeSet::new());
        self.tried.retain(|_, (at, _)| at.elapsed() < RETRY);
        for pod in waiting.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            let (Some(uid), Some(reference)) = (pod.uid(), claim_of(pod)) else { continue };
            let place = ObjectRef::new(&reference.name).within(&pod.namespace().unwrap_or_default());
            let Some(there) = known.get(&place) else {
                match self.tried.get(&uid) {
                    Some((_, why)) => work.refused.extend(why.clone().map(|why| (uid, why))),
                    None => {
                        let wanted = claim(pod, &reference, &self.sizes);
                        let wanted =
                            wanted.map(serde_json::from_value).transpose().map_err(KubeError::Object)?;
                        work.missing.extend(wanted.map(|wanted| (uid, wanted)));
                    }
                }
                continue;
            };
            if !is_owned_by(&there, pod) {
                let why = format!("claim {} is not the pod's: delete it", reference.name);
                work.refused.insert(uid, why);
                continue;
            }
            self.tried.remove(&uid);
            let Some(claim_uid) = there.uid() else { continue };
            if !self.fitting.contains(&claim_uid) && is_outdated(&there, &reference.slice, &self.sizes) {
                work.replaced.push(Replaced { claim: there, cause: Counted::Outdated });
            } else if missed.contains(&uid) && is_waiting(&there) {
                work.replaced.push(Replaced { claim: there, cause: Counted::Missed });
            } else {
                fitting.insert(claim_uid);
            }
        }
        self.fitting = fitting;
        Ok(work)
    }

    /// How the creation of a pod's claim went.
    pub(crate) fn tried(&mut self, pod_uid: String, refused: Option<String>) {
        self.tried.insert(pod_uid, (Instant::now(), refused));
    }
}

fn sizes(slices: &[Arc<ResourceSlice>]) -> GpuSizes {
    let mut sizes = GpuSizes::new();
    for mib in slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()).filter_map(shared_mib) {
        *sizes.entry(mib).or_default() += 1;
    }
    sizes
}

/// Memory in MiB of a GPU that can be shared.
fn shared_mib(device: &Device) -> Option<u64> {
    let kind = device.attributes.as_ref()?.get("kind")?.string.as_deref()?;
    let memory = &device.capacity.as_ref()?.get("memory")?.value.0;
    let bytes: cantle_model::Bytes = memory.parse().ok().filter(|_| kind == KIND_SHARED)?;
    Some(bytes.0 >> 20)
}

/// # Errors
/// If the API server refuses.
pub(crate) async fn create(client: &Client, claim: &ResourceClaim) -> Result<(), KubeError> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), claim).await {
        Ok(_) => Ok(()),
        // It is there, and not seen yet, or the namespace is going, and its pods with it.
        Err(kube::Error::Api(status)) if status.code == 409 || is_namespace_terminating(&status) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes a claim, so that another one can take its name: the pod names it. One that changed meanwhile, because it was allocated, is
/// left alone.
///
/// # Errors
/// If the API server refuses.
pub(crate) async fn delete(client: &Client, replaced: Replaced) -> Result<(), KubeError> {
    let Replaced { claim, cause } = replaced;
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &namespace);
    let seen = Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
    match api.delete(&name, &DeleteParams { preconditions: Some(seen), ..DeleteParams::default() }).await {
        Ok(deleted) => {
            let why = match cause {
                Counted::Missed => "kube-scheduler does not try its pod again",
                _ => "it is for other GPUs than there are",
            };
            tracing::info!("creating claim {namespace}/{name} again: {why}");
            if let Some(left) = deleted.left() {
                let_go(&api, &left).await?;
            }
        }
        // It is another one by now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Removes the finalizer of a claim that is being deleted, which the injector gave it. The controller manager does so too, for a few
/// claims each second. kube-scheduler allocates no claim that is being deleted, and the version says that it has not done so before.
async fn let_go(api: &Api<ResourceClaim>, claim: &ResourceClaim) -> Result<(), KubeError> {
    let is_allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
    if is_allocated || claim.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    let others: Vec<&String> =
        claim.metadata.finalizers.iter().flatten().filter(|finalizer| *finalizer != FINALIZER).collect();
    let patch =
        json!({"metadata": {"finalizers": others, "resourceVersion": claim.metadata.resource_version}});
    match api.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        // It is gone, or changes: the controller manager sees to it.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;

    const CLAIM: &str = "cantle-fraction-5000-9f86d081884c7d65";

    fn pod(uid: &str) -> Arc<Pod> {
        let metadata = json!({"name": "p", "namespace": "team", "uid": uid});
        let spec = json!({
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "cantle-gpu", "resourceClaimName": CLAIM}],
        });
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    fn slices(mib: u64) -> Vec<Arc<ResourceSlice>> {
        let device = json!({
            "name": "gpu-0-shared",
            "attributes": {"kind": {"string": KIND_SHARED}},
            "capacity": {"memory": {"value": format!("{mib}Mi")}},
        });
        let pool = json!({"name": "n", "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "gpu.cantle.dev", "nodeName": "n", "pool": pool, "devices": [device]});
        vec![Arc::new(serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec})).unwrap())]
    }

    /// The actions for this pod, given that these claims exist.
    fn work(claims: &mut Claims, there: &[ResourceClaim], mib: u64) -> ClaimWork {
        let (known, mut seen) = store();
        for claim in there {
            seen.apply_watcher_event(&Event::Apply(claim.clone()));
        }
        claims.work(&[pod("u")], &known, &slices(mib), &BTreeSet::new()).unwrap()
    }

    fn memory(claim: &ResourceClaim) -> Value {
        json!(claim.spec)["devices"]["requests"][0]["firstAvailable"][0]["capacity"]["requests"]["memory"]
            .take()
    }

    #[test]
    fn a_missing_claim_is_created_once() {
        let mut claims = Claims::default();
        let mut first = work(&mut claims, &[], 40_960);
        let missing = first.missing.remove("u").unwrap();
        assert_eq!((missing.name_any().as_str(), memory(&missing)), (CLAIM, json!("20Gi")));
        claims.tried("u".to_owned(), None);
        assert!(work(&mut claims, &[], 40_960).missing.is_empty(), "the watch is later than the answer");
        let there = work(&mut claims, std::slice::from_ref(&missing), 40_960);
        assert!(there.missing.is_empty() && there.replaced.is_empty() && there.refused.is_empty());
        assert!(!work(&mut claims, &[], 40_960).missing.is_empty(), "it was deleted");
    }

    #[test]
    fn a_refused_claim_is_not_tried_again_at_once() {
        let mut claims = Claims::default();
        claims.tried("u".to_owned(), Some("over quota".to_owned()));
        let work = work(&mut claims, &[], 40_960);
        assert!(work.missing.is_empty());
        assert_eq!(work.refused["u"], "over quota");
    }

    #[test]
    fn a_claim_for_other_gpus_makes_way() {
        let mut claims = Claims::default();
        let mut small = work(&mut claims, &[], 40_960).missing.remove("u").unwrap();
        small.metadata.uid = Some("c".to_owned());
        let there = [small];
        assert!(work(&mut claims, &there, 40_960).replaced.is_empty());
        assert_eq!(work(&mut claims, &there, 81_920).replaced.len(), 1);
        assert_eq!(work(&mut claims, &there, 81_920).replaced.len(), 1, "until it is gone");
        assert_eq!(memory(&work(&mut claims, &[], 81_920).missing["u"]), json!("40Gi"));
    }

    #[test]
    fn a_claim_of_somebody_else_is_not_taken() {
        let mut claims = Claims::default();
        let mut foreign = work(&mut claims, &[], 40_960).missing.remove("u").unwrap();
        foreign.metadata.owner_references = None;
        let work = work(&mut claims, &[foreign], 81_920);
        assert!(work.replaced.is_empty() && work.missing.is_empty());
        assert!(work.refused["u"].contains(CLAIM));
    }
}
