//! Pods as the vendors document them, and pods that make no sense.

use serde_json::{Value, json};

use super::*;

mod compute;
mod target;

/// The API server names each call by a random UUID.
pub(crate) const CALL: &str = "9f86d081-884c-4d65-9a2f-eaa0c55ad015";

fn pod(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn one_container(metadata: Value, container: Value) -> Value {
    let mut container = container;
    container["name"] = json!("main");
    pod(metadata, json!({"containers": [container]}))
}

fn labeled(fraction: &str) -> Value {
    one_container(json!({"labels": {"clearml-injector/fraction": fraction}}), json!({}))
}

fn annotated(annotations: Value) -> Value {
    one_container(json!({"annotations": annotations}), json!({}))
}

/// Injects, and again: the second time must change nothing.
fn injected(pod: &Value) -> Value {
    let once = inject(pod, &Rules::default(), CALL).unwrap();
    assert_eq!(inject(&once, &Rules::default(), CALL).as_ref(), Ok(&once), "a second call changes nothing");
    once
}

fn slice_name(pod: &Value) -> String {
    let pod = injected(pod);
    let claim = pod["spec"]["resourceClaims"][0]["resourceClaimName"].as_str().unwrap();
    let slice = claim.strip_suffix("-9f86d081884c4d65").unwrap().to_owned();
    assert_eq!(pod["metadata"]["labels"][SLICE_LABEL], *slice);
    slice
}

fn refusal(pod: &Value) -> String {
    inject(pod, &Rules::default(), CALL).unwrap_err().to_string()
}

#[test]
fn every_documented_amount() {
    for (given, name) in [
        ("0.0625", "cantle-fraction-0625"),
        ("0.125", "cantle-fraction-1250"),
        ("0.250", "cantle-fraction-2500"),
        ("0.375", "cantle-fraction-3750"),
        ("0.500", "cantle-fraction-5000"),
        ("0.625", "cantle-fraction-6250"),
        ("0.750", "cantle-fraction-7500"),
        ("0.875", "cantle-fraction-8750"),
        ("1.000", "cantle-whole-1"),
        ("2", "cantle-whole-2"),
        ("2.0", "cantle-whole-2"),
    ] {
        assert_eq!(slice_name(&labeled(given)), name);
    }
    for (annotations, name) in [
        (json!({"gpu-fraction": "0.33"}), "cantle-fraction-3300"),
        (json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}), "cantle-fraction-5000-x2"),
        (json!({"gpu-memory": "4096"}), "cantle-memory-4096"),
        (json!({"gpu-memory": "2000", "gpu-fraction-num-devices": "4"}), "cantle-memory-2000-x4"),
        (json!({"mig-profile": "1g.10gb+me"}), "cantle-mig-1g.10gb.me"),
    ] {
        assert_eq!(slice_name(&annotated(annotations)), name);
    }
}

#[test]
fn the_whole_pod_after_it() {
    let pod = pod(
        json!({"generateName": "train-", "labels": {"clearml-injector/fraction": "0.500", "required-resources": "0.5"}}),
        json!({
            "initContainers": [{"name": "fetch"}],
            "containers": [
                {"name": "train", "resources": {"limits": {"cpu": "4", "nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": "4"}}},
                {"name": "log", "env": [{"name": "A", "value": "b"}]},
            ],
        }),
    );
    let void = json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"});
    let labels = json!({"clearml-injector/fraction": "0.500", "required-resources": "0.5", "cantle.dev/slice": "cantle-fraction-5000"});
    let expected = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "train-", "labels": labels},
        "spec": {
            "resourceClaims": [{"name": "cantle-gpu", "resourceClaimName": "cantle-fraction-5000-9f86d081884c4d65"}],
            "initContainers": [{"name": "fetch", "env": [void]}],
            "containers": [
                {"name": "train", "env": [void], "resources": {"limits": {"cpu": "4"}, "requests": {}, "claims": [{"name": "cantle-gpu"}]}},
                {"name": "log", "env": [{"name": "A", "value": "b"}, void]},
            ],
        },
    });
    assert_eq!(injected(&pod), expected);
}

