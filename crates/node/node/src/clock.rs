//! The only place of a node that reads the clock.

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Date and time of day in this machine's time zone.
pub fn local_now() -> jiff::Zoned {
    jiff::Zoned::now()
}

/// `CLOCK_MONOTONIC` in nanoseconds: the clock of the pages that a slice's processes share with their arbiter.
pub(crate) fn monotonic_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let (seconds, ns) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
        seconds.saturating_mul(1_000_000_000).saturating_add(ns)
    })
}
