//! The system calls that no task may make, and the filter that answers them.
//!
//! * `clone3` can put a child into a control group (`CLONE_INTO_CGROUP`), and the kernel then asks neither for a mount nor for whether it is
//!   read-only. The flags are in memory, where a filter does not see them. So the call does not exist (`ENOSYS`), as in containers: the C library
//!   then uses `clone`.
//! * The kernel's keys of a user (`add_key`, `request_key`, `keyctl`) are those of all the user's programs, of any namespace.
//! * `bpf` reaches the whole kernel.

use core::ffi::{c_int, c_long, c_ulong};
use core::mem::offset_of;

use libc::{sock_filter, sock_fprog};

/// One number on all architectures.
const CLONE3: u32 = 435;
/// Set in the numbers of calls of x32 programs.
const X32: u32 = 0x4000_0000;
/// `SECCOMP_SET_MODE_FILTER`.
const SET_FILTER: c_ulong = 1;
/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`: without it, older kernels slow all of the task's programs down.
const SPECULATION: c_ulong = 1 << 2;

/// The numbers of `add_key`, `request_key`, `keyctl` and `bpf` on each architecture whose programs may run.
const BY_ARCHITECTURE: [(u32, [u32; 4]); 3] = [
    // AUDIT_ARCH_X86_64, AUDIT_ARCH_I386, AUDIT_ARCH_AARCH64.
    (0xc000_003e, [248, 249, 250, 321]),
    (0x4000_0003, [286, 287, 288, 357]),
    (0xc000_00b7, [217, 218, 219, 280]),
];

/// A condition and what it decides are two instructions; an architecture has four of them, and four more.
const LENGTH: usize = 5 + BY_ARCHITECTURE.len() * 12;

const fn load(offset: usize) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset as u32)
}

/// Goes on with the next instruction if the value is `equal`, and leaves out as many as `otherwise` says if it is not.
const fn unless(equal: u32, otherwise: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, otherwise, equal)
}

const fn answer(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const fn error(errno: c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

fn program() -> [sock_filter; LENGTH] {
    let number = load(offset_of!(libc::seccomp_data, nr));
    let without_x32 = instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, !X32);
    let mut program = [answer(libc::SECCOMP_RET_ALLOW); LENGTH];
    let mut at = 0;
    let mut put = |one: sock_filter| {
        if let Some(place) = program.get_mut(at) {
            *place = one;
        }
        at += 1;
    };
    for one in [number, without_x32, unless(CLONE3, 1), answer(error(libc::ENOSYS))] {
        put(one);
    }
    for (architecture, calls) in BY_ARCHITECTURE {
        for one in [load(offset_of!(libc::seccomp_data, arch)), unless(architecture, 10), number, without_x32]
        {
            put(one);
        }
        for call in calls {
            put(unless(call, 1));
            put(answer(error(libc::EPERM)));
        }
    }
    program
}

/// From now on the calling thread and all programs that it starts are refused these calls. It takes `CAP_SYS_ADMIN`, or `no_new_privs`.
///
/// # Errors
/// The kernel's `errno`.
pub fn refuse_calls() -> Result<(), c_int> {
    let mut program = program();
    let filter = sock_fprog { len: LENGTH as u16, filter: program.as_mut_ptr() };
    let install = |flags: c_ulong| -> c_long {
        // SAFETY: the kernel reads `filter` and the `LENGTH` instructions that it names, both live locals, and keeps
        // copies. The program answers with an error of a call, which each of these calls may return.
        unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, flags, &raw const filter) }
    };
    // Kernels before 4.17 do not know the flag.
    if install(SPECULATION) == 0 || crate::map::errno() == libc::EINVAL && install(0) == 0 {
        Ok(())
    } else {
        Err(crate::map::errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's answer after it has run the program.
    fn answer_to(architecture: u32, number: u32) -> u32 {
        let (mut value, mut at) = (0, 0);
        let program = program();
        loop {
            let one = program[at];
            at += 1;
            match u32::from(one.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    value = if one.k == 0 { number } else { architecture };
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => value &= one.k,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if value == one.k { one.jt } else { one.jf });
                }
                _ => return one.k,
            }
        }
    }

    #[test]
    fn each_architecture_has_its_own_numbers() {
        for (architecture, calls) in BY_ARCHITECTURE {
            assert_eq!(answer_to(architecture, CLONE3), error(libc::ENOSYS));
            for call in 0..500 {
                let expected = match call {
                    CLONE3 => error(libc::ENOSYS),
                    call if calls.contains(&call) => error(libc::EPERM),
                    _ => libc::SECCOMP_RET_ALLOW,
                };
                assert_eq!(answer_to(architecture, call), expected, "{call} of {architecture:x}");
            }
        }
        assert_eq!(answer_to(BY_ARCHITECTURE[0].0, CLONE3 | X32), error(libc::ENOSYS));
        assert_eq!(answer_to(BY_ARCHITECTURE[0].0, 250 | X32), error(libc::EPERM));
        assert_eq!(answer_to(0x1234, CLONE3), error(libc::ENOSYS));
        assert_eq!(answer_to(0x1234, 250), libc::SECCOMP_RET_ALLOW);
    }
}
