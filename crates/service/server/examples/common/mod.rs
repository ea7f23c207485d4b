//! A server in a process of its own, so that its memory and CPU time can be read, and the report of measured times.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) type Fail = Box<dyn std::error::Error + Send + Sync>;

/// The example `serve` in the directory of this program.
pub(crate) struct Served(Child);

impl Served {
    pub(crate) fn start(state_dir: &Path, database: Option<&str>) -> Result<Self, Fail> {
        let program = std::env::current_exe()?.with_file_name("serve");
        let mut command = Command::new(program);
        command.arg(state_dir).arg("127.0.0.1:0").args(database).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let out = child.stdout.take().ok_or("no output")?;
        let served = Self(child);
        // It prints its address once it answers.
        if BufReader::new(out).read_line(&mut String::new())? == 0 {
            return Err("the server did not start".into());
        }
        Ok(served)
    }

    pub(crate) fn memory_kib(&self) -> Result<u64, Fail> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A part of these times in milliseconds: 99 is the 99th percentile.
pub(crate) fn percentile(times: &mut [Duration], part: usize) -> f64 {
    times.sort();
    let at = times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
    at.map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[expect(clippy::print_stdout, reason = "this program's answer")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// Whether a broken promise of SPECIFICATION.md fails the run.
pub(crate) fn is_judged() -> bool {
    std::env::var_os("CANTLE_BENCH_HOLD").is_some()
}
