//! The gate's fast path, which most launches take, in 25 instructions (docs/adr/0043): on x86-64, `cuLaunchKernel` and
//! `cuLaunchKernelEx` begin here.
//!
//! The path admits a launch that the thread's credit covers, if its price is known and its stream is that of the launch
//! before. It sends everything else to the hook in Rust ([`super::passes`]), which makes the full decision and prepares the
//! next launch. It is in assembly because the arguments stay in their six registers: a compiler would save others to have
//! more than the three that are left.
//!
//! It reads and writes as relaxed atomics would; on x86-64 those are plain instructions. A credit is written by its own thread only.

use core::ffi::{c_uint, c_void};
#[cfg(target_arch = "x86_64")]
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

use cantle_ledger::compute::GatePage;
#[cfg(target_arch = "x86_64")]
use cantle_ledger::compute::ThreadSlot;

use super::launch::{Configuration, Handle};
#[cfg(target_arch = "x86_64")]
use super::{SPREAD, price, price::Prices, thread, thread::Threads};
use super::{State, hooks};
use crate::function::Status;
use crate::process::{self, Process};

/// The address to which a front jumps once a launch is admitted: the driver's function. Until that was looked up, the hook
/// behind the front.
pub(super) struct Next(AtomicPtr<c_void>);

pub(super) static KERNEL: Next = Next(AtomicPtr::new(hooks::cuLaunchKernel as *mut c_void));
pub(super) static EXTENDED: Next = Next(AtomicPtr::new(hooks::cuLaunchKernelEx as *mut c_void));

impl Next {
    /// The driver's function was found.
    pub(super) fn is_at(&self, real: *mut c_void) {
        if self.0.load(Relaxed) != real {
            self.0.store(real, Relaxed);
        }
    }
}

/// In which no thread has credit. Zero, as every state is at first.
// SAFETY: `State` is valid when zero.
static NOBODY: State = unsafe { core::mem::zeroed() };
static NO_WORD: AtomicU32 = AtomicU32::new(0);

/// The state of this process, in memory that a child of `fork` finds zeroed.
static STATE: AtomicPtr<State> = AtomicPtr::new((&raw const NOBODY).cast_mut());
/// The gate's word. A child keeps the mapping.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NO_WORD).cast_mut());

/// From now on launches may take the fast path.
pub(super) fn publish(process: &'static Process, page: &'static GatePage) {
    let state = ptr::from_ref(&process.gate).cast_mut();
    // If a child could find its parent's state, each launch checks the pid.
    if STATE.load(Relaxed) != state && process::is_wiped_for_children()
        || WORD.load(Relaxed).cast_const() != ptr::from_ref(page.word_cell())
    {
        WORD.store(ptr::from_ref(page.word_cell()).cast_mut(), Release);
        if process::is_wiped_for_children() {
            STATE.store(state, Release);
        }
    }
}

/// Defines a front: `$function` is the register that has the function, `$grid` and `$stream` the rest of what is asked. The first lines may
/// refuse.
#[cfg(target_arch = "x86_64")]
macro_rules! front {
    ($slow:path, $next:ident: [$($first:literal),*] $function:literal, [$x:literal, $y:literal, $z:literal], $stream:literal) => {
        core::arch::naked_asm!(
            $($first,)*
            // Its price: the function with its grid, and what is known of it.
            "mov rax, qword ptr [rip + {state}]",
            concat!("mov r10d, ", $x),
            concat!("imul r10d, ", $y),
            concat!("imul r10d, ", $z),
            "imul r10, r10, {grid_spread}",
            concat!("xor r10, ", $function),
            "imul r11d, r10d, {spread}",
            "shr r11d, {price_shift}",
            "cmp qword ptr [rax + 8 * r11 + {keys}], r10",
            "jne {slow}",
            "mov r11d, dword ptr [rax + 4 * r11 + {prices}]",
            // The thread's place, and whether thread, stream and word are what they were.
            "imul r10d, dword ptr fs:[0], {spread}",
            "shr r10d, {thread_shift}",
            "lea r10, [rax + 8 * r10]",
            "mov rax, qword ptr [rip + {word}]",
            "mov eax, dword ptr [rax]",
            "shl rax, 32",
            "xor rax, qword ptr fs:[0]",
            concat!("xor rax, ", $stream),
            "cmp rax, qword ptr [r10 + {expects}]",
            "jne {slow}",
            // Its credit.
            "mov rax, qword ptr [r10 + {slots}]",
            "sub qword ptr [rax + {credit}], r11",
            "js 2f",
            "jmp qword ptr [rip + {next}]",
            "2:",
            "add qword ptr [rax + {credit}], r11",
            "jmp {slow}",
            state = sym STATE,
            word = sym WORD,
            next = sym $next,
            slow = sym $slow,
            grid_spread = const price::GRID_SPREAD,
            spread = const SPREAD.cast_signed(),
            price_shift = const price::SHIFT,
            keys = const offset_of!(State, prices) + offset_of!(Prices, keys),
            prices = const offset_of!(State, prices) + offset_of!(Prices, prices_ns),
            thread_shift = const thread::SHIFT,
            expects = const offset_of!(State, threads) + offset_of!(Threads, expects),
            slots = const offset_of!(State, threads) + offset_of!(Threads, slots),
            credit = const offset_of!(ThreadSlot, credit_ns),
        )
    };
}

/// `cuLaunchKernel`.
///
/// # Safety
/// The call contract.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(feature = "gate", unsafe(export_name = "cuLaunchKernel"))]
#[rustfmt::skip]
pub(super) unsafe extern "C" fn kernel(
    function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
    shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle,
) -> Status {
    front!(hooks::cuLaunchKernel, KERNEL: [] "rdi", ["esi", "edx", "ecx"], "qword ptr [rsp + 24]")
}

/// `cuLaunchKernelEx`: two instructions more, for a configuration that is null.
///
/// # Safety
/// The call contract.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(feature = "gate", unsafe(export_name = "cuLaunchKernelEx"))]
pub(super) unsafe extern "C" fn extended(
    configuration: *const Configuration,
    function: Handle,
    parameters: *mut Handle,
    extra: *mut Handle,
) -> Status {
    const _: () = assert!(offset_of!(Configuration, grid) == 0 && offset_of!(Configuration, stream) == 32);
    front!(hooks::cuLaunchKernelEx, EXTENDED:
        ["test rdi, rdi", "je {slow}"] "rsi", ["dword ptr [rdi]", "dword ptr [rdi + 4]", "dword ptr [rdi + 8]"], "qword ptr [rdi + 32]")
}

/// `cuLaunchKernel`, where there is no fast path.
///
/// # Safety
/// The call contract.
#[cfg(not(target_arch = "x86_64"))]
#[cfg_attr(feature = "gate", unsafe(export_name = "cuLaunchKernel"))]
#[rustfmt::skip]
pub(super) unsafe extern "C" fn kernel(
    function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
    shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle,
) -> Status {
    // SAFETY: the call contract.
    unsafe { hooks::cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra) }
}

/// `cuLaunchKernelEx`, where there is no fast path.
///
/// # Safety
/// The call contract.
#[cfg(not(target_arch = "x86_64"))]
#[cfg_attr(feature = "gate", unsafe(export_name = "cuLaunchKernelEx"))]
pub(super) unsafe extern "C" fn extended(
    configuration: *const Configuration,
    function: Handle,
    parameters: *mut Handle,
    extra: *mut Handle,
) -> Status {
    // SAFETY: the call contract.
    unsafe { hooks::cuLaunchKernelEx(configuration, function, parameters, extra) }
}
