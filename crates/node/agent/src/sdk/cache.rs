//! The cache of environments that ClearML's agents share (`agent.venvs_cache`). Entries get their name when they are complete, and
//! are copied and removed under a lock.
//!
//! Three things can go wrong there, and are looked for before each start:
//!
//! * a kill in the middle of a removal leaves an entry with its name and a part of its files;
//! * of two tasks that add the same entry at once, the second moves its copy *into* the entry of the first;
//! * a kill in the middle of a copy leaves a directory without a name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cantle_node::clock::now_ms;

/// The beginning of the name of a copy that is not complete, as ClearML's agent writes it.
pub(super) const UNNAMED: &str = "_temp.";
/// ClearML's own lock of the cache.
const LOCK: &str = ".clearml.lock";
/// No copy takes longer. A younger copy may still be in progress.
const COPY_TAKES_AT_MOST: Duration = Duration::from_secs(6 * 3600);
/// How long a start waits for those who copy entries; after that it goes without the check.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(250);

/// Removes from the cache what is no use. It is a cache: what cannot be checked or removed costs time, and no task.
pub(super) fn tend_now(cache: &Path) {
    if let Err(error) = tend(cache, now()) {
        tracing::warn!(cache = %cache.display(), "the cache of environments was not checked: {error}");
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now_ms()).unwrap_or(0))
}

fn tend(cache: &Path, now: SystemTime) -> io::Result<()> {
    if useless(cache, now)?.is_empty() {
        return Ok(());
    }
    // A process that copies an entry holds this lock.
    let lock = OpenOptions::new().append(true).create(true).open(cache.join(LOCK))?;
    if !lock_soon(&lock)? {
        return Err(io::Error::new(io::ErrorKind::WouldBlock, "it is in use"));
    }
    // Another process may have removed or replaced the entries that were found without the lock.
    for path in useless(cache, now)? {
        tracing::warn!(path = %path.display(), "an environment in the cache is not complete; removing it");
        throw_away(&path)?;
    }
    Ok(())
}

fn useless(cache: &Path, now: SystemTime) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(cache) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    Ok(directories(entries).into_iter().flat_map(|entry| useless_in(entry, now)).collect())
}

/// Removes a directory so that a kill in the middle leaves nothing that looks like an entry.
fn throw_away(path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let nameless = if name.starts_with(UNNAMED) {
        path.to_owned()
    } else {
        let nameless = path.with_file_name(format!("{UNNAMED}broken.{}", std::process::id()));
        fs::rename(path, &nameless)?;
        nameless
    };
    fs::remove_dir_all(nameless)
}

pub(super) fn directories(entries: fs::ReadDir) -> Vec<PathBuf> {
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.filter_map(Result::ok).filter(is_dir).map(|entry| entry.path()).collect()
}

/// The entry itself, or what others have moved into it.
fn useless_in(entry: PathBuf, now: SystemTime) -> Vec<PathBuf> {
    let is_unnamed = |path: &Path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(UNNAMED.as_bytes()))
    };
    if is_unnamed(&entry) {
        let changed = fs::metadata(&entry).and_then(|about| about.modified());
        let age = changed.map(|changed| now.duration_since(changed).unwrap_or_default());
        return if age.is_ok_and(|age| age > COPY_TAKES_AT_MOST) { vec![entry] } else { Vec::new() };
    }
    if !is_complete(&entry) {
        return vec![entry];
    }
    fs::read_dir(&entry)
        .map(directories)
        .unwrap_or_default()
        .into_iter()
        .filter(|path| is_unnamed(path))
        .collect()
}

/// Does an environment have every file that its installer wrote down, and an interpreter? One of another kind than pip's
/// has no such records, and is taken as it is.
fn is_complete(entry: &Path) -> bool {
    let libraries = fs::read_dir(entry.join("lib")).map(directories).unwrap_or_default();
    let sites: Vec<PathBuf> =
        libraries.into_iter().map(|lib| lib.join("site-packages")).filter(|site| site.is_dir()).collect();
    if sites.is_empty() {
        // pip's environments have both or neither.
        return !entry.join("pyvenv.cfg").exists();
    }
    let has_python = fs::symlink_metadata(entry.join("bin/python")).is_ok();
    has_python && entry.join("pyvenv.cfg").exists() && sites.iter().all(|site| has_all_files(site))
}

