//! A container's output, copied from the engine to where the task's output belongs.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::query_parameters::LogsOptions;
use futures_util::StreamExt;

use crate::detached::TaskDir;

/// After a failure the engine is asked again in so long.
const AGAIN: Duration = Duration::from_millis(500);

/// Where a container's output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// `output.log` in the task's folder, with the command itself in the first line: see [`crate::Tail`].
    TaskDir(PathBuf),
    /// This process's own stdout and stderr.
    Inherit,
}

impl Output {
    pub(super) fn begin(&self, head: &str) -> io::Result<()> {
        match self {
            Self::TaskDir(dir) => {
                TaskDir::new(dir).prepare()?;
                std::fs::write(log(dir), head)
            }
            Self::Inherit => Ok(()),
        }
    }

    /// Copies until the container has ended and all it wrote is here. The engine keeps the whole output and tells it
    /// in the same order each time, so that after an interruption it is enough to skip what is here already.
    pub(super) async fn copy(self, docker: Docker, id: String, head_len: u64) -> io::Result<()> {
        let mut sink = match &self {
            Self::TaskDir(dir) => Sink::File(OpenOptions::new().append(true).open(log(dir))?),
            Self::Inherit => Sink::Standard,
        };
        let mut copied = match &sink {
            Sink::File(file) => file.metadata()?.len().saturating_sub(head_len),
            Sink::Standard => 0,
        };
        loop {
            let mut skip = copied;
            let options = LogsOptions { follow: true, stdout: true, stderr: true, ..Default::default() };
            let mut stream = docker.logs(&id, Some(options));
            let mut complete = true;
            while let Some(item) = stream.next().await {
                let Ok(item) = item else {
                    complete = false;
                    break;
                };
                let text = item.as_ref();
                let known = usize::try_from(skip).unwrap_or(usize::MAX).min(text.len());
                skip -= known as u64;
                sink.write(&item, &text[known..])?;
                copied += (text.len() - known) as u64;
            }
            if complete || !is_running(&docker, &id).await {
                return Ok(());
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// An engine that does not answer may still run it.
async fn is_running(docker: &Docker, id: &str) -> bool {
    match docker.inspect_container(id, None).await {
        Ok(found) => found.state.and_then(|state| state.running).unwrap_or(false),
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => false,
        Err(_) => true,
    }
}

fn log(dir: &Path) -> PathBuf {
    TaskDir::new(dir).output()
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
