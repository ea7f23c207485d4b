//! The installed filter libraries.

use std::path::{Path, PathBuf};

use cantle_ledger::Layouts;

use crate::StartError;

/// Those that a task may get, below the directory `shim` of an installation. The last one is needed only for a gate.
const FILTERS: [&str; 4] = ["libcuda.so.1", "libnvidia-ml.so.1", "libcantle-preload.so", "gate/libcuda.so.1"];

/// The files of the filter libraries in `shim_dir` that every task needs.
pub fn filter_files(shim_dir: &Path) -> impl Iterator<Item = PathBuf> {
    FILTERS[..FILTERS.len() - 1].iter().map(move |name| shim_dir.join(name))
}

/// Whether the filter libraries in `shim_dir` are there and read the accounting files that this program writes.
///
/// Libraries of another version refuse all memory, and a task cannot report why. Packages that are replaced under a
/// running agent, and a program that is copied without its libraries, lead to that.
///
/// # Errors
/// [`StartError::NotInstalled`] and [`StartError::OtherVersion`] name the library.
pub fn check_filters(shim_dir: &Path, gate: bool) -> Result<(), StartError> {
    let needed = if gate { FILTERS.len() } else { FILTERS.len() - 1 };
    for name in &FILTERS[..needed] {
        let file = shim_dir.join(name);
        let Ok(bytes) = std::fs::read(&file) else { return Err(StartError::NotInstalled(file)) };
        if Layouts::of_library(&bytes) != Some(Layouts::OWN) {
            return Err(StartError::OtherVersion(file));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(dir: &Path, name: &str, memory: u32) {
        let mut note = cantle_ledger::NOTE;
        note[5] = memory;
        std::fs::create_dir_all(dir.join("gate")).unwrap();
        let bytes: Vec<u8> = note.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(dir.join(name), bytes).unwrap();
    }

    #[test]
    fn a_library_that_is_missing_or_of_another_version_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let shim = dir.path();
        let named = |gate| check_filters(shim, gate).map_err(|error| error.to_string());
        for name in &FILTERS[..3] {
            let missing = named(false).unwrap_err();
            assert!(missing.contains(name) && missing.contains("is missing"), "{missing}");
            install(shim, name, Layouts::OWN.memory);
        }
        assert_eq!(named(false), Ok(()));
        assert!(named(true).unwrap_err().contains("gate/libcuda.so.1"));
        install(shim, FILTERS[1], Layouts::OWN.memory - 1);
        let other = named(false).unwrap_err();
        assert!(other.contains("libnvidia-ml.so.1") && other.contains("another version"), "{other}");
    }
}