fn has_all_files(site: &Path) -> bool {
    let packages = fs::read_dir(site).map(directories).unwrap_or_default();
    let mut records = packages
        .into_iter()
        .filter(|package| package.extension().is_some_and(|kind| kind == "dist-info"))
        .map(|package| package.join("RECORD"));
    records.all(|record| match fs::read_to_string(&record) {
        Ok(text) => {
            text.lines().filter_map(recorded).all(|file| fs::symlink_metadata(site.join(file)).is_ok())
        }
        Err(_) => false,
    })
}

/// The path in a line of a `RECORD`, if it is a file of the package. A file without a hash may come and go: compiled
/// files, and the directories that `setuptools` names although they are not there. Scripts have their own fate.
fn recorded(line: &str) -> Option<&str> {
    let (path, about) = match line.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"')?,
        None => line.split_once(',')?,
    };
    (!path.is_empty() && !path.starts_with("..") && about.contains('=')).then_some(path)
}

fn lock_soon(lock: &File) -> io::Result<bool> {
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment with one package, as pip leaves it in the cache.
    fn entry(cache: &Path, name: &str) -> PathBuf {
        let entry = cache.join(name);
        let site = entry.join("lib/python3.11/site-packages");
        fs::create_dir_all(site.join("six-1.dist-info")).unwrap();
        fs::create_dir_all(entry.join("bin")).unwrap();
        fs::write(entry.join("pyvenv.cfg"), "home = /usr/bin\n").unwrap();
        std::os::unix::fs::symlink("/usr/bin/python3", entry.join("bin/python")).unwrap();
        fs::write(site.join("six.py"), "").unwrap();
        let record = "six.py,sha256=x,3\n__pycache__/six.pyc,,\nsix/__pycache__,,\n../../../bin/six,sha256=x,9\n\
                      \"six-1.dist-info/RECORD\",,\n";
        fs::write(site.join("six-1.dist-info/RECORD"), record).unwrap();
        entry
    }

    #[test]
    fn a_complete_environment_stays_and_a_broken_one_goes() {
        let cache = tempfile::tempdir().unwrap();
        let now = now();
        tend(&cache.path().join("none"), now).unwrap();
        let good = entry(cache.path(), "a.b");
        let other = cache.path().join("conda");
        fs::create_dir_all(other.join("conda-meta")).unwrap();
        for lost in ["lib/python3.11/site-packages/six.py", "bin/python", "pyvenv.cfg", "lib"] {
            let broken = entry(cache.path(), "c");
            let path = broken.join(lost);
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
            tend(cache.path(), now).unwrap();
            assert!(!broken.exists(), "{lost}");
        }
        assert!(good.join("pyvenv.cfg").exists() && other.exists());
    }

    #[test]
    fn what_is_being_copied_is_left_alone() {
        let cache = tempfile::tempdir().unwrap();
        let now = now();
        let good = entry(cache.path(), "a");
        let (copied, nested) = (cache.path().join("_temp.1.2"), good.join("_temp.3.4"));
        fs::create_dir(&copied).unwrap();
        fs::create_dir(&nested).unwrap();
        tend(cache.path(), now).unwrap();
        assert!(copied.exists() && !nested.exists() && good.exists());
        tend(cache.path(), now + COPY_TAKES_AT_MOST + Duration::from_secs(60)).unwrap();
        assert!(!copied.exists());
    }

    #[test]
    fn nothing_goes_while_somebody_copies() {
        let cache = tempfile::tempdir().unwrap();
        let broken = entry(cache.path(), "a");
        fs::remove_file(broken.join("pyvenv.cfg")).unwrap();
        let reader = File::create(cache.path().join(LOCK)).unwrap();
        reader.lock_shared().unwrap();
        assert_eq!(tend(cache.path(), now()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(broken.exists());
        reader.unlock().unwrap();
        tend(cache.path(), now()).unwrap();
        assert!(!broken.exists());
    }
}
