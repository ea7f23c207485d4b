//! Removes the privileges by which a task that runs as root could undo the mounts that confine it, or reach what is not its
//! own.

use std::io;

pub use cantle_model::is_withheld;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};
use serde::{Deserialize, Serialize};

/// Extra privileges of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Privileges {
    /// A task of root has the capabilities that reach no further than its own processes and root's files. It does not see other
    /// processes.
    #[default]
    Own,
    /// The same, and no program can bring more with it: `sudo` and the like have no effect.
    NoNew,
    /// A task of root sees all processes and has all capabilities but those that undo its own limit. It was requested
    /// explicitly.
    Machine,
}

/// Those of [`cantle_model::WITHHELD_CAPABILITIES`].
const WITHHELD: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// The capabilities that container engines leave to root, without `MKNOD` (the devices of other GPUs, and disks). In
/// addition, locked memory and priorities, for programs that do their own input and output.
const OWN: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_NICE);

/// Takes the capabilities from everything that the calling thread executes from now on; setuid programs cannot bring
/// them back.
pub(crate) fn withhold(privileges: Privileges) -> io::Result<()> {
    let left = match privileges {
        Privileges::Own | Privileges::NoNew => OWN,
        Privileges::Machine => CapabilitySet::all().difference(WITHHELD),
    };
    for capability in CapabilitySet::all().difference(left).iter() {
        match remove_capability_from_bounding_set(capability) {
            // An old kernel that does not know this one cannot grant it either.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(why) => return Err(why.into()),
        }
    }
    // A program would bring these in spite of the bounding set.
    clear_ambient_capability_set()?;
    let now = capabilities(None)?;
    let inheritable = now.inheritable.intersection(left);
    Ok(set_capabilities(None, CapabilitySets { inheritable, ..now })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_is_what_is_refused_by_name() {
        let named = cantle_model::WITHHELD_CAPABILITIES.map(|name| CapabilitySet::from_name(name).unwrap());
        assert_eq!(named.into_iter().collect::<CapabilitySet>(), WITHHELD);
        assert!(OWN.intersection(WITHHELD).is_empty());
    }
}
