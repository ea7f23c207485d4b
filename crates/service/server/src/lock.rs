//! Ensures one server per state directory, and per database. It is a kernel lock, so it ends with the process in any case.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use cantle_store::Database;

use crate::{ServerError, create_private_dir};

/// Held as long as it lives.
#[derive(Debug)]
pub struct StateLock {
    _files: Vec<File>,
}

impl StateLock {
    /// Takes the state directory for this process.
    ///
    /// # Errors
    /// [`ServerError::Taken`] if a server runs on it; [`ServerError::File`].
    pub fn hold(state_dir: &Path) -> Result<Self, ServerError> {
        let dir = state_dir.join("server");
        create_private_dir(&dir)?;
        Ok(Self { _files: vec![take(state_dir, &dir.join("lock"))?] })
    }

    /// Takes the database, too: a server with another state directory may have been given the same file, by any of its names.
    pub(crate) fn and_database(mut self, database: &Database) -> Result<Self, ServerError> {
        // Any number of servers may use a PostgreSQL.
        let Database::Sqlite(database) = database else { return Ok(self) };
        // A database that does not exist yet has no links.
        let mut name = database.canonicalize().unwrap_or_else(|_| database.clone()).into_os_string();
        name.push(".lock");
        self._files.push(take(database, &PathBuf::from(name))?);
        Ok(self)
    }
}

fn take(what: &Path, path: &Path) -> Result<File, ServerError> {
    let fail = |source| ServerError::File { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let mut file = options.open(path).map_err(fail)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(ServerError::Taken { what: what.to_owned(), holder: holder.trim().to_owned() });
        }
        Err(TryLockError::Error(source)) => return Err(fail(source)),
    }
    // The holder's name is only for people: on a full disk the lock holds without it.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateLock::hold(dir.path()).unwrap();
        let second = StateLock::hold(dir.path()).unwrap_err();
        assert!(second.to_string().contains(&format!("process {}", std::process::id())), "{second}");
        drop(first);
        StateLock::hold(dir.path()).unwrap();
    }
}
