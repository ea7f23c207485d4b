//! An empty shared library, in place of those libraries of the driver that no program calls here, and of its 32-bit copies.

/// The ELF class, which gives the size of words, and the value of `e_machine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElfClass {
    /// i386.
    Small,
    /// This machine's.
    Own,
}

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const ET_DYN: u16 = 3;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_SONAME: u64 = 14;
const READABLE: u64 = 4;
/// The loader refuses a segment that is aligned to less than the kernel's pages, which have up to 64 KiB on aarch64.
const LARGEST_PAGE: u64 = 0x1_0000;

/// A library with this name and no symbols, as in the ELF specification (System V ABI, chapters 4 and 5).
pub(crate) fn empty_library(soname: &str, class: ElfClass) -> Vec<u8> {
    let is_small = class == ElfClass::Small;
    let word = if is_small { 4 } else { 8 };
    let (header, segment, symbol) = if is_small { (52, 32, 16) } else { (64, 56, 24) };
    // In order: header, two segments, dynamic section, symbol table with its empty first entry, hash table, names.
    let dynamic = header + 2 * segment;
    let symbols = dynamic + 7 * 2 * word;
    let hash = symbols + symbol;
    let names = hash + 4 * 4;
    let end = names + 1 + soname.len() as u64 + 1;

    let mut out = Out { bytes: Vec::new(), word };
    out.bytes.extend([0x7f, b'E', b'L', b'F', if is_small { 1 } else { 2 }, 1, 1, 0]);
    out.bytes.resize(16, 0);
    out.half(ET_DYN);
    out.half(if is_small { 3 } else { machine() });
    out.int(1);
    [0, header, 0].into_iter().for_each(|value| out.word(value));
    out.int(0);
    for half in [header, segment, 2, 0, 0, 0] {
        out.half(half as u16);
    }
    out.segment(PT_LOAD, 0, end, LARGEST_PAGE);
    out.segment(PT_DYNAMIC, dynamic, 7 * 2 * word, word);
    let entries = [
        (DT_HASH, hash),
        (DT_STRTAB, names),
        (DT_SYMTAB, symbols),
        (DT_STRSZ, end - names),
        (DT_SYMENT, symbol),
        (DT_SONAME, 1),
        (0, 0),
    ];
    for (tag, value) in entries {
        out.word(tag);
        out.word(value);
    }
    out.bytes.resize(hash as usize, 0);
    // One bucket and one symbol, the empty one.
    [1, 1, 0, 0].into_iter().for_each(|value| out.int(value));
    out.bytes.push(0);
    out.bytes.extend(soname.bytes());
    out.bytes.push(0);
    out.bytes
}

const fn machine() -> u16 {
    if cfg!(target_arch = "aarch64") { 183 } else { 62 }
}

struct Out {
    bytes: Vec<u8>,
    word: u64,
}

impl Out {
    fn half(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn int(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn word(&mut self, value: u64) {
        self.bytes.extend(&value.to_le_bytes()[..self.word as usize]);
    }

    /// The order of the fields of a segment's header depends on the class.
    fn segment(&mut self, kind: u64, start: u64, len: u64, align: u64) {
        self.int(kind as u32);
        if self.word == 8 {
            self.int(READABLE as u32);
        }
        [start, start, start, len, len].into_iter().for_each(|value| self.word(value));
        if self.word == 4 {
            self.int(READABLE as u32);
        }
        self.word(align);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loader of this machine takes it.
    #[test]
    fn it_can_be_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libempty.so.1");
        std::fs::write(&path, empty_library("libempty.so.1", ElfClass::Own)).unwrap();
        // SAFETY: the library has no code, so nothing of it runs when it is loaded.
        unsafe { libloading::Library::new(&path) }.unwrap();
    }

    /// This machine's kernel may have smaller pages than others, so the test above does not show it.
    #[test]
    fn its_segment_is_aligned_to_the_largest_pages() {
        let bytes = empty_library("libempty.so.1", ElfClass::Own);
        let first_segment = &bytes[64..64 + 56];
        assert_eq!(first_segment[0], PT_LOAD as u8);
        assert_eq!(first_segment[48..], LARGEST_PAGE.to_le_bytes());
    }

    #[test]
    fn the_small_one_is_of_the_other_class() {
        let small = empty_library("libcuda.so.1", ElfClass::Small);
        assert_eq!((small[4], small[18]), (1, 3));
        assert!(small.windows(13).any(|bytes| bytes == b"libcuda.so.1\0"));
    }
}
