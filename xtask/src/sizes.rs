//! Checks the length of source files. Clippy checks the length of functions (`clippy.toml`).

use std::path::Path;

use anyhow::{Result, bail};

/// A file of the sources has fewer lines than this (CONTRIBUTING.md).
const LINES: usize = 500;

/// The sources that are written by hand, in every language of the repository.
const SOURCES: &str = "*.rs *.py *.ts *.tsx *.mjs *.c *.h *.sh";

/// Fails with the files that are too long.
pub(crate) fn check() -> Result<()> {
    let mut long = Vec::new();
    let mut files = 0;
    for name in crate::sources(SOURCES)? {
        files += 1;
        let lines = lines(&crate::root().join(&name));
        if lines >= LINES {
            long.push(format!("{name}: {lines} lines"));
        }
    }
    if files == 0 {
        bail!("no sources found: is this a clone of the repository?");
    }
    if !long.is_empty() {
        bail!(
            "{} file(s) of {LINES} lines or more; split them by meaning:\n  {}",
            long.len(),
            long.join("\n  ")
        );
    }
    println!("sizes: {files} files, each with fewer than {LINES} lines");
    Ok(())
}

/// The number of lines; none for a file that is deleted, but not yet in the index.
fn lines(path: &Path) -> usize {
    std::fs::read(path).map_or(0, |text| text.split(|byte| *byte == b'\n').count() - 1)
}
