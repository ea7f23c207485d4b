//! Checks that each file and directory of `crates` that a page, a comment or a test names is there.

use std::path::Path;

use anyhow::{Result, bail};

/// The texts of this program make up names.
const TEXTS: &str = "*.md *.rs *.py *.sh *.toml *.yaml *.ts :!xtask";

/// Fails with each place that names a path that is not there.
pub(crate) fn check() -> Result<()> {
    let root = crate::root();
    let (mut seen, mut missing) = (0, Vec::new());
    for name in crate::sources(TEXTS)? {
        // A file that is deleted, but not yet in the index, names nothing.
        let text = std::fs::read_to_string(root.join(&name)).unwrap_or_default();
        for (at, line) in text.lines().enumerate() {
            for path in paths(line) {
                seen += 1;
                if !is_there(&root, path) {
                    missing.push(format!("{name}:{}: {path}", at + 1));
                }
            }
        }
    }
    if !missing.is_empty() {
        bail!("{} path(s) that are not there:\n  {}", missing.len(), missing.join("\n  "));
    }
    println!("paths: {seen} mentions of crates/…, each is there");
    Ok(())
}

/// The paths below `crates` in a line, without the punctuation behind them.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crates/").filter_map(|(at, _)| {
        let rest = &line[at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"_-./*".contains(c)).unwrap_or(rest.len());
        let path = rest[..end].trim_end_matches(['.', '/', '-']);
        (path != "crates").then_some(path)
    })
}

/// A pattern with `*` is there if what is before it is.
fn is_there(root: &Path, path: &str) -> bool {
    let fixed = path.split('*').next().unwrap_or(path);
    root.join(fixed).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<&str> {
        paths(line).collect()
    }

    #[test]
    fn paths_end_where_the_sentence_goes_on() {
        assert_eq!(
            found("see `crates/core/mig`, and (crates/cli/src/main.rs)."),
            ["crates/core/mig", "crates/cli/src/main.rs"]
        );
        assert_eq!(found("crates/node/agent/src/lib.rs."), ["crates/node/agent/src/lib.rs"]);
        assert_eq!(found("members = [\"crates/core/*\"]"), ["crates/core/*"]);
        assert_eq!(found("no crate below crates/"), [""; 0]);
    }

    #[test]
    fn what_is_gone_is_found() {
        let root = crate::root();
        assert!(is_there(&root, "crates/core/model/src/lib.rs") && is_there(&root, "crates/core/*"));
        assert!(!is_there(&root, "crates/model/src/lib.rs") && !is_there(&root, "crates/gone/*"));
    }
}
