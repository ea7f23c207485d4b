//! The pod of a task that has a request of its own: the request replaces that of the queue's template.

use cantle_clearml::TaskRequest;
use cantle_model::{ComputeRequest, GpuRequest, whole_granules};
use serde_json::{Map, Value, json};

use super::pod_request::WEIGHT_LABEL;
use super::template::merge;
use crate::inject::{COMPUTE_ANNOTATIONS, LABEL, compute_annotations};

/// Annotations and resources by which a template requests GPU. All of them are removed if the task has its own request.
const GPU_ANNOTATIONS: [&str; 4] = ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "mig-profile"];
const GPU_RESOURCES: [&str; 2] = ["nvidia.com/", "clear.ml/fraction"];

/// Writes the task's request into a copy of the queue's template. It checks nothing: the injector refuses what cannot be given.
pub(super) fn apply(template: &mut Map<String, Value>, request: &TaskRequest) {
    if let Some(gpu) = &request.gpu {
        remove_gpu(template);
        overwrite(template, of_gpu(gpu, request.compute));
    }
    if request.compute.is_enforced() {
        remove_compute(template);
        if request.compute.named_part().is_some() {
            // The label is the weight of the template's slice; this share may count more.
            remove_label(template, WEIGHT_LABEL);
        }
        overwrite(template, json!({"annotations": compute_annotations(request.compute)}));
    }
    let amounts = [
        (request.cpu_milli > 0).then(|| ("cpu", json!(format!("{}m", request.cpu_milli)))),
        (request.memory_bytes > 0).then(|| ("memory", json!(request.memory_bytes.to_string()))),
    ];
    for (name, amount) in amounts.into_iter().flatten() {
        overwrite(template, json!({"resources": {"requests": {name: amount}}}));
    }
}

fn of_gpu(gpu: &GpuRequest, compute: ComputeRequest) -> Value {
    match gpu {
        GpuRequest::Fraction(share) if share.is_part() => {
            json!({"annotations": {"gpu-fraction": share.to_string()}})
        }
        // NVIDIA's device plugin enforces no share of GPU time, so cantle allocates the GPU.
        GpuRequest::Fraction(_) | GpuRequest::Gpus(1) if compute.is_enforced() => {
            json!({"labels": {LABEL: "1"}})
        }
        GpuRequest::Fraction(_) => json!({"resources": {"limits": {"nvidia.com/gpu": 1}}}),
        GpuRequest::Gpus(n) => json!({"resources": {"limits": {"nvidia.com/gpu": n}}}),
        GpuRequest::MigProfile(profile) => json!({"annotations": {"mig-profile": profile}}),
        GpuRequest::Memory(bytes) => {
            json!({"annotations": {"gpu-memory": (whole_granules(bytes.0) >> 20).to_string()}})
        }
    }
}

fn overwrite(template: &mut Map<String, Value>, over: Value) {
    if let Value::Object(over) = over {
        merge(template, over);
    }
}

fn remove_gpu(template: &mut Map<String, Value>) {
    remove_label(template, LABEL);
    // The weight belonged to the removed request.
    remove_label(template, WEIGHT_LABEL);
    remove_annotations(template, &GPU_ANNOTATIONS);
    // So did the share of GPU time.
    remove_compute(template);
    let Some(Value::Object(resources)) = template.get_mut("resources") else { return };
    for amounts in resources.values_mut().filter_map(Value::as_object_mut) {
        amounts.retain(|name, _| !GPU_RESOURCES.iter().any(|prefix| name.starts_with(prefix)));
    }
}

/// All annotations of compute: a mix of the queue's and the task's would be neither request.
fn remove_compute(template: &mut Map<String, Value>) {
    remove_annotations(template, &COMPUTE_ANNOTATIONS);
}

fn remove_annotations(template: &mut Map<String, Value>, names: &[&str]) {
    if let Some(Value::Object(annotations)) = template.get_mut("annotations") {
        annotations.retain(|name, _| !names.contains(&name.as_str()));
    }
}

fn remove_label(template: &mut Map<String, Value>, name: &str) {
    if let Some(Value::Object(labels)) = template.get_mut("labels") {
        labels.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use cantle_model::{Bytes, ComputeMode, Milli};

    use super::*;

    fn applied(queue: &Value, request: &TaskRequest) -> Value {
        let mut template = queue.as_object().unwrap().clone();
        apply(&mut template, request);
        Value::Object(template)
    }

    fn half() -> Value {
        json!({
            "labels": {LABEL: "0.500", WEIGHT_LABEL: "0.5"},
            "annotations": {"cantle.dev/compute": "fair", "cantle.dev/compute-limit": "0.6", "team": "a"},
            "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": "1"}},
        })
    }

    fn of(gpu: Option<GpuRequest>, compute: ComputeRequest) -> Value {
        applied(&half(), &TaskRequest { gpu, compute, ..TaskRequest::default() })
    }

    fn strict(request: Option<u32>) -> ComputeRequest {
        ComputeRequest { mode: ComputeMode::Strict, request: request.map(Milli), limit: None }
    }

    #[test]
    fn its_gpu_goes_before_the_queues() {
        let asked = |gpu| of(Some(gpu), ComputeRequest::default());
        let fraction = asked(GpuRequest::Fraction(Milli(300).into()));
        assert_eq!(fraction["annotations"], json!({"gpu-fraction": "0.3", "team": "a"}));
        assert_eq!(
            fraction["labels"],
            json!({}),
            "the queue's fraction contradicts it, its weight is not the task's"
        );
        assert_eq!(fraction["resources"]["limits"], json!({"memory": "1Gi"}));
        let memory = asked(GpuRequest::Memory(Bytes(4 << 30)));
        assert_eq!(memory["annotations"]["gpu-memory"], "4096");
        let mig = asked(GpuRequest::MigProfile("1g.10gb".to_owned()));
        assert_eq!(mig["annotations"]["mig-profile"], "1g.10gb");
        assert_eq!(asked(GpuRequest::Gpus(2))["resources"]["limits"]["nvidia.com/gpu"], 2);
        let odd = asked(GpuRequest::Memory(Bytes(4_000_000_000)));
        assert_eq!(odd["annotations"]["gpu-memory"], "3814", "whole granules");
    }

    #[test]
    fn its_compute_becomes_annotations() {
        let own = of(Some(GpuRequest::Fraction(Milli(250).into())), strict(Some(750)));
        let expected = json!({
            "gpu-fraction": "0.25", "cantle.dev/compute": "strict", "cantle.dev/compute-request": "0.75", "team": "a",
        });
        assert_eq!(own["annotations"], expected, "nothing of the queue's is left");
        let whole = of(Some(GpuRequest::Gpus(1)), strict(None));
        assert_eq!(whole["labels"], json!({LABEL: "1"}), "NVIDIA's device plugin keeps no share");
        assert!(whole["resources"]["limits"].get("nvidia.com/gpu").is_none());
    }

    #[test]
    fn its_compute_on_the_queues_slice() {
        let mine = of(None, strict(None));
        assert_eq!(mine["annotations"], json!({"cantle.dev/compute": "strict", "team": "a"}));
        assert_eq!(mine["labels"], half()["labels"], "it counts what it did");
        let more = of(None, strict(Some(800)));
        assert_eq!(more["labels"], json!({LABEL: "0.500"}), "it counts more than the queue's weight");
        assert_eq!(
            of(None, ComputeRequest::default()),
            half(),
            "without a word of its own it has the queue's"
        );
    }
}
