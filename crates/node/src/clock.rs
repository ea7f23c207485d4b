//! The one place of a node that reads the clock.

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Date and time of day in this machine's time zone.
pub fn local_now() -> jiff::Zoned {
    jiff::Zoned::now()
}
