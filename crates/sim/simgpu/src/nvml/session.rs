//! Initialization, and its reference count.

use std::fs::File;
use std::sync::Mutex;

use super::{NvmlError, NvmlResult, nvml_api, remembered, settings};
use crate::opened::opened_elsewhere;
use crate::opening::open_configured;
use crate::state::{Sim, SimOpenError};

struct Session {
    /// `nvmlInit` calls not yet matched by `nvmlShutdown`.
    count: u32,
    sim: Option<&'static Sim>,
    /// The device, open as long as the session is, as the real library has it.
    _device: Option<File>,
}

static SESSION: Mutex<Session> = Mutex::new(Session { count: 0, sim: None, _device: None });

fn init() -> NvmlResult {
    let mut session = SESSION.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if session.count == 0 {
        let sim = open_configured().map_err(|error| match error {
            SimOpenError::Absent(_) => NvmlError::DRIVER_NOT_LOADED,
            _ => NvmlError::INVALID_ARGUMENT,
        })?;
        settings::read(sim.home()).map_err(|why| complain(&why))?;
        session._device = File::open(sim.site().state()).ok();
        session.sim = Some(sim);
    }
    session.count += 1;
    Ok(())
}

/// Does another process use NVML?
pub(crate) fn is_open_elsewhere(sim: &Sim) -> bool {
    opened_elsewhere(&[sim.site().state()])
}

/// A driver library has no other place for a sentence.
#[expect(clippy::print_stderr, reason = "the one line a user sees when the driver's model cannot be used")]
fn complain(why: &str) -> NvmlError {
    eprintln!("cantle simulated driver: {why}");
    NvmlError::INVALID_ARGUMENT
}

/// The machine, between the first `nvmlInit` and the last `nvmlShutdown`.
pub(super) fn sim() -> NvmlResult<&'static Sim> {
    let session = SESSION.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    session.sim.ok_or(NvmlError::UNINITIALIZED)
}

nvml_api! {
    fn nvmlInit() { init() }

    fn nvmlInit_v2() { init() }

    fn nvmlInitWithFlags(_flags: u32) { init() }

    fn nvmlShutdown() {
        let mut session = SESSION.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        session.count = session.count.checked_sub(1).ok_or(NvmlError::UNINITIALIZED)?;
        if session.count == 0 {
            session.sim = None;
            session._device = None;
            remembered::forget_all();
        }
        Ok(())
    }
}
