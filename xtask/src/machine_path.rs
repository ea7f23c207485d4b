//! Checks that tests use the same code path as users: no suite switches simulation on for the product, and no product code
//! asks for it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Directories with suites that run on a machine with GPUs (`tests/machine.py`).
const SUITES: [&str; 9] =
    ["bench", "bypass", "clearml", "cluster", "docker", "e2e", "frameworks", "gpu", "ui"];
/// Words that would switch simulation on, or move files that a user leaves in place.
const SWITCHES: [&str; 3] = ["CANTLE_SIM_", "--sim-gpus", "CANTLE_STATE_DIR"];
/// Tests of the switch itself and of the pages that name it, which newcomers use, and servers without GPUs, of which one machine has several.
const EXCEPT: [&str; 5] = [
    "tests/e2e/test_sim_gpus.py",
    "tests/e2e/test_pages.py",
    "tests/e2e/test_rights.py",
    "tests/e2e/box.py",
    "tests/cluster/queues.py",
];
/// Crates in which a driver may be named by its directory: the one that offers it, for tests.
const MAY_NAME_A_FOLDER: [&str; 2] = ["crates/node/driver/", "crates/sim/machine/"];

/// Fails with one line for each place.
pub(crate) fn check() -> Result<()> {
    let root = crate::root();
    let mut found = Vec::new();
    for suite in SUITES {
        for path in files(&root.join("tests").join(suite))? {
            found.extend(places(&root, &path, &SWITCHES)?);
        }
    }
    found.retain(|place| !EXCEPT.iter().any(|file| place.starts_with(file)));
    for path in files(&root.join("crates"))? {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        let is_test = name.contains("/tests");
        if name.ends_with(".rs")
            && !is_test
            && !MAY_NAME_A_FOLDER.iter().any(|folder| name.starts_with(folder))
        {
            found.extend(places(&root, &path, &["Installation::in_directory"])?);
        }
    }
    if found.is_empty() {
        println!("machine-path: no suite switches simulation on, and no product code asks for it");
        return Ok(());
    }
    bail!(
        "{}\nThese suites run on a machine that has GPUs (tests/machine.py): nothing tells the product that they are simulated.",
        found.join("\n")
    )
}

fn places(root: &Path, path: &Path, words: &[&str]) -> Result<Vec<String>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&text);
    let name = path.strip_prefix(root).unwrap_or(path).display();
    let lines = text.lines().enumerate();
    Ok(lines
        .filter_map(|(at, line)| {
            let word = words.iter().find(|word| line.contains(**word))?;
            Some(format!("{name}:{}: {word}", at + 1))
        })
        .collect())
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["node_modules", "__pycache__"].contains(&&*name) {
                found.extend(files(&path)?);
            }
        } else if !name.ends_with(".pyc") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_with_its_line() {
        let root = std::env::temp_dir().join(format!("machine-path-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("a.py"), "x = 1\nenv = {\"CANTLE_SIM_DIR\": x}\n").unwrap();
        let found = places(&root, &root.join("a.py"), &SWITCHES).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["a.py:2: CANTLE_SIM_"]);
    }
}
