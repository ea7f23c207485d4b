//! Manages claim templates: creates the templates that the webhook's pods wait for, and renews claims when the GPUs have
//! changed. It acts only on the state of the cluster, so several replicas, or a restart, do no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{
    Device, DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{Store, store};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::sleep;

use crate::KubeError;
use crate::api_status::is_namespace_terminating;
use crate::claims::{self, Fitting};
use cantle_kube_model::TemplateName;
use cantle_kube_model::claim_template::{GpuSizes, MAX_SIZES, TemplateAction, TemplateKey, steps};
use cantle_kube_model::inject::SLICE_LABEL;
use cantle_kube_model::names::{CLASS_SHARED, DRIVER, KIND_SHARED};

const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "cantle");

/// After a change more often follow: pods come in bursts.
const SETTLE: Duration = Duration::from_millis(20);

/// After something failed.
const RETRY: Duration = Duration::from_secs(1);

/// Makes templates until the program ends.
pub(crate) async fn keep_templates(client: Client) {
    let (world, changes) = World::watch(client);
    let mut fitting = Fitting::default();
    let mut changes = pin!(changes.ready_chunks(1024));
    let mut all_done = true;
    loop {
        tokio::select! {
            changed = changes.next() => {
                if changed.is_none() {
                    return;
                }
                sleep(SETTLE).await;
            }
            // A failed action is retried by itself; changes in the meantime do not wait for it.
            () = sleep(RETRY), if !all_done => {}
        }
        all_done = world.settle(&mut fitting).await;
    }
}

/// The objects of the API server, kept current.
struct World {
    client: Client,
    pods: Store<PartialObjectMeta<Pod>>,
    templates: Store<ResourceClaimTemplate>,
    slices: Store<ResourceSlice>,
    claims: Store<ResourceClaim>,
}

impl World {
    /// The world, and something for each change in it.
    fn watch(client: Client) -> (Self, impl Stream<Item = ()>) {
        let (pods, pods_in) = store();
        let (templates, templates_in) = store();
        let (slices, slices_in) = store();
        let (claims, claims_in) = store();
        let waiting = watcher::Config::default().labels(SLICE_LABEL).fields("status.phase=Pending");
        let driver = watcher::Config::default().fields(&format!("spec.driver={DRIVER}"));
        let all_claims = watcher(Api::all(client.clone()), watcher::Config::default()).modify(claims::lean);
        let changes = [
            changes(reflector(pods_in, watcher(Api::<PartialObjectMeta<Pod>>::all(client.clone()), waiting))),
            changes(reflector(templates_in, watcher(Api::all(client.clone()), watcher::Config::default()))),
            changes(reflector(slices_in, watcher(Api::all(client.clone()), driver))),
            changes(reflector(claims_in, all_claims)),
        ];
        (Self { client, pods, templates, slices, claims }, stream::select_all(changes))
    }

    /// Carries out the missing actions; returns whether nothing is left to do.
    async fn settle(&self, fitting: &mut Fitting) -> bool {
        let wanted: BTreeSet<TemplateKey> =
            self.pods.state().iter().filter_map(|pod| wanted_by(pod)).collect();
        let (mut all_done, sizes) = (true, self.sizes());
        for step in steps(&wanted, &self.existing(), &sizes) {
            let (done, (namespace, name)) = match &step {
                TemplateAction::Create(key, spec) => (self.create(key, spec).await, key),
                TemplateAction::Remove(key) => (self.delete(key).await, key),
            };
            if let Err(error) = done {
                tracing::warn!("claim template {namespace}/{name}: {error}; trying again");
                all_done = false;
            }
        }
        for (claim, spec) in fitting.outdated(&self.pods.state(), &self.claims.state(), &sizes) {
            if let Err(error) = claims::renew(&self.client, &claim, spec).await {
                let namespace = claim.namespace().unwrap_or_default();
                tracing::warn!("claim {namespace}/{}: {error}; trying again", claim.name_any());
                all_done = false;
            }
        }
        all_done
    }

