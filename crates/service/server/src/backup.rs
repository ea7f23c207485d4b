//! `cantle backup` and `cantle restore`: all data of a server, in one file. The server may run while a backup is made.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cantle_store::backup as store;

use crate::files::{LOCATION, Location};
use crate::{ServerError, StateLock, create_private_dir, database_file};

/// Keys and addresses, which lie next to the database in the state directory.
const KEYS: [&str; 3] = ["credentials.json", "viewer.json", "token.key"];
const DATABASE: &str = "cantle.db";

/// The contents of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupContents {
    /// Tasks in it.
    pub tasks: i64,
    /// Artifacts, models, debug images and keys in it.
    pub files: i64,
    /// The bucket that has the files; the backup holds none of them then.
    pub bucket: Option<String>,
}

/// Writes a backup of the server with this state directory (and `--db`) to `file`, and checks it. Files that are in a bucket stay
/// there.
///
/// # Errors
/// If there is no server's state, the file exists, or something cannot be read or written.
pub async fn backup(state_dir: &Path, db: Option<&str>, file: &Path) -> Result<BackupContents, ServerError> {
    let dir = state_dir.join("server");
    let database = database_file(db, &dir)?;
    if !database.exists() {
        return Err(ServerError::NoState(state_dir.to_owned()));
    }
    if file.exists() {
        return Err(ServerError::Exists(file.to_owned()));
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let next = PathBuf::from(name);
    let _ = fs::remove_file(&next);
    let made = write(&dir, &database, &next).await;
    let fail = |source| ServerError::File { path: file.to_owned(), source };
    match made {
        Ok(contents) => {
            fs::rename(&next, file).map_err(fail)?;
            Ok(contents)
        }
        Err(error) => {
            let _ = fs::remove_file(&next);
            Err(error)
        }
    }
}

async fn write(dir: &Path, database: &Path, next: &Path) -> Result<BackupContents, ServerError> {
    let fail = |source| ServerError::File { path: next.to_owned(), source };
    // Keys are in it: nobody else may read it, from its first byte on.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(next).map_err(fail)?;
    store::copy_database(database, next).await?;
    // After the database: what it names was uploaded before.
    for key in KEYS {
        store::put_file(next, key, &dir.join(key)).await?;
    }
    let location = Location::recorded(dir)?;
    match &location {
        Location::Directory(files) => put_objects(next, files).await?,
        // A server that is made from this backup knows where they are.
        Location::Bucket(_) => store::put_file(next, LOCATION, &dir.join(LOCATION)).await?,
    }
    fs::set_permissions(next, fs::Permissions::from_mode(0o600)).map_err(fail)?;
    OpenOptions::new().write(true).open(next).and_then(|file| file.sync_all()).map_err(fail)?;
    let store::Contents { tasks, files } = store::check(next).await?;
    let bucket = matches!(location, Location::Bucket(_)).then(|| location.to_string());
    Ok(BackupContents { tasks, files, bucket })
}

async fn put_objects(next: &Path, files: &Path) -> Result<(), ServerError> {
    let mut objects = Vec::new();
    collect(files, &mut objects).map_err(|source| ServerError::File { path: files.to_owned(), source })?;
    for object in objects {
        let Ok(below) = object.strip_prefix(files) else { continue };
        // Wherever they were: restored, they are in the state directory.
        let path = Path::new("files").join(below);
        match store::put_file(next, &path.to_string_lossy(), &object).await {
            // It was deleted meanwhile.
            Err(_) if !object.exists() => {}
            done => done?,
        }
    }
    Ok(())
}

/// All whole objects below a directory; running uploads begin with a dot at its top.
fn collect(dir: &Path, objects: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), objects)?;
        } else if entry.file_name().as_encoded_bytes().first() != Some(&b'.') {
            objects.push(entry.path());
        }
    }
    Ok(())
}

/// Makes the state directory of a server from a backup. The directory must have no server's state yet.
///
/// # Errors
/// If the backup is damaged or the directory is in use.
pub async fn restore(state_dir: &Path, file: &Path) -> Result<BackupContents, ServerError> {
    let store::Contents { tasks, files } = store::check(file).await?;
    let dir = state_dir.join("server");
    let database = dir.join(DATABASE);
    let _lock = StateLock::hold(state_dir)?;
    if database.exists() {
        return Err(ServerError::Exists(database));
    }
    for path in store::files(file).await? {
        let target = dir.join(&path);
        let fail = |source| ServerError::File { path: target.clone(), source };
        if !crate::files::is_plain(Path::new(&path)) {
            return Err(fail(std::io::ErrorKind::InvalidFilename.into()));
        }
        create_private_dir(target.parent().unwrap_or(&dir))?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        store::take_file(file, &path, &mut options.open(&target).map_err(fail)?).await?;
    }
    // Last: a restore that was cut off is none.
    let next = dir.join("restored.new");
    let _ = fs::remove_file(&next);
    store::take_database(file, &next).await?;
    fs::rename(&next, &database).map_err(|source| ServerError::File { path: database, source })?;
    let bucket = match Location::recorded(&dir)? {
        Location::Bucket(url) => Some(url.to_string()),
        Location::Directory(_) => None,
    };
    Ok(BackupContents { tasks, files, bucket })
}
