//! The GPU memory that the image of a module takes. A cubin takes the size of its loadable segments. A text that begins with
//! `cantle_sim_module_mib_N` takes N MiB. All others (PTX, containers of several cubins) take nothing.

use super::CuResult;
use crate::ffi::In;
use crate::granules;

const TEXT: &[u8] = b"cantle_sim_module_mib_";
const MAX_DIGITS: usize = 6;

/// The bytes that begin an ELF file of 64 bits, least significant byte first.
const ELF: &[u8] = b"\x7fELF\x02\x01";
/// The ELF header of 64 bits: its length, and where it says for which machine the file is, and where the segments' headers are.
const HEADER_BYTES: usize = 64;
const MACHINE: usize = 0x12;
const SEGMENTS_AT: usize = 0x20;
const SEGMENT_BYTES: usize = 0x36;
const SEGMENT_COUNT: usize = 0x38;
/// The machine's number of NVIDIA's GPUs.
const EM_CUDA: u16 = 190;
/// A segment's header: its type is first; how much memory it needs is here.
const MEMORY_BYTES: usize = 0x28;
const SEGMENT_HEADER_BYTES: usize = 56;
const PT_LOAD: u32 = 1;

/// The memory that an image takes, in granules. It is read only as far as its header is valid.
pub(super) fn granules_of(image: In<u8>) -> CuResult<u64> {
    if begins_with(image, ELF)? {
        return cubin(image);
    }
    if !begins_with(image, TEXT)? {
        return Ok(0);
    }
    let mut mib = 0;
    for index in TEXT.len()..TEXT.len() + MAX_DIGITS {
        match at(image, index).get()? {
            digit @ b'0'..=b'9' => mib = mib * 10 + u64::from(digit - b'0'),
            _ => break,
        }
    }
    Ok(granules(mib << 20))
}

fn at(image: In<u8>, index: usize) -> In<u8> {
    In(image.0.wrapping_add(index))
}

fn begins_with(image: In<u8>, expected: &[u8]) -> CuResult<bool> {
    for (index, expected) in expected.iter().enumerate() {
        if at(image, index).get()? != *expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The memory of the segments of an ELF file for the GPU; none if it is for another machine.
fn cubin(image: In<u8>) -> CuResult<u64> {
    let header = image.get_all(HEADER_BYTES)?;
    if number(&header, MACHINE, 2) != u64::from(EM_CUDA) {
        return Ok(0);
    }
    let begin = number(&header, SEGMENTS_AT, 8) as usize;
    let step = number(&header, SEGMENT_BYTES, 2) as usize;
    let mut bytes = 0;
    for index in 0..number(&header, SEGMENT_COUNT, 2) as usize {
        let segment = at(image, begin + index * step).get_all(SEGMENT_HEADER_BYTES)?;
        if number(&segment, 0, 4) == u64::from(PT_LOAD) {
            bytes += number(&segment, MEMORY_BYTES, 8);
        }
    }
    Ok(granules(bytes))
}

fn number(bytes: &[u8], begin: usize, length: usize) -> u64 {
    bytes[begin..begin + length].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cubin_with(machine: u16, segments: &[(u32, u64)]) -> Vec<u8> {
        let mut file = vec![0; HEADER_BYTES];
        file[..ELF.len()].copy_from_slice(ELF);
        file[MACHINE..][..2].copy_from_slice(&machine.to_le_bytes());
        file[SEGMENTS_AT] = HEADER_BYTES as u8;
        file[SEGMENT_BYTES] = SEGMENT_HEADER_BYTES as u8;
        file[SEGMENT_COUNT] = segments.len() as u8;
        for (kind, bytes) in segments {
            let mut segment = [0; SEGMENT_HEADER_BYTES];
            segment[..4].copy_from_slice(&kind.to_le_bytes());
            segment[MEMORY_BYTES..][..8].copy_from_slice(&bytes.to_le_bytes());
            file.extend(segment);
        }
        file
    }

    fn of(image: &[u8]) -> u64 {
        granules_of(In(image.as_ptr())).unwrap()
    }

    #[test]
    fn a_cubin_takes_what_it_loads() {
        assert_eq!(of(&cubin_with(EM_CUDA, &[(6, 1 << 30), (PT_LOAD, 800), (PT_LOAD, 4 << 20)])), 3);
        assert_eq!(of(&cubin_with(EM_CUDA, &[(PT_LOAD, 800)])), 1);
        assert_eq!(of(&cubin_with(62, &[(PT_LOAD, 4 << 20)])), 0, "for another machine");
    }

    #[test]
    fn texts_say_what_they_take() {
        assert_eq!(of(b"cantle_sim_module_mib_3\0"), 2);
        assert_eq!(of(b".version 8.4\0"), 0);
        assert_eq!(of(b"\0"), 0);
    }
}
