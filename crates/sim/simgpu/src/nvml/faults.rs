//! Scripted faults: failures of real drivers, for tests to trigger on purpose.
//!
//! A text file `faults` in the directory in which the machine was made, one fault per line:
//!
//! ```text
//! nvmlGpuInstanceCreateComputeInstance gpu=0 error=23 once
//! nvmlGpuInstanceDestroy error=19
//! nvmlDeviceGetMemoryInfo gpu=3 delay_ms=12000
//! * gpu=1 error=15
//! nvmlDeviceSetMigMode gpu=2 activation=16
//! xid gpu=0 code=79 once
//! ```
//!
//! The first word is a function's name, or `*` for all that take a GPU; the conditions narrow it down; the first line that
//! matches applies. A `once` line is removed after its use. With `activation`, a change of MIG mode succeeds but stays
//! pending for the given reason (16: the GPU must be reset). An `xid` line is not a call: it is an event that
//! `nvmlEventSetWait` delivers.

use std::cell::Cell;
use std::fs;
use std::time::Duration;

use super::{NvmlError, NvmlResult};
use crate::state::Sim;

thread_local! {
    /// The function that this thread is in, as the program called it.
    static CALL: Cell<&'static str> = const { Cell::new("") };
}

/// Notes which function is being called.
pub(crate) fn enter(call: &'static str) {
    CALL.set(call);
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Fault<'a> {
    call: &'a str,
    gpu: Option<usize>,
    error: i32,
    activation: i32,
    code: u64,
    delay_ms: u64,
    once: bool,
}

impl<'a> Fault<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut fault = Self { call: words.next()?, ..Self::default() };
        for word in words {
            match word.split_once('=') {
                Some(("gpu", n)) => fault.gpu = Some(n.parse().ok()?),
                Some(("error", n)) => fault.error = n.parse().ok()?,
                Some(("activation", n)) => fault.activation = n.parse().ok()?,
                Some(("code", n)) => fault.code = n.parse().ok()?,
                Some(("delay_ms", n)) => fault.delay_ms = n.parse().ok()?,
                None if word == "once" => fault.once = true,
                _ => return None,
            }
        }
        Some(fault)
    }

    fn fits(&self, gpu: usize, call: &str) -> bool {
        self.gpu.is_none_or(|g| g == gpu) && (self.call == call || self.call == "*" && call != XID)
    }
}

const XID: &str = "xid";

/// The first fault that fits, taken out of the script if it happens once.
fn take<T>(
    sim: &'static Sim,
    fits: impl Fn(&Fault<'_>) -> bool,
    read: impl Fn(&Fault<'_>) -> T,
) -> Option<T> {
    let path = sim.home().join("faults");
    // Most machines have no faults, and this is asked often.
    let _lock = path.exists().then(|| sim.lock())?;
    let script = fs::read_to_string(&path).ok()?;
    let at = script.lines().position(|line| Fault::parse(line).is_some_and(|fault| fits(&fault)))?;
    let fault = Fault::parse(script.lines().nth(at)?)?;
    if fault.once {
        let rest: String =
            script.lines().enumerate().filter(|(i, _)| *i != at).map(|(_, l)| format!("{l}\n")).collect();
        fs::write(&path, rest).ok()?;
    }
    Some(read(&fault))
}

/// Lets the scripted fault of the current call happen, if there is one for this GPU.
pub(super) fn happen(sim: &'static Sim, gpu: usize) -> NvmlResult {
    let call = CALL.get();
    match take(
        sim,
        |fault| fault.activation == 0 && fault.fits(gpu, call),
        |fault| (fault.delay_ms, fault.error),
    ) {
        None => Ok(()),
        Some((delay_ms, error)) => {
            std::thread::sleep(Duration::from_millis(delay_ms));
            if error == 0 { Ok(()) } else { Err(NvmlError(error)) }
        }
    }
}

/// Why a change of this GPU's MIG mode is to stay pending.
pub(super) fn activation(sim: &'static Sim, gpu: usize) -> Option<i32> {
    take(
        sim,
        |fault| fault.activation != 0 && fault.fits(gpu, "nvmlDeviceSetMigMode"),
        |fault| fault.activation,
    )
}

/// The next scripted Xid of GPUs that are listened to: its GPU and code.
pub(super) fn next_xid(sim: &'static Sim, listens: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
    take(
        sim,
        |fault| fault.call == XID && listens(fault.gpu.unwrap_or(0)),
        |fault| (fault.gpu.unwrap_or(0), fault.code),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_matched() {
        let fault = Fault::parse("nvmlGpuInstanceDestroy gpu=2 error=19 delay_ms=5 once").unwrap();
        assert_eq!((fault.gpu, fault.error, fault.delay_ms, fault.once), (Some(2), 19, 5, true));
        assert!(fault.fits(2, "nvmlGpuInstanceDestroy"));
        assert!(!fault.fits(1, "nvmlGpuInstanceDestroy") && !fault.fits(2, "nvmlDeviceGetName"));
        assert!(Fault::parse("* error=15").unwrap().fits(7, "nvmlDeviceGetName"));
        assert_eq!(Fault::parse("nvmlDeviceGetName eror=15"), None);
        assert_eq!(Fault::parse(""), None);
    }
}
