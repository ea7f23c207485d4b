//! Runs one command of a suite.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::count::{Count, closing_line};
use super::limit::SuiteEnd;
use super::output::{self, End};
use super::slowest::Slowest;
use super::table::Step;

/// Exit code of a program that could not run here; its last line has the reason.
const SKIPPED: i32 = 77;

/// pytest's options, in all suites: the slowest tests are printed.
const PYTEST: &str = "--durations=10 --durations-min=1";

/// The destination of a suite's output: its file and, if it is the only suite that runs, the terminal.
pub(super) struct Log {
    file: File,
    live: bool,
}

impl Log {
    pub(super) fn create(path: &Path, live: bool) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, live })
    }

    fn line(&mut self, line: &str) -> Result<()> {
        if self.live {
            println!("{line}");
        }
        self.note(line)
    }

    /// A line for the file only.
    pub(super) fn note(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.file, "{line}")?)
    }
}

/// Runs the command, at most until `end`, and counts the tests in its output.
pub(super) fn run(step: &Step, log: &mut Log, end: SuiteEnd, env: &[(&str, &PathBuf)]) -> Result<Count> {
    let words = step.words();
    let (program, args) = words.split_first().context("an empty step")?;
    log.note(&format!("$ {}", words.join(" ")))?;
    let (reader, writer) = std::io::pipe()?;
    let mut child = Command::new(program)
        .args(args)
        .env("PYTEST_ADDOPTS", PYTEST)
        .envs(env.iter().copied())
        .current_dir(crate::root())
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let mut found = Count::default();
    let mut reports = false;
    let mut last = String::new();
    let mut slowest = Slowest::default();
    let ended = output::follow(reader, &mut child, end.at, |line| {
        log.line(&line)?;
        slowest.read(&line);
        if let Some(count) = closing_line(&line) {
            found += count;
            reports = true;
        }
        if !line.trim().is_empty() {
            last = line;
        }
        Ok(())
    })?;
    slowest.lines().iter().try_for_each(|line| log.line(line))?;
    Ok(match ended {
        End::Late if end.is_of_run => {
            log.line("ended: the time of the whole run is used up")?;
            Count { unfinished: 1, ..found }
        }
        End::Late => {
            log.line("ended: it took more than three times its usual time")?;
            Count { failed: found.failed + 1, ..found }
        }
        End::Exit(Some(0)) if reports => found,
        // A check that counts nothing is one test.
        End::Exit(Some(0)) => Count { passed: 1, ..found },
        End::Exit(Some(SKIPPED)) => {
            log.line(&format!("skipped: {last}"))?;
            Count { skipped: found.skipped.max(1), ..found }
        }
        End::Exit(_) => Count { failed: found.failed.max(1), ..found },
    })
}
