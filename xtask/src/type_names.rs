//! Checks that a public type name exists in one crate only (docs/GLOSSARY.md).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

const KEYWORDS: [&str; 5] = ["struct ", "enum ", "trait ", "type ", "union "];

/// Fails with every name that is in two crates, and its places.
pub(crate) fn check() -> Result<()> {
    let root = crate::root();
    let metadata = crate::metadata(&["--no-deps"])?;
    let packages = metadata["packages"].as_array().context("no packages in cargo metadata")?;
    let mut found: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for package in packages {
        let manifest = package["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
        let Some(directory) = manifest.filter(|path| path.starts_with(root.join("crates"))) else { continue };
        for file in rust_files(&directory.join("src"))? {
            let text =
                std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            for (line, type_name) in public_types(&text) {
                let place = format!("{}:{line}", file.strip_prefix(&root).unwrap_or(&file).display());
                let places = found.entry(type_name.to_owned()).or_default();
                places.entry(directory.display().to_string()).or_insert(place);
            }
        }
    }
    let count = found.len();
    let twice: Vec<String> = found.into_iter().filter(|(_, places)| places.len() > 1).map(describe).collect();
    if !twice.is_empty() {
        bail!("{} public type name(s) stand in more than one crate:\n  {}", twice.len(), twice.join("\n  "));
    }
    println!("arch: {count} public type names, each in one crate");
    Ok(())
}

fn describe((name, places): (String, BTreeMap<String, String>)) -> String {
    let places: BTreeSet<String> = places.into_values().collect();
    format!("{name}: {}", places.into_iter().collect::<Vec<_>>().join(", "))
}

fn rust_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Lines and names of the types that a file declares with `pub` alone.
fn public_types(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(at, line)| {
        let declared = line.trim_start().strip_prefix("pub ")?;
        let declared = declared.strip_prefix("unsafe ").unwrap_or(declared);
        let name = KEYWORDS.iter().find_map(|keyword| declared.strip_prefix(keyword))?;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        (end > 0).then_some((at + 1, &name[..end]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_a_public_type() {
        let text = "pub struct A<'a>(&'a str);\npub(crate) enum B {}\n    pub type C = u32;\npub unsafe trait D {}\npub fn e() {}\n";
        assert_eq!(public_types(text).collect::<Vec<_>>(), [(1, "A"), (3, "C"), (4, "D")]);
    }

    #[test]
    fn a_name_in_two_crates_is_described_with_its_places() {
        let places = [("a", "crates/a/src/x.rs:1"), ("b", "crates/b/src/y.rs:2")];
        let places = places.map(|(name, place)| (name.to_owned(), place.to_owned()));
        let line = describe(("Node".to_owned(), BTreeMap::from(places)));
        assert_eq!(line, "Node: crates/a/src/x.rs:1, crates/b/src/y.rs:2");
    }
}
