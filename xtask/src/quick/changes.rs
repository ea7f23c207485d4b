//! Finds the packages of the workspace that changed, and those that depend on them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The branch that changes are measured against, and its name in a clone that has no branch of its own.
const MAIN: [&str; 2] = ["main", "origin/main"];
/// Files that every package depends on.
const EVERYWHERE: [&str; 7] =
    [".cargo/", ".config/", "Cargo.lock", "Cargo.toml", "clippy.toml", "rust-toolchain.toml", "rustfmt.toml"];
/// The files that the runner of the scenarios reads.
const SCENARIOS: &str = "tests/scenarios/";

/// The packages of the workspace.
pub(super) struct Workspace {
    packages: BTreeMap<String, Package>,
}

pub(super) struct Package {
    /// Its directory, below the root.
    directory: PathBuf,
    /// Packages of the workspace that it is built with.
    uses: BTreeSet<String>,
    /// Packages of the workspace that only its tests are built with.
    tests_use: BTreeSet<String>,
    /// The names of its integration tests and of its examples.
    pub(super) tests: Vec<String>,
    pub(super) examples: Vec<String>,
}

/// The changed files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) packages: BTreeSet<String>,
    /// A scenario or its expected outcome.
    pub(super) scenarios: bool,
}

impl Workspace {
    pub(super) fn read() -> Result<Self> {
        let metadata = crate::metadata(&["--no-deps"])?;
        let packages = metadata["packages"].as_array().context("no packages in cargo metadata")?;
        let packages = packages.iter().map(|package| {
            let name = package["name"].as_str().context("a package without a name")?;
            Ok((name.to_owned(), Package::read(package, &crate::root())?))
        });
        Ok(Self { packages: packages.collect::<Result<_>>()? })
    }

    pub(super) fn package(&self, name: &str) -> Option<&Package> {
        self.packages.get(name)
    }

    /// The packages that are named, with or without the prefix.
    pub(super) fn named(&self, names: &[&str]) -> Result<Changes> {
        let find = |name: &&str| {
            let found = [(*name).to_owned(), format!("cantle-{name}")];
            let found = found.into_iter().find(|name| self.packages.contains_key(name));
            found.with_context(|| format!("there is no crate \"{name}\" below crates/"))
        };
        Ok(Changes { packages: names.iter().map(find).collect::<Result<_>>()?, scenarios: false })
    }

    /// The packages to which files belong; paths are relative to the root.
    pub(super) fn changed<'a>(&self, files: impl Iterator<Item = &'a str>) -> Changes {
        let mut changes = Changes::default();
        for file in files {
            if EVERYWHERE.iter().any(|each| file == *each || each.ends_with('/') && file.starts_with(each)) {
                changes.packages = self.packages.keys().cloned().collect();
            }
            changes.scenarios |= file.starts_with(SCENARIOS);
            let owner =
                self.packages.iter().find(|(_, package)| Path::new(file).starts_with(&package.directory));
            changes.packages.extend(owner.map(|(name, _)| name.clone()));
        }
        changes
    }

    /// Those that are built with one of `packages`, or whose tests are, without `packages` themselves.
    pub(super) fn dependents(&self, packages: &BTreeSet<String>) -> BTreeSet<String> {
        let mut reached = packages.clone();
        loop {
            let more = self.packages.iter().filter(|(_, package)| !package.uses.is_disjoint(&reached));
            let more: BTreeSet<String> = more.map(|(name, _)| name.clone()).chain(reached.clone()).collect();
            if more == reached {
                break;
            }
            reached = more;
        }
        let tested = self.packages.iter().filter(|(_, package)| !package.tests_use.is_disjoint(&reached));
        let tested: BTreeSet<String> = tested.map(|(name, _)| name.clone()).collect();
        reached.union(&tested).filter(|name| !packages.contains(*name)).cloned().collect()
    }
}

