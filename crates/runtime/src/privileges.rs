//! What a task that runs as root must not be able to do, or the mounts in its way would be its own to undo.

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

/// Undo mounts or enter other namespaces; read and write the memory of processes outside (and through `/proc/<pid>/root`
/// their files); load code into the kernel; reach files by handle, past the mounts.
const WITHHELD: [CapabilitySet; 6] = [
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::SYS_PTRACE,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::BPF,
    CapabilitySet::DAC_READ_SEARCH,
];

/// Would this capability, as container engines write it (with `CAP_` or without, in any case, or `ALL`), give a task back what is
/// withheld?
#[must_use]
pub fn is_withheld(capability: &str) -> bool {
    let name = capability.to_ascii_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    name == "ALL" || CapabilitySet::from_name(name).is_some_and(|capability| WITHHELD.contains(&capability))
}

/// Takes the capabilities from everything that the calling thread executes from now on; setuid programs can't bring
/// them back. Children keep all others.
pub(crate) fn withhold() -> io::Result<()> {
    for capability in WITHHELD {
        match remove_capability_from_bounding_set(capability) {
            // An old kernel that does not know this one can't grant it either.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_known_by_the_names_that_engines_take() {
        for name in [
            "ALL",
            "all",
            "SYS_ADMIN",
            "CAP_SYS_PTRACE",
            "cap_sys_module",
            "SYS_RAWIO",
            "BPF",
            "DAC_READ_SEARCH",
        ] {
            assert!(is_withheld(name), "{name}");
        }
        for name in ["", "CAP_", "NET_ADMIN", "CAP_SYS_NICE", "SYS_ADMIN,BPF", "IPC_LOCK"] {
            assert!(!is_withheld(name), "{name}");
        }
    }
}
