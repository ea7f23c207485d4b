//! Who is alive: each registered process holds a POSIX record lock on its slot's byte of the `locks` file.
//!
//! The kernel drops such a lock when the process dies in any way, and at `exec` (the descriptor is close-on-exec), and a
//! forked child does not inherit it: exactly the life of a CUDA context. It works across pid namespaces, and asking for
//! the holder gives its pid in the namespace of whoever asks. The price: a process that closes a descriptor it did not
//! open loses its device memory, as it would with the real driver's descriptors.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The `locks` file of a machine. Never closed while the process lives: closing *any* descriptor of the file would drop
/// the process's locks on it.
#[derive(Debug)]
pub(super) struct LockFile(pub(super) OwnedFd);

impl LockFile {
    /// Takes the byte of `slot` for this process. Fails if another process has it.
    pub(super) fn take(&self, slot: usize) -> io::Result<()> {
        self.control(libc::F_SETLK, &mut byte_lock(slot))
    }

    /// The pid, as seen from this process's namespace (0: not visible from here), of the process that holds `slot`;
    /// `None` if no one does. Finds this process's own lock too.
    pub(super) fn holder(&self, slot: usize) -> Option<u32> {
        let mut lock = byte_lock(slot);
        // The open-file-description form conflicts with every POSIX lock, ours included. If the question fails,
        // answer "alive": memory kept too long is a nuisance, memory taken from a living process is wrong.
        match self.control(libc::F_OFD_GETLK, &mut lock) {
            Ok(()) if lock.l_type == libc::F_UNLCK as i16 => None,
            Ok(()) => Some(u32::try_from(lock.l_pid).unwrap_or(0)),
            Err(_) => Some(0),
        }
    }

    fn control(&self, command: i32, lock: &mut libc::flock) -> io::Result<()> {
        // SAFETY: the descriptor is open and `lock` is a valid `struct flock` for the duration of the call.
        let rc = unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut *lock) };
        if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn byte_lock(slot: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: slot as libc::off_t,
        l_len: 1,
        l_pid: 0,
    }
}
