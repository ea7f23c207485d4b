//! Where a server's files are: the value of `--files`, and the record of it in the state directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::bucket::BucketUrl;
use crate::ServerError;

/// In the state directory, only where the files are elsewhere.
pub(crate) const LOCATION: &str = "files.location";

/// The location of a server's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Directory(PathBuf),
    Bucket(BucketUrl),
}

impl Location {
    /// Parses `--files`; without it, the files are in the state directory.
    ///
    /// # Errors
    /// [`ServerError::Files`].
    pub(crate) fn parse(files: Option<&str>, dir: &Path) -> Result<Self, ServerError> {
        let Some(files) = files else { return Ok(Self::Directory(dir.join("files"))) };
        if let Some(url) = BucketUrl::parse(files) {
            return Ok(Self::Bucket(url));
        }
        if files.is_empty() || files.contains("://") {
            return Err(ServerError::Files(files.to_owned()));
        }
        let absolute = std::path::absolute(files);
        absolute.map(Self::Directory).map_err(|source| ServerError::File { path: files.into(), source })
    }

    /// Their location when the server last ran.
    pub(crate) fn recorded(dir: &Path) -> Result<Self, ServerError> {
        let path = dir.join(LOCATION);
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(Some(text.trim_end()), dir),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::parse(None, dir),
            Err(source) => Err(ServerError::File { path, source }),
        }
    }

    /// Remembers it for backups, and warns if it is another one than before.
    pub(crate) fn record(&self, dir: &Path) -> Result<(), ServerError> {
        let before = Self::recorded(dir)?;
        let moved = before != *self && !before.is_empty();
        if moved {
            tracing::warn!("the files were in {before} until now; copy them to {self}, or nobody finds them");
        }
        let (path, next) = (dir.join(LOCATION), dir.join("files.location.new"));
        let written = if *self == Self::Directory(dir.join("files")) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        } else {
            fs::write(&next, format!("{self}\n")).and_then(|()| fs::rename(&next, &path))
        };
        written.map_err(|source| ServerError::File { path, source })
    }

    /// There is no object, as far as this machine can tell.
    fn is_empty(&self) -> bool {
        matches!(self, Self::Directory(dir) if fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none()))
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(dir) => dir.display().fmt(f),
            Self::Bucket(url) => url.fmt(f),
        }
    }
}
