//! Keeps a program's signals away from the driver's own threads.

/// All signals are blocked in this thread, and so in those that it starts, until this is dropped: a program's signals are
/// for the program's own threads.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        // SAFETY: a `sigset_t` is an array of integers, for which zero is valid; the two calls read and write these live locals
        // only, and change the calling thread's mask only.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: `before` is a set that `new` initialized; a null pointer asks for no old mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
