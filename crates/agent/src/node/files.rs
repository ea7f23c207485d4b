//! Small files that must be whole or absent, whatever kills us: written beside their place, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::AgentError;

/// What a file must outlive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Any process, ours included; not a restart of the machine, which ends every process it could speak of.
    UntilBoot,
    /// Power loss too.
    Always,
}

/// Writes `value` as JSON to `path` in one step. Only the owner may read it: it can hold an environment.
///
/// # Errors
/// Names the file that could not be written.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T, keep: Keep) -> Result<(), AgentError> {
    write_with_mode(path, value, keep, 0o600)
}

/// As [`write_json`], for everybody to read.
///
/// # Errors
/// Names the file that could not be written.
pub(crate) fn write_open_json<T: Serialize>(path: &Path, value: &T, keep: Keep) -> Result<(), AgentError> {
    write_with_mode(path, value, keep, 0o644)
}

fn write_with_mode<T: Serialize>(path: &Path, value: &T, keep: Keep, mode: u32) -> Result<(), AgentError> {
    let text = serde_json::to_vec(value).map_err(|e| AgentError::file(path, &io::Error::other(e)))?;
    write_whole(path, &text, keep, mode).map_err(|e| AgentError::file(path, &e))
}

fn write_whole(path: &Path, bytes: &[u8], keep: Keep, mode: u32) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&beside)?;
    // The mode was cut by our umask.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    if keep == Keep::Always {
        file.sync_all()?;
    }
    fs::rename(&beside, path)?;
    match path.parent() {
        // A rename lasts only once its directory is synced.
        Some(parent) if keep == Keep::Always => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// Reads what [`write_json`] wrote; `None` if there is no such file.
///
/// # Errors
/// Names the file that can't be read or is not what it should be: never taken for "nothing there".
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, AgentError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(AgentError::file(path, &e)),
    };
    let value = serde_json::from_slice(&text).map_err(|e| AgentError::file(path, &io::Error::other(e)))?;
    Ok(Some(value))
}

/// Each `<dir>/*.json`, in order of name.
///
/// # Errors
/// As [`read_json`].
pub(crate) fn read_all<T: DeserializeOwned>(dir: &Path) -> Result<Vec<T>, AgentError> {
    let entries = fs::read_dir(dir).map_err(|e| AgentError::file(dir, &e))?;
    let mut paths: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| read_json(path).transpose()).collect()
}

/// Removes a file or a directory tree; nothing there is fine.
///
/// # Errors
/// Names what could not be removed.
pub(crate) fn remove(path: &Path) -> Result<(), AgentError> {
    let gone = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match gone {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(AgentError::file(path, &e)),
        _ => Ok(()),
    }
}
