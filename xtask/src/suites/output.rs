//! Reads what a program prints, up to its end.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::Result;

/// The time after a program's end for which its output is awaited. A test that fails may leave a process that holds the pipe
/// for as long as it lives.
const REST: Duration = Duration::from_secs(5);

/// Gives each line to `line`, and waits for the program's end.
pub(super) fn follow(
    reader: PipeReader,
    child: &mut Child,
    mut line: impl FnMut(String) -> Result<()>,
) -> Result<ExitStatus> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    loop {
        match lines.recv_timeout(REST) {
            Ok(text) => line(text)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(child.wait()?),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_is_left_behind_holds_nobody_up() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child =
            Command::new("sh").args(["-c", "echo one; sleep 60 & echo two"]).stdout(writer).spawn().unwrap();
        let mut lines = Vec::new();
        let status = follow(reader, &mut child, |line| {
            lines.push(line);
            Ok(())
        });
        assert!(status.unwrap().success());
        assert_eq!(lines, ["one", "two"]);
    }
}
