//! Enters the mount namespace and, for ordinary users, the user namespace that allows it.

use std::fs;
use std::path::Path;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::mounts::mount;
use crate::{MachineError, Result, step};

/// Gives this process a mount namespace of its own. True if it has root's rights there.
pub(crate) fn enter() -> Result<bool> {
    let refused = |why: nix::Error| MachineError::NoNamespace(why.into());
    let (user, group) = (geteuid(), getegid());
    let is_root = user.is_root();
    if is_root {
        unshare(CloneFlags::CLONE_NEWNS).map_err(refused)?;
    } else {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(refused)?;
        step("keep the user in the user namespace", || {
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
        })?;
    }
    // Later mounts outside appear inside, but not the other way round.
    mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_SLAVE, None)?;
    Ok(is_root)
}

/// May root make device nodes? Not in a user namespace, as in a container without privileges on the host (LXC, a rootless engine).
pub(crate) fn makes_nodes() -> Result<bool> {
    let map = step("read the user namespace", || fs::read_to_string("/proc/self/uid_map"))?;
    Ok(is_initial(&map))
}

/// The first user namespace maps every user to itself.
fn is_initial(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// A user namespace gives its creator every capability. An ordinary user of a machine has none.
pub(crate) fn drop_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    step("drop the capabilities in the user namespace", || {
        Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_namespace_maps_all_users_to_themselves() {
        assert!(is_initial("         0          0 4294967295\n"));
        assert!(!is_initial("         0          0          1\n"), "unshare --map-root-user by root");
        assert!(!is_initial("         0     100000      65536\n"), "LXC");
    }
}
