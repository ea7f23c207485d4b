//! The capabilities that a task running as root must not have, because it could undo the mounts that confine it.

/// Undo mounts or enter other namespaces; read and write the memory of processes outside (and through `/proc/<pid>/root`
/// their files); load code into the kernel; reach files by handle, past the mounts.
pub const WITHHELD_CAPABILITIES: [&str; 6] =
    ["SYS_ADMIN", "SYS_PTRACE", "SYS_MODULE", "SYS_RAWIO", "BPF", "DAC_READ_SEARCH"];

/// Would this capability, as container engines write it (with `CAP_` or without, in any case, or `ALL`), give a task back what is
/// withheld?
#[must_use]
pub fn is_withheld(capability: &str) -> bool {
    let name = capability.to_ascii_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    name == "ALL" || WITHHELD_CAPABILITIES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::is_withheld;

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
