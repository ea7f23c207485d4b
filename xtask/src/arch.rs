//! Checks the dependencies of docs/ARCHITECTURE.md against `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The allowed dependencies between crates. A crate may also use whatever the crates it names may use.
const ARROWS: [(&str, &[&str]); 22] = [
    ("arbiter", &[]),
    ("model", &[]),
    ("metrics", &[]),
    ("usage", &[]),
    ("ledger", &[]),
    ("simgpu", &[]),
    ("mig", &["model"]),
    ("sched", &["mig"]),
    ("decide", &["sched"]),
    ("sim", &["decide"]),
    ("shim", &["ledger"]),
    ("driver", &["mig", "model"]),
    ("machine", &[]),
    ("runtime", &["model", "ledger"]),
    ("store", &["model", "metrics"]),
    ("clearml", &["model"]),
    ("server", &["clearml", "store", "decide", "metrics", "usage"]),
    ("node", &["decide", "driver", "runtime", "ledger", "metrics", "arbiter"]),
    ("agent", &["node", "clearml"]),
    ("kube-model", &["clearml", "decide"]),
    ("kube", &["kube-model", "node", "clearml"]),
    ("cli", &["agent", "server", "sim", "kube", "machine"]),
];

/// Dependencies that the crates without IO may use, and nothing else: no clock, randomness, network or runtime.
const PURE: [(&str, &[&str]); 11] = [
    ("arbiter", &[]),
    ("metrics", &[]),
    ("usage", &["postcard", "serde"]),
    ("model", &["serde", "thiserror"]),
    ("mig", &["serde", "thiserror"]),
    ("sched", &["serde", "thiserror"]),
    ("decide", &["thiserror"]),
    ("sim", &["serde", "serde_json", "thiserror"]),
    // thiserror only for the agent's side (feature `std`); what the shim links is checked by verify-shim.
    ("ledger", &["libc", "thiserror"]),
    ("shim", &["libc"]),
    (
        "kube-model",
        &["base64", "json-patch", "k8s-openapi", "serde", "serde-saphyr", "serde_json", "thiserror"],
    ),
];

/// Crates that do IO only by a default feature, and what they may use without it. A pure crate that uses one turns its default
/// features off.
const PURE_BY_FEATURE: [(&str, &[&str]); 1] = [("clearml", &["serde", "serde_json", "shlex", "thiserror"])];

/// Checks every dependency of every crate (test-only ones are free).
pub(crate) fn check() -> Result<()> {
    let metadata = crate::metadata(&["--no-deps"])?;
    let mut wrong = Vec::new();
    let mut crates = 0;
    for package in metadata["packages"].as_array().context("no packages in cargo metadata")? {
        let Some(name) = package["name"].as_str().and_then(crate_of) else { continue };
        crates += 1;
        wrong.extend(check_crate(name, package));
    }
    if !wrong.is_empty() {
        bail!("{} arrow(s) that docs/ARCHITECTURE.md does not have:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("arch: {crates} crates, every arrow allowed");
    Ok(())
}

fn check_crate(user: &str, package: &Value) -> Vec<String> {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
    if !arrows.contains_key(user) {
        return vec![format!("{user}: not a crate of docs/ARCHITECTURE.md")];
    }
    let allowed = reach(user, &arrows);
    let pure = PURE.iter().find(|(pure, _)| *pure == user).map(|(_, crates)| *crates);
    let core = PURE_BY_FEATURE.iter().find(|(pure, _)| *pure == user).map(|(_, crates)| *crates);
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let normal = dependencies.filter(|d| d["kind"].is_null());
    normal
        .filter_map(|d| Some((d["name"].as_str()?, d)))
        .filter_map(|(name, d)| match (crate_of(name), pure) {
            (Some(other), _) if !allowed.contains(other) => Some(format!("{user} → {other}")),
            (Some(other), Some(_)) => impure(other, d["uses_default_features"] != false).then(|| {
                format!("{user} → {other} (this crate may use it without its default features only)")
            }),
            (None, None) if d["optional"] != true && core.is_some_and(|crates| !crates.contains(&name)) => {
                Some(format!("{user} → {name} (without its features this crate may not use it)"))
            }
            (None, Some(crates)) if !crates.contains(&name) => {
                Some(format!("{user} → {name} (this crate may use only {})", crates.join(", ")))
            }
            _ => None,
        })
        .collect()
}

/// Would a pure crate that uses this one do IO by it?
fn impure(name: &str, with_default_features: bool) -> bool {
    let is_pure = PURE.iter().any(|(pure, _)| *pure == name);
    let by_feature = PURE_BY_FEATURE.iter().any(|(pure, _)| *pure == name);
    !is_pure && (with_default_features || !by_feature)
}

fn crate_of(package: &str) -> Option<&str> {
    package.strip_prefix("cantle-")
}

fn reach<'a>(name: &str, arrows: &BTreeMap<&str, &'a [&'a str]>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&'a str> = arrows.get(name).map(|next| next.to_vec()).unwrap_or_default();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(arrows.get(next).copied().unwrap_or_default());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arrows_as_drawn() {
        let arrows: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
        assert!(reach("agent", &arrows).contains("model"));
        assert!(!reach("cli", &arrows).contains("shim"), "the cli never links what sits in users' processes");
        assert!(!reach("cli", &arrows).contains("simgpu"));
        assert!(!reach("sched", &arrows).contains("driver"));
    }

    #[test]
    fn an_arrow_that_is_not_drawn_is_found() {
        let package = serde_json::json!({"dependencies": [
            {"name": "cantle-driver", "kind": null}, {"name": "tokio", "kind": null}, {"name": "proptest", "kind": "dev"}
        ]});
        let wrong = check_crate("sched", &package);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("sched → driver") && wrong[1].starts_with("sched → tokio"));
    }

    #[test]
    fn a_pure_crate_uses_only_what_is_pure_of_another() {
        let package = |features: bool| {
            serde_json::json!({"dependencies": [
                {"name": "cantle-clearml", "kind": null, "uses_default_features": features},
                {"name": "cantle-model", "kind": null, "uses_default_features": true}
            ]})
        };
        assert_eq!(check_crate("kube-model", &package(false)), [""; 0]);
        let wrong = check_crate("kube-model", &package(true));
        assert!(wrong.len() == 1 && wrong[0].starts_with("kube-model → clearml"), "{wrong:?}");
        let clearml = serde_json::json!({"dependencies": [
            {"name": "reqwest", "kind": null, "optional": true}, {"name": "tokio", "kind": null, "optional": false}
        ]});
        assert!(check_crate("clearml", &clearml)[0].starts_with("clearml → tokio"));
    }
}
