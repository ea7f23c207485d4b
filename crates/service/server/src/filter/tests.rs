use serde_json::json;

use super::*;

fn keeps(spec: &Spec, body: &Value, object: &Value) -> bool {
    Filter::parse(spec, body.as_object().unwrap()).unwrap().matches(object)
}

fn refuses(spec: &Spec, body: &Value) -> String {
    Filter::parse(spec, body.as_object().unwrap()).unwrap_err().message
}

#[test]
fn words_and_operators() {
    let task = json!({"id": "1", "tags": ["red", "big"], "system_tags": []});
    for (tags, kept) in [
        (json!([]), true),
        (json!("red"), true),
        (json!(["red", "blue"]), true),
        (json!(["__$and", "red", "blue"]), false),
        (json!(["__$all", "red", "big", "__$not", "blue"]), true),
        (json!(["__$all", "red", "big", "__$not", "red"]), false),
        (json!(["blue"]), false),
        (json!(["-archived"]), true),
        (json!(["-red"]), false),
        (json!(["__$not", "red"]), false),
        (json!(["__$not", "blue", "red"]), true),
        (json!(["__$or", "blue", "__$not", "green"]), true),
        (json!([null]), false),
        (json!([null, "red"]), true),
    ] {
        assert_eq!(keeps(&TASKS, &json!({"tags": tags}), &task), kept, "{tags}");
    }
    assert!(keeps(&TASKS, &json!({"tags": [null]}), &json!({"tags": []})));
    for bad in [json!(["__$xor", "a"]), json!(["__$not"]), json!([["a"]]), json!(["-"])] {
        assert!(refuses(&TASKS, &json!({"tags": bad})).contains("tags"), "{bad}");
    }
}

#[test]
fn filters_by_field() {
    let task = json!({"tags": ["red", "big"]});
    for (filter, kept) in [
        (json!({"any": {"include": ["blue", "red"]}}), true),
        (json!({"all": {"include": ["red", "blue"]}}), false),
        (json!({"all": {"exclude": ["blue"]}}), true),
        (json!({"any": {"exclude": ["red", "blue"]}}), true),
        (json!({"any": {"exclude": ["red", "big"]}}), false),
        (json!({"any": {"include": ["blue"]}, "all": {"include": ["red"]}, "op": "or"}), true),
        (json!({"any": {"include": ["blue"]}, "all": {"include": ["red"]}}), false),
        (json!({"all": {"include": [null]}}), false),
        (json!({"all": {"exclude": [null]}}), true),
    ] {
        assert_eq!(keeps(&TASKS, &json!({"filters": {"tags": filter}}), &task), kept, "{filter}");
    }
    for bad in [
        json!({"tags": 1}),
        json!({"nonsense": {}}),
        json!({"tags": {"op": "xor"}}),
        json!({"tags": {"x": {}}}),
    ] {
        assert!(refuses(&TASKS, &json!({"filters": bad})).contains("filters"), "{bad}");
    }
}

#[test]
fn another_name_of_a_field() {
    let task = json!({"type": "data_processing"});
    for (types, kept) in [(json!(["data_processing"]), true), (json!(["training"]), false)] {
        assert_eq!(keeps(&TASKS, &json!({"task_types": types}), &task), kept, "{types}");
    }
    assert!(refuses(&MODELS, &json!({"task_types": ["training"]})).contains("task_types"));
}

#[test]
fn moments() {
    let task = json!({"last_update": "2026-11-20T23:43:36.141000+00:00", "started": null});
    for (wanted, kept) in [
        (json!(["<2026-11-21"]), true),
        (json!(["<2026-11-20"]), false),
        (json!([">=2026-11-20T23:43:36.141"]), true),
        (json!([">2026-11-20T23:43:36.141Z"]), false),
        (json!([">2026-11-20 23:43:36", "<2026-11-20 23:43:37"]), true),
        (json!(["2026-11-20", "2026-11-21"]), true),
        (json!([null, "2026-11-20"]), false),
        (json!([1_700_000_000, null]), true),
        (json!(">1700000000"), true),
    ] {
        assert_eq!(keeps(&TASKS, &json!({"last_update": wanted}), &task), kept, "{wanted}");
    }
    assert!(!keeps(&TASKS, &json!({"started": [">2020-01-01"]}), &task), "it never started");
    assert!(
        keeps(&TASKS, &json!({"started": [null, "2020-01-01"]}), &task),
        "as ClearML: none counts as before"
    );
    for bad in [json!([]), json!(["soon"]), json!(["<"]), json!([null, null]), json!({})] {
        assert!(refuses(&TASKS, &json!({"created": bad})).contains("created"), "{bad}");
    }
}

#[test]
fn members_ranges_and_text() {
    let task = json!({
        "id": "1f", "name": "train net", "comment": "best so far", "last_iteration": 7,
        "hyperparams": {"Args": {"a.b": {"value": "0.5"}}}, "runtime": {"_x": "y"},
        "last_metrics": {"m": {"v": {"value": 0.25}}}, "models": {"input": [{"model": "M"}]},
    });
    for (body, kept) in [
        (json!({"hyperparams.Args.a%2Eb.value": ["0.5"]}), true),
        (json!({"hyperparams.Args.a%2Eb.value": ["0.6"]}), false),
        (json!({"runtime._x": "y"}), true),
        (json!({"runtime._x": "z"}), false),
        (json!({"last_metrics.m.v.value": [0.2, 0.3]}), true),
        (json!({"last_metrics.m.v.value": ["0.3", null]}), false),
        (json!({"last_iteration": [null, 7]}), true),
        (json!({"models.input.model": ["M"]}), true),
        (json!({"search_text": "NET nothing"}), true),
        (json!({"search_text": "ne"}), false),
        (json!({"_any_": {"fields": ["name", "comment"], "pattern": "BEST"}}), true),
        (json!({"_all_": {"fields": ["name", "comment"], "pattern": "best"}}), false),
        (json!({"comment": "far$"}), true),
    ] {
        assert_eq!(keeps(&TASKS, &body, &task), kept, "{body}");
    }
}

#[test]
fn hidden_ones_are_asked_for() {
    let hidden = json!({"id": "1", "system_tags": ["hidden"]});
    assert!(!keeps(&TASKS, &json!({}), &hidden));
    assert!(keeps(&TASKS, &json!({"search_hidden": true}), &hidden));
    assert!(keeps(&TASKS, &json!({"id": ["1"]}), &hidden));
}

#[test]
fn what_is_not_known_is_refused_by_its_name() {
    for spec in [&TASKS, &MODELS, &PROJECTS, &QUEUES] {
        assert!(refuses(spec, &json!({"unheard_of": 1})).contains("unheard_of"));
        assert!(
            refuses(spec, &json!({"_any_": {"fields": ["nonsense"], "pattern": "x"}})).contains("nonsense")
        );
    }
    assert!(refuses(&PROJECTS, &json!({"include_stats": true})).contains("include_stats"));
    assert!(keeps(&PROJECTS, &json!({"include_stats": false}), &json!({})));
}
