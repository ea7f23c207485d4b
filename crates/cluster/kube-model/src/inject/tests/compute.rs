//! Shares of compute time.

use serde_json::json;

use super::{annotated, one_container, refusal, slice_name};

#[test]
fn a_share_of_compute_is_part_of_the_template() {
    for (annotations, name) in [
        (json!({"gpu-fraction": "0.25", "cantle.dev/compute": "fair"}), "cantle-fraction-2500-fair"),
        (
            json!({"gpu-fraction": "0.25", "cantle.dev/compute": "fair", "cantle.dev/compute-request": "0.5", "cantle.dev/compute-limit": "1"}),
            "cantle-fraction-2500-fair-r0500-l1000",
        ),
        (json!({"gpu-memory": "4096", "cantle.dev/compute": "strict"}), "cantle-memory-4096-strict"),
        (json!({"gpu-fraction": "0.5", "cantle.dev/compute": "even"}), "cantle-fraction-5000"),
        (
            json!({"gpu-fraction": "0.5", "nvidia.com/container.main.gpu-compute.mode": "time-slicing"}),
            "cantle-fraction-5000",
        ),
    ] {
        assert_eq!(slice_name(&annotated(annotations)), name);
    }
    let whole = json!({"labels": {"clearml-injector/fraction": "1"}, "annotations": {"cantle.dev/compute": "strict", "cantle.dev/compute-request": "0.3"}});
    assert_eq!(slice_name(&one_container(whole, json!({}))), "cantle-whole-1-strict-r0300");
}

/// One line each, with what was given and what would be right.
#[test]
fn shares_of_compute_that_cannot_be_kept_are_refused() {
    let share = |more: &[(&str, &str)]| {
        let mut all = json!({"gpu-fraction": "0.5"});
        for (key, value) in more {
            all[*key] = json!(value);
        }
        refusal(&annotated(all))
    };
    let (mode, request, limit) =
        ("cantle.dev/compute", "cantle.dev/compute-request", "cantle.dev/compute-limit");
    for wrong in ["0", "1.5", "half", "-1"] {
        let text = share(&[(mode, "fair"), (request, wrong)]);
        let right = "a decimal above 0 and at most 1, such as 0.5";
        assert_eq!(text, format!("annotation {request} is \"{wrong}\"; write {right}"));
    }
    assert_eq!(
        share(&[(mode, "fast")]),
        "annotation cantle.dev/compute is \"fast\"; write even, fair or strict"
    );
    let below = share(&[(mode, "fair"), (limit, "0.3")]);
    assert!(below.contains("compute-limit is 0.3, below the compute request, which is 0.5"), "{below}");
    let strict = share(&[(mode, "strict"), (limit, "0.7")]);
    assert!(strict.contains("the limit is the request (0.5), not 0.7"), "{strict}");
    assert!(share(&[(request, "0.5")]).contains("no meaning without annotation cantle.dev/compute"));
    let several = share(&[(mode, "fair"), ("gpu-fraction-num-devices", "2")]);
    assert!(several.contains("on one GPU only, not on 2"), "{several}");
    let mig = refusal(&annotated(json!({"mig-profile": "1g.10gb", mode: "strict"})));
    assert!(mig.contains("a MIG instance has its own part of the hardware"), "{mig}");
    let amount = refusal(&annotated(json!({"gpu-memory": "4096", mode: "fair", request: "0.5"})));
    assert!(amount.contains("go with a fraction of a GPU"), "{amount}");
    assert!(refusal(&annotated(json!({mode: "fair"}))).contains("asks cantle for no part of a GPU"));
    for (word, given) in [("request", "0.3"), ("portion", "0.3"), ("mode", "sm-sharing")] {
        let key = format!("nvidia.com/container.main.gpu-compute.{word}");
        let text = share(&[(&key, given)]);
        assert!(
            text.starts_with(&format!("annotation {key} is \"{given}\", which cantle cannot do")),
            "{text}"
        );
        assert!(refusal(&annotated(json!({key: given}))).contains("cannot do"));
    }
}
