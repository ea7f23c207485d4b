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
