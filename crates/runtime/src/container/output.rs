//! A container's output, copied from the engine to where the task's output belongs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::LogsOptions;
use futures_util::StreamExt;

use super::engine::{Seen, look};
use crate::detached::TaskDir;

/// After a failure the engine is asked again in so long.
const AGAIN: Duration = Duration::from_millis(500);

/// Where a container's output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// `output.log` in the task's folder, with the command itself in the first line.
    TaskDir(PathBuf),
    /// This process's own stdout and stderr.
    Inherit,
}

impl Output {
    pub(super) fn task_dir(&self) -> Option<TaskDir> {
        match self {
            Self::TaskDir(dir) => Some(TaskDir::new(dir)),
            Self::Inherit => None,
        }
    }

    pub(super) fn begin(&self, head: &str) -> io::Result<()> {
        let Some(dir) = self.task_dir() else { return Ok(()) };
        dir.prepare()?;
        std::fs::write(dir.output(), head)
    }

    /// A line of ours, before the container's own: in the task's log, or to `tell` where there is none.
    pub(super) fn note(&self, line: &str, tell: &impl Fn(&str)) {
        let Some(dir) = self.task_dir() else { return tell(line) };
        let written = OpenOptions::new().append(true).open(dir.output());
        // Nothing depends on it.
        let _ = written.and_then(|mut file| writeln!(file, "cantle: {line}"));
    }

    /// Copies until the container has ended and all it wrote is here. The engine keeps the whole output and tells it
    /// in the same order each time, so that after an interruption it is enough to skip what is here already.
    pub(super) async fn copy(self, docker: Docker, id: String, head_len: u64) -> io::Result<()> {
        let mut copy = match self.task_dir() {
            Some(dir) => {
                let file = OpenOptions::new().append(true).open(dir.output())?;
                let copied = file.metadata()?.len().saturating_sub(head_len);
                Copy { docker, id, sink: Sink::File(file), copied }
            }
            None => Copy { docker, id, sink: Sink::Standard, copied: 0 },
        };
        loop {
            copy.pass(Until::Ended).await?;
            match look(&copy.docker, &copy.id).await {
                // Following may end before the last lines are out; what has ended can be read in peace.
                Seen::Ended(_) if copy.pass(Until::Now).await? => return Ok(()),
                Seen::Gone => return Ok(()),
                Seen::Ended(_) | Seen::Running | Seen::Nothing => tokio::time::sleep(AGAIN).await,
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

/// How far a pass reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Now,
    Ended,
}

impl Copy {
    /// One reading of the whole output. False if the engine broke off; an error if the output can't be written.
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
