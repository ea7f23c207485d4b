//! Random choices from a seed.

/// Steele, Lea and Flood's SplitMix64: every seed gives another sequence, the same one each time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to below `high`.
    pub(crate) const fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low).cast_unsigned()).cast_signed()
    }

    pub(crate) const fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}
