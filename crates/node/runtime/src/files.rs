//! Writes small files atomically: each is written under another name and then renamed, so that a killed writer leaves
//! the whole file or none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Why as _;

/// A file may hold a task's variables, and keys among them.
const OWNER_ONLY: u32 = 0o600;
const EVERYBODY_READS: u32 = 0o644;

/// Ending of a file that has not got its name yet.
const UNFINISHED: &str = "new";

/// The events that a file survives once the call that wrote it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The death of any process, ours included. A loss of power may take the file, or leave it empty. For what describes
    /// processes: they end with the machine.
    Crash,
    /// A loss of power too: the call waits for the disk.
    PowerLoss,
}

/// A file or directory that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    /// Its path.
    pub path: PathBuf,
    /// The error of the system.
    pub source: io::Error,
}

impl FileError {
    /// `source` happened at `path`.
    #[must_use]
    pub fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }

    /// Is it the machine that has no room: a full disk, or too many open files?
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        self.source.is_out_of_room()
    }
}

/// Is it the machine that has no room: too many processes or open files, a full disk or memory?
#[must_use]
pub fn is_no_room(why: &io::Error) -> bool {
    why.is_out_of_room()
}

/// The system calls that decide what is on disk. A test replaces them by a disk that loses its power.
pub(crate) trait FileSystem {
    /// An open file or directory.
    type File;

    /// An empty file with this mode, independent of the umask.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Self::File>;
    /// A file or directory that exists.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;
    /// Waits for the disk: for the bytes of a file, for the names in a directory.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file that has not got its name.
    fn discard(&self, path: &Path);
}

/// The file system of this machine.
pub(crate) struct Kernel;

impl FileSystem for Kernel {
    type File = File;

    fn create(&self, path: &Path, mode: u32) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
        // The umask has cut the mode, and a file that a killed process left behind keeps its own.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn discard(&self, path: &Path) {
        // `remove_unfinished` removes leftovers.
        let _ = fs::remove_file(path);
    }
}

/// Writes `value` as JSON to `path` in one step, readable by the owner only.
///
/// # Errors
/// Names the file that could not be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T, durability: Durability) -> Result<(), FileError> {
    save_json(&Kernel, path, value, durability, OWNER_ONLY).map_err(|why| FileError::new(path, why))
}

/// As [`write_json`], for everybody to read.
///
/// # Errors
/// Names the file that could not be written.
pub fn write_public_json<T: Serialize>(
    path: &Path,
    value: &T,
    durability: Durability,
) -> Result<(), FileError> {
    save_json(&Kernel, path, value, durability, EVERYBODY_READS).map_err(|why| FileError::new(path, why))
}

/// [`write_json`] on a file system of the caller's.
pub(crate) fn write_json_to<T: Serialize>(
    files: &impl FileSystem,
    path: &Path,
    value: &T,
    durability: Durability,
) -> io::Result<()> {
    save_json(files, path, value, durability, OWNER_ONLY)
}

fn save_json<T: Serialize>(
    files: &impl FileSystem,
    path: &Path,
    value: &T,
    durability: Durability,
    mode: u32,
) -> io::Result<()> {
    let fresh = path.with_extension(UNFINISHED);
    let written = (|| {
        let mut file = files.create(&fresh, mode)?;
        files.write(&mut file, &serde_json::to_vec(value)?)?;
        if durability == Durability::PowerLoss {
            files.sync(&file)?;
        }
        files.rename(&fresh, path)
    })();
    // On a full disk it would take space for good.
    written.inspect_err(|_| files.discard(&fresh))?;
    match path.parent() {
        // A name lasts only once its directory is synced.
        Some(directory) if durability == Durability::PowerLoss => sync(files, directory),
        _ => Ok(()),
    }
}

/// Waits until what is at `path` is on disk.
pub(crate) fn sync(files: &impl FileSystem, path: &Path) -> io::Result<()> {
    files.sync(&files.open(path)?)
}

/// Waits until the names in `directory` are on disk. A new directory survives a loss of power only if its parent was synced.
///
/// # Errors
/// Names the directory.
pub fn sync_directory(directory: &Path) -> Result<(), FileError> {
    sync(&Kernel, directory).map_err(|why| FileError::new(directory, why))
}

/// Reads what [`write_json`] wrote; `None` if there is no such file.
///
/// # Errors
/// Names the file that cannot be read or does not hold a `T`: it is never taken for one that is not there.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let read = match fs::read(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read,
    };
    let value = read.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other));
    value.map(Some).map_err(|why| FileError::new(path, why))
}

/// Each `*.json` of a directory, in order of name.
///
/// # Errors
/// As [`read_json`].
pub fn read_all<T: DeserializeOwned>(directory: &Path) -> Result<Vec<T>, FileError> {
    json_files(directory)?.iter().filter_map(|path| read_json(path).transpose()).collect()
}

/// The paths of a directory's `*.json`, in order.
///
/// # Errors
/// If the directory cannot be read.
pub fn json_files(directory: &Path) -> Result<Vec<PathBuf>, FileError> {
    let fail = |why| FileError::new(directory, why);
    let entries = fs::read_dir(directory).map_err(fail)?;
    // An entry that cannot be read is not left out: a lease that is missing here counts as free.
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>();
    let mut paths = paths.map_err(fail)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    Ok(paths)
}

/// Removes what writers that were killed have left unfinished in a directory. No other process may write there.
///
/// # Errors
/// If the directory cannot be read, or names the file that cannot be removed.
pub fn remove_unfinished(directory: &Path) -> Result<(), FileError> {
    let entries = fs::read_dir(directory).map_err(|why| FileError::new(directory, why))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    paths
        .filter(|path| path.extension().is_some_and(|ending| ending == UNFINISHED))
        .try_for_each(|path| remove(&path))
}

/// Removes a file or a directory tree; it is no error if nothing is there.
///
/// # Errors
/// Names what could not be removed.
pub fn remove(path: &Path) -> Result<(), FileError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(FileError::new(path, why)),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod disk;
#[cfg(test)]
mod tests;