#[test]
fn the_older_resource_is_translated_and_gone() {
    for amount in ["0.5", "500m"] {
        let limits = json!({"nvidia.com/gpu": "1", "clear.ml/fraction-1": amount});
        let old = one_container(json!({}), json!({"resources": {"limits": limits, "requests": limits}}));
        assert_eq!(slice_name(&old), "cantle-fraction-5000");
        let resources = &injected(&old)["spec"]["containers"][0]["resources"];
        assert_eq!(*resources, json!({"limits": {}, "requests": {}, "claims": [{"name": "cantle-gpu"}]}));
    }
    let smallest = json!({"resources": {"limits": {"clear.ml/fraction": "62500u"}}});
    assert_eq!(slice_name(&one_container(json!({}), smallest)), "cantle-fraction-0625");
}

#[test]
fn pods_that_ask_nothing_are_left_alone() {
    let plain = one_container(json!({}), json!({"securityContext": {"privileged": true}}));
    assert_eq!(injected(&plain), plain);
}

#[test]
fn malformed_amounts_are_refused_with_the_reason() {
    for given in [
        "0.333", "0.5", ".5", "0.50", "0", "0.000", "1.5", "-0.5", "NaN", "inf", "50%", "0,500", "1e-1",
        "half", "", "33", "01", "2.",
    ] {
        let text = refusal(&labeled(given));
        assert!(
            text.starts_with(&format!("label clearml-injector/fraction is \"{given}\"; write 0.125, ")),
            "{text}"
        );
    }
    for given in ["0", "1", "1.0", "0.00001", "-0.5", "NaN", "inf", "50%", ""] {
        let text = refusal(&annotated(json!({"gpu-fraction": given})));
        assert!(text.contains(&format!("gpu-fraction is \"{given}\"; write a decimal above 0")), "{text}");
    }
    for given in ["0", "-1", "4Gi", "1.5", "99999999999", ""] {
        let text = refusal(&annotated(json!({"gpu-memory": given})));
        assert!(text.contains(&format!("gpu-memory is \"{given}\"; write a whole number of MiB")), "{text}");
    }
    for given in ["0", "33", "two", "-1"] {
        let text = refusal(&annotated(json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": given})));
        assert!(text.contains("a number of GPUs from 1 to 32"), "{text}");
    }
    for given in ["1g", "10gb", "1g.10GB", "all", "1g.10gb/2", ""] {
        let text = refusal(&annotated(json!({"mig-profile": given})));
        assert!(text.contains("the name of a MIG profile"), "{text}");
    }
    for (key, amount) in
        [("clear.ml/fraction-1", "333m"), ("clear.ml/fraction-1", "1500m"), ("clear.ml/fraction-1", "0")]
    {
        let text = refusal(&one_container(json!({}), json!({"resources": {"limits": {key: amount}}})));
        assert!(text.contains(&format!("resource {key} is \"{amount}\"; write 0.125")), "{text}");
    }
    let text =
        refusal(&one_container(json!({}), json!({"resources": {"limits": {"clear.ml/fraction-x": "1"}}})));
    assert_eq!(text, "a resource is \"clear.ml/fraction-x\"; write clear.ml/fraction-1");
}

#[test]
fn contradictions_are_refused_with_both_sides() {
    let half = json!({"clearml-injector/fraction": "0.500"});
    let with = |annotations: Value, limits: Value| {
        one_container(
            json!({"labels": half, "annotations": annotations}),
            json!({"resources": {"limits": limits}}),
        )
    };
    for (pod, one, other) in [
        (
            with(json!({"gpu-fraction": "0.25"}), json!({})),
            "label clearml-injector/fraction \"0.500\"",
            "gpu-fraction \"0.25\"",
        ),
        (with(json!({"gpu-memory": "1024"}), json!({})), "\"0.500\"", "annotation gpu-memory \"1024\""),
        (with(json!({"mig-profile": "1g.5gb"}), json!({})), "\"0.500\"", "annotation mig-profile \"1g.5gb\""),
        (
            with(json!({}), json!({"clear.ml/fraction-1": "250m"})),
            "\"0.500\"",
            "resource clear.ml/fraction-1 \"250m\"",
        ),
        (
            with(json!({}), json!({"nvidia.com/gpu": "3"})),
            "resource nvidia.com/gpu \"3\" of container main",
            "\"0.500\"",
        ),
        (
            with(json!({}), json!({"nvidia.com/mig-1g.5gb": "1"})),
            "resource nvidia.com/mig-1g.5gb \"1\"",
            "\"0.500\"",
        ),
        (
            annotated(json!({"gpu-fraction": "0.5", "gpu-memory": "1024"})),
            "gpu-fraction \"0.5\"",
            "gpu-memory \"1024\"",
        ),
    ] {
        let text = refusal(&pod);
        assert!(text.contains(one) && text.contains(other) && text.ends_with("keep one of them"), "{text}");
    }
    let run_ai = one_container(
        json!({"annotations": {"gpu-fraction": "0.5"}}),
        json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}),
    );
    assert!(refusal(&run_ai).contains("nvidia.com/gpu"), "Run:ai refuses both, too");
    assert_eq!(
        slice_name(&with(json!({"gpu-fraction": "0.5"}), json!({}))),
        "cantle-fraction-5000",
        "twice the same is no contradiction"
    );
    assert!(
        refusal(&annotated(json!({"gpu-fraction-num-devices": "2"})))
            .contains("needs annotation gpu-fraction")
    );
    let mut other = labeled("0.500");
    for claim in [
        json!({"name": "cantle-gpu", "resourceClaimName": "cantle-fraction-8750-0123456789abcdef"}),
        json!({"name": "cantle-gpu", "resourceClaimTemplateName": "cantle-fraction-8750"}),
    ] {
        other["spec"]["resourceClaims"] = json!([claim]);
        assert!(refusal(&other).contains("cantle-fraction-8750"));
    }
    other["spec"]["resourceClaims"] = json!([{"name": "cantle-gpu", "resourceClaimName": "mine"}]);
    assert!(refusal(&other).contains("resource claim \"cantle-gpu\" (mine)"));
}