    /// Templates under cantle's names; null for those of other programs.
    fn existing(&self) -> BTreeMap<TemplateKey, serde_json::Value> {
        let of = |template: &ResourceClaimTemplate| {
            let key = (template.namespace()?, template.name_any().parse().ok()?);
            let is_ours = template.labels().get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1);
            Some((key, if is_ours { json!(template.spec) } else { serde_json::Value::Null }))
        };
        self.templates.state().iter().filter_map(|template| of(template)).collect()
    }

    fn sizes(&self) -> GpuSizes {
        let mut sizes = GpuSizes::new();
        for slice in self.slices.state() {
            for mib in slice.spec.devices.iter().flatten().filter_map(shared_mib) {
                *sizes.entry(mib).or_default() += 1;
            }
        }
        if sizes.len() > MAX_SIZES {
            let kinds = sizes.len();
            tracing::warn!(
                "GPUs of {kinds} sizes; a fraction can be of {MAX_SIZES} at most: the most common ones are used"
            );
        }
        sizes
    }

    async fn create(
        &self,
        (namespace, name): &TemplateKey,
        spec: &serde_json::Value,
    ) -> Result<(), KubeError> {
        let labels = BTreeMap::from([MANAGED_BY]);
        let owner = self.owner().await?;
        let template = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name.to_string(), "namespace": namespace, "labels": labels, "ownerReferences": [owner]},
            "spec": spec,
        });
        let template: ResourceClaimTemplate = serde_json::from_value(template).map_err(KubeError::Object)?;
        let api = Api::namespaced(self.client.clone(), namespace);
        match api.create(&PostParams::default(), &template).await {
            Ok(_) => tracing::info!("claim template {namespace}/{name} made"),
            // Another replica was quicker, or the namespace is going, and its pods with it.
            Err(kube::Error::Api(status))
                if matches!(status.code, 404 | 409) || is_namespace_terminating(&status) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A deleted claim is created again when the watch has seen the deletion.
    async fn delete(&self, (namespace, name): &TemplateKey) -> Result<(), KubeError> {
        let name = name.to_string();
        let seen =
            self.templates.find(|t| t.namespace().as_deref() == Some(namespace) && t.name_any() == name);
        let preconditions = Some(Preconditions { uid: seen.and_then(|t| t.uid()), resource_version: None });
        let api: Api<ResourceClaimTemplate> = Api::namespaced(self.client.clone(), namespace);
        match api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Ok(_) => {
                tracing::info!("claim template {namespace}/{name} is not as it has to be; creating it again")
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Templates go when cantle's device class goes, so that nothing stays after cantle has been taken out.
    async fn owner(&self) -> Result<OwnerReference, KubeError> {
        let class = Api::<DeviceClass>::all(self.client.clone()).get(CLASS_SHARED).await?;
        Ok(OwnerReference {
            api_version: "resource.k8s.io/v1".to_owned(),
            kind: "DeviceClass".to_owned(),
            name: class.name_any(),
            uid: class.uid().unwrap_or_default(),
            ..OwnerReference::default()
        })
    }
}

/// Yields an item for each event; errors are logged, and the watch continues after a while.
fn changes<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
) -> stream::BoxStream<'static, ()>
where
    K: Send + 'static,
{
    let changes = events.default_backoff().map(|event| {
        if let Err(error) = event {
            tracing::warn!("watching: {error}");
        }
    });
    changes.boxed()
}

fn wanted_by(pod: &PartialObjectMeta<Pod>) -> Option<TemplateKey> {
    let template: TemplateName = pod.labels().get(SLICE_LABEL)?.parse().ok()?;
    Some((pod.namespace()?, template))
}

/// Memory in MiB of a GPU that can be shared.
fn shared_mib(device: &Device) -> Option<u64> {
    let kind = device.attributes.as_ref()?.get("kind")?.string.as_deref()?;
    let memory = &device.capacity.as_ref()?.get("memory")?.value.0;
    let bytes: cantle_model::Bytes = memory.parse().ok().filter(|_| kind == KIND_SHARED)?;
    Some(bytes.0 >> 20)
}
