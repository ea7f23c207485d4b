//! The libraries between a task and the driver.
//!
//! One crate, four shared objects. `libcuda.so.1` and `libnvidia-ml.so.1` are *filters*: they define only the functions that
//! a slice changes ([`hooks`]) and name the real library by absolute path in `DT_NEEDED`, so every other symbol, also of drivers
//! newer than this code, comes from the real one by itself. `libcantle-preload.so` has the same hooks for `LD_PRELOAD`, for
//! systems where nothing can be mounted; `libcantle-image.so` for `/etc/ld.so.preload` of images with their own limit.
//!
//! Rules of this crate: no allocation, no panic, no thread, no constructor, no thread-local, nothing printed. It never ends
//! a user's process. It refuses memory that it cannot account for; everything else continues.
#![no_std]

#[cfg(test)]
extern crate std;

mod capture_mode;
mod cuda;
mod function;
#[cfg_attr(not(feature = "gate"), allow(dead_code, reason = "compiled to be tested; used by one build"))]
mod gate;
mod holdings;
pub mod hooks;
mod list;
mod lock;
mod moment;
mod nvml;
#[cfg(feature = "preload")]
mod preload;
mod process;
mod table;

/// Reports, to the program that starts tasks, which layouts of the accounting files this library knows.
#[cfg(any(feature = "cuda", feature = "nvml"))]
#[used]
#[unsafe(link_section = ".note.cantle")]
static NOTE: [u32; 7] = cantle_ledger::NOTE;

/// Required of a `no_std` shared object, never reached: `cargo xtask verify-shim` fails if anything in one can panic.
#[cfg(all(panic = "abort", any(feature = "cuda", feature = "nvml"), not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
