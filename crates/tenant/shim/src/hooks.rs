//! The table of all functions that a slice changes: the effect of each, and the code that replaces it.
//!
//! Every other function of the driver is in `data/*-passes.txt` with the reason why it may pass untouched. A test compares both
//! with the driver's symbol lists, so a function that is in neither fails it.
//!
//! # How a call of the program reaches a hook
//!
//! * *By symbol.* In a task's mount namespace the filter libraries are mounted over the driver's. The loader finds a hooked name
//!   in the filter, which exports it (`no_mangle` below), and every other name in the real library behind it (`DT_NEEDED`).
//!   Under `LD_PRELOAD` the same exports come before the driver's.
//! * *By `dlsym`.* On a filter's handle that is the same search; under `LD_PRELOAD` our own `dlsym` answers (`preload.rs`).
//! * *By `cuGetProcAddress`*, which is how CUDA's runtime finds nearly everything. It is itself a hook, and replaces the address
//!   of a hooked function by the hook's (`cuda/lookup.rs`).
//! * *By NVML's private table*, which `nvidia-smi` uses (`nvml/export_table.rs`).
//!
//! The exported function finds the driver's own of the same name ([`crate::function`]) and calls the code after `=>`
//! in the table with it and with the arguments.
//!
//! # What the hooks' unsafe code relies on
//!
//! The SAFETY comments in `cuda` and `nvml` refer to two contracts, which follow from the driver's documentation:
//!
//! * **The call contract.** A program passes to a hook what the documentation asks for, as it would to the driver. Each pointer
//!   is null or, until the call returns, aligned, valid for what the driver reads or writes through it, and not used by other
//!   threads. Handles are the driver's own and not destroyed meanwhile, or such that the driver refuses them. A hook that passes
//!   its arguments on to the driver's function of the same name, which has the type that the vendor's header gives, thereby keeps
//!   the driver's conditions. Every `unsafe fn` that takes the driver's function as `real` has this contract as its condition.
//! * **The out-parameter contract.** A function of the driver that returns success has found every pointer that it requires not
//!   null, and has written a value there. Until the hook returns, that value may be read and replaced.

use core::ffi::{CStr, c_void};

/// The effect of a hooked function on GPU memory, or the reason for the hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookKind {
    /// Takes GPU memory: reserved in the ledger before the driver is called.
    Allocates,
    /// Gives GPU memory back: released in the ledger after the driver did.
    Frees,
    /// Reports how much memory there is, or which processes use it: shows the slice.
    Reports,
    /// Shows what was made past the hooks, a context or a pool: it is charged, or remembered.
    Notices,
    /// Hands out addresses of other functions: hands out the hooks.
    Resolves,
    /// Changes what is not the slice's: refused.
    Refuses,
    /// Launches work: waits for its part of the GPU's time.
    Launches,
}

/// One hooked function.
pub struct Hook {
    /// As exported.
    pub name: &'static CStr,
    /// Its effect.
    pub kind: HookKind,
    /// The code that replaces it.
    pub(crate) hook: *const (),
    /// Address of the driver's own; null for a function that is never called.
    pub(crate) real: fn() -> *mut c_void,
}

// SAFETY: `hook` is the address of a function of this library, which never changes. It is compared and handed out, and never
// read through; the other fields are `Sync` themselves.
unsafe impl Sync for Hook {}

/// Hooked functions of the driver API.
pub static CUDA: &[Hook] = crate::cuda::HOOKS;
/// Functions of the driver API that only the build with the gate hooks.
pub static GATE: &[Hook] = crate::gate::HOOKS;
/// Hooked functions of NVML.
pub static NVML: &[Hook] = crate::nvml::HOOKS;

/// The hook that replaces the driver's function at this address.
pub(crate) fn standing_in_for(real: *mut c_void, hooks: &[Hook]) -> Option<*mut c_void> {
    let hook = hooks.iter().find(|hook| (hook.real)() == real)?;
    Some(hook.hook.cast_mut().cast())
}

/// Defines hooks: the exported function, the driver's own under the same name in `real`, and the table `HOOKS`.
///
/// Each line is `Kind name(arguments) => code;` where `code` is called with the driver's function and the arguments. After `code` there may
/// be `, behind front`: then `front` is exported, and calls the function of this name.
///
/// Functions after `refusing status` give this answer without a call of the driver. So they need no arguments: in C the caller removes what it
/// has passed.
macro_rules! hooks {
    ($library:ident, $feature:literal $(refusing $answer:ident: [$($refused:ident)*])?: $( $kind:ident $name:ident($($arg:ident: $type:ty),* $(,)?) => $code:path $(, behind $front:path)?; )*) => {
        mod real {
            #![allow(non_upper_case_globals, reason = "the names are the driver's")]
            use super::*;
            $crate::function::driver_functions! { $library: $( $name($($type),*); )* }
        }
        $(
            $crate::hooks::exported! { $feature $($front)?:
                unsafe extern "C" fn $name($($arg: $type),*) -> Status {
                    match real::$name.get() {
                        // SAFETY: the call contract (`hooks.rs`), which is the condition of `$code` too.
                        Ok(real) => unsafe { $code(real, $($arg),*) },
                        Err(status) => status,
                    }
                }
            }
        )*
        $($(
            #[cfg_attr(feature = $feature, unsafe(no_mangle))]
            extern "C" fn $refused() -> Status {
                $answer
            }
        )*)?
        pub(crate) static HOOKS: &[$crate::hooks::Hook] = &[$($(
            $crate::hooks::Hook {
                name: $crate::function::c_name!($refused),
                kind: $crate::hooks::HookKind::Refuses,
                hook: $refused as *const (),
                real: core::ptr::null_mut,
            },
        )*)? $(
            $crate::hooks::Hook {
                name: $crate::function::c_name!($name),
                kind: $crate::hooks::HookKind::$kind,
                hook: $crate::hooks::outermost!($name $($front)?) as *const (),
                real: || $crate::function::Named::address(&real::$name),
            },
        )*];
    };
}

/// A hook; exported, unless something else is in front of it.
macro_rules! exported {
    ($feature:literal : $($hook:tt)*) => {
        #[cfg_attr(feature = $feature, unsafe(no_mangle))]
        $($hook)*
    };
    ($feature:literal $front:path : $($hook:tt)*) => {
        pub(super) $($hook)*
    };
}

/// The function that programs call.
macro_rules! outermost {
    ($name:ident) => {
        $name
    };
    ($name:ident $front:path) => {
        $front
    };
}

pub(crate) use {exported, hooks, outermost};
