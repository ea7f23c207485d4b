//! The resources that a task's pod takes and that count against quotas, from the pod or from its template. Pure.

use std::collections::BTreeMap;

use crate::ObjectExt as _;
use cantle_clearml::TaskRequest;
use cantle_model::{Milli, Slice};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::own_request;
use super::template::parts;
use crate::inject::{gpus_of, slice_of};
use crate::slice_name::SliceName;

/// ClearML's label: what a pod counts against quotas, in GPUs.
pub const WEIGHT_LABEL: &str = "required-resources";
/// The placement with which a pod was admitted.
const ROOM_ANNOTATION: &str = "cantle.dev/room";

/// The request of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// Of GPUs.
    pub gpu: Option<SliceName>,
    /// Does it ask by the resource of NVIDIA's device plugin?
    pub by_resource: bool,
    /// Its count of GPUs against quotas, in thousandths, if it states one.
    pub quota_milli: Option<u64>,
    /// Labels of nodes that will do.
    pub selector: BTreeMap<String, String>,
}

/// The record of a pod's admission: what is reported to the server that it holds, until its placement is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmittedSlices {
    /// The place that the scheduler has found for it.
    pub slices: Vec<Slice>,
    /// The project that it counts to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

impl PodRequest {
    /// Of a pod that is there.
    pub fn of_pod(pod: &Pod) -> Self {
        let weight = pod.labels().get(WEIGHT_LABEL);
        let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.clone());
        let (gpu, gpus) = (slice_of(pod), gpus_of(pod));
        let by_resource = gpu.is_none() && gpus > 0;
        Self {
            gpu: if by_resource { Some(SliceName::Whole { gpus }) } else { gpu },
            by_resource,
            quota_milli: weight.and_then(|text| weight_milli(text)),
            selector: selector.unwrap_or_default(),
        }
    }

    /// Of the pod that a task of a queue with this template will have.
    pub fn of_task(template: &Map<String, Value>, request: &TaskRequest) -> Self {
        let mut template = template.clone();
        // A request that can never be satisfied is refused when the pod is created.
        own_request::apply(&mut template, request);
        let (metadata, mut spec, container) = parts(&template);
        let mut resources = container["resources"].clone();
        for kind in ["limits", "requests"] {
            // Numbers in YAML; text once the API server has them.
            let amounts = resources.get_mut(kind).and_then(Value::as_object_mut);
            for amount in
                amounts.into_iter().flat_map(|all| all.values_mut()).filter(|amount| amount.is_number())
            {
                *amount = json!(amount.to_string());
            }
        }
        let container = json!({"name": "task", "resources": resources});
        let of_spec = |name: &str| spec.get(name).cloned().unwrap_or_default();
        spec = json!({
            "containers": [container],
            "nodeSelector": of_spec("nodeSelector"),
            "resourceClaims": of_spec("resourceClaims"),
        });
        let pod = json!({"metadata": metadata, "spec": spec});
        // One that is no pod is refused when it is made.
        serde_json::from_value(pod).map(|pod| Self::of_pod(&pod)).unwrap_or_default()
    }
}

impl AdmittedSlices {
    /// As the pod has it; none if it cannot be read.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::read(pod).unwrap_or_default()
    }

    /// As the pod has it, for its admission: a pod that seems to hold nothing would pass every quota.
    ///
    /// # Errors
    /// If the annotation is not as cantle writes it.
    pub fn read(pod: &Pod) -> Result<Self, serde_json::Error> {
        let text = pod.annotations().get(ROOM_ANNOTATION);
        text.map_or_else(|| Ok(Self::default()), |text| serde_json::from_str(text))
    }

    /// Writes it into a pod that is to be made.
    pub fn write_into(&self, pod: &mut Value) {
        pod["metadata"]["annotations"][ROOM_ANNOTATION] = json!(json!(self).to_string());
    }
}

/// `0.5` as thousandths of a GPU.
pub fn weight_milli(text: &str) -> Option<u64> {
    text.parse::<Milli>().ok().map(|milli| u64::from(milli.0))
}

#[cfg(test)]
mod tests {
    use cantle_model::{ComputeMode, ComputeRequest, GpuRequest};

    use super::*;

    fn of(template: Value, request: &TaskRequest) -> PodRequest {
        let Value::Object(template) = template else { panic!("a map") };
        PodRequest::of_task(&template, request)
    }

    #[test]
    fn a_template_says_what_its_pods_take_and_count() {
        let none = TaskRequest::default();
        let documented =
            json!({"labels": {"required-resources": "0.5", "clearml-injector/fraction": "0.500"}});
        let half = PodRequest {
            gpu: Some(SliceName::Fraction { parts: 5000, gpus: 1 }),
            quota_milli: Some(500),
            ..PodRequest::default()
        };
        assert_eq!(of(documented.clone(), &none), half);
        let mig = json!({
            "labels": {"required-resources": "0.50"},
            "nodeSelector": {"a": "b"},
            "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}},
        });
        let mig = of(mig, &none);
        assert_eq!(
            (mig.gpu, mig.quota_milli),
            (Some(SliceName::Mig { profile: "1g.10gb".into() }), Some(500))
        );
        assert_eq!(mig.selector["a"], "b");
        let whole = of(json!({"resources": {"limits": {"nvidia.com/gpu": 2}}}), &none);
        assert_eq!((whole.gpu, whole.by_resource), (Some(SliceName::Whole { gpus: 2 }), true));
        assert_eq!(of(json!({}), &none), PodRequest::default());
        let own = TaskRequest { gpu: Some(GpuRequest::Fraction(Milli(250).into())), ..none };
        let own = of(documented, &own);
        assert_eq!(
            (own.gpu, own.quota_milli),
            (Some(SliceName::Fraction { parts: 2500, gpus: 1 }), None),
            "its own"
        );
    }

    #[test]
    fn a_share_of_compute_counts_where_it_is_the_greater_part() {
        let queue = json!({"labels": {"clearml-injector/fraction": "0.250", WEIGHT_LABEL: "0.25"}});
        let counted = |request: Option<u32>| {
            let compute =
                ComputeRequest { mode: ComputeMode::Fair, request: request.map(Milli), limit: None };
            let own = of(queue.clone(), &TaskRequest { compute, ..TaskRequest::default() });
            (own.gpu.map(|gpu| gpu.request([])), own.quota_milli)
        };
        let part = |milli: u32| Some(GpuRequest::Fraction(Milli(milli).into()));
        assert_eq!(counted(None), (part(250), Some(250)));
        assert_eq!(counted(Some(750)), (part(750), None), "what it takes, and not the queue's weight");
    }

    #[test]
    fn what_a_pod_was_admitted_with_is_read_back() {
        let slice = Slice { gpu: "GPU-a".into(), milli: Milli(500), memory_limit_bytes: 1 << 30, mig: None };
        let admitted = AdmittedSlices { slices: vec![slice], project: Some("team".to_owned()) };
        let mut pod = json!({"metadata": {}, "spec": {"containers": []}});
        admitted.write_into(&mut pod);
        assert_eq!(AdmittedSlices::of_pod(&serde_json::from_value(pod).unwrap()), admitted);
        assert_eq!(AdmittedSlices::of_pod(&Pod::default()), AdmittedSlices::default());
    }
}
