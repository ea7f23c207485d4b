//! The layouts of the accounting files that a filter library knows, in an ELF note of its own (`readelf -n` shows it).
//!
//! A library of another installation refuses every allocation, because it cannot read the files. The program that
//! starts a task reads the note first and reports it.

use crate::{compute, layout};

/// The versions of the files `limits` and `usage`, and of `grant` and `launches`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layouts {
    /// Of `limits` and `usage`.
    pub memory: u32,
    /// Of `grant` and `launches`.
    pub compute: u32,
}

impl Layouts {
    /// Those of this build.
    pub const OWN: Self = Self { memory: layout::VERSION, compute: compute::VERSION };

    /// Those that the note in a library's bytes names; `None` if it has no such note.
    #[must_use]
    pub fn of_library(file: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(file.get(at..at + 4)?.try_into().ok()?));
        // A note is aligned to four bytes, in the file too.
        let mut starts = (0..file.len()).step_by(4);
        let note = starts.find(|start| (0..HEAD.len()).all(|n| word(start + 4 * n) == Some(HEAD[n])))?;
        Some(Self { memory: word(note + 4 * HEAD.len())?, compute: word(note + 4 * HEAD.len() + 4)? })
    }
}

/// An ELF note as gABI has it: bytes of its name, bytes of its content, its type, its name.
const HEAD: [u32; 5] = [7, 8, 1, u32::from_ne_bytes(*b"cant"), u32::from_ne_bytes(*b"le\0\0")];

/// The content of the libraries' section `.note.cantle`.
pub const NOTE: [u32; 7] =
    [HEAD[0], HEAD[1], HEAD[2], HEAD[3], HEAD[4], Layouts::OWN.memory, Layouts::OWN.compute];

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn library(note: &[u32]) -> Vec<u8> {
        let words = [0x464c_457f, 7, 8].iter().chain(note).chain(&[0]);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_note_is_found_between_other_bytes() {
        assert_eq!(Layouts::of_library(&library(&NOTE)), Some(Layouts::OWN));
        let mut other = NOTE;
        other[5] += 1;
        let expected = Layouts { memory: Layouts::OWN.memory + 1, ..Layouts::OWN };
        assert_eq!(Layouts::of_library(&library(&other)), Some(expected));
    }

    #[test]
    fn a_library_without_a_whole_note_has_none() {
        assert_eq!(Layouts::of_library(&library(&[])), None);
        assert_eq!(Layouts::of_library(&library(&NOTE)[..32]), None);
        assert_eq!(Layouts::of_library(b""), None);
    }
}
