//! For `LD_PRELOAD`: gives the hook to a program that looks a function up, as the loader does to a program that is linked
//! with it.
//!
//! Our `dlsym` asks the real one, and answers with a hook if the name is hooked. For every other name it *jumps* to the real one,
//! so that `RTLD_NEXT` means what it means to the caller. It does not cover lookups with `RTLD_DEEPBIND` or in other linker
//! namespaces, a program that reads ELF tables itself, or one that clears its environment. None of this is needed where the
//! filter can be mounted over the driver's libraries.

use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::function::NVML;
use crate::hooks;

static REAL: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Symbol versions of `dlsym` in the C library.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.2.5", c"GLIBC_2.17", c"GLIBC_2.34"];

fn real() -> *mut c_void {
    let known = REAL.load(Acquire);
    if !known.is_null() {
        return known;
    }
    for version in VERSIONS {
        // SAFETY: both strings are NUL-terminated constants; `dlvsym` is the C library's, because we export none.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() {
            REAL.store(found, Release);
            return found;
        }
    }
    ptr::null_mut()
}

/// The C library's `dlsym`, as called from here.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = real();
    if real.is_null() {
        return real;
    }
    // SAFETY: `real` is not null, so it is the address of the C library's `dlsym`, which has this type and stays loaded. `name`
    // is NUL-terminated and outlives the call; `handle` is one of the program's or ours, as `dlsym` asks for.
    unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
            core::mem::transmute(real);
        real(handle, name.as_ptr())
    }
}

/// The answer to a look-up of a hooked function; null leaves the answer to the real `dlsym`.
///
/// # Safety
/// As for `dlsym`: `name` is null or NUL-terminated, and `handle` is valid.
unsafe extern "C" fn hooked(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    real();
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: not null, so by this function's condition it is NUL-terminated; the program keeps it until the call returns.
    let name = unsafe { CStr::from_ptr(name) };
    if name == c"dlsym" {
        return dlsym as *mut c_void;
    }
    let hook = hooks::CUDA.iter().chain(hooks::NVML).find(|hook| hook.name == name);
    let Some(hook) = hook else { return ptr::null_mut() };
    let ours: *mut c_void = hook.hook.cast_mut().cast();
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return ours;
    }
    // A library that does not have the function must not get it from us. And another instance of the driver, in a linker
    // namespace of its own, shares no state with the one that the hooks call.
    let found = real_dlsym(handle, name);
    let driver_own = match (hook.real)() {
        own if own.is_null() => NVML.find(name),
        own => own,
    };
    if found == driver_own || found == ours { ours } else { ptr::null_mut() }
}

/// `dlsym`, as the program calls it. Keeps both arguments and, for the jump, the stack as the caller left it.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {hooked}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2: ret",
        hooked = sym hooked,
        real = sym REAL,
    )
}

/// `dlsym`, as the program calls it. Keeps both arguments and, for the jump, the stack and link register as the caller left them.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {hooked}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x9, 2f",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "cbz x9, 2f",
        "br x9",
        "2: mov x0, x9",
        "ret",
        hooked = sym hooked,
        real = sym REAL,
    )
}
