//! Decides whether a container uses the CUDA compatibility package of its image, whose libcuda works over older drivers, in
//! place of the machine's libcuda.
//!
//! The rule is that of NVIDIA's container toolkit (`enable-cuda-compat`, 1.20): since CUDA 13 the library names the branches of the driver
//! that it works over; one that names none is used if its branch is newer than the driver's.

use std::fs::File;
use std::path::Path;

use object::read::ReadCache;
use object::{Object as _, ObjectSection as _};
use serde::Deserialize;

/// The section with the note, its owner, and the three words before the owner's name.
const SECTION: &str = ".note.cuda.fwd_compatibility";
const OWNER: &str = "NVIDIA Corporation";
const HEAD_LEN: usize = 12;

/// Version of a driver: `580.65.06`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DriverVersion(Vec<u32>);

impl DriverVersion {
    /// That of the driver whose libcuda this is, by the name of its file.
    pub(super) fn of_libcuda(path: &Path) -> Option<Self> {
        let text = path.file_name()?.to_str()?.strip_prefix("libcuda.so.")?;
        let parts: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        parts.filter(|parts| parts.len() > 1).map(Self)
    }

    fn branch(&self) -> u32 {
        self.0.first().copied().unwrap_or_default()
    }
}

/// The fields of the note that are used here.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Note {
    /// Branches of the driver that the library works over.
    driver: Vec<u32>,
}

/// Whether the libcuda in `file`, which belongs to a driver of version `own`, is to be used over `driver`.
pub(super) fn is_used_over(file: &Path, own: &DriverVersion, driver: &DriverVersion) -> bool {
    decide(note_in(file).as_ref(), own, driver)
}

fn decide(note: Option<&Note>, own: &DriverVersion, driver: &DriverVersion) -> bool {
    match note {
        Some(note) => note.driver.contains(&driver.branch()) && own > driver,
        None => own.branch() > driver.branch(),
    }
}

fn note_in(file: &Path) -> Option<Note> {
    // An image may have anything under this name, also what makes its reader wait.
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let file = ReadCache::new(File::open(file).ok()?);
    let elf = object::File::parse(&file).ok()?;
    let section = elf.section_by_name(SECTION)?;
    let align = usize::try_from(section.align()).ok()?;
    read_note(section.data().ok()?, align)
}

fn read_note(data: &[u8], align: usize) -> Option<Note> {
    let word = |at: usize| -> Option<usize> {
        let bytes = data.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let (name_len, text_len) = (word(0)?, word(4)?);
    let name = data.get(HEAD_LEN..HEAD_LEN.checked_add(name_len)?)?;
    let begin = HEAD_LEN.checked_add(name_len.checked_next_multiple_of(align.max(1))?)?;
    let text = data.get(begin..begin.checked_add(text_len)?)?;
    let trimmed = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    if trimmed(name) != OWNER {
        return None;
    }
    serde_json::from_str(&trimmed(text)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> DriverVersion {
        DriverVersion::of_libcuda(Path::new(&format!("/usr/lib/libcuda.so.{text}"))).unwrap()
    }

    #[test]
    fn the_name_of_a_library_has_its_drivers_version() {
        assert!(version("580.65.06") > version("550.163.01"));
        assert!(version("550.163.02") > version("550.163.01"));
        assert!(version("550.90.07") < version("550.163.01"), "numbers, not text");
        for none in ["libcuda.so", "libcuda.so.1", "libcuda.so.580.x", "libnvidia-ml.so.580.65"] {
            assert_eq!(DriverVersion::of_libcuda(Path::new(none)), None, "{none}");
        }
    }

    #[test]
    fn without_a_note_the_newer_branch_is_used() {
        let used = |own: &str, driver: &str| decide(None, &version(own), &version(driver));
        assert!(used("580.65.06", "550.163.01"));
        assert!(!used("550.200.1", "550.163.01"), "the same branch");
        assert!(!used("535.1.1", "550.163.01"), "an older one");
    }

    #[test]
    fn a_note_names_the_drivers() {
        let note = Note { driver: vec![535, 550, 580] };
        let used = |own: &str, driver: &str| decide(Some(&note), &version(own), &version(driver));
        assert!(used("580.65.06", "550.163.01") && used("580.65.06", "580.1.1"));
        assert!(!used("580.65.06", "565.1.1"), "a branch that it does not work over");
        assert!(!used("580.65.06", "580.95.05"), "a newer driver");
    }

    #[test]
    fn the_note_is_read_as_the_toolkit_reads_it() {
        let text = br#"{"Format":1,"CUDA Version":"13.0","Driver":[535,550],"Device":[1,2]}"#;
        let mut data = Vec::new();
        for word in [OWNER.len() + 1, text.len(), 1] {
            data.extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        data.extend(format!("{OWNER}\0\0").as_bytes());
        data.extend(text);
        assert_eq!(read_note(&data, 4), Some(Note { driver: vec![535, 550] }));
        for cut in 0..data.len() {
            assert_eq!(read_note(&data[..cut], 4), None);
        }
        data[HEAD_LEN] = b'X';
        assert_eq!(read_note(&data, 4), None, "another program's note");
        assert_eq!(note_in(Path::new("/proc/self/exe")), None);
    }
}
