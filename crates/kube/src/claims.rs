//! Renews the claims of waiting pods after the cluster's GPUs have changed. Kubernetes creates a claim once and never reads
//! the template again, so a claim for GPUs that no longer exist would fit nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec};
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;

use crate::KubeError;
use crate::api_status::is_namespace_terminating;
use cantle_kube_model::TemplateName;
use cantle_kube_model::claim_template::{GpuSizes, renewed};
use cantle_kube_model::inject::SLICE_LABEL;

/// For the watch: an allocated claim does not change, and nothing reads its contents.
pub(crate) fn lean(claim: &mut ResourceClaim) {
    claim.metadata.managed_fields = None;
    if claim.status.as_ref().is_some_and(|status| status.allocation.is_some()) {
        claim.spec = ResourceClaimSpec::default();
    }
}

/// The checked objects: pods come in bursts, and a claim that fits continues to fit until the GPUs change.
#[derive(Debug, Default)]
pub(crate) struct Fitting {
    sizes: GpuSizes,
    claims: BTreeSet<String>,
}

impl Fitting {
    /// The claims that have to be others, each with its new contents. `pods` are those that may still wait.
    pub(crate) fn outdated(
        &mut self,
        pods: &[Arc<PartialObjectMeta<Pod>>],
        claims: &[Arc<ResourceClaim>],
        sizes: &GpuSizes,
    ) -> Vec<(Arc<ResourceClaim>, Value)> {
        let template = |pod: &Arc<PartialObjectMeta<Pod>>| {
            let name: TemplateName = pod.labels().get(SLICE_LABEL)?.parse().ok()?;
            Some((pod.uid()?, name))
        };
        if *sizes != self.sizes {
            *self = Self { sizes: sizes.clone(), claims: BTreeSet::new() };
        }
        let waits = |claim: &&Arc<ResourceClaim>| {
            claim.status.as_ref().is_none_or(|status| status.allocation.is_none())
        };
        let waiting: BTreeMap<String, &Arc<ResourceClaim>> =
            claims.iter().filter(waits).filter_map(|claim| Some((claim.uid()?, claim))).collect();
        self.claims.retain(|uid| waiting.contains_key(uid));
        if self.claims.len() == waiting.len() {
            return Vec::new();
        }
        let templates: BTreeMap<String, TemplateName> = pods.iter().filter_map(template).collect();
        let mut outdated = Vec::new();
        for (uid, claim) in
            waiting.into_iter().filter(|(uid, _)| !self.claims.contains(uid)).collect::<Vec<_>>()
        {
            let owner = claim.owner_references().iter().find(|owner| owner.kind == "Pod");
            // The pod may be seen later than its claim.
            let Some(template) = owner.and_then(|owner| templates.get(&owner.uid)) else { continue };
            match renewed(claim, template, sizes) {
                Some(spec) => outdated.push((Arc::clone(claim), spec)),
                None => drop(self.claims.insert(uid)),
            }
        }
        outdated
    }
}

/// Puts another claim in the place of this one, under its name: the pod's status names it. Kubernetes would make a new one too, but
/// kube-controller-manager takes a claim that it has made for there for another minute.
///
/// # Errors
/// If the API server refuses. A claim that changed meanwhile, because it was allocated, is left alone.
pub(crate) async fn renew(client: &Client, claim: &ResourceClaim, spec: Value) -> Result<(), KubeError> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    let name = claim.name_any();
    let next = ResourceClaim {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: claim.namespace(),
            annotations: claim.metadata.annotations.clone(),
            labels: claim.metadata.labels.clone(),
            owner_references: claim.metadata.owner_references.clone(),
            ..ObjectMeta::default()
        },
        spec: serde_json::from_value(spec).map_err(KubeError::Object)?,
        status: None,
    };
    let seen = Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
    match api.delete(&name, &DeleteParams { preconditions: Some(seen), ..DeleteParams::default() }).await {
        Ok(_) => {}
        // It is another one by now, or another replica was quicker.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    match api.create(&PostParams::default(), &next).await {
        Ok(_) => tracing::info!(
            "claim {}/{name} is for the GPUs that are here now",
            claim.namespace().unwrap_or_default()
        ),
        Err(kube::Error::Api(status)) if status.code == 409 || is_namespace_terminating(&status) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
