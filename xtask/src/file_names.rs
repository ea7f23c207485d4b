//! Checks that nothing but `crates/tenant/ledger/src/file_names.rs` spells the names of a slice's files: host and tenant would differ after a
//! change, and the difference would only show in a task.

use anyhow::{Context, Result, bail};

use crate::sources;

/// The one file that has them, and tests, which check the names from outside.
const HOME: &str = "crates/tenant/ledger/src/file_names.rs";
/// How a name would be written.
const SPELLINGS: [&str; 4] = ["limits", "usage", "grant", "launches"];

/// Fails with each place.
pub(crate) fn check() -> Result<()> {
    let mut found = Vec::new();
    for name in sources("crates/*/src/*.rs")? {
        if name == HOME || name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        let path = crate::root().join(&name);
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = product.lines().enumerate().filter(|(_, line)| spells(line));
        found.extend(lines.map(|(at, line)| format!("{name}:{}: {}", at + 1, line.trim())));
    }
    if !found.is_empty() {
        bail!("use the names in {HOME}:\n  {}", found.join("\n  "));
    }
    println!("file-names: a slice's files are named in one place");
    Ok(())
}

/// A path that ends with one of the names, or the name as the tenant has it.
fn spells(line: &str) -> bool {
    SPELLINGS.iter().any(|name| {
        line.contains(&format!("join(\"{name}\")"))
            || line.contains(&format!("c\"{name}\""))
            || line.contains(&format!("/slice/{name}\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_the_names() {
        for line in [
            "dir.join(\"limits\")",
            "Path::join(dir, c\"grant\")?",
            "const X: &str = \"/run/cantle/slice/usage\";",
        ] {
            assert!(spells(line), "{line}");
        }
        for line in ["json!({\"limits\": 1})", "dir.join(LIMITS_FILE)", "c\"granted\""] {
            assert!(!spells(line), "{line}");
        }
    }
}
