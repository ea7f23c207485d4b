//! What a task that runs as root must not be able to do: it could undo the mounts that confine it.

use std::io;

pub use cantle_model::is_withheld;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

/// Those of [`cantle_model::WITHHELD_CAPABILITIES`].
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_is_what_is_refused_by_name() {
        let named = cantle_model::WITHHELD_CAPABILITIES.map(|name| CapabilitySet::from_name(name).unwrap());
        assert_eq!(named, WITHHELD);
    }
}
