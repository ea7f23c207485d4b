//! What launches cost: GPU nanoseconds by function and grid, or by graph, as measured in this process.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// A power of two; programs launch hundreds of functions, not thousands. Two that meet in one entry push each other out.
const ENTRIES: usize = 1024;
/// After so many measurements a price is measured now and then only.
const SURE: u64 = 3;

/// The prices of a process. Valid when zero.
pub(crate) struct Prices {
    entries: [Entry; ENTRIES],
    longest_ns: AtomicU64,
}

/// `key` 0 is none. The price's upper 32 bits count its measurements. The two are not written at once: a price that belongs to another
/// key for an instant is corrected by the next fence.
struct Entry {
    key: AtomicU64,
    price: AtomicU64,
}

impl Prices {
    #[inline]
    fn entry(&self, key: u64) -> Option<&Entry> {
        // Fibonacci hashing, the upper ten bits.
        self.entries.get((key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize)
    }

    /// Its price, if it was measured.
    #[inline]
    pub(super) fn known(&self, key: u64) -> Option<u32> {
        let entry = self.entry(key)?;
        if entry.key.load(Relaxed) != key {
            return None;
        }
        Some(entry.price.load(Relaxed) as u32)
    }

    /// Has it been measured too seldom to be sure?
    pub(super) fn wants(&self, key: u64) -> bool {
        self.entry(key)
            .is_none_or(|entry| entry.key.load(Relaxed) != key || entry.price.load(Relaxed) >> 32 < SURE)
    }

    /// A launch of it took this long. An average that forgets: a quarter of it is new.
    pub(super) fn learn(&self, key: u64, took_ns: u64) {
        let took_ns = took_ns.clamp(1, u64::from(u32::MAX));
        self.longest_ns.fetch_max(took_ns, Relaxed);
        let Some(entry) = self.entry(key) else { return };
        let before = entry.price.load(Relaxed);
        let (count, price_ns) = (before >> 32, before & 0xFFFF_FFFF);
        let (count, price_ns) = if entry.key.load(Relaxed) == key {
            (count.saturating_add(1).min(SURE), (3 * price_ns + took_ns) / 4)
        } else {
            (1, took_ns)
        };
        entry.price.store(count << 32 | price_ns.max(1), Relaxed);
        entry.key.store(key, Relaxed);
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
