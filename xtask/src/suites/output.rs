//! Reads what a program prints, up to its end, or ends it.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;

/// The time after a program's end for which its output is awaited. A test that fails may leave a process that holds the pipe
/// for as long as it lives.
const REST: Duration = Duration::from_secs(5);

/// The time that a program has to clean up when it is ended. pytest ends its tests, and prints where it was (`tests/conftest.py`).
const GRACE: Duration = Duration::from_secs(60);

/// How a program ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself: its exit code, none after a signal.
    Exit(Option<i32>),
    /// It was ended, because it took too long.
    Late,
}

/// Gives each line to `line`, and waits for the program's end. At `end` it is terminated, and killed after a grace period.
#[expect(clippy::disallowed_methods, reason = "the limit of a suite's time")]
pub(super) fn follow(
    reader: PipeReader,
    child: &mut Child,
    end: Instant,
    mut line: impl FnMut(String) -> Result<()>,
) -> Result<End> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    // When the next signal is sent, if it is late, and the signals that are left.
    let mut next = end;
    let mut signals = ["TERM", "KILL"].into_iter();
    let mut is_late = false;
    loop {
        let now = Instant::now();
        if now >= next
            && let Some(signal) = signals.next()
        {
            is_late = true;
            next = now + GRACE;
            end_tree(signal, child.id());
        }
        // A program that prints nothing is ended in time, too.
        match lines.recv_timeout(REST.min(next.saturating_duration_since(now))) {
            Ok(text) => line(text)?,
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait()?;
                return Ok(if is_late { End::Late } else { End::Exit(status.code()) });
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(if is_late { End::Late } else { End::Exit(status.code()) });
                }
            }
        }
    }
}

/// Runs a program, at most until `end`; `None` if it was ended then.
#[expect(clippy::disallowed_methods, reason = "the limit of the time of a run")]
pub(super) fn wait(command: &mut Command, end: Option<Instant>) -> Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            end_tree("TERM", child.id());
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Sends a signal to a process and all below it. They share the group of this program, so that a terminal's Ctrl-C reaches them all. First
/// they are stopped: one that starts another meanwhile would leave it behind.
fn end_tree(signal: &str, process: u32) {
    let mut stopped = Vec::new();
    loop {
        let tree = tree_of(process);
        if tree == stopped {
            break;
        }
        send("STOP", &tree);
        stopped = tree;
    }
    send(signal, &stopped);
    send("CONT", &stopped);
}

/// A process and all below it, by their numbers.
fn tree_of(process: u32) -> Vec<String> {
    let mut tree = vec![process.to_string()];
    let mut at = 0;
    while let Some(process) = tree.get(at) {
        let children =
            std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
        tree.extend(children.split_whitespace().map(str::to_owned));
        at += 1;
    }
    tree
}

fn send(signal: &str, processes: &[String]) {
    // A process that has ended meanwhile is no error.
    drop(Command::new("kill").arg(format!("-{signal}")).args(processes).status());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "the limit of a test program")]
    fn followed(script: &str, limit: Duration) -> (End, Vec<String>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child = Command::new("sh").args(["-c", script]).stdout(writer).spawn().unwrap();
        let mut lines = Vec::new();
        let end = follow(reader, &mut child, Instant::now() + limit, |line| {
            lines.push(line);
            Ok(())
        });
        (end.unwrap(), lines)
    }

    #[test]
    fn a_process_that_is_left_behind_holds_nobody_up() {
        let (end, lines) = followed("echo one; sleep 60 & echo two", GRACE);
        assert_eq!((end, lines), (End::Exit(Some(0)), vec!["one".to_owned(), "two".to_owned()]));
    }

    #[test]
    fn a_program_that_takes_too_long_is_interrupted_with_all_below_it() {
        let (end, lines) =
            followed("trap 'echo interrupted; exit 1' INT; echo one; sleep 600; echo two", Duration::ZERO);
        assert_eq!(end, End::Late);
        assert!(!lines.contains(&"two".to_owned()), "{lines:?}");
    }

    #[test]
    fn a_program_that_goes_on_starting_others_leaves_none_behind() {
        let name = format!("6{}", std::process::id());
        let script = format!("for i in $(seq 2000); do sleep {name} & sleep 0.001; done");
        let (end, _) = followed(&script, Duration::from_millis(200));
        assert_eq!(end, End::Late);
        let left = Command::new("pgrep").args(["-f", &format!("^sleep {name}$")]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&left.stdout), "");
    }
}
