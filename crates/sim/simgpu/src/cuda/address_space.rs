//! Device addresses of one process: a range of virtual addresses in which every allocation starts at a granule, and a
//! table with one entry per granule for the allocation that starts there.
//!
//! There is no device memory behind the addresses. Small linear memory shares granules ([`Slabs`]).

use super::slab::Slabs;
use crate::{GRANULE_BYTES, granules};

/// Between the highest address a position-dependent program uses and the lowest that mmap gives out: on x86-64 Linux, and on
/// aarch64 with addresses of 48 bits.
const START: u64 = 0x2000_0000_0000;
const END: u64 = 0x5000_0000_0000;
const SLOTS: usize = ((END - START) / GRANULE_BYTES) as usize;

/// The kind of an address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From `cuMemAlloc` and `cuMemAllocPitch`.
    Device,
    /// From `cuMemAllocManaged`: backed by host memory, so that the host can touch it.
    Managed,
    /// From a pool, by its number.
    Pool(u32),
    /// Of a graph's allocation node, with the pool its memory comes from.
    Graph(u32),
    /// From `cuMemAddressReserve`: addresses only.
    Reserved,
    /// Another process's memory.
    Imported,
    /// A slab: its allocations are in [`Slabs`].
    Slab,
}

/// One allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allocation {
    pub(super) size_bytes: u64,
    pub(super) context: u32,
    pub(super) kind: Kind,
}

/// The table. A cursor goes through the range again and again and skips what is in use (next fit); freeing the newest allocation
/// moves it back. Allocation costs a few nanoseconds, however many live. The range starts small, so that the table does
/// too, and doubles when nothing in it fits.
pub(super) struct AddressSpace {
    table: Vec<Option<Allocation>>,
    cursor: usize,
    /// Everything from the cursor up to here is unused.
    unused_until: usize,
    /// The end of the range in use now.
    end: usize,
    live: usize,
    pub(super) slabs: Slabs,
}

/// 64 GiB of addresses.
const FIRST_END: usize = 32 << 10;

impl AddressSpace {
    pub(super) fn new() -> Self {
        Self {
            table: Vec::new(),
            cursor: 0,
            unused_until: FIRST_END,
            end: FIRST_END,
            live: 0,
            slabs: Slabs::default(),
        }
    }

    /// Places an allocation; `None` if no free range is large enough.
    pub(super) fn insert(&mut self, allocation: Allocation) -> Option<u64> {
        let length = usize::try_from(granules(allocation.size_bytes)).ok()?.max(1);
        if self.unused_until - self.cursor < length {
            self.find(length)?;
        }
        let slot = self.cursor;
        if slot >= self.table.len() {
            self.table.resize((slot + 1).next_multiple_of(4096), None);
        }
        self.table[slot] = Some(allocation);
        self.cursor += length;
        self.live += 1;
        Some(START + slot as u64 * GRANULE_BYTES)
    }

    /// The allocation that starts at `address`.
    pub(super) fn get(&self, address: u64) -> Option<Allocation> {
        let whole = slot_of(address).and_then(|slot| self.table.get(slot).copied().flatten());
        whole.filter(|whole| whole.kind != Kind::Slab).or_else(|| self.slabs.get(address))
    }

    /// Removes the allocation that starts at `address`.
    pub(super) fn remove(&mut self, address: u64) -> Option<Allocation> {
        let slot = slot_of(address)?;
        let allocation = self.table.get_mut(slot)?.take()?;
        self.live -= 1;
        if slot + length_of(&allocation) == self.cursor {
            self.cursor = slot;
        }
        Some(allocation)
    }

    /// The allocation that contains `address`, and where it starts.
    pub(super) fn containing(&self, address: u64) -> Option<(u64, Allocation)> {
        let slot = usize::try_from(address.checked_sub(START)? / GRANULE_BYTES).ok()?;
        let below = self.table.get(..=slot).unwrap_or(&self.table);
        let start = below.iter().rposition(Option::is_some)?;
        let (base, allocation) = (START + start as u64 * GRANULE_BYTES, self.table[start]?);
        if allocation.kind == Kind::Slab {
            return self.slabs.containing(address);
        }
        (address - base < allocation.size_bytes.max(1)).then_some((base, allocation))
    }

