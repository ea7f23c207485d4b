//! Pointers that C programs hand over, made safe to use: null is an error, everything else is the caller's promise.
//!
//! The driver libraries' functions take these in place of raw pointers (the layout is the same), so that the one
//! assumption every driver makes about its callers stands here and not in three hundred places.

use std::ffi::{CStr, c_char};

use crate::state::{OpenError, Sim, Site};

/// A required pointer was null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Null;

/// Where to store a result: C's `T *`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(pub(crate) *mut T);

impl<T> Out<T> {
    /// Stores `value`.
    pub(crate) fn set(self, value: T) -> Result<(), Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: the contract of a C function with a result pointer: null or valid for one `T`.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores `value` unless the caller did not ask for it.
    pub(crate) fn set_if_asked(self, value: T) {
        let _ = self.set(value);
    }

    /// Null if the caller did not ask for this result.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Stores as many of `values` as fit into `capacity` elements.
    pub(crate) fn fill(self, capacity: usize, values: impl IntoIterator<Item = T>) -> Result<(), Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        for (i, value) in values.into_iter().take(capacity).enumerate() {
            // SAFETY: the contract of a C function with an array and its length: valid for `capacity` elements.
            unsafe { self.0.add(i).write_unaligned(value) };
        }
        Ok(())
    }
}

impl<T: Copy> Out<T> {
    /// Reads what is there: for arguments that go both ways.
    pub(crate) fn get(self) -> Result<T, Null> {
        In(self.0).get()
    }
}

/// Something to read: C's `const T *`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(pub(crate) *const T);

impl<T: Copy> In<T> {
    /// A copy of the value.
    pub(crate) fn get(self) -> Result<T, Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: the contract of a C function with an input pointer: null or valid for one `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Copies of `count` values.
    pub(crate) fn get_all(self, count: usize) -> Result<Vec<T>, Null> {
        if self.0.is_null() {
            return if count == 0 { Ok(Vec::new()) } else { Err(Null) };
        }
        // SAFETY: the contract of a C function with an array and its length: valid for `count` elements.
        Ok((0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }
}

/// A text argument: C's `const char *`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(pub(crate) *const c_char);

impl Text {
    /// The text up to its end, or as far as it is UTF-8.
    pub(crate) fn get(&self) -> Result<&str, Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: the contract of a C function with a string argument: null or a NUL-terminated string.
        let bytes = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
        })
    }
}

/// A buffer for text: C's `char *` with a length beside it.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct TextBuffer(pub(crate) *mut c_char);

impl TextBuffer {
    /// Writes as much of `text` as fits, NUL-terminated. Says whether all of it did.
    pub(crate) fn write(self, capacity: usize, text: &str) -> Result<bool, Null> {
        if self.0.is_null() || capacity == 0 {
            return Err(Null);
        }
        let shown = text.len().min(capacity - 1);
        let bytes = text.bytes().take(shown).chain([0]).map(|byte| byte as c_char);
        Out(self.0).fill(capacity, bytes)?;
        Ok(shown == text.len())
    }
}

/// Opens the machine that the settings name. What stands in the way is said once, on stderr: a driver library has no
/// other place for a sentence, and an error code alone would leave the user guessing.
pub(crate) fn open_configured() -> Result<&'static Sim, OpenError> {
    let result = match crate::control::chosen_site() {
        Some(site) => Sim::open(&site, None),
        None => Sim::open(&crate::config::site(), crate::config::spec().as_deref()),
    };
    if let Err(error) = &result {
        static SAID: std::sync::Once = std::sync::Once::new();
        SAID.call_once(|| say(error));
    }
    result
}

#[expect(clippy::print_stderr, reason = "the one line a user sees when the simulated GPUs can't be used")]
fn say(error: &OpenError) {
    eprintln!("cantle simulated driver: {error}");
}

/// Opens a machine by path.
pub(crate) fn open_dir(dir: &str, spec: Option<&str>) -> Result<&'static Sim, OpenError> {
    Sim::open(&Site::Directory(dir.into()), spec)
}
