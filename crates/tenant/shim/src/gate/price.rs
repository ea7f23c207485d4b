//! The prices of launches: GPU nanoseconds by function and grid, or by graph, as measured in this process.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::hashed;

/// A power of two; programs launch hundreds of functions, not thousands. Two that meet in one entry push each other out.
const ENTRIES: usize = 1 << (32 - SHIFT);
pub(super) const SHIFT: u32 = 22;
/// After this number of measurements, a price is measured only now and then.
const SURE: u8 = 3;

/// The prices of a process. Valid when zero. Key 0 is none.
///
/// An entry's key and price are not written at once: a price that belongs to another key for an instant is corrected by the next fence. They
/// are apart because [`super::fast`] finds an entry by its number alone.
pub(crate) struct Prices {
    pub(super) keys: [AtomicU64; ENTRIES],
    pub(super) prices_ns: [AtomicU32; ENTRIES],
    /// The number of measurements of each.
    counts: [AtomicU8; ENTRIES],
    longest_ns: AtomicU64,
}

/// The subject of a price: a function with its grid. Handles of functions are closer together than the grids are spread, so
/// a function with its grid is no other one with another grid.
#[inline]
pub(super) fn key(function: usize, [x, y, z]: [u32; 3]) -> u64 {
    let blocks = x.wrapping_mul(y).wrapping_mul(z);
    function as u64 ^ (u64::from(blocks) * GRID_SPREAD)
}

pub(super) const GRID_SPREAD: u64 = 0x61C8_8647;

impl Prices {
    #[inline]
    fn number(key: u64) -> usize {
        hashed(key as u32, SHIFT)
    }

    /// Its price, if it was measured.
    #[inline]
    pub(super) fn known(&self, key: u64) -> Option<u32> {
        let number = Self::number(key);
        if key == 0 || self.keys.get(number)?.load(Relaxed) != key {
            return None;
        }
        Some(self.prices_ns.get(number)?.load(Relaxed))
    }

    /// Has it been measured too seldom to be sure?
    pub(super) fn wants(&self, key: u64) -> bool {
        self.known(key).is_none()
            || self.counts.get(Self::number(key)).is_none_or(|count| count.load(Relaxed) < SURE)
    }

    /// A launch of it took this long. An average that forgets: a quarter of it is new.
    pub(super) fn learn(&self, key: u64, took_ns: u64) {
        let took_ns = took_ns.clamp(1, u64::from(u32::MAX));
        self.longest_ns.fetch_max(took_ns, Relaxed);
        let (known, number) = (self.known(key).map(u64::from), Self::number(key));
        let (Some(entry), Some(price), Some(count)) =
            (self.keys.get(number), self.prices_ns.get(number), self.counts.get(number))
        else {
            return;
        };
        let measured = if known.is_some() { count.load(Relaxed).saturating_add(1).min(SURE) } else { 1 };
        let price_ns = known.map_or(took_ns, |before_ns| (3 * before_ns + took_ns) / 4);
        count.store(measured, Relaxed);
        price.store(price_ns.max(1) as u32, Relaxed);
        entry.store(key, Relaxed);
    }

    /// The longest launch measured.
    pub(super) fn longest_ns(&self) -> u64 {
        self.longest_ns.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_follows_what_launches_take() {
        // SAFETY: all-zero bytes are valid for atomics.
        let prices: std::boxed::Box<Prices> = unsafe { std::boxed::Box::new(core::mem::zeroed()) };
        assert_eq!(prices.known(7), None);
        assert!(prices.wants(7));
        prices.learn(7, 1000);
        assert_eq!(prices.known(7), Some(1000));
        for _ in 0..40 {
            prices.learn(7, 5000);
        }
        assert!(prices.known(7).is_some_and(|price| (4900..=5000).contains(&price)));
        assert!(!prices.wants(7));
        assert_eq!(prices.longest_ns(), 5000);
    }
}
