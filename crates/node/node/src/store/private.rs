//! The directories and files of this machine that no task may see, wherever they are: the state of each server and agent, and their
//! keys. A program that has some notes them next to its user's store, and every task that is started from then on finds
//! them empty (`cantle_runtime`'s sandbox). A note stays when its server stops: the keys stay, too.
//!
//! A note is a symbolic link. A user can note its own files only, so that no user hides other people's files from their tasks.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use super::neighbors::{own_store, stores};
use super::{CLOSED, OPEN, is_ours, make_dir, own_uid};
use crate::NodeError;

const PRIVATE: &str = "private";
/// The default directory of root's state.
const OF_ROOT: [&str; 2] = ["/var/lib/cantle/server", "/var/lib/cantle/agent"];
/// More than a machine has servers and agents: no user may delay the tasks of others.
const MAX: usize = 256;

/// Notes that no task may see these, of those that exist.
///
/// # Errors
/// Names the file that cannot be found or written.
pub fn hide_from_tasks(paths: &[PathBuf]) -> Result<(), NodeError> {
    let dir = own_store().with_file_name(PRIVATE);
    if let Some(parent) = dir.parent() {
        make_dir(parent, OPEN)?;
        is_ours(parent)?;
    }
    let made = DirBuilder::new().recursive(true).mode(CLOSED).create(&dir);
    made.map_err(|why| NodeError::file(&dir, why))?;
    is_ours(&dir)?;
    // A file that has been deleted since needs no note.
    for (note, target) in notes(&dir) {
        // A file server that does not answer now has deleted nothing.
        if matches!(target.try_exists(), Ok(false)) {
            // A note that stays names nothing.
            let _ = fs::remove_file(note);
        }
    }
    for path in paths {
        let path = match path.canonicalize() {
            Ok(path) => path,
            Err(why) if why.kind() == io::ErrorKind::NotFound => continue,
            Err(why) => return Err(NodeError::file(path, why)),
        };
        let mut name = DefaultHasher::new();
        path.hash(&mut name);
        let note = dir.join(format!("{:016x}", name.finish()));
        match symlink(&path, &note) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                return Err(NodeError::file(&note, why));
            }
            _ => {}
        }
    }
    Ok(())
}

/// All that has been noted. Only tasks of root need it: other users' tasks see what their users see.
pub(super) fn hidden_from_tasks() -> Vec<PathBuf> {
    if own_uid() != 0 {
        return Vec::new();
    }
    let noted = stores().into_iter().flat_map(|(uid, store)| of_user(uid, &store.with_file_name(PRIVATE)));
    OF_ROOT.into_iter().map(PathBuf::from).chain(noted).collect()
}

fn of_user(uid: u32, dir: &Path) -> Vec<PathBuf> {
    let owns = |path: &Path| fs::metadata(path).is_ok_and(|found| found.uid() == uid);
    if !owns(dir) {
        return Vec::new();
    }
    notes(dir).into_iter().map(|(_, target)| target).filter(|target| uid == 0 || owns(target)).collect()
}

fn notes(dir: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).take(MAX);
    let notes = entries.map(|entry| entry.path());
    notes.filter_map(|note| Some((note.clone(), fs::read_link(&note).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_of_a_file_can_hide_it() {
        let root = tempfile::tempdir().unwrap();
        let (private, state) = (root.path().join(PRIVATE), root.path().join("state"));
        fs::create_dir(&private).unwrap();
        fs::create_dir(&state).unwrap();
        for (name, target) in [("a", state.as_path()), ("b", Path::new("/usr")), ("c", Path::new("/no/such"))]
        {
            symlink(target, private.join(name)).unwrap();
        }
        let uid = own_uid();
        let hidden = of_user(uid, &private);
        assert!(hidden.contains(&state));
        assert_eq!(hidden.contains(&PathBuf::from("/usr")), uid == 0, "{hidden:?}");
        assert_eq!(of_user(uid + 1, &private), Vec::<PathBuf>::new(), "another user's directory");
    }
}
