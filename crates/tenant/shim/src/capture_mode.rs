//! Calls of the driver that are the filter's own, while the program may be capturing a stream.
//!
//! A capture forbids calls that it would not see, to its own thread and, in the global mode, to all threads: one such call ends the
//! capture with an error. Which calls those are was measured on a card (`docs/results/`): questions to a memory pool, an event or a stream
//! are among them. In the relaxed mode all of them are allowed.

use core::ffi::c_int;

use crate::cuda::SUCCESS;

mod driver {
    #![allow(non_upper_case_globals, reason = "the names are the driver's")]
    use super::c_int;
    use crate::function::Status;

    crate::function::driver_functions! { CUDA:
        cuThreadExchangeStreamCaptureMode(*mut c_int);
    }
}

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: this thread's calls are not about a capture.
const RELAXED: c_int = 2;

/// While it lives, this thread's calls of the driver disturb no capture.
pub(crate) struct RelaxedMode(Option<c_int>);

impl RelaxedMode {
    pub(crate) fn enter() -> Self {
        let mut mode = RELAXED;
        // SAFETY: `mode` is a live local, which the function exchanges with this thread's own.
        let exchanged = driver::cuThreadExchangeStreamCaptureMode
            .get()
            .is_ok_and(|exchange| unsafe { exchange(&raw mut mode) } == SUCCESS);
        Self(exchanged.then_some(mode))
    }
}

impl Drop for RelaxedMode {
    fn drop(&mut self) {
        if let (Some(mode), Ok(exchange)) = (&mut self.0, driver::cuThreadExchangeStreamCaptureMode.get()) {
            // SAFETY: `mode` is a live field with the mode that the thread had, which the function exchanges with the present one.
            unsafe { exchange(mode) };
        }
    }
}
