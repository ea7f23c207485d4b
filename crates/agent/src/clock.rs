//! The one place of the agent that reads the clock.

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Date and time of day where this machine stands.
pub(crate) fn local_now() -> jiff::Zoned {
    jiff::Zoned::now()
}
