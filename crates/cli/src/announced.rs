//! How the users of a machine find the server on it: a file that root's server writes, and removes when it ends.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::context::Context;
use crate::host::is_root;

/// Everybody may read it, and only root may write it.
const FILE: &str = "/run/cantle/server";
/// The state directory of the server that a machine has for all of its users.
const STATE: &str = "/var/lib/cantle";
/// Longer is no address.
const MOST_BYTES: u64 = 2048;

/// The file is there until this is dropped.
pub(crate) struct Announced(Option<&'static Path>);

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            // The next server of root replaces it.
            let _ = fs::remove_file(file);
        }
    }
}

/// Writes the address of this server down, if it is the machine's own.
pub(crate) fn announce(context: &Context, url: &str) -> Announced {
    let file = Path::new(FILE);
    if !is_root() || context.dirs.state != Path::new(STATE) {
        return Announced(None);
    }
    let written = fs::create_dir_all(file.parent().unwrap_or(file)).and_then(|()| fs::write(file, url));
    if let Err(error) = written {
        tracing::warn!(target: "cantle", "other users of this machine must name the server: {FILE}: {error}");
        return Announced(None);
    }
    Announced(Some(file))
}

/// The address of the machine's own server, for a user who named no state directory.
pub(crate) fn found(context: &Context) -> Option<String> {
    if context.global.state.is_some() { None } else { read(Path::new(FILE), 0) }
}

/// The address in the file, if this user owns the file and no other user can write to it.
fn read(file: &Path, owner: u32) -> Option<String> {
    let of = fs::symlink_metadata(file).ok()?;
    if !of.is_file() || of.uid() != owner || of.mode() & 0o022 != 0 || of.len() > MOST_BYTES {
        return None;
    }
    let url = fs::read_to_string(file).ok()?;
    let url = url.trim();
    (url.starts_with("http://") || url.starts_with("https://")).then(|| url.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_file_that_nobody_else_can_write_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("server");
        let own = fs::metadata(dir.path()).unwrap().uid();
        assert_eq!(read(&file, own), None);
        fs::write(&file, "http://127.0.0.1:8008\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&file, own).as_deref(), Some("http://127.0.0.1:8008"));
        assert_eq!(read(&file, own + 1), None, "another user's");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read(&file, own), None, "everybody can write it");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, "file:///etc/shadow").unwrap();
        assert_eq!(read(&file, own), None);
    }
}
