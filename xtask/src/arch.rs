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

/// The directories of `crates/` and what their crates may use in addition to each other: directories, or one crate of a
/// directory.
const LAYERS: [(&str, &[&str]); 7] = [
    ("core", &[]),
    ("tenant", &[]),
    ("sim", &["core"]),
    ("service", &["core"]),
    ("node", &["core", "tenant", "service/clearml"]),
    ("cluster", &["core", "node", "service/clearml"]),
    ("cli", &["core", "node", "service", "cluster", "tenant/ledger", "sim/sim", "sim/machine"]),
];

/// The only external crates that the crates of `core` may use: no clock, randomness, network or runtime.
const CORE_USES: &[&str] = &["postcard", "serde", "thiserror"];

/// The same of crates without IO in other directories.
const PURE: [(&str, &[&str]); 4] = [
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

/// Where a crate is, and what of its dependencies is not allowed.
struct Crates {
    /// The directory of each crate.
    layers: BTreeMap<String, String>,
}

/// Checks every dependency of every crate (test-only ones are free).
pub(crate) fn check() -> Result<()> {
    let metadata = crate::metadata(&["--no-deps"])?;
    let packages = metadata["packages"].as_array().context("no packages in cargo metadata")?;
    let crates = Crates { layers: packages.iter().filter_map(place).collect() };
    let mut wrong = Vec::new();
    for package in packages {
        let Some(name) = package["name"].as_str().and_then(crate_of) else { continue };
        wrong.extend(crates.check_layers(name, package));
        wrong.extend(crates.check_crate(name, package));
    }
    if !wrong.is_empty() {
        bail!("{} arrow(s) that docs/ARCHITECTURE.md does not have:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    crate::vendors::check()?;
    println!("arch: {} crates in {} directories, every arrow allowed", crates.layers.len(), LAYERS.len());
    Ok(())
}

/// The name of a crate and its directory below `crates`.
fn place(package: &Value) -> Option<(String, String)> {
    let name = package["name"].as_str().and_then(crate_of)?;
    let (_, path) = package["manifest_path"].as_str()?.rsplit_once("/crates/")?;
    Some((name.to_owned(), path.split('/').next()?.to_owned()))
}

impl Crates {
    fn check_layers(&self, user: &str, package: &Value) -> Vec<String> {
        let Some(layer) = self.layers.get(user) else {
            return vec![format!("{user}: not in a directory of crates/")];
        };
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| name == layer) else {
            return vec![format!("{user}: crates/{layer} is not a directory of docs/ARCHITECTURE.md")];
        };
        let others = normal(package).filter_map(|(name, _)| crate_of(name));
        let places = others.filter_map(|other| Some((other, self.layers.get(other)?)));
        places
            .filter(|(other, place)| {
                let one = format!("{place}/{other}");
                *place != layer && !allowed.iter().any(|each| each == place || *each == one)
            })
            .map(|(other, place)| format!("{layer}/{user} → {place}/{other} (by their directories)"))
            .collect()
    }

    fn check_crate(&self, user: &str, package: &Value) -> Vec<String> {
        let arrows: BTreeMap<&str, &[&str]> = ARROWS.into_iter().collect();
        if !arrows.contains_key(user) {
            return vec![format!("{user}: not a crate of docs/ARCHITECTURE.md")];
        }
        let allowed = reach(user, &arrows);
        let pure = self.pure(user);
        let core = PURE_BY_FEATURE.iter().find(|(pure, _)| *pure == user).map(|(_, crates)| *crates);
        normal(package)
            .filter_map(|(name, d)| match (crate_of(name), pure) {
                (Some(other), _) if !allowed.contains(other) => Some(format!("{user} → {other}")),
                (Some(other), Some(_)) => {
                    self.impure(other, d["uses_default_features"] != false).then(|| {
                        format!("{user} → {other} (this crate may use it without its default features only)")
                    })
                }
                (None, None)
                    if d["optional"] != true && core.is_some_and(|crates| !crates.contains(&name)) =>
                {
                    Some(format!("{user} → {name} (without its features this crate may not use it)"))
                }
                (None, Some(crates)) if !crates.contains(&name) => {
                    Some(format!("{user} → {name} (this crate may use only {})", crates.join(", ")))
                }
                _ => None,
            })
            .collect()
    }

    /// The crates that a crate without IO may use; nothing for one with IO.
    fn pure(&self, name: &str) -> Option<&'static [&'static str]> {
        let in_core = self.layers.get(name).is_some_and(|layer| layer == "core");
        let listed = PURE.iter().find(|(pure, _)| *pure == name).map(|(_, crates)| *crates);
        if in_core { Some(CORE_USES) } else { listed }
    }

    /// Would a pure crate that uses this one do IO by it?
    fn impure(&self, name: &str, with_default_features: bool) -> bool {
        let by_feature = PURE_BY_FEATURE.iter().any(|(pure, _)| *pure == name);
        self.pure(name).is_none() && (with_default_features || !by_feature)
    }
}

/// The dependencies of a package that are not its tests' or its build's.
fn normal(package: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies.filter(|d| d["kind"].is_null()).filter_map(|d| Some((d["name"].as_str()?, d)))
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

    fn crates() -> Crates {
        let places = [
            ("core", "sched"),
            ("core", "model"),
            ("node", "driver"),
            ("node", "agent"),
            ("service", "clearml"),
            ("service", "store"),
            ("cluster", "kube-model"),
            ("sim", "simgpu"),
        ];
        let layers = places.into_iter().map(|(layer, name)| (name.to_owned(), layer.to_owned()));
        Crates { layers: layers.collect() }
    }

    #[test]
    fn an_arrow_that_is_not_drawn_is_found() {
        let package = serde_json::json!({"dependencies": [
            {"name": "cantle-driver", "kind": null}, {"name": "tokio", "kind": null}, {"name": "proptest", "kind": "dev"}
        ]});
        let wrong = crates().check_crate("sched", &package);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("sched → driver") && wrong[1].starts_with("sched → tokio"));
    }

    #[test]
    fn a_directory_uses_only_the_directories_below_it() {
        let uses = |name: &str| serde_json::json!({"dependencies": [{"name": name, "kind": null}]});
        let wrong = |user: &str, name: &str| crates().check_layers(user, &uses(name));
        assert_eq!(wrong("sched", "cantle-model"), [""; 0]);
        assert_eq!(wrong("agent", "cantle-clearml"), [""; 0], "one crate of a directory");
        assert_eq!(wrong("agent", "cantle-store"), ["node/agent → service/store (by their directories)"]);
        assert_eq!(wrong("sched", "cantle-clearml"), ["core/sched → service/clearml (by their directories)"]);
        assert_eq!(wrong("agent", "cantle-simgpu"), ["node/agent → sim/simgpu (by their directories)"]);
        assert_eq!(wrong("flat", "cantle-model"), ["flat: not in a directory of crates/"]);
    }

    #[test]
    fn a_pure_crate_uses_only_what_is_pure_of_another() {
        let package = |features: bool| {
            serde_json::json!({"dependencies": [
                {"name": "cantle-clearml", "kind": null, "uses_default_features": features},
                {"name": "cantle-model", "kind": null, "uses_default_features": true}
            ]})
        };
        assert_eq!(crates().check_crate("kube-model", &package(false)), [""; 0]);
        let wrong = crates().check_crate("kube-model", &package(true));
        assert!(wrong.len() == 1 && wrong[0].starts_with("kube-model → clearml"), "{wrong:?}");
        let clearml = serde_json::json!({"dependencies": [
            {"name": "reqwest", "kind": null, "optional": true}, {"name": "tokio", "kind": null, "optional": false}
        ]});
        assert!(crates().check_crate("clearml", &clearml)[0].starts_with("clearml → tokio"));
    }
}
