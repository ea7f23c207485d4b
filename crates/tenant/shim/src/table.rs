//! A table from addresses (or handles) to what was charged for them. Its cost does not grow with the number of entries, it does
//! not use the program's allocator, and it is valid when zero: a child of `fork` finds it empty.

use core::mem::ManuallyDrop;
use core::ptr;

use crate::lock::Lock;

const STRIPES: usize = 16;
/// Slots of a stripe's first array: one page.
const FIRST_SLOTS: usize = 128;

/// Entries that [`Table::sweep`] takes off with one lock.
const SWEPT_AT_ONCE: usize = 16;

/// The entry of one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Entry {
    /// The address or handle; 0 marks an empty slot (the driver never gives it out).
    pub(crate) key: u64,
    /// The context it belongs to.
    pub(crate) context: u64,
    /// Bytes and the index of the GPU in the slice.
    bytes_and_gpu: u64,
}

const GPU_BITS: u32 = 8;
/// In the bits of the GPU: the memory migrates.
const MANAGED: u64 = 0x80;

impl Entry {
    pub(crate) const fn new(key: u64, context: u64, gpu: usize, bytes: u64) -> Self {
        Self { key, context, bytes_and_gpu: bytes << GPU_BITS | gpu as u64 & 0xFF }
    }

    /// The same, of memory that migrates.
    pub(crate) const fn managed(mut self) -> Self {
        self.bytes_and_gpu |= MANAGED;
        self
    }

    pub(crate) const fn is_managed(&self) -> bool {
        self.bytes_and_gpu & MANAGED != 0
    }

    pub(crate) const fn set_bytes(&mut self, bytes: u64) {
        self.bytes_and_gpu = bytes << GPU_BITS | self.bytes_and_gpu & 0xFF;
    }

    pub(crate) const fn gpu(&self) -> usize {
        (self.bytes_and_gpu & (MANAGED - 1)) as usize
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes_and_gpu >> GPU_BITS
    }
}

/// The table.
#[repr(transparent)]
pub(crate) struct Table([Lock<Stripe>; STRIPES]);

/// No memory left for the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Table {
    #[cfg(test)]
    const fn new() -> Self {
        Self([const { Lock::new(Stripe { slots: ptr::null_mut(), capacity: 0, length: 0 }) }; STRIPES])
    }

    /// Adds an entry and returns the one it replaces: the driver reuses an address only after it was freed, so that was freed
    /// without a call of a hook.
    pub(crate) fn insert(&self, entry: Entry) -> Result<Option<Entry>, Full> {
        self.stripe(entry.key).map_or(Err(Full), |stripe| stripe.lock().insert(entry))
    }

    /// Lets `change` edit the entry of this key, or adds `entry` if there is none. Whether there was one.
    pub(crate) fn join(&self, entry: Entry, change: impl FnOnce(&mut Entry)) -> Result<bool, Full> {
        let mut stripe = self.stripe(entry.key).ok_or(Full)?.lock();
        let at = stripe.find(entry.key);
        if at.and_then(|at| stripe.slots_mut().get_mut(at)).map(change).is_some() {
            return Ok(true);
        }
        stripe.insert(entry).map(|_none| false)
    }

    pub(crate) fn remove(&self, key: u64) -> Option<Entry> {
        self.stripe(key)?.lock().remove(key)
    }

    pub(crate) fn get(&self, key: u64) -> Option<Entry> {
        let stripe = self.stripe(key)?.lock();
        let at = stripe.find(key)?;
        stripe.slots().get(at).copied()
    }

    /// Lets `change` edit an entry; false if there is none.
    pub(crate) fn update(&self, key: u64, change: impl FnOnce(&mut Entry)) -> bool {
        let Some(mut stripe) = self.stripe(key).map(Lock::lock) else { return false };
        let at = stripe.find(key);
        at.and_then(|at| stripe.slots_mut().get_mut(at)).map(change).is_some()
    }

    /// Lets `is_last` edit an entry, and removes the entry if it returns true.
    pub(crate) fn remove_if(&self, key: u64, is_last: impl FnOnce(&mut Entry) -> bool) -> Option<Entry> {
        let mut stripe = self.stripe(key)?.lock();
        let at = stripe.find(key)?;
        if is_last(stripe.slots_mut().get_mut(at)?) { stripe.remove(key) } else { None }
    }

    /// Calls `each` with a copy of every entry. Nothing is locked during the call, so entries that come or go meanwhile may be
    /// missed or come twice.
    pub(crate) fn each(&self, mut each: impl FnMut(Entry)) {
        for stripe in &self.0 {
            let mut at = 0;
            loop {
                let next = {
                    let stripe = stripe.lock();
                    let mut rest = stripe.slots().iter().enumerate().skip(at);
                    rest.find(|(_, entry)| entry.key != 0).map(|(at, entry)| (at, *entry))
                };
                let Some((found, entry)) = next else { break };
                each(entry);
                at = found + 1;
            }
        }
    }

    /// Lets `change` edit every entry's context.
    pub(crate) fn edit_contexts(&self, mut change: impl FnMut(&Entry) -> u64) {
        for stripe in &self.0 {
            for entry in stripe.lock().slots_mut() {
                if entry.key != 0 {
                    entry.context = change(entry);
                }
            }
        }
    }

    /// Removes every entry for which `doomed` is true, one after another. Nothing is locked while `each` gets one.
    ///
    /// A removal moves later entries up, so the search goes on at the hole. Another thread's change can move an entry to where the search
    /// has been, so a stripe is done when a whole pass finds nothing.
    pub(crate) fn sweep(&self, doomed: impl Fn(&Entry) -> bool, mut each: impl FnMut(Entry)) {
        for stripe in &self.0 {
            let (mut at, mut has_found) = (0, false);
            loop {
                // Some at once: each lock costs as much as the removal.
                let (mut taken, mut count) = ([Entry::default(); SWEPT_AT_ONCE], 0);
                {
                    let mut stripe = stripe.lock();
                    for place in &mut taken {
                        let Some(entry) = stripe.remove_next(&mut at, &doomed) else { break };
                        *place = entry;
                        count += 1;
                    }
                }
                taken.iter().take(count).copied().for_each(&mut each);
                match (count, has_found) {
                    (0, false) => break,
                    (0, true) => (at, has_found) = (0, false),
                    _ => has_found = true,
                }
            }
        }
    }

    #[inline]
    fn stripe(&self, key: u64) -> Option<&Lock<Stripe>> {
        if key == 0 {
            return None;
        }
        self.0.get((hash(key) >> 60) as usize % STRIPES)
    }
}

