//! Checks licenses and bans of deny.toml without a network. The file has cargo-deny's format, so cargo-deny can be used
//! as well.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Every package that is built: its license is allowed, it is not banned, it comes from the registry or from here.
pub(crate) fn check() -> Result<()> {
    let text = std::fs::read_to_string(crate::root().join("deny.toml")).context("cannot read deny.toml")?;
    let config: toml::Value = text.parse::<toml::Table>().context("deny.toml")?.into();
    let list = |table: &str, key: &str| -> Vec<String> {
        let found = config.get(table).and_then(|t| t.get(key)).and_then(toml::Value::as_array);
        let name = |v: &toml::Value| v.as_str().or_else(|| v.get("crate")?.as_str()).map(str::to_owned);
        found.into_iter().flatten().filter_map(name).collect()
    };
    let (allowed, banned) = (list("licenses", "allow"), list("bans", "deny"));
    let packages = built_packages()?;
    let wrong: Vec<String> = packages.iter().filter_map(|line| objection(line, &allowed, &banned)).collect();
    if !wrong.is_empty() {
        bail!("{} package(s) against deny.toml:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("deps: {} packages, licenses allowed, none banned", packages.len());
    Ok(())
}

/// One line `name vVERSION (source)?|license` each. `cargo tree` knows which optional dependencies are really taken in; the
/// lock file and `cargo metadata` list them all.
fn built_packages() -> Result<BTreeSet<String>> {
    let output = Command::new("cargo")
        .args(["tree", "--workspace", "--locked", "--edges", "normal,build,dev", "--prefix", "none"])
        .args(["--no-dedupe", "--format", "{p}|{l}"])
        .current_dir(crate::root())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout).context("cargo tree")?;
    Ok(text
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect())
}

fn objection(line: &str, allowed: &[String], banned: &[String]) -> Option<String> {
    let (package, license) = line.split_once('|').unwrap_or((line, ""));
    let name = package.split(' ').next().unwrap_or(package);
    if banned.iter().any(|b| b == name) {
        return Some(format!("{name}: banned"));
    }
    if package.contains("://") {
        return Some(format!("{package}: does not come from a registry"));
    }
    let Ok(expression) = spdx::Expression::parse_mode(license, spdx::ParseMode::LAX) else {
        return Some(format!("{name}: license \"{license}\" is not an SPDX expression"));
    };
    let fine = expression.evaluate(|req| allowed.iter().any(|a| req.to_string() == *a));
    (!fine).then(|| format!("{name}: license \"{license}\" is not in deny.toml's list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objections() {
        let allowed = vec!["MIT".to_owned(), "Apache-2.0".to_owned()];
        let banned = vec!["openssl-sys".to_owned()];
        let says =
            |name: &str, license: &str| objection(&format!("{name} v1.0.0|{license}"), &allowed, &banned);
        assert_eq!(says("a", "MIT OR GPL-3.0"), None);
        assert!(says("a", "MIT AND GPL-3.0").is_some());
        assert!(says("a", "GPL-3.0").is_some());
        assert!(says("a", "").is_some());
        assert!(says("openssl-sys", "MIT").is_some());
        assert!(objection("a v1.0.0 (https://example.org/a#123)|MIT", &allowed, &banned).is_some());
    }
}
