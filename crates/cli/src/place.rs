//! Where things are: state, libraries, machines with simulated GPUs.

use std::path::{Path, PathBuf};

use crate::args::Global;
use crate::error::{CliError, Kind, as_kind};

/// The directories that this invocation uses.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    /// State directory.
    pub(crate) state: PathBuf,
    /// cantle's own libraries (`…/lib/cantle`).
    pub(crate) lib: PathBuf,
    /// Where the parts of the machine with simulated GPUs are.
    pub(crate) sim: PathBuf,
}

impl Places {
    /// From flags and environment.
    pub(crate) fn new(global: &Global) -> Result<Self, CliError> {
        let state = match &global.state {
            Some(dir) => absolute(dir)?,
            None => default_state()?,
        };
        let sim = match &global.sim_dir {
            Some(dir) => absolute(dir)?,
            None => state.join("sim"),
        };
        let lib = match &global.lib_dir {
            Some(dir) => absolute(dir)?,
            None => beside_the_program()?,
        };
        Ok(Self { state, lib, sim })
    }
}

fn absolute(dir: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(dir).map_err(|e| CliError::new(Kind::Usage, format!("{}: {e}", dir.display())))
}

fn beside_the_program() -> Result<PathBuf, CliError> {
    let program = std::env::current_exe().map_err(as_kind(Kind::Failed))?;
    let bin = program.parent().unwrap_or_else(|| Path::new("/"));
    Ok(bin.parent().unwrap_or(bin).join("lib/cantle"))
}

#[expect(clippy::disallowed_methods, reason = "the usual places of the user's state")]
fn default_state() -> Result<PathBuf, CliError> {
    if is_root() {
        return Ok(PathBuf::from("/var/lib/cantle"));
    }
    let from_env = |name: &str| std::env::var(name).ok().filter(|v| v.starts_with('/')).map(PathBuf::from);
    from_env("XDG_STATE_HOME")
        .or_else(|| from_env("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("cantle"))
        .ok_or_else(|| CliError::new(Kind::Usage, "no place for state: HOME is not set; give --state DIR"))
}

/// Whose process this is, as the kernel says.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|of| of.uid() == 0)
}
