//! The names of the files in a slice's directory. Host and tenant have them from here, so that they cannot differ.

use core::ffi::CStr;

/// The limits of the slice; the agent writes the file, and tasks map it read-only.
pub const LIMITS_FILE: &str = text(LIMITS);
/// The use of each process of the slice; all of them write it.
pub const USAGE_FILE: &str = text(USAGE);
/// The compute time that the arbiter grants the slice; tasks map it read-only.
pub const GRANT_FILE: &str = text(GRANT);
/// The reports of the slice's processes to the arbiter.
pub const LAUNCHES_FILE: &str = text(LAUNCHES);

/// The sizes of a slice that may have more memory than its request, as JSON: the agent writes the file, programs in the slice read it.
pub const MEMORY_FILE: &str = "memory.json";

pub(crate) const LIMITS: &CStr = c"limits";
pub(crate) const USAGE: &CStr = c"usage";
pub(crate) const GRANT: &CStr = c"grant";
pub(crate) const LAUNCHES: &CStr = c"launches";

const fn text(name: &'static CStr) -> &'static str {
    match name.to_str() {
        Ok(name) => name,
        Err(_) => panic!("a file name that is not UTF-8"),
    }
}