#[test]
fn a_copy_of_a_pod_gets_a_claim_of_its_own() {
    let first = injected(&labeled("0.500"));
    let copy = inject(&first, &Rules::default(), "0badcafe-0000-4000-8000-000000000000").unwrap();
    assert_eq!(
        copy["spec"]["resourceClaims"][0]["resourceClaimName"],
        "cantle-fraction-5000-0badcafe00004000"
    );
    let mut old = first.clone();
    old["spec"]["resourceClaims"] =
        json!([{"name": "cantle-gpu", "resourceClaimTemplateName": "cantle-fraction-5000"}]);
    assert_eq!(injected(&old), first, "as cantle 0.1 had injected it");
}

#[test]
fn the_container_must_be_clear() {
    let label = json!({"clearml-injector/fraction": "0.250"});
    let gpu = json!({"limits": {"nvidia.com/gpu": "1"}});
    let two = json!({"containers": [{"name": "a", "resources": gpu}, {"name": "b", "resources": gpu}]});
    assert!(refusal(&pod(json!({"labels": label}), two)).starts_with("containers a, b ask for a GPU"));
    let named = json!({"labels": label, "annotations": {"gpu-fraction-container-name": "c"}});
    assert!(
        refusal(&pod(named, json!({"containers": [{"name": "a"}, {"name": "b"}]})))
            .ends_with("the pod has only a, b")
    );
    let claims = json!({"claims": [{"name": "cantle-gpu"}]});
    let both =
        json!({"containers": [{"name": "a", "resources": claims}, {"name": "b", "resources": claims}]});
    assert!(refusal(&pod(json!({"labels": label}), both)).starts_with("container b names the claim"));
}

#[test]
fn a_named_node_is_refused_where_schedulers_give_out_claims() {
    let mut pod = labeled("0.500");
    pod["spec"]["nodeName"] = json!("n1");
    let text = refusal(&pod);
    assert!(
        text.starts_with("spec.nodeName is \"n1\", so no scheduler")
            && text.contains("kubernetes.io/hostname"),
        "{text}"
    );
    pod["spec"]["nodeName"] = json!("");
    assert_eq!(slice_name(&pod), "cantle-fraction-5000");
}

