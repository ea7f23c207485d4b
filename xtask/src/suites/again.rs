//! The second run of what failed in a suite that watches a clock, alone, when everything else has ended. A test that
//! passes then is flaky: it is listed, and a defect to fix. Nothing else is repeated.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::limit::Limit;
use super::step::{self, Log};
use super::{Outcome, failures_of};

/// Runs the failed steps of a suite once more.
pub(super) fn run(mut outcome: Outcome, logs: &Path, limit: &Limit) -> Outcome {
    if outcome.failed_steps.is_empty() {
        return outcome;
    }
    let name = outcome.suite.name;
    println!("==> {name}, once more: what failed");
    match steps(&outcome, logs, limit) {
        Ok(true) => {
            outcome.flaky = flaky(&outcome, logs);
            outcome.count.passed += outcome.count.failed;
            outcome.count.failed = 0;
            println!("{name}: passed the second time");
        }
        Ok(false) => println!("{name}: failed again"),
        Err(error) => eprintln!("{name}: {error:#}"),
    }
    outcome
}

/// Whether all of them pass. Tests in Python that passed the first time are left out (`tests/conftest.py`).
fn steps(outcome: &Outcome, logs: &Path, limit: &Limit) -> Result<bool> {
    let suite = outcome.suite;
    let mut log = Log::create(&logs.join(format!("{}.again.log", suite.name)), true)?;
    let failures = failures_of(logs, suite.name);
    let end = limit.end_of(suite.minutes);
    let mut passed = true;
    for &at in &outcome.failed_steps {
        let only: &[_] = if failures.exists() { &[("CANTLE_TEST_ONLY", &failures)] } else { &[] };
        let count = step::run(&suite.steps[at], &mut log, end, only)?;
        passed &= count.failed == 0 && count.unfinished == 0;
    }
    Ok(passed)
}

/// The names of the tests that failed the first time; a step that gives none is named as a whole.
fn flaky(outcome: &Outcome, logs: &Path) -> Vec<String> {
    let suite = outcome.suite;
    let written = std::fs::read_to_string(failures_of(logs, suite.name)).unwrap_or_default();
    let names: BTreeSet<String> = written.lines().map(str::to_owned).collect();
    if !names.is_empty() {
        return names.into_iter().collect();
    }
    outcome
        .failed_steps
        .iter()
        .map(|&at| format!("{}: {}", suite.name, suite.steps[at].words().join(" ")))
        .collect()
}
