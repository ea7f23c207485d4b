//! Results of checks: one line each, with a hint.

use std::process::ExitCode;

use serde::Serialize;

use crate::error::ErrorKind;
use crate::out::{Column, Format, Printer};

/// How a check ended.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    Good,
    Warning,
    Bad,
}

/// The result of a check.
#[derive(Serialize, Debug)]
pub(crate) struct Checkup {
    pub(crate) check: &'static str,
    #[serde(rename = "verdict")]
    pub(crate) severity: Severity,
    pub(crate) found: String,
    /// The action that the user can take.
    pub(crate) hint: Option<String>,
}

const COLUMNS: [Column<Checkup>; 3] = [
    Column { head: "", wide: false, cell: |f| mark(f.severity).to_owned() },
    Column { head: "CHECK", wide: false, cell: |f| f.check.to_owned() },
    Column { head: "FOUND", wide: false, cell: |f| f.found.clone() },
];

pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Checkup {
    Checkup { check, severity: Severity::Good, found: found.into(), hint: None }
}

pub(crate) fn not(severity: Severity, check: &'static str, found: impl Into<String>, hint: &str) -> Checkup {
    Checkup { check, severity, found: found.into(), hint: Some(hint.to_owned()) }
}

/// Prints the results, and their hints as messages; the exit code is 7 if anything is bad.
pub(crate) fn report(printer: Printer, checkups: &[Checkup]) -> ExitCode {
    printer.items(checkups, |f| f.check.to_owned(), &COLUMNS);
    if printer.format != Format::Json {
        for checkup in checkups {
            if let Some(hint) = &checkup.hint {
                printer.say(&format!("{} {}: {hint}", mark(checkup.severity), checkup.check));
            }
        }
    }
    let bad = checkups.iter().any(|f| f.severity == Severity::Bad);
    if bad { ExitCode::from(ErrorKind::Unavailable as u8) } else { ExitCode::SUCCESS }
}

const fn mark(severity: Severity) -> &'static str {
    match severity {
        Severity::Good => "√",
        Severity::Warning => "‼",
        Severity::Bad => "×",
    }
}
