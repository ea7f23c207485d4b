//! Licences and bans of deny.toml, checked without a network (the file is cargo-deny's, which may be used as well).

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Every package of the lock file: its licence is allowed, it is not banned, it comes from the registry or from here.
pub(crate) fn check() -> Result<()> {
    let text = std::fs::read_to_string(crate::root().join("deny.toml")).context("cannot read deny.toml")?;
    let config: toml::Value = text.parse::<toml::Table>().context("deny.toml")?.into();
    let list = |table: &str, key: &str| -> Vec<String> {
        let found = config.get(table).and_then(|t| t.get(key)).and_then(toml::Value::as_array);
        let names = found.into_iter().flatten();
        let name = |v: &toml::Value| v.as_str().or_else(|| v.get("crate")?.as_str()).map(str::to_owned);
        names.filter_map(name).collect()
    };
    let (allowed, banned) = (list("licenses", "allow"), list("bans", "deny"));
    let metadata = crate::metadata(&[])?;
    let packages = metadata["packages"].as_array().context("no packages in cargo metadata")?;
    let wrong: Vec<String> = packages.iter().filter_map(|p| objection(p, &allowed, &banned)).collect();
    if !wrong.is_empty() {
        bail!("{} package(s) against deny.toml:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("deps: {} packages, licences allowed, none banned", packages.len());
    Ok(())
}

fn objection(package: &Value, allowed: &[String], banned: &[String]) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    if banned.iter().any(|b| b == name) {
        return Some(format!("{name}: banned"));
    }
    if package["source"].as_str().is_some_and(|source| !source.starts_with("registry+")) {
        return Some(format!("{name}: comes from {}, not from a registry", package["source"]));
    }
    let licence = package["license"].as_str().unwrap_or("none given");
    let Ok(expression) = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX) else {
        return Some(format!("{name}: licence \"{licence}\" is not an SPDX expression"));
    };
    let fine = expression.evaluate(|req| allowed.iter().any(|a| req.to_string() == *a));
    (!fine).then(|| format!("{name}: licence \"{licence}\" is not in deny.toml's list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objections() {
        let allowed = vec!["MIT".to_owned(), "Apache-2.0".to_owned()];
        let banned = vec!["openssl-sys".to_owned()];
        let package = |name: &str, licence: &str| serde_json::json!({"name": name, "license": licence});
        let says = |name, licence| objection(&package(name, licence), &allowed, &banned);
        assert_eq!(says("a", "MIT OR GPL-3.0"), None);
        assert!(says("a", "MIT AND GPL-3.0").is_some());
        assert!(says("a", "GPL-3.0").is_some());
        assert!(says("openssl-sys", "MIT").is_some());
    }
}
