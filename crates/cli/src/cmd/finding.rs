//! What commands that look around have found: one line each, with what to do about it.

use std::process::ExitCode;

use serde::Serialize;

use crate::error::Kind;
use crate::out::{Column, Format, Printer};

/// How a check went.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Good,
    Warning,
    Bad,
}

/// What a check has found.
#[derive(Serialize, Debug)]
pub(crate) struct Finding {
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    /// What to do.
    pub(crate) hint: Option<String>,
}

const COLUMNS: [Column<Finding>; 3] = [
    Column { head: "", wide: false, cell: |f| mark(f.verdict).to_owned() },
    Column { head: "CHECK", wide: false, cell: |f| f.check.to_owned() },
    Column { head: "FOUND", wide: false, cell: |f| f.found.clone() },
];

pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Finding {
    Finding { check, verdict: Verdict::Good, found: found.into(), hint: None }
}

pub(crate) fn not(verdict: Verdict, check: &'static str, found: impl Into<String>, hint: &str) -> Finding {
    Finding { check, verdict, found: found.into(), hint: Some(hint.to_owned()) }
}

/// Prints them, the hints as talk; the exit code is 7 if anything is bad.
pub(crate) fn report(printer: Printer, findings: &[Finding]) -> ExitCode {
    printer.items(findings, |f| f.check.to_owned(), &COLUMNS);
    if printer.format != Format::Json {
        for finding in findings {
            if let Some(hint) = &finding.hint {
                printer.say(&format!("{} {}: {hint}", mark(finding.verdict), finding.check));
            }
        }
    }
    let bad = findings.iter().any(|f| f.verdict == Verdict::Bad);
    if bad { ExitCode::from(Kind::Unavailable as u8) } else { ExitCode::SUCCESS }
}

const fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "√",
        Verdict::Warning => "‼",
        Verdict::Bad => "×",
    }
}
