//! The Unix user that a task runs as, where that is not the user of this process.

use std::ffi::{CString, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

/// Programs in the place of a shell that let nobody log in. A task that starts `$SHELL` needs one that works.
const NO_SHELLS: [&str; 3] = ["nologin", "false", "true"];
const SHELL: &str = "/bin/sh";

/// Variables that lead to what belongs to another user: sockets, and directories for temporary files, settings and caches.
const OF_ANOTHER_USER: [&str; 12] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "MAIL",
    "OLDPWD",
    "PWD",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "XAUTHORITY",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
];

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskUser {
    name: String,
    uid: u32,
    gid: u32,
    /// All its groups.
    groups: Vec<u32>,
    home: PathBuf,
    shell: PathBuf,
}

impl TaskUser {
    /// The user of this name; `None` if there is none. The answer may come from a directory service.
    ///
    /// # Errors
    /// If the name service fails.
    pub fn named(name: &str) -> io::Result<Option<Self>> {
        let Some(User { name, uid, gid, dir, shell, .. }) = User::from_name(name)? else { return Ok(None) };
        let groups = getgrouplist(&CString::new(name.as_str())?, gid)?;
        let groups = groups.into_iter().map(Gid::as_raw).collect();
        let is_no_shell = shell.file_name().is_none_or(|program| NO_SHELLS.iter().any(|no| program == *no));
        let shell = if is_no_shell { SHELL.into() } else { shell };
        Ok(Some(Self { name, uid: uid.as_raw(), gid: gid.as_raw(), groups, home: dir, shell }))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// The number of its primary group.
    #[must_use]
    pub const fn gid(&self) -> u32 {
        self.gid
    }

    /// Its other groups, by number.
    pub fn other_groups(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().copied().filter(|group| *group != self.gid)
    }

    /// Its home directory, which may be missing.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Is it the user of this process?
    #[must_use]
    pub fn is_own(&self) -> bool {
        geteuid().as_raw() == self.uid
    }

    /// Calls `f` as this user, in a thread of its own: the other threads keep theirs. Processes that `f` starts belong
    /// to the user.
    ///
    /// # Errors
    /// If this process may not become the user.
    pub fn act<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let actor = thread::Builder::new().spawn_scoped(scope, || self.take_over().map(|()| f()))?;
            actor.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
        })
    }

    /// The calling thread becomes this user, and cannot go back.
    pub(crate) fn take_over(&self) -> io::Result<()> {
        let (uid, gid) = (rustix::thread::Uid::from_raw(self.uid), rustix::thread::Gid::from_raw(self.gid));
        let groups: Vec<_> = self.groups.iter().map(|group| rustix::thread::Gid::from_raw(*group)).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        if uid.is_root() {
            return Ok(());
        }
        // The kernel took the others with the number of root. Those that are inherited would come back by a program's own.
        let none = CapabilitySet::empty();
        Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
    }

    /// The variables that a login of this user sets.
    pub(crate) fn variables(&self) -> [(&'static str, OsString); 4] {
        let name = OsString::from(&self.name);
        [
            ("HOME", self.home.clone().into()),
            ("USER", name.clone()),
            ("LOGNAME", name),
            ("SHELL", self.shell.clone().into()),
        ]
    }

    /// The variables of this process that are not for it.
    pub(crate) const fn not_for_it() -> &'static [&'static str] {
        &OF_ANOTHER_USER
    }

    /// The owner of files that are made for it.
    pub(crate) fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }
}

/// The name of this process's user, or its number if it has no name.
#[must_use]
pub fn own_user() -> String {
    let uid = geteuid();
    User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_user_is_found_by_its_name_with_all_it_has() {
        let root = TaskUser::named("root").unwrap().unwrap();
        assert_eq!((root.name(), root.uid(), root.gid()), ("root", 0, 0));
        assert!(root.home().is_absolute() && root.other_groups().all(|group| group != 0));
        assert_eq!(TaskUser::named("no-such-user").unwrap(), None);
        // A number is no name.
        assert_eq!(TaskUser::named("0").unwrap(), None);
        let nobody = TaskUser::named("nobody").unwrap().unwrap();
        assert_eq!(nobody.shell, Path::new(SHELL), "nologin is no shell to work in");
    }

    #[test]
    fn only_the_thread_that_acts_becomes_the_user() {
        let nobody = TaskUser::named("nobody").unwrap().unwrap();
        if !geteuid().is_root() {
            assert!(nobody.act(|| ()).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let read = || std::fs::read(&secret).is_ok();
        assert!(!nobody.act(read).unwrap(), "the file is root's");
        assert!(read());
        let program =
            || std::process::Command::new("sh").args(["-c", "id -u; id -g; id -G"]).output().unwrap();
        let printed = String::from_utf8(nobody.act(program).unwrap().stdout).unwrap();
        assert_eq!(printed, format!("{0}\n{1}\n{1}\n", nobody.uid, nobody.gid));
    }
}
