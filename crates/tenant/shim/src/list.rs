//! A list that does not use the program's allocator.

use core::ptr;

/// Entries of the first array: one page of the smallest.
const FIRST: usize = 256;

/// `at` is null with a capacity of 0, or the start of `capacity` entries that [`List::grow`] mapped and that this list alone owns. The first
/// `length` of them have been written.
pub(crate) struct List<T: Copy> {
    at: *mut T,
    capacity: usize,
    length: usize,
}

/// No memory left for the list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl<T: Copy> List<T> {
    pub(crate) const fn new() -> Self {
        Self { at: ptr::null_mut(), capacity: 0, length: 0 }
    }

    pub(crate) fn push(&mut self, entry: T) -> Result<(), Full> {
        if self.length == self.capacity {
            self.grow()?;
        }
        // SAFETY: `length` is below `capacity` now, so the entry is inside the array, which only this list reaches.
        unsafe { self.at.add(self.length).write(entry) };
        self.length += 1;
        Ok(())
    }

    pub(crate) const fn entries(&self) -> &[T] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: not null, so it is an array whose first `length` entries have been written; the slice borrows the list.
        unsafe { core::slice::from_raw_parts(self.at, self.length) }
    }

    const fn entries_mut(&mut self) -> &mut [T] {
        if self.at.is_null() {
            return &mut [];
        }
        // SAFETY: not null, so it is an array whose first `length` entries have been written; the slice borrows the list exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.length) }
    }

    #[cold]
    fn grow(&mut self) -> Result<(), Full> {
        let capacity = if self.capacity == 0 { FIRST } else { self.capacity.saturating_mul(2) };
        let bytes = capacity.checked_mul(size_of::<T>()).ok_or(Full)?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping without MAP_FIXED: the kernel chooses unused addresses. It is page-aligned and larger than the old array,
        // from which `length` entries are copied; the two do not overlap.
        let fresh = unsafe {
            let at = libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return Err(Full);
            }
            if !self.at.is_null() {
                ptr::copy_nonoverlapping(self.at, at.cast::<T>(), self.length);
            }
            at.cast::<T>()
        };
        let length = self.length;
        // The old array goes with the old list.
        *self = Self { at: fresh, capacity, length };
        Ok(())
    }

    /// Orders the entries by a key. A heap sort: it needs no memory and cannot panic.
    pub(crate) fn sort_by_key(&mut self, key: impl Fn(&T) -> u64) {
        let entries = self.entries_mut();
        let length = entries.len();
        for root in (0..length / 2).rev() {
            sift(entries, root, length, &key);
        }
        for end in (1..length).rev() {
            exchange(entries, 0, end);
            sift(entries, 0, end, &key);
        }
    }
}

/// Moves an entry down among the first `end` until none below it has a larger key.
fn sift<T: Copy>(entries: &mut [T], mut root: usize, end: usize, key: &impl Fn(&T) -> u64) {
    let at = |entries: &[T], at: usize| entries.get(at).map(key);
    loop {
        let first = 2 * root + 1;
        if first >= end {
            return;
        }
        let is_second_larger = first + 1 < end && at(entries, first) < at(entries, first + 1);
        let larger = first + usize::from(is_second_larger);
        if at(entries, root) >= at(entries, larger) {
            return;
        }
        exchange(entries, root, larger);
        root = larger;
    }
}

fn exchange<T: Copy>(entries: &mut [T], one: usize, other: usize) {
    if let (Some(&first), Some(&second)) = (entries.get(one), entries.get(other))
        && let Some(at) = entries.get_mut(one)
    {
        *at = second;
        if let Some(at) = entries.get_mut(other) {
            *at = first;
        }
    }
}

impl<T: Copy> Drop for List<T> {
    fn drop(&mut self) {
        if !self.at.is_null() {
            // SAFETY: the whole mapping that `grow` made with this capacity; nothing refers to it after the list.
            unsafe { libc::munmap(self.at.cast(), self.capacity * size_of::<T>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn sorts_as_the_standard_library_does() {
        for count in [0, 1, 2, 3, 255, 256, 257, 5000] {
            let (mut list, mut model, mut state) = (List::new(), Vec::new(), 7_u64);
            for _ in 0..count {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                list.push(state >> 50).unwrap();
                model.push(state >> 50);
            }
            assert_eq!(list.entries(), model);
            list.sort_by_key(|entry| *entry);
            model.sort_unstable();
            assert_eq!(list.entries(), model);
        }
    }
}
