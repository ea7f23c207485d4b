//! The GPU of a task that has moved: its processes have the environment of their start, which names the former GPU.

use core::ffi::{CStr, c_char, c_uint};

use cantle_ledger::Uuid;

use crate::function::Status;
use crate::process::process;

/// `GPU-` and 36 characters.
const NAME_BYTES: usize = 40;

pub(crate) unsafe fn init(real: unsafe extern "C" fn(c_uint) -> Status, flags: c_uint) -> Status {
    follow_move();
    // SAFETY: the call contract; the arguments are passed unchanged.
    unsafe { real(flags) }
}

/// Names the task's GPU in CUDA's variable, in the place of the one from which it has moved. Another value is the program's own.
fn follow_move() {
    let Some(ledger) = process().and_then(|process| process.ledger()) else { return };
    let ([gpu], Some(former)) = (ledger.gpus(), ledger.former_gpu()) else { return };
    let (Some(former), Some(now)) = (Name::of(&former), Name::of(&gpu.uuid())) else { return };
    // SAFETY: a NUL-terminated name. C lets no thread change the environment while another one may read it, so a program that does so
    // during a call of CUDA, which reads variables itself, is wrong without us too.
    let value = unsafe { libc::getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) };
    // SAFETY: null was ruled out, so it is a NUL-terminated string of the environment, which no code changes meanwhile
    // (see above).
    if value.is_null() || unsafe { CStr::from_ptr(value) }.to_bytes() != former.0 {
        return;
    }
    // SAFETY: the string is as long as the name that replaces it, and in memory that the program may write.
    unsafe { core::ptr::copy_nonoverlapping(now.0.as_ptr().cast::<c_char>(), value, NAME_BYTES) };
}

/// A GPU's name as NVML prints it.
struct Name([u8; NAME_BYTES]);

impl Name {
    fn of(uuid: &Uuid) -> Option<Self> {
        let mut name = [0; NAME_BYTES];
        let mut free = name.iter_mut();
        let mut put = |byte: u8| {
            *free.next()? = byte;
            Some(())
        };
        b"GPU-".iter().try_for_each(|byte| put(*byte))?;
        for (number, byte) in uuid.iter().enumerate() {
            if matches!(number, 4 | 6 | 8 | 10) {
                put(b'-')?;
            }
            put(digit(byte >> 4))?;
            put(digit(byte & 15))?;
        }
        Some(Self(name))
    }
}

const fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + (value - 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_as_nvml_prints_it() {
        let name = Name::of(&[0x8f; 16]).unwrap();
        assert_eq!(&name.0, b"GPU-8f8f8f8f-8f8f-8f8f-8f8f-8f8f8f8f8f8f");
    }
}