    /// Addresses of the allocations made in `context`.
    pub(super) fn in_context(&self, context: u32) -> Vec<u64> {
        let of_context = |(slot, entry): (usize, &Option<Allocation>)| {
            let is_here = |a: &Allocation| a.context == context && a.kind != Kind::Slab;
            entry.filter(is_here).map(|_| START + slot as u64 * GRANULE_BYTES)
        };
        self.table.iter().enumerate().filter_map(of_context).chain(self.slabs.in_context(context)).collect()
    }

    /// Is there an allocation of this kind?
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.table.iter().flatten().any(|allocation| allocation.kind == kind)
    }

    /// Moves the cursor to an unused stretch of `length` slots.
    fn find(&mut self, length: usize) -> Option<()> {
        loop {
            if let Some(stretch) = self.next_unused(length) {
                (self.cursor, self.unused_until) = stretch;
                return Some(());
            }
            if self.end == SLOTS {
                return None;
            }
            self.end = (self.end * 2).min(SLOTS);
        }
    }

    /// The next unused stretch of at least `length` slots, going round once.
    fn next_unused(&self, length: usize) -> Option<(usize, usize)> {
        let mut from = self.cursor;
        for _ in 0..self.live + 2 {
            if from >= self.end {
                from = 0;
            }
            let (start, end) = self.unused_from(from);
            if end.saturating_sub(start) >= length {
                return Some((start, end));
            }
            from = end.max(start);
        }
        None
    }

    /// The first unused stretch at or after `from`, which is unused or the start of an allocation.
    fn unused_from(&self, from: usize) -> (usize, usize) {
        let mut start = from;
        while let Some(Some(allocation)) = self.table.get(start) {
            start += length_of(allocation);
        }
        let next = self.table.get(start..).and_then(|rest| rest.iter().position(Option::is_some));
        (start, next.map_or(self.end, |n| start + n))
    }
}

fn length_of(allocation: &Allocation) -> usize {
    (granules(allocation.size_bytes) as usize).max(1)
}

fn slot_of(address: u64) -> Option<usize> {
    let offset = address.checked_sub(START)?;
    if !offset.is_multiple_of(GRANULE_BYTES) { None } else { usize::try_from(offset / GRANULE_BYTES).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(size_bytes: u64) -> Allocation {
        Allocation { size_bytes, context: 1, kind: Kind::Device }
    }

    #[test]
    fn addresses_never_overlap_and_are_found_from_inside() {
        let mut space = AddressSpace::new();
        let mut live: Vec<(u64, u64)> = Vec::new();
        let mut random = 1u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if random >> 63 == 0 || live.is_empty() {
                let size = (random >> 20) % (9 << 20) + 1;
                let at = space.insert(device(size)).unwrap();
                assert!(live.iter().all(|&(a, s)| at + size <= a || a + s <= at), "{at:#x} overlaps");
                live.push((at, size));
            } else {
                let (at, size) = live.swap_remove((random >> 33) as usize % live.len());
                assert_eq!(space.containing(at + size - 1), Some((at, device(size))));
                assert_eq!(space.remove(at), Some(device(size)));
                assert_eq!(space.remove(at), None);
            }
        }
        assert_eq!(space.in_context(1).len(), live.len());
    }

    #[test]
    fn starts_over_at_the_end_and_refuses_only_when_full() {
        let mut space = AddressSpace::new();
        let half = (SLOTS as u64 / 2) * GRANULE_BYTES;
        let a = space.insert(device(half)).unwrap();
        let b = space.insert(device(half)).unwrap();
        assert_eq!(space.insert(device(1)), None);
        space.remove(a).unwrap();
        assert_eq!(space.insert(device(half)), Some(a));
        assert_ne!(a, b);
    }
}
