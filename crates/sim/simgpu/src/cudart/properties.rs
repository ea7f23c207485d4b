//! `cudaDeviceProp`: a structure in which nearly every field is an attribute of the device.

use super::device::{attribute, known};
use super::driver::driver;
use super::{CudaResult, runtime_api};

/// A field, with the number of the attribute that it shows.
enum Field {
    /// `int`
    Int(i32),
    /// `size_t`
    Size(i32),
    /// `int`, in CUDA 12 only.
    Old(i32),
    /// `int`, from CUDA 13 on.
    New(i32),
    /// This number of `int`s, which are 0 here.
    Zeros(usize),
}
use Field::{Int, New, Old, Size, Zeros};

const RESERVED: usize = 63;
/// The larger of the two.
const MOST_BYTES: usize = 1100;

/// The fields after `totalGlobalMem`, in order. 12 and 13 have the same fields in the same order but for those marked.
#[rustfmt::skip]
static FIELDS: &[Field] = &[
    Size(8), Int(12), Int(10), Size(11), // shared memory and registers per block, warp, pitch
    Int(1), Int(2), Int(3), Int(4), Int(5), Int(6), Int(7), Old(13), // threads, block, grid, clock
    Size(9), Int(75), Int(76), Size(14), Size(51), Old(15), Int(16), // constant memory, capability, alignments, multiprocessors
    Old(17), Int(18), Int(19), Old(20), // timeout, integrated, maps host memory, compute mode
    Int(21), Int(77), Old(69), Int(22), Int(23), Int(73), Int(74), Int(70), Int(71), Int(72), Int(45), Int(46), // textures
    Int(24), Int(25), Int(26), Int(47), Int(48), Int(49), Int(52), Int(42), Int(43), Int(27), Int(28), Int(29), Int(53), Int(54),
    Int(55), Int(56), Int(57), Int(58), Int(59), Int(60), Int(61), Int(62), Int(63), Int(64), Int(65), Int(66), Int(67), Int(68), // surfaces
    Size(30), Int(31), Int(32), Int(33), Int(34), Int(50), Int(35), // surface alignment, concurrency, ECC, PCI, TCC
    Int(40), Int(41), Old(36), Int(37), Int(38), Int(108), Int(39), // copy engines, memory clock and bus, L2, threads
    Int(78), Int(79), Int(80), Size(81), Int(82), Int(83), Int(84), Int(85), Int(86), // caches, shared memory and registers per multiprocessor
    Old(87), Int(88), Int(89), Int(90), Int(91), Int(95), Old(96), Size(97), Int(100), Int(101), Int(106), Int(109), Size(111),
    Int(99), Int(112), Int(113), Int(114), Int(115), Int(116), Int(117), Int(118), Int(119), Int(121), Int(125), Int(120), Int(129),
    New(130), New(131), New(133), New(134), New(139), New(140), New(143), // NUMA, MPS, PCI ids
];

/// The structure as it grows.
struct Bytes {
    bytes: [u8; MOST_BYTES],
    length: usize,
}

impl Bytes {
    fn put<const N: usize>(&mut self, value: [u8; N], alignment: usize) {
        self.length = self.length.next_multiple_of(alignment);
        self.bytes[self.length..self.length + N].copy_from_slice(&value);
        self.length += N;
    }

    fn int(&mut self, value: i32) {
        self.put(value.to_ne_bytes(), 4);
    }

    fn size(&mut self, value: u64) {
        self.put(value.to_ne_bytes(), 8);
    }
}

/// The properties of a device in the layout of CUDA 12 or 13.
fn properties(device: i32, is_13: bool) -> CudaResult<Bytes> {
    known(device)?;
    let (mut name, mut uuid, mut total) = ([0_u8; 256], [0_u8; 16], 0_usize);
    driver!(cuDeviceGetName(name.as_mut_ptr() => *mut u8, 256 => i32, device => i32))?;
    driver!(cuDeviceGetUuid(&raw mut uuid => *mut [u8; 16], device => i32))?;
    driver!(cuDeviceTotalMem(&raw mut total => *mut usize, device => i32))?;
    let mut bytes = Bytes { bytes: [0; MOST_BYTES], length: 0 };
    bytes.put(name, 1);
    bytes.put(uuid, 1);
    // Fields for Windows: a LUID and its mask.
    bytes.put([0; 8], 1);
    bytes.int(0);
    bytes.size(total as u64);
    // An attribute that this driver does not know is 0: not there.
    let value = |number: i32| attribute(number, device).unwrap_or(0);
    for field in FIELDS.iter().chain([&Zeros(if is_13 { RESERVED - 7 } else { RESERVED })]) {
        match *field {
            Int(number) => bytes.int(value(number)),
            Size(number) => bytes.size(value(number) as u64),
            Old(number) if !is_13 => bytes.int(value(number)),
            New(number) if is_13 => bytes.int(value(number)),
            Zeros(count) => (0..count).for_each(|_| bytes.int(0)),
            Old(_) | New(_) => {}
        }
    }
    bytes.length = bytes.length.next_multiple_of(8);
    Ok(bytes)
}

fn get(out: *mut u8, device: i32, is_13: bool) -> CudaResult {
    let found = properties(device, is_13)?;
    let bytes = found.bytes.into_iter().take(found.length);
    Ok(crate::ffi::Out(out).fill(found.length, bytes)?)
}

runtime_api! {
    /// Programs of CUDA 13 call this one.
    fn cudaGetDeviceProperties(out: *mut u8, device: i32) { get(out, device, true) }
    /// Programs of CUDA 12 call this one.
    fn cudaGetDeviceProperties_v2(out: *mut u8, device: i32) { get(out, device, false) }
}
