//! The table of all functions that a slice changes: what each does, and which code stands in for it.
//!
//! Every other function of the driver is in `data/*-passes.txt` with the reason why it may pass untouched. A test compares both
//! with the driver's symbol lists, so a function that is in neither fails it.

use core::ffi::{CStr, c_void};

/// What a hooked function does with GPU memory, or why it is hooked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Takes GPU memory: reserved in the ledger before the driver is called.
    Allocates,
    /// Gives GPU memory back: released in the ledger after the driver did.
    Frees,
    /// Tells how much memory there is, or who uses it: shows the slice.
    Reports,
    /// Hands out addresses of other functions: hands out the hooks.
    Resolves,
}

/// One hooked function.
pub struct Hook {
    /// As exported.
    pub name: &'static CStr,
    /// What it does.
    pub class: Class,
    /// The code that stands in for it.
    pub(crate) hook: *const (),
    /// Address of the driver's own.
    pub(crate) real: fn() -> *mut c_void,
}

// SAFETY: `hook` is the address of a function.
unsafe impl Sync for Hook {}

/// Hooked functions of the driver API.
pub static CUDA: &[Hook] = crate::cuda::HOOKS;
/// Hooked functions of NVML.
pub static NVML: &[Hook] = crate::nvml::HOOKS;

/// The hook that stands in for the function at this address of the driver's.
pub(crate) fn standing_in_for(real: *mut c_void, hooks: &[Hook]) -> Option<*mut c_void> {
    let hook = hooks.iter().find(|hook| (hook.real)() == real)?;
    Some(hook.hook.cast_mut().cast())
}

/// Defines hooks: the exported function, the driver's own under the same name in `real`, and the table `HOOKS`.
///
/// Each line is `Class name(arguments) => code;` where `code` is called with the driver's function and the arguments.
macro_rules! hooks {
    ($library:ident, $feature:literal: $( $class:ident $name:ident($($arg:ident: $type:ty),* $(,)?) => $code:path; )*) => {
        mod real {
            #![allow(non_upper_case_globals, reason = "the names are the driver's")]
            use super::*;
            $crate::function::driver_functions! { $library: $( $name($($type),*); )* }
        }
        $(
            #[cfg_attr(feature = $feature, unsafe(no_mangle))]
            unsafe extern "C" fn $name($($arg: $type),*) -> Status {
                match real::$name.get() {
                    // SAFETY: the arguments are the caller's, as the driver's documentation asks for them.
                    Ok(real) => unsafe { $code(real, $($arg),*) },
                    Err(status) => status,
                }
            }
        )*
        pub(crate) static HOOKS: &[$crate::hooks::Hook] = &[$(
            $crate::hooks::Hook {
                name: unsafe {
                    // SAFETY: as above.
                    core::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                },
                class: $crate::hooks::Class::$class,
                hook: $name as *const (),
                real: || $crate::function::Named::address(&real::$name),
            },
        )*];
    };
}

pub(crate) use hooks;
