//! Runs every `tests/scenarios/*.txt` of the repository and compares its output with the `.out` next to it. `UPDATE=1`
//! rewrites the outputs.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test harness with one switch")]

use std::path::{Path, PathBuf};

fn scenarios() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/scenarios");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "txt")).collect();
    paths.sort();
    paths
}

#[test]
fn golden_scenarios() {
    let update = std::env::var("UPDATE").is_ok();
    let paths = scenarios();
    assert!(!paths.is_empty(), "no scenario found");
    let mut failed = 0;
    for path in &paths {
        let text = std::fs::read_to_string(path).unwrap();
        let got = cantle_sim::run_scenario(&text).unwrap_or_else(|error| format!("ERROR {error}\n"));
        let golden = path.with_extension("out");
        if update {
            std::fs::write(&golden, &got).unwrap();
        }
        let want = std::fs::read_to_string(&golden).unwrap_or_default();
        if got != want || got.starts_with("ERROR") {
            failed += 1;
            println!("FAILED {}\n--- wanted\n{want}--- got\n{got}", path.display());
        }
    }
    println!("{} passed, {failed} failed, 0 skipped", paths.len() - failed);
    assert_eq!(failed, 0);
}
