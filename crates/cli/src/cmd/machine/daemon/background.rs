//! `cantle daemon --detached`: the agent in a process of its own.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::{CAUSE, ERROR, HINT};

/// The line that a background agent prints to its standard output once it serves.
pub(super) const READY: &str = "ready";

/// Starts this program again, without a terminal, and waits until it serves or gives up.
pub(super) fn start_in_background(context: &Context, worker: &str) -> CommandResult {
    let log = log_path(&context.dirs.state, worker)?;
    let mut child = background(&log).map_err(as_kind(ErrorKind::Failed))?;
    let mut first_line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut first_line).map_err(as_kind(ErrorKind::Failed))?;
    }
    if first_line.trim() == READY {
        let (pid, log) = (child.id(), log.display());
        context
            .printer
            .data(&format!("agent {worker} serves in the background (pid {pid}); its log is {log}"));
        return Ok(ExitCode::SUCCESS);
    }
    let ended = child.wait().map_err(as_kind(ErrorKind::Failed))?;
    let kind = ended.code().and_then(|code| u8::try_from(code).ok()).map(ErrorKind::of_exit_code);
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    Err(last_error(&text, kind.unwrap_or(ErrorKind::Failed)))
}

/// The error with which an agent ended, from the lines that it printed last.
fn last_error(log: &str, kind: ErrorKind) -> CliError {
    let end: Vec<&str> =
        log.lines().rev().take_while(|line| line.starts_with(HINT) || line.starts_with(CAUSE)).collect();
    let line = log.lines().rev().nth(end.len()).unwrap_or("the agent printed no error");
    let hints = end.iter().rev().filter_map(|line| line.strip_prefix(HINT)).map(str::to_owned);
    CliError::new(kind, line.strip_prefix(ERROR).unwrap_or(line)).with_hints(hints)
}

fn background(log: &Path) -> std::io::Result<Child> {
    let output: File = OpenOptions::new().create(true).append(true).mode(0o600).open(log)?;
    Command::new(std::env::current_exe()?)
        .arg("--background")
        .args(std::env::args_os().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(output)
        .spawn()
}

fn log_path(state: &Path, worker: &str) -> Result<PathBuf, CliError> {
    let dir = state.join("agent/logs");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|error| CliError::wrap(ErrorKind::Failed, dir.display(), error))?;
    // Worker ids may hold anything, file names may not.
    let name = worker.replace('/', "_");
    Ok(dir.join(format!("{name}.log")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_agent_is_its_last_lines() {
        let error = last_error(
            "serving\ncantle: GPU 0 is taken\ncaused by: x\nhint: stop it\nhint: or not\n",
            ErrorKind::Conflict,
        );
        assert_eq!(
            (error.to_string().as_str(), error.hints()),
            ("GPU 0 is taken", &["stop it".to_owned(), "or not".to_owned()][..])
        );
        assert_eq!(last_error("a\nb\n", ErrorKind::Failed).to_string(), "b");
        assert_eq!(last_error("", ErrorKind::Failed).to_string(), "the agent printed no error");
    }
}