/// Fibonacci hashing: addresses are multiples of 512 and more, and their differences are small.
const fn hash(key: u64) -> u64 {
    (key ^ key >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Open addressing with linear probing; removal moves later entries up, so a search meets no tombstones.
///
/// `slots` is null with a capacity of 0, or the array of `capacity` entries that [`map`] made and that this stripe alone owns.
struct Stripe {
    slots: *mut Entry,
    capacity: usize,
    length: usize,
}

// SAFETY: the stripe is the only owner of the array behind `slots`, so the array moves to another thread with it; `munmap` may
// be called by any thread.
unsafe impl Send for Stripe {}

impl Stripe {
    #[inline]
    fn slots(&self) -> &[Entry] {
        if self.slots.is_null() {
            return &[];
        }
        // SAFETY: `slots` is not null, so it is a page-aligned array of `capacity` entries, which the kernel zeroed (a valid
        // `Entry`) and only this stripe reaches. The slice borrows `self`, which excludes `slots_mut` and `grow`.
        unsafe { core::slice::from_raw_parts(self.slots, self.capacity) }
    }

    #[inline]
    fn slots_mut(&mut self) -> &mut [Entry] {
        if self.slots.is_null() {
            return &mut [];
        }
        // SAFETY: `slots` is not null, so it is a page-aligned array of `capacity` valid entries that only this stripe reaches.
        // The slice borrows `self` exclusively, so nothing else refers to the array meanwhile.
        unsafe { core::slice::from_raw_parts_mut(self.slots, self.capacity) }
    }

    /// The slot in which a search for a key begins. The capacity is a power of two, and the stripe was chosen by the topmost
    /// bits.
    #[inline]
    fn home(&self, key: u64) -> usize {
        (hash(key) >> 20) as usize & self.mask()
    }

    #[inline]
    const fn mask(&self) -> usize {
        self.capacity.wrapping_sub(1)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        let mut at = self.home(key);
        loop {
            let entry = self.slots().get(at)?;
            if entry.key == key {
                return Some(at);
            }
            if entry.key == 0 {
                return None;
            }
            at = (at + 1) & self.mask();
        }
    }

    fn insert(&mut self, entry: Entry) -> Result<Option<Entry>, Full> {
        // At most half full, so runs stay short and a search always meets an empty slot.
        if self.length >= self.capacity / 2 {
            self.grow()?;
        }
        let mut at = self.home(entry.key);
        let mask = self.mask();
        loop {
            let slot = self.slots_mut().get_mut(at).ok_or(Full)?;
            if slot.key == entry.key {
                return Ok(Some(core::mem::replace(slot, entry)));
            }
            if slot.key == 0 {
                *slot = entry;
                self.length += 1;
                return Ok(None);
            }
            at = (at + 1) & mask;
        }
    }

    /// Removes the first entry from slot `at` on for which `doomed` is true. `at` becomes its slot, or the end.
    fn remove_next(&mut self, at: &mut usize, doomed: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let mut rest = self.slots().iter().enumerate().skip(*at);
        let found = rest.find(|(_, entry)| entry.key != 0 && doomed(entry)).map(|(at, _)| at);
        *at = found.unwrap_or(self.capacity);
        self.remove_at(found?)
    }

    fn remove(&mut self, key: u64) -> Option<Entry> {
        self.remove_at(self.find(key)?)
    }

    fn remove_at(&mut self, mut hole: usize) -> Option<Entry> {
        let removed = core::mem::take(self.slots_mut().get_mut(hole)?);
        self.length -= 1;
        let mask = self.mask();
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = *self.slots().get(at)?;
            if entry.key == 0 {
                return Some(removed);
            }
            // An entry may move up into the hole unless its home lies between the hole and itself.
            let from_home = at.wrapping_sub(self.home(entry.key)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                *self.slots_mut().get_mut(hole)? = core::mem::take(self.slots_mut().get_mut(at)?);
                hole = at;
            }
        }
    }

    #[cold]
    fn grow(&mut self) -> Result<(), Full> {
        let capacity = if self.capacity == 0 { FIRST_SLOTS } else { self.capacity * 2 };
        let slots = map(capacity).ok_or(Full)?;
        let mut larger = ManuallyDrop::new(Self { slots, capacity, length: 0 });
        for entry in self.slots().iter().filter(|entry| entry.key != 0) {
            larger.insert(*entry)?;
        }
        // SAFETY: this stripe's own array; the next line replaces it, and no reference to it is left.
        unsafe { unmap(self.slots, self.capacity) };
        *self = ManuallyDrop::into_inner(larger);
        Ok(())
    }
}

fn map(capacity: usize) -> Option<*mut Entry> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping without MAP_FIXED: the kernel chooses unused addresses, so no memory that is in use changes.
    let at = unsafe { libc::mmap(ptr::null_mut(), capacity * size_of::<Entry>(), protection, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

/// # Safety
/// `slots` is null, or [`map`] made it with this capacity, and nothing uses the array any more.
unsafe fn unmap(slots: *mut Entry, capacity: usize) {
    if !slots.is_null() {
        // SAFETY: by this function's condition it is a whole mapping that nothing uses.
        unsafe { libc::munmap(slots.cast(), capacity * size_of::<Entry>()) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::vec::Vec;

    use super::*;

    /// A generator that repeats its sequence: tests must not depend on chance.
    fn numbers() -> impl Iterator<Item = u64> {
        core::iter::successors(Some(1_u64), |x| {
            Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        })
        .map(|x| x >> 33)
    }

    #[test]
    fn agrees_with_an_ordered_map_through_many_inserts_and_removals() {
        let (table, mut model) = (Table::new(), BTreeMap::new());
        let mut random = numbers();
        for _ in 0..200_000 {
            let (op, key) = (random.next().unwrap() % 2, (random.next().unwrap() % 3000 + 1) * 512);
            if op == 0 {
                let entry = Entry::new(key, 7, 3, random.next().unwrap());
                assert_eq!(table.insert(entry).unwrap(), model.insert(key, entry));
            } else {
                assert_eq!(table.remove(key), model.remove(&key));
            }
        }
        let mut swept = Vec::new();
        table.sweep(|_| true, |entry| swept.push((entry.key, entry)));
        swept.sort_by_key(|(key, _)| *key);
        assert_eq!(swept, model.into_iter().collect::<Vec<_>>());
    }

    /// Twice the entries, twice the time: the searches that a removal begins do not start over.
    #[test]
    fn a_sweep_looks_at_each_slot_a_few_times() {
        let looks = |count: u64| {
            let (table, looks) = (Table::new(), core::cell::Cell::new(0_u64));
            (1..=count).for_each(|key| {
                assert!(table.insert(Entry::new(key * 512, key % 2, 0, 0)).unwrap().is_none())
            });
            let doomed = |entry: &Entry| {
                looks.set(looks.get() + 1);
                entry.context == 0
            };
            let mut swept = 0;
            table.sweep(doomed, |_| swept += 1);
            assert_eq!(swept, count / 2);
            let mut left = 0;
            table.each(|entry| left += entry.context);
            assert_eq!(left, count.div_ceil(2));
            looks.get() / count
        };
        assert!(looks(20_000) <= 3 && looks(100_000) <= 3);
    }

    #[test]
    fn a_sweep_finds_all_while_others_change_the_table() {
        let table = Table::new();
        (1..=20_000).for_each(|key| assert!(table.insert(Entry::new(key * 512, 1, 0, 0)).unwrap().is_none()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20 {
                    for key in 30_000..40_000_u64 {
                        table.insert(Entry::new((key + round) * 512, 2, 0, 0)).unwrap();
                        table.remove((key + round) * 512);
                    }
                }
            });
            let mut swept = 0;
            table.sweep(|entry| entry.context == 1, |_| swept += 1);
            assert_eq!(swept, 20_000);
        });
    }

    #[test]
    fn an_entry_keeps_its_figures() {
        let entry = Entry::new(0x7f00_0000_0000, 42, 15, 288 << 30);
        assert_eq!((entry.gpu(), entry.bytes()), (15, 288 << 30));
    }
}
