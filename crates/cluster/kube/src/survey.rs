//! Collects the facts about a cluster for `cantle check kubernetes`. It only reads, apart from one dry run.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Request;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::version::serves_claims;
use crate::{KubeError, Version, server_version};
use cantle_kube_model::classic::record::is_reserving;
use cantle_kube_model::gpu_quota::{is_counted, limits_gpus};
use cantle_kube_model::inject::{LABEL, SLICE_LABEL, overlooked};
use cantle_kube_model::names::{CLASS_SHARED, DRIVER, GPUS_ANNOTATION, is_fractioned};
use cantle_kube_model::nominate::is_held;

/// The label of the chart's objects.
const OURS: &str = "app.kubernetes.io/name=cantle";
/// The label of a component.
const COMPONENT: &str = "app.kubernetes.io/component";
/// In seconds. A replica nominates within milliseconds; another one takes over from it in 15 s.
const HELD_S: i64 = 30;
/// The name of a feature gate's metric on the API server.
const GATE_METRIC: &str = "kubernetes_feature_enabled{";

/// The facts about a cluster.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Of the API server.
    pub version: Version,
    /// Does it serve `resource.k8s.io/v1`?
    pub has_dra: bool,
    /// The API server's feature gates; none where its metrics may not be read.
    pub gates: BTreeMap<String, bool>,
    /// Every node.
    pub nodes: Vec<SurveyedNode>,
    /// Is there the device class that shares are of?
    pub has_classes: bool,
    /// Is cantle installed for the classic path: is there a pod's own scheduler?
    pub is_classic: bool,
    /// The installed components of the chart.
    pub parts: Vec<Part>,
    /// Name of the injector's configuration.
    pub injector: Option<String>,
    /// The result of a pod that requests a share.
    pub probe: Probe,
    /// Pods whose words have no effect, by why: `namespace/name` of each.
    pub overlooked: BTreeMap<String, Vec<String>>,
    /// Pods (`namespace/name`) that have waited for their nomination for longer than 30 seconds: no replica of the injector makes any.
    pub held: Vec<String>,
    /// Quotas (`namespace/name`) of GPUs that pods with slices do not count in.
    pub void_quotas: Vec<String>,
    /// Does the injector of the classic path take pods to cantle that ask for MIG instances under limits?
    pub takes_mig: bool,
}

/// A node, as far as it matters to GPUs.
#[derive(Clone, Debug, Default)]
pub struct SurveyedNode {
    /// Its name.
    pub name: String,
    /// The kubelet's version, as it reports it.
    pub kubelet: String,
    /// The container engine: `containerd://2.1.4`.
    pub engine: String,
    /// The GPUs that NVIDIA's device plugin allocates here: `nvidia.com/gpu` and the like, with its amount.
    pub nvidia: BTreeMap<String, String>,
    /// Has cantle published GPUs of it, as devices or (classic path) in its annotation?
    pub is_published: bool,
    /// Does NVIDIA's daemon for fractions (KAI, Run:ai) work here?
    pub is_fractioned: bool,
    /// Does cantle use those GPUs only that it has got from NVIDIA's device plugin?
    pub is_reserving: bool,
}

/// Something that the chart keeps running.
#[derive(Clone, Debug)]
pub struct Part {
    /// `cantle-system/cantle-node`
    pub name: String,
    /// Pods that are ready.
    pub ready: i32,
    /// Pods that there should be.
    pub wanted: i32,
    /// Is it the scheduler of the classic path?
    pub is_scheduler: bool,
}

/// The result of a dry run of a pod that requests a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The injector was called and gave it this.
    Injected(String),
    /// It was not changed.
    Untouched,
    /// The API server refused it, for this reason.
    Refused(String),
}

/// Looks at the cluster.
///
/// # Errors
/// If the API server does not answer, or this user may not read what is needed.
pub async fn survey(client: &Client) -> Result<Survey, KubeError> {
    let version = server_version(client).await?;
    let has_dra = serves_claims(client).await?;
    let (published, has_classes) = if has_dra { devices(client).await? } else { Default::default() };
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configurations = configurations.list(&ListParams::default().labels(OURS)).await?;
    let parts = parts(client).await?;
    let is_classic = parts.iter().any(|part| part.is_scheduler);
    let share = json!({"metadata": {"labels": {LABEL: "0.500"}}, "spec": {"containers": [{}]}});
    let limits = json!({"limits": {"nvidia.com/mig-1g.5gb": 1}});
    let instance = json!({"metadata": {}, "spec": {"containers": [{"resources": limits}]}});
    let takes_mig = is_classic && matches!(probe(client, instance).await?.0, Probe::Injected(_));
    let pods = pods(client).await?;
    let (probed, is_holding) = probe(client, share).await?;
    Ok(Survey {
        version,
        has_dra,
        gates: gates(client).await,
        nodes: nodes.iter().map(|node| surveyed(node, &published)).collect(),
        has_classes,
        is_classic,
        parts,
        injector: configurations.iter().map(kube::ResourceExt::name_any).next(),
        overlooked: pods.0,
        held: pods.1,
        void_quotas: void_quotas(client, is_holding || is_classic).await?,
        probe: probed,
        takes_mig,
    })
}

/// Those whose words have no effect, and those that are held. Pods are many: page by page.
async fn pods(client: &Client) -> Result<(BTreeMap<String, Vec<String>>, Vec<String>), KubeError> {
    let (mut found, mut held): (BTreeMap<String, Vec<String>>, Vec<String>) = Default::default();
    let since = Timestamp::now().as_second() - HELD_S;
    let is_old = |pod: &Pod| pod.creation_timestamp().is_some_and(|made| made.0.as_second() < since);
    let mut page = ListParams::default().limit(500);
    loop {
        let pods = Api::<Pod>::all(client.clone()).list(&page).await?;
        for pod in &pods.items {
            if let Some(why) = overlooked(pod) {
                found.entry(why).or_default().push(full(pod.namespace(), pod.name_any()));
            }
            if is_held(pod) && is_old(pod) {
                held.push(full(pod.namespace(), pod.name_any()));
            }
        }
        match pods.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok((found, held)),
        }
    }
}