#[test]
fn limits_cannot_be_lifted() {
    for (container, said) in [
        (json!({"securityContext": {"privileged": true}}), "is privileged"),
        (json!({"securityContext": {"procMount": "Unmasked"}}), "unmasked /proc"),
        (
            json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN", "CAP_SYS_ADMIN"]}}}),
            "capability CAP_SYS_ADMIN",
        ),
        (json!({"env": [{"name": "LD_PRELOAD", "value": "/x.so"}]}), "sets LD_PRELOAD"),
        (json!({"env": [{"name": "DOCKER_RESOURCE_GPU", "value": "all"}]}), "sets DOCKER_RESOURCE_GPU"),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]}),
            "mounts a volume at /var/run/nvidia-container-devices/all",
        ),
        (json!({"env": [{"name": "LD_LIBRARY_PATH", "value": "/x"}]}), "sets LD_LIBRARY_PATH"),
        (json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}), "sets NVIDIA_VISIBLE_DEVICES"),
        (
            json!({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            "sets NVIDIA",
        ),
        (json!({"env": [{"name": "CANTLE_SLICE_DIR", "value": "/x"}]}), "sets CANTLE_SLICE_DIR"),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/var/run/cantle/slice"}]}),
            "mounts a volume at /var/run/cantle/slice",
        ),
    ] {
        let mut container = container;
        container["name"] = json!("side");
        let label = json!({"labels": {"clearml-injector/fraction": "0.250"}});
        // In any container of the pod.
        for list in ["containers", "initContainers"] {
            let mut pod = pod(label.clone(), json!({"containers": [{"name": "main"}]}));
            match pod["spec"][list].as_array_mut() {
                Some(list) => list.push(container.clone()),
                None => pod["spec"][list] = json!([container]),
            }
            let text = refusal(&pod);
            assert!(text.starts_with("container side ") && text.contains(said), "{text}");
        }
    }
    let mut pod = labeled("0.250");
    pod["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/dev"}}]);
    assert!(refusal(&pod).starts_with("volume v mounts /dev of the node"));
}

#[test]
fn what_the_documents_have_is_harmless() {
    let mut pod = labeled("0.250");
    pod["spec"]["hostPID"] = json!(true);
    pod["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": "/data"}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]);
    pod["spec"]["containers"][0]["env"] = json!([{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]);
    assert_eq!(slice_name(&pod), "cantle-fraction-2500");
}

