//! A pod template in the flat form of ClearML's charts: its keys, their places in a pod, and how one template overrides
//! another.

use serde_json::{Map, Value, json};

use super::files;

/// The place of a key in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodField {
    Metadata,
    Spec,
    Container,
}

use PodField::{Container, Metadata, Spec};

/// Key of a template, where it goes, and what it is called there. `fileMounts` is one more, which becomes several of these. The first seventeen are those of ClearML's charts.
const KEYS: [(&str, PodField, &str); 26] = [
    ("labels", Metadata, "labels"),
    ("annotations", Metadata, "annotations"),
    ("env", Container, "env"),
    ("resources", Container, "resources"),
    ("volumeMounts", Container, "volumeMounts"),
    ("containerSecurityContext", Container, "securityContext"),
    ("volumes", Spec, "volumes"),
    ("initContainers", Spec, "initContainers"),
    ("schedulerName", Spec, "schedulerName"),
    ("priorityClassName", Spec, "priorityClassName"),
    ("nodeSelector", Spec, "nodeSelector"),
    ("tolerations", Spec, "tolerations"),
    ("affinity", Spec, "affinity"),
    ("podSecurityContext", Spec, "securityContext"),
    ("hostAliases", Spec, "hostAliases"),
    ("serviceAccountName", Spec, "serviceAccountName"),
    ("runtimeClassName", Spec, "runtimeClassName"),
    ("imagePullPolicy", Container, "imagePullPolicy"),
    ("envFrom", Container, "envFrom"),
    ("imagePullSecrets", Spec, "imagePullSecrets"),
    ("hostNetwork", Spec, "hostNetwork"),
    ("hostIPC", Spec, "hostIPC"),
    ("automountServiceAccountToken", Spec, "automountServiceAccountToken"),
    ("resourceClaims", Spec, "resourceClaims"),
    ("terminationGracePeriodSeconds", Spec, "terminationGracePeriodSeconds"),
    ("topologySpreadConstraints", Spec, "topologySpreadConstraints"),
];

/// Lists whose entries have a name by which the later one replaces the earlier, as Kubernetes merges them.
const NAMED: [(&str, &str); 8] = [
    ("env", "name"),
    (files::KEY, "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("initContainers", "name"),
    ("hostAliases", "ip"),
    ("imagePullSecrets", "name"),
    ("resourceClaims", "name"),
];

/// A key that is none, and those there are.
pub(crate) fn unknown_key(template: &Map<String, Value>) -> Option<(String, String)> {
    let known: Vec<&str> = KEYS.iter().map(|(known, ..)| *known).chain([files::KEY]).collect();
    let key = template.keys().find(|key| !known.contains(&key.as_str()))?;
    Some((key.clone(), known.join(", ")))
}

/// An entry that must be text and is something else: YAML takes `0.5` for a number.
pub(crate) fn wrong_text(template: &Map<String, Value>) -> Option<String> {
    ["labels", "annotations", "nodeSelector"].into_iter().find_map(|key| {
        let entries = template.get(key)?;
        let Some(entries) = entries.as_object() else {
            return (!entries.is_null()).then(|| key.to_owned());
        };
        let (name, _) = entries.iter().find(|(_, value)| !value.is_string() && !value.is_null())?;
        Some(format!("{key}.{name}"))
    })
}

/// Lays one template over another: maps and named lists entry by entry, tolerations together, the rest as a whole. A
/// `null` in the upper template removes the entry.
pub(crate) fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, above) in over {
        match (base.get_mut(&key), above) {
            (_, Value::Null) => drop(base.remove(&key)),
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            (Some(Value::Array(below)), Value::Array(above)) => merge_list(&key, below, above),
            (_, above) => drop(base.insert(key, without_null(above))),
        }
    }
}

fn merge_list(key: &str, below: &mut Vec<Value>, above: Vec<Value>) {
    if key == "tolerations" {
        let new: Vec<Value> = above.into_iter().filter(|each| !below.contains(each)).collect();
        below.extend(new);
        return;
    }
    let Some((_, name)) = NAMED.iter().find(|(list, _)| *list == key) else {
        *below = above;
        return;
    };
    for each in above {
        match below.iter_mut().find(|other| other.get(name).is_some() && other.get(name) == each.get(name)) {
            // Replaced as a whole: half of an old variable's source next to a new value would be neither.
            Some(other) => *other = each,
            None => below.push(each),
        }
    }
}

fn without_null(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_null(value))).collect())
        }
        value => value,
    }
}

/// Metadata, spec and container of a pod of this template.
pub(crate) fn parts(template: &Map<String, Value>) -> (Value, Value, Value) {
    let part = |wanted: PodField| {
        let here = KEYS.iter().filter(|(_, place, _)| *place == wanted);
        let entries =
            here.filter_map(|(key, _, name)| Some(((*name).to_owned(), template.get(*key)?.clone())));
        json!(entries.collect::<Map<_, _>>())
    };
    (part(Metadata), part(Spec), part(Container))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(base: Value, over: Value) -> Value {
        let (Value::Object(mut base), Value::Object(over)) = (base, over) else { panic!("maps") };
        merge(&mut base, over);
        Value::Object(base)
    }

    #[test]
    fn lists_are_merged_as_kubernetes_merges_them() {
        let got = merged(
            json!({
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}],
                "tolerations": [{"key": "a"}],
                "volumeMounts": [{"mountPath": "/a", "name": "x"}],
                "topologySpreadConstraints": [{"maxSkew": 1}],
            }),
            json!({
                "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
                "tolerations": [{"key": "a"}, {"key": "b"}],
                "volumeMounts": [{"mountPath": "/a", "name": "y"}],
                "topologySpreadConstraints": [{"maxSkew": 2}],
            }),
        );
        let expected = json!({
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
            "tolerations": [{"key": "a"}, {"key": "b"}],
            "volumeMounts": [{"mountPath": "/a", "name": "y"}],
            "topologySpreadConstraints": [{"maxSkew": 2}],
        });
        assert_eq!(got, expected);
    }

    #[test]
    fn null_takes_away() {
        let base =
            json!({"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 2}}, "nodeSelector": {"a": "b"}});
        let over = json!({"resources": {"limits": {"nvidia.com/gpu": null, "nvidia.com/mig-1g.10gb": 1}},
            "nodeSelector": null, "affinity": {"nodeAffinity": null}});
        let expected =
            json!({"resources": {"limits": {"cpu": 2, "nvidia.com/mig-1g.10gb": 1}}, "affinity": {}});
        assert_eq!(merged(base, over), expected);
    }

    #[test]
    fn every_key_has_its_place() {
        let template = json!({"labels": {"a": "b"}, "podSecurityContext": {"fsGroup": 1}, "env": [],
            "containerSecurityContext": {"privileged": false}});
        let (metadata, spec, container) = parts(template.as_object().unwrap());
        assert_eq!(metadata, json!({"labels": {"a": "b"}}));
        assert_eq!(spec, json!({"securityContext": {"fsGroup": 1}}));
        assert_eq!(container, json!({"env": [], "securityContext": {"privileged": false}}));
    }
}
