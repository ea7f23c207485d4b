//! Pointers that C programs pass, with one check: null is an error.
//!
//! The driver libraries' functions take these in place of raw pointers (the layout is the same), so that the assumptions of
//! every driver about its callers are stated and used here, and not in three hundred places:
//!
//! **The C contract.** A pointer that a program passes to an exported function is null or, until the function returns, valid for
//! the reads and writes that the function's documentation lists: one value, as many as an argument counts, or a
//! NUL-terminated string. No other thread uses that memory meanwhile. It need not be aligned: every access here is an
//! unaligned one. The values that are read are plain C data (`T` is an integer, a pointer, or a structure or array of
//! these), for which any bytes are valid.

use std::ffi::{CStr, c_char};

/// A required pointer was null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Null;

/// The destination of a result: C's `T *`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(pub(crate) *mut T);

impl<T> Out<T> {
    /// Stores `value`.
    pub(crate) fn set(self, value: T) -> Result<(), Null> {
        if self.0.is_null() {
            return Err(Null);
        }
        // SAFETY: not null, so by the C contract it is valid for a write of one `T`.
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
            // SAFETY: not null, so by the C contract it is valid for writes of `capacity` elements; `take` keeps `i` below that.
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
        // SAFETY: not null, so by the C contract it is valid for a read of one `T`, for which any bytes are valid.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Copies of `count` values.
    pub(crate) fn get_all(self, count: usize) -> Result<Vec<T>, Null> {
        if self.0.is_null() {
            return if count == 0 { Ok(Vec::new()) } else { Err(Null) };
        }
        // SAFETY: not null, so by the C contract it is valid for reads of `count` elements, for which any bytes are valid.
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
        // SAFETY: not null, so by the C contract it is a NUL-terminated string that stays as it is until the exported function
        // returns. `self` is an argument of that function, and the text borrows it.
        let bytes = unsafe { CStr::from_ptr(self.0) }.to_bytes();
        Ok(match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(),
        })
    }
}

/// A buffer for text: C's `char *` with its length in another argument.
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