#[test]
fn a_container_added_later_gets_nothing() {
    let old = injected(&labeled("0.250"));
    let mut new = old.clone();
    new["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    let changed = inject_ephemeral(&new, &old, &Rules::default()).unwrap();
    assert_eq!(changed["spec"]["ephemeralContainers"][0]["env"][0]["value"], "void");
    assert_eq!(inject_ephemeral(&changed, &changed, &Rules::default()), Ok(changed.clone()));
    new["spec"]["ephemeralContainers"][0]["securityContext"] = json!({"privileged": true});
    let refused = inject_ephemeral(&new, &old, &Rules::default()).unwrap_err().to_string();
    assert!(refused.starts_with("container debug is privileged"), "{refused}");
    // One that was there before cantle came cannot be changed, so it does not stop others.
    assert!(inject_ephemeral(&new, &new, &Rules::default()).is_ok());
}

fn review(pod: &Value) -> Value {
    let request = json!({"uid": CALL, "operation": "CREATE", "object": pod, "dryRun": true});
    answer(Question::Slice, &json!({"request": request}), &Rules::default()).unwrap().review["response"]
        .take()
}

#[test]
fn answers_to_the_api_server() {
    use base64::Engine as _;

    let pod = labeled("0.500");
    let response = review(&pod);
    assert_eq!(
        (&response["uid"], &response["allowed"], &response["patchType"]),
        (&json!(CALL), &json!(true), &json!("JSONPatch"))
    );
    let patch =
        base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
    assert_eq!(patched, injected(&pod), "the patch makes of the pod what was meant");
    assert_eq!(review(&patched), json!({"uid": CALL, "allowed": true}));
    let refused = review(&labeled("0.333"));
    assert_eq!((&refused["allowed"], &refused["status"]["code"]), (&json!(false), &json!(403)));
    assert!(answer(Question::Slice, &json!({}), &Rules::default()).is_err());
}

#[test]
fn unknown_fields_of_newer_versions_survive() {
    let mut pod = labeled("0.500");
    pod["spec"]["fieldOfTomorrow"] = json!({"a": [1]});
    assert_eq!(injected(&pod)["spec"]["fieldOfTomorrow"], json!({"a": [1]}));
}

fn classic(mig_resources: bool) -> Rules {
    Rules {
        mode: InjectionMode::Classic { scheduler: "cantle-scheduler".to_owned(), mig_resources },
        ..Rules::default()
    }
}

#[test]
fn on_the_classic_path_an_instance_is_asked_for_by_its_resource() {
    let container = |name: &str, key: &str, amount: &str| {
        let amounts = json!({key: amount, "cpu": "1"});
        json!({"name": name, "resources": {"limits": amounts, "requests": amounts}})
    };
    let of = |containers: Value| pod(json!({}), json!({"containers": containers}));
    let documented = of(json!([container("main", "nvidia.com/mig-1g.10gb.me", "1")]));
    let once = inject(&documented, &classic(true), CALL).unwrap();
    assert_eq!(inject(&once, &classic(true), CALL).as_ref(), Ok(&once), "a second call changes nothing");
    assert_eq!(once["metadata"]["labels"][SLICE_LABEL], "cantle-mig-1g.10gb.me");
    let resources = json!({"limits": {"cpu": "1", "cantle.dev/slice": "1"}, "requests": {"cpu": "1"}});
    assert_eq!(once["spec"]["containers"][0]["resources"], resources);
    // NVIDIA's plugin gives it out; or it is a device class, which needs no injector.
    for others in [classic(false), Rules::default()] {
        assert_eq!(inject(&documented, &others, CALL).as_ref(), Ok(&documented));
    }

    let second = of(json!([{"name": "log"}, container("train", "nvidia.com/mig-3g.20gb", "1")]));
    let second = inject(&second, &classic(true), CALL).unwrap();
    assert_eq!(second["spec"]["containers"][1]["resources"]["limits"][crate::names::SLICE_RESOURCE], "1");
    let refusal = |containers: Value| inject(&of(containers), &classic(true), CALL).unwrap_err().to_string();
    let (small, large) = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb");
    assert_eq!(
        refusal(json!([container("a", small, "2")])),
        "resource nvidia.com/mig-1g.5gb is \"2\"; write 1: a pod gets one instance"
    );
    assert!(
        refusal(json!([container("a", "nvidia.com/mig-1g", "1")])).contains("such as nvidia.com/mig-1g.10gb")
    );
    let twice = refusal(json!([container("a", small, "1"), container("b", small, "1")]));
    assert!(twice.starts_with("containers a, b ask for a GPU"), "{twice}");
    let both = refusal(json!([container("a", small, "1"), container("b", large, "1")]));
    assert!(both.contains(small) && both.contains(large) && both.ends_with("keep one of them"), "{both}");
    let mut beside = of(json!([container("a", small, "1")]));
    beside["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!("1");
    assert!(
        inject(&beside, &classic(true), CALL)
            .unwrap_err()
            .to_string()
            .starts_with("resource nvidia.com/gpu \"1\"")
    );
    let mut half = of(json!([container("a", large, "1")]));
    half["metadata"]["labels"] = json!({"clearml-injector/fraction": "0.500"});
    assert!(inject(&half, &classic(true), CALL).unwrap_err().to_string().ends_with("keep one of them"));
}

#[test]
fn on_the_classic_path_a_pod_gets_a_slot_and_a_scheduler() {
    let rules = classic(false);
    let mut pod = labeled("0.500");
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": "4", "cpu": "1"}});
    let once = inject(&pod, &rules, CALL).unwrap();
    assert_eq!(inject(&once, &rules, CALL).as_ref(), Ok(&once), "a second call changes nothing");
    assert_eq!(once["metadata"]["labels"][SLICE_LABEL], "cantle-fraction-5000");
    assert_eq!(once["spec"]["schedulerName"], "cantle-scheduler");
    assert_eq!(
        once["spec"]["containers"][0]["resources"]["limits"],
        json!({"cpu": "1", "cantle.dev/slice": "1"})
    );
    assert_eq!(once["spec"]["resourceClaims"], Value::Null);
    pod["spec"]["schedulerName"] = json!("volcano");
    let refused = inject(&pod, &rules, CALL).unwrap_err().to_string();
    assert!(refused.starts_with("spec.schedulerName is \"volcano\""), "{refused}");
}
