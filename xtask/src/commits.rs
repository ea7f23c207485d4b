//! Checks the subjects of commits against the rule of CONTRIBUTING.md. It does not judge commits from before the rule.

use std::process::Command;

use anyhow::{Context, Result, bail};

/// The last commit before the rule.
const BEFORE: &str = "3cd0c29189a524790bf073e7da0bb1a07e775c0d";

/// Characters of a subject, as git's own tools and GitHub show it on one line.
const SUBJECT_LIMIT: usize = 72;

/// Words that say nothing about the change.
const EMPTY: [&str; 6] = ["wip", "fixup!", "squash!", "clippy", "fmt", "read once more"];

/// Checks every commit since the rule. A clone without that history has nothing to check.
pub(crate) fn check() -> Result<()> {
    if !git(&["cat-file", "-e", &format!("{BEFORE}^{{commit}}")])?.0 {
        println!("commits: this clone does not have the history; nothing is checked");
        return Ok(());
    }
    // The records of the log end with a zero byte, because a body has line feeds.
    let (_, log) = git(&["log", "-z", "--no-merges", "--format=%h %B", &format!("{BEFORE}..HEAD")])?;
    let commits: Vec<&str> = log.split('\0').map(str::trim).filter(|commit| !commit.is_empty()).collect();
    let wrong: Vec<String> = commits.iter().filter_map(|commit| fault(commit)).collect();
    if !wrong.is_empty() {
        bail!("{} commit(s) do not follow CONTRIBUTING.md:\n  {}", wrong.len(), wrong.join("\n  "));
    }
    println!("commits: {} since the rule, each with an area and a subject of one line", commits.len());
    Ok(())
}

/// The fault of a commit, whose text begins with its short name.
fn fault(commit: &str) -> Option<String> {
    let mut lines = commit.lines();
    let (name, subject) = lines.next()?.split_once(' ')?;
    let why = why(subject, lines.next())?;
    Some(format!("{name} \"{subject}\": {why}"))
}

fn why(subject: &str, second: Option<&str>) -> Option<String> {
    let length = subject.chars().count();
    if length > SUBJECT_LIMIT {
        return Some(format!("{length} characters; write at most {SUBJECT_LIMIT}"));
    }
    let Some((area, change)) = subject.split_once(": ") else {
        return Some("no area; write \"area: verb object\"".to_owned());
    };
    if area.is_empty() || !area.chars().all(|c| c.is_ascii_alphanumeric() || "-_./ ".contains(c)) {
        return Some(format!("\"{area}\" is no area: a crate, a suite or a part of the documentation"));
    }
    let says_nothing = |text: &str| EMPTY.iter().any(|word| text.eq_ignore_ascii_case(word));
    if says_nothing(area) || says_nothing(change.trim()) || !change.trim().contains(' ') {
        return Some("it does not say what changed; write \"area: verb object\"".to_owned());
    }
    if change.contains("; ") {
        return Some("it joins two changes; make two commits".to_owned());
    }
    second.filter(|line| !line.is_empty()).map(|_| "the second line is not empty".to_owned())
}

/// Whether git succeeds, and what it prints.
fn git(args: &[&str]) -> Result<(bool, String)> {
    let output =
        Command::new("git").args(args).current_dir(crate::root()).output().context("cannot start git")?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_an_area_a_verb_and_an_object_on_one_line() {
        assert_eq!(
            fault("abc shim: refuse a location of an unknown kind\n\nIt was charged to nobody."),
            None
        );
        assert_eq!(fault("abc tests/bypass: mark what watches a clock"), None);
        for (commit, why) in [
            ("abc wip", "no area"),
            ("abc store: wip", "it does not say"),
            ("abc read once more: one helper in place of two", "it does not say"),
            ("abc store: one helper; server: another", "it joins two changes"),
            ("abc cli, ui: ask before a task is requeued", "is no area"),
            ("abc store: add an index\nof tags", "the second line"),
            (&format!("abc store: add {}", "x".repeat(70)), "81 characters"),
        ] {
            let said = fault(commit).unwrap_or_default();
            assert!(said.contains(why), "{commit}: {said}");
        }
    }
}
