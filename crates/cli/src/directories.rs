//! Where state, libraries and machines with simulated GPUs are kept.

use std::path::{Path, PathBuf};

use crate::error::{CliError, ErrorKind, as_kind};
use crate::host::is_root;

/// The directories that this invocation uses.
#[derive(Debug, Clone)]
pub(crate) struct Directories {
    pub(crate) state: PathBuf,
    /// cantle's own libraries (`…/lib/cantle`).
    pub(crate) lib: PathBuf,
    /// The machine with simulated GPUs.
    pub(crate) sim: PathBuf,
}

impl Directories {
    /// Those that are given, and the usual ones otherwise.
    pub(crate) fn new(
        state: Option<&Path>,
        sim: Option<&Path>,
        lib: Option<&Path>,
    ) -> Result<Self, CliError> {
        let state = state.map_or_else(default_state, absolute)?;
        let sim = sim.map_or_else(|| Ok(state.join("sim")), absolute)?;
        let lib = lib.map_or_else(next_to_the_program, absolute)?;
        Ok(Self { state, lib, sim })
    }
}

fn absolute(dir: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(dir).map_err(|e| CliError::wrap(ErrorKind::Usage, dir.display(), e))
}

fn next_to_the_program() -> Result<PathBuf, CliError> {
    let program = std::env::current_exe().map_err(as_kind(ErrorKind::Failed))?;
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
        .ok_or_else(|| {
            CliError::new(ErrorKind::Usage, "no state directory: HOME is not set")
                .with_hint("give --state DIR")
        })
}
