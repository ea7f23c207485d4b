//! The container that gets the GPU.

use serde_json::{Value, json};

use super::{injected, pod, review};

#[test]
fn who_gets_it() {
    let target = |metadata: Value, spec: Value| {
        let pod = injected(&pod(metadata, spec));
        let with = |list: &str| {
            let list = pod["spec"][list].as_array().cloned().unwrap_or_default();
            let names = list.into_iter().filter(|c| c["resources"]["claims"][0]["name"] == "cantle-gpu");
            names.map(|c| c["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        [with("initContainers"), with("containers")].concat().join(" ")
    };
    let label = json!({"clearml-injector/fraction": "0.250"});
    let two = json!([{"name": "a"}, {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]);
    assert_eq!(target(json!({"labels": label}), json!({"containers": [{"name": "a"}, {"name": "b"}]})), "a");
    assert_eq!(target(json!({"labels": label}), json!({"containers": two})), "b", "the one that asks");
    let named = |name: &str| json!({"labels": label, "annotations": {"gpu-fraction-container-name": name}});
    let spec = json!({"containers": [{"name": "a"}, {"name": "b"}],
        "initContainers": [{"name": "side", "restartPolicy": "Always"}]});
    assert_eq!(target(named("b"), spec.clone()), "b");
    assert_eq!(target(named("side"), spec), "side");
    // Next to the user's container others of known programs, which come first.
    let of = |names: &[&str]| json!({"containers": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
    let labeled = || json!({"labels": label});
    assert_eq!(target(labeled(), of(&["wait", "main"])), "main", "Argo Workflows");
    assert_eq!(target(labeled(), of(&["wait", "other"])), "wait", "not Argo's");
    assert_eq!(
        target(labeled(), of(&["istio-proxy", "kserve-container", "queue-proxy"])),
        "kserve-container"
    );
    assert_eq!(target(labeled(), of(&["istio-proxy"])), "istio-proxy");
    let default = |name: &str| json!({"labels": label, "annotations": {"kubectl.kubernetes.io/default-container": name}});
    assert_eq!(target(default("b"), of(&["a", "b"])), "b");
    assert_eq!(target(default("gone"), of(&["a", "b"])), "a");
    assert_eq!(target(default("a"), json!({"containers": two})), "b", "the one that asks");
}

#[test]
fn a_guess_is_told() {
    let label = json!({"labels": {"clearml-injector/fraction": "0.250"}});
    let of = |names: &[&str]| {
        let containers: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        review(&pod(label.clone(), json!({"containers": containers})))["warnings"].take()
    };
    let told = "container a gets the GPU, and b, c gets none: name the one that needs it in annotation gpu-fraction-container-name";
    assert_eq!(of(&["a", "b", "c"]), json!([told]));
    assert_eq!(of(&["a"]), Value::Null);
    assert_eq!(of(&["a", "istio-proxy"]), Value::Null);
}