/// The quotas that limit GPUs but do not count pods with slices. The injector counts them if it holds pods, and the scheduler of the classic
/// path.
async fn void_quotas(client: &Client, counts: bool) -> Result<Vec<String>, KubeError> {
    let quotas = Api::<ResourceQuota>::all(client.clone()).list(&ListParams::default()).await?;
    let is_void = |quota: &&ResourceQuota| limits_gpus(quota) && !(counts && is_counted(quota));
    let name = |quota: &ResourceQuota| full(quota.namespace(), quota.name_any());
    Ok(quotas.iter().filter(is_void).map(name).collect())
}

/// `namespace/name`
fn full(namespace: Option<String>, name: String) -> String {
    format!("{}/{name}", namespace.unwrap_or_default())
}

/// The nodes whose GPUs are published, and whether pods could ask for them.
async fn devices(client: &Client) -> Result<(BTreeSet<String>, bool), KubeError> {
    let ours = ListParams::default().fields(&format!("spec.driver={DRIVER}"));
    let slices = Api::<ResourceSlice>::all(client.clone()).list(&ours).await?;
    let published = slices.items.into_iter().filter_map(|slice| slice.spec.node_name).collect();
    let class = Api::<DeviceClass>::all(client.clone()).get_opt(CLASS_SHARED).await?;
    Ok((published, class.is_some()))
}

/// Hosted clusters show no metrics of the API server; then nothing is known about its gates.
async fn gates(client: &Client) -> BTreeMap<String, bool> {
    let Ok(request) = Request::get("/metrics").body(Vec::new()) else { return BTreeMap::new() };
    let text = client.request_text(request).await.unwrap_or_default();
    text.lines().filter_map(gate).collect()
}

/// `kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 1`
fn gate(line: &str) -> Option<(String, bool)> {
    let (labels, value) = line.strip_prefix(GATE_METRIC)?.rsplit_once("} ")?;
    let name = labels.split(',').find_map(|label| label.strip_prefix("name=\""))?;
    Some((name.trim_end_matches('"').to_owned(), value.trim() == "1"))
}

fn surveyed(node: &Node, published: &BTreeSet<String>) -> SurveyedNode {
    let name = node.name_any();
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    let resources = status.and_then(|status| status.allocatable.as_ref()).into_iter().flatten();
    let nvidia = resources.filter(|(key, amount)| key.starts_with("nvidia.com/") && amount.0 != "0");
    SurveyedNode {
        kubelet: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        engine: info.map(|info| info.container_runtime_version.clone()).unwrap_or_default(),
        nvidia: nvidia.map(|(key, amount)| (key.clone(), amount.0.clone())).collect(),
        is_fractioned: is_fractioned(node),
        is_reserving: is_reserving(node),
        is_published: published.contains(&name) || node.annotations().contains_key(GPUS_ANNOTATION),
        name,
    }
}

async fn parts(client: &Client) -> Result<Vec<Part>, KubeError> {
    let ours = ListParams::default().labels(OURS);
    let sets = Api::<DaemonSet>::all(client.clone()).list(&ours).await?;
    let sets = sets.iter().map(|set| {
        let status = set.status.as_ref();
        Part {
            name: full(set.namespace(), set.name_any()),
            ready: status.map_or(0, |status| status.number_ready),
            wanted: status.map_or(0, |status| status.desired_number_scheduled),
            is_scheduler: false,
        }
    });
    let mut parts: Vec<Part> = sets.collect();
    let deployments = Api::<Deployment>::all(client.clone()).list(&ours).await?;
    parts.extend(deployments.iter().map(|deployment| Part {
        name: full(deployment.namespace(), deployment.name_any()),
        ready: deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0),
        wanted: deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1),
        is_scheduler: deployment.labels().get(COMPONENT).is_some_and(|component| component == "scheduler"),
    }));
    Ok(parts)
}

/// The way from the API server through the injector and back: address, certificate and answer at once; and whether the pod is held.
async fn probe(client: &Client, mut pod: Value) -> Result<(Probe, bool), KubeError> {
    pod["metadata"]["generateName"] = json!("cantle-check-");
    pod["spec"]["containers"][0]["name"] = json!("main");
    pod["spec"]["containers"][0]["image"] = json!("none");
    let pod: Pod = serde_json::from_value(pod).map_err(KubeError::Object)?;
    let dry_run = PostParams { dry_run: true, field_manager: None };
    match Api::default_namespaced(client.clone()).create(&dry_run, &pod).await {
        Ok(pod) => {
            let slice = pod.labels().get(SLICE_LABEL).cloned();
            Ok((slice.map_or(Probe::Untouched, Probe::Injected), is_held(&pod)))
        }
        Err(kube::Error::Api(status)) => Ok((Probe::Refused(status.message.clone()), false)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::gate;

    #[test]
    fn gates_are_read_from_metrics() {
        let on = r#"kubernetes_feature_enabled{name="DRAConsumableCapacity",stage="BETA"} 1"#;
        let off = r#"kubernetes_feature_enabled{name="DRADeviceTaintRules",stage="ALPHA"} 0"#;
        assert_eq!(gate(on), Some(("DRAConsumableCapacity".to_owned(), true)));
        assert_eq!(gate(off), Some(("DRADeviceTaintRules".to_owned(), false)));
        assert_eq!(gate("# HELP kubernetes_feature_enabled x"), None);
    }
}
