//! Small linear memory: allocations of up to 1 MiB share slabs of 2 MiB. Each goes into the first slab of its context with room for it
//! in one piece, none lies in two slabs, and a slab ends with its last allocation. An H100 under driver 580.159.04 packs like this
//! (docs/results/): 4758 allocations of 300 KiB, of which six fit into a slab, take 793 slabs.

use std::collections::BTreeMap;

use super::address_space::Allocation;
use crate::GRANULE_BYTES;

/// Allocations up to this size share slabs.
pub(super) const SMALL_BYTES: u64 = 1 << 20;
const UNIT_BYTES: u64 = 512;
const UNITS: usize = (GRANULE_BYTES / UNIT_BYTES) as usize;

/// The units in use of one slab.
struct Slab {
    context: u32,
    free: usize,
    /// All below it are in use.
    first_free: usize,
    used: Box<[bool; UNITS]>,
}

impl Slab {
    /// The first piece of `units` that is free.
    fn find(&self, units: usize) -> Option<usize> {
        if self.free < units {
            return None;
        }
        let (mut start, mut at) = (self.first_free, self.first_free);
        while at < UNITS {
            if self.used[at] {
                start = at + 1;
            } else if at + 1 - start == units {
                return Some(start);
            }
            at += 1;
        }
        None
    }

    fn mark(&mut self, start: usize, units: usize, used: bool) {
        self.used[start..start + units].fill(used);
        if !used {
            self.free += units;
            self.first_free = self.first_free.min(start);
            return;
        }
        self.free -= units;
        if start == self.first_free {
            self.first_free += units;
        }
    }
}

/// The slabs of one process, by address.
#[derive(Default)]
pub(super) struct Slabs {
    slabs: BTreeMap<u64, Slab>,
    live: BTreeMap<u64, Allocation>,
}

const fn units(size_bytes: u64) -> usize {
    size_bytes.div_ceil(UNIT_BYTES) as usize
}

const fn slab_of(address: u64) -> u64 {
    address / GRANULE_BYTES * GRANULE_BYTES
}

impl Slabs {
    /// Places an allocation in a slab that is there.
    pub(super) fn insert(&mut self, allocation: Allocation) -> Option<u64> {
        let units = units(allocation.size_bytes);
        let of_context = |slab: &Slab| slab.context == allocation.context;
        let mut found = self.slabs.iter_mut().filter(|(_, slab)| of_context(slab));
        let (address, slab) = found.find_map(|(base, slab)| {
            let start = slab.find(units)?;
            Some((base + start as u64 * UNIT_BYTES, slab))
        })?;
        slab.mark(((address - slab_of(address)) / UNIT_BYTES) as usize, units, true);
        self.live.insert(address, allocation);
        Some(address)
    }

    /// A new slab at these addresses.
    pub(super) fn add(&mut self, base: u64, context: u32) {
        self.slabs.insert(base, Slab { context, free: UNITS, first_free: 0, used: Box::new([false; UNITS]) });
    }

    pub(super) fn get(&self, address: u64) -> Option<Allocation> {
        self.live.get(&address).copied()
    }

    /// Removes an allocation, and with its last one the slab, whose address is returned.
    pub(super) fn remove(&mut self, address: u64) -> Option<Option<u64>> {
        let allocation = self.live.remove(&address)?;
        let base = slab_of(address);
        let slab = self.slabs.get_mut(&base)?;
        slab.mark(((address - base) / UNIT_BYTES) as usize, units(allocation.size_bytes), false);
        let is_empty = slab.free == UNITS;
        if is_empty {
            self.slabs.remove(&base);
        }
        Some(is_empty.then_some(base))
    }

    /// The allocation that contains `address`, and where it starts.
    pub(super) fn containing(&self, address: u64) -> Option<(u64, Allocation)> {
        let (&start, &allocation) = self.live.range(..=address).next_back()?;
        (address - start < allocation.size_bytes).then_some((start, allocation))
    }

    /// Addresses of the allocations made in `context`.
    pub(super) fn in_context(&self, context: u32) -> impl Iterator<Item = u64> {
        self.live.iter().filter(move |(_, each)| each.context == context).map(|(address, _)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::Kind;
    use super::*;

    fn small(size_bytes: u64, context: u32) -> Allocation {
        Allocation { size_bytes, context, kind: Kind::Device }
    }

    #[test]
    fn none_lies_in_two_slabs_and_the_last_one_ends_its_slab() {
        let mut slabs = Slabs::default();
        assert_eq!(slabs.insert(small(1, 1)), None, "there is none yet");
        slabs.add(4 * GRANULE_BYTES, 1);
        let six: Vec<u64> = (0..6).map(|_| slabs.insert(small(300 << 10, 1)).unwrap()).collect();
        assert_eq!(slabs.insert(small(300 << 10, 1)), None, "the rest of 248 KiB is too small");
        assert_eq!(slabs.insert(small(1, 2)), None, "it is another context's");
        let last = slabs.insert(small(248 << 10, 1)).unwrap();
        assert_eq!(slabs.containing(last + 1000).unwrap().0, last);
        assert_eq!(slabs.remove(six[2]), Some(None));
        assert_eq!(slabs.insert(small(1, 1)), Some(six[2]), "first fit");
        for address in six {
            slabs.remove(address).unwrap();
        }
        assert_eq!(slabs.remove(last), Some(Some(4 * GRANULE_BYTES)));
        assert_eq!(slabs.remove(last), None);
    }
}
