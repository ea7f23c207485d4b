//! Copies a container's output from the engine to the task's output.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::LogsOptions;
use futures_util::StreamExt;

use super::calls::{ContainerStatus, status};
use crate::TaskDirectory;

/// How long to wait before the engine is asked again after a failure.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The destination of a container's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerOutput {
    /// The output file of the task's directory, with the command itself in the first line.
    TaskDirectory(TaskDirectory),
    /// This process's own stdout and stderr.
    Inherit,
}

impl ContainerOutput {
    pub(super) const fn task_directory(&self) -> Option<&TaskDirectory> {
        match self {
            Self::TaskDirectory(directory) => Some(directory),
            Self::Inherit => None,
        }
    }

    pub(super) fn begin(&self, head: &str) -> io::Result<()> {
        let Some(directory) = self.task_directory() else { return Ok(()) };
        directory.prepare().map_err(|error| error.source)?;
        std::fs::write(directory.output(), head)
    }

    /// A line of cantle's, before the container's own: in the task's log, or to `notify` where there is none.
    pub(super) fn note(&self, line: &str, notify: &impl Fn(&str)) {
        let Some(directory) = self.task_directory() else { return notify(line) };
        let written = OpenOptions::new().append(true).open(directory.output());
        // Nothing depends on it.
        let _ = written.and_then(|mut file| writeln!(file, "cantle: {line}"));
    }

    /// Copies until the container has ended and all of its output is here. The engine keeps the whole output and returns it
    /// in the same order each time, so that after an interruption it is enough to skip what is here already.
    pub(super) async fn copy(self, docker: Docker, id: String, head_len: u64) -> io::Result<()> {
        let mut copy = match self.task_directory() {
            Some(directory) => {
                let file = OpenOptions::new().append(true).open(directory.output())?;
                let copied = file.metadata()?.len().saturating_sub(head_len);
                Copy { docker, id, sink: Sink::File(file), copied }
            }
            None => Copy { docker, id, sink: Sink::Standard, copied: 0 },
        };
        loop {
            copy.pass(Until::Ended).await?;
            match status(&copy.docker, &copy.id).await {
                // Following may end before the last lines are out; one more pass after the end reads them.
                ContainerStatus::Ended(_) if copy.pass(Until::Now).await? => return Ok(()),
                ContainerStatus::Gone => return Ok(()),
                ContainerStatus::Ended(_) | ContainerStatus::Running | ContainerStatus::Unknown => {
                    tokio::time::sleep(RETRY_INTERVAL).await
                }
            }
        }
    }
}

struct Copy {
    docker: Docker,
    id: String,
    sink: Sink,
    /// Bytes of the container's output that are here.
    copied: u64,
}

/// The end of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Now,
    Ended,
}

impl Copy {
    /// One reading of the whole output. False if the engine broke off; an error if the output cannot be written.
    async fn pass(&mut self, until: Until) -> io::Result<bool> {
        let follow = until == Until::Ended;
        let options = LogsOptions { follow, stdout: true, stderr: true, ..Default::default() };
        let mut stream = self.docker.logs(&self.id, Some(options));
        let mut skip = self.copied;
        while let Some(item) = stream.next().await {
            let Ok(item) = item else { return Ok(false) };
            let text = item.as_ref();
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(text.len());
            skip -= known as u64;
            self.sink.write(&item, &text[known..])?;
            self.copied += (text.len() - known) as u64;
        }
        Ok(true)
    }
}

enum Sink {
    File(File),
    Standard,
}

impl Sink {
    fn write(&mut self, from: &LogOutput, text: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(text),
            Self::Standard if matches!(from, LogOutput::StdErr { .. }) => io::stderr().write_all(text),
            Self::Standard => {
                let mut out = io::stdout();
                out.write_all(text).and_then(|()| out.flush())
            }
        }
    }
}