impl Package {
    fn read(package: &Value, root: &Path) -> Result<Self> {
        let manifest = package["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
        let directory = manifest.context("a package without a directory")?;
        let dependencies = package["dependencies"].as_array().context("a package without dependencies")?;
        let (dev, uses): (Vec<&Value>, Vec<&Value>) = dependencies
            .iter()
            .filter(|dependency| !dependency["path"].is_null())
            .partition(|dependency| dependency["kind"] == "dev");
        let names =
            |found: &[&Value]| found.iter().filter_map(|d| d["name"].as_str()).map(str::to_owned).collect();
        let targets = |kind: &str| -> Vec<String> {
            let targets = package["targets"].as_array().into_iter().flatten();
            let targets = targets.filter(|target| target["kind"] == serde_json::json!([kind]));
            targets.filter_map(|target| target["name"].as_str()).map(str::to_owned).collect()
        };
        Ok(Self {
            directory: directory.strip_prefix(root).unwrap_or(directory).to_owned(),
            uses: names(&uses),
            tests_use: names(&dev),
            tests: targets("test"),
            examples: targets("example"),
        })
    }
}

/// The files that differ from where this branch left `main`: committed, changed, staged and new ones.
pub(super) fn changed_files() -> Result<Vec<String>> {
    let base = MAIN.iter().find_map(|branch| git(&["merge-base", "HEAD", branch]).ok());
    let Some(base) = base else {
        bail!("this clone has no branch main to compare with; name the crates: cargo xtask quick CRATE…");
    };
    let differ = git(&["diff", "--name-only", "--no-renames", "-z", base.trim()])?;
    let untracked = git(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    let files = differ.split('\0').chain(untracked.split('\0')).filter(|file| !file.is_empty());
    Ok(files.map(str::to_owned).collect())
}

fn git(args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(crate::root()).output();
    let output = output.context("cannot start git")?;
    if !output.status.success() {
        bail!("git {} failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("git named a file that is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// model ← sched ← server; agent's tests start a server; docs belong to no crate.
    fn workspace() -> Workspace {
        let package = |name: &str, uses: &[&str], tests_use: &[&str]| {
            let package = Package {
                directory: Path::new("crates/layer").join(name),
                uses: set(uses),
                tests_use: set(tests_use),
                tests: Vec::new(),
                examples: Vec::new(),
            };
            (format!("cantle-{name}"), package)
        };
        let packages = [
            package("model", &[], &[]),
            package("sched", &["cantle-model"], &[]),
            package("server", &["cantle-sched"], &[]),
            package("agent", &["cantle-model"], &["cantle-server"]),
            package("kube", &["cantle-agent"], &[]),
        ];
        Workspace { packages: packages.into() }
    }

    #[test]
    fn files_belong_to_packages() {
        let changed = |files: &[&str]| workspace().changed(files.iter().copied());
        let sched = Changes { packages: set(&["cantle-sched"]), scenarios: false };
        assert_eq!(changed(&["crates/layer/sched/src/lib.rs", "docs/scheduling.md"]), sched);
        assert_eq!(
            changed(&["crates/layer/schedule.md", "ui/package.json", "tests/ui/run.sh"]),
            Changes::default()
        );
        assert_eq!(changed(&["Cargo.lock"]).packages.len(), 5);
        assert_eq!(changed(&[".cargo/config.toml"]).packages.len(), 5);
        assert_eq!(changed(&["fuzz/Cargo.lock"]), Changes::default());
        assert!(changed(&["tests/scenarios/models.txt"]).scenarios);
    }

    #[test]
    fn whoever_only_tests_with_it_passes_nothing_on() {
        let dependents = |names| workspace().dependents(&set(names));
        assert_eq!(dependents(&["cantle-server"]), set(&["cantle-agent"]));
        assert_eq!(dependents(&["cantle-sched"]), set(&["cantle-server", "cantle-agent"]));
        assert_eq!(dependents(&["cantle-agent"]), set(&["cantle-kube"]));
        assert_eq!(dependents(&["cantle-kube"]), set(&[]));
    }

    #[test]
    fn crates_are_named_with_and_without_the_prefix() {
        let named = workspace().named(&["sched", "cantle-kube"]).unwrap();
        assert_eq!(named.packages, set(&["cantle-sched", "cantle-kube"]));
        assert!(workspace().named(&["skhed"]).unwrap_err().to_string().contains("\"skhed\""));
    }
}
