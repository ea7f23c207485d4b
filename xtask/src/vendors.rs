//! Checks that the crates above the driver do not know the second vendor of GPUs: what differs between vendors is behind the trait `Driver`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The crates, as directories.
const CRATES: [&str; 5] = [
    "crates/core/model",
    "crates/core/sched",
    "crates/core/decide",
    "crates/service/store",
    "crates/service/server",
];

/// Words of one vendor, in lower case.
const WORDS: [&str; 7] = ["amd", "amdgpu", "rocm", "rocr", "kfd", "hip", "radeon"];

pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for dir in CRATES {
        let mut files = Vec::new();
        sources(&crate::root().join(dir), &mut files)?;
        if files.is_empty() {
            bail!("{dir} has no Rust source");
        }
        for file in files {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let found = text.lines().enumerate().filter_map(|(number, line)| {
                word_in(line).map(|word| format!("{}:{}: {word}", file.display(), number + 1))
            });
            wrong.extend(found);
        }
    }
    if !wrong.is_empty() {
        bail!("{} word(s) of one vendor above the driver:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    Ok(())
}

fn word_in(line: &str) -> Option<&'static str> {
    let lower = line.to_ascii_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.find_map(|word| WORDS.into_iter().find(|known| *known == word))
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_vendor_is_found_in_a_name_too() {
        assert_eq!(word_in("fn is_amd(gpu: &Gpu) -> bool {"), Some("amd"));
        assert_eq!(word_in("// For ROCm only."), Some("rocm"));
        assert_eq!(word_in("linux/amd64, a relationship, Radeonly"), None);
    }
}
