//! The only place where the server reads the clock and makes ids.

use jiff::Timestamp;

/// Microseconds since 1970.
pub(crate) fn now_us() -> i64 {
    Timestamp::now().as_microsecond()
}

/// RFC 3339 with microseconds, in UTC, as ClearML writes it.
pub(crate) fn rfc3339(time_us: i64) -> String {
    Timestamp::from_microsecond(time_us)
        .map_or_else(|_| String::new(), |time| time.strftime("%Y-%m-%dT%H:%M:%S.%6f+00:00").to_string())
}

/// A day or month in UTC, by strftime's `format`.
pub(crate) fn date(time_us: i64, format: &str) -> String {
    Timestamp::from_microsecond(time_us)
        .map_or_else(|_| String::new(), |time| time.strftime(format).to_string())
}

/// The date of a mail.
pub(crate) fn rfc5322(time_us: i64) -> String {
    Timestamp::from_microsecond(time_us)
        .map_or_else(|_| String::new(), |time| time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string())
}

/// The time that [`rfc3339`] wrote.
pub(crate) fn from_rfc3339(text: &str) -> Option<i64> {
    text.parse().ok().map(Timestamp::as_microsecond)
}

/// 32 hex digits.
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Whether a text is an id as the server itself makes them: each has one spelling.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_readable_by_rfc3339_parsers() {
        assert_eq!(super::rfc3339(1_795_218_216_141_000), "2026-11-20T23:43:36.141000+00:00");
        let text = super::rfc3339(super::now_us());
        assert_eq!(super::from_rfc3339(&text).map(super::rfc3339), Some(text));
        assert_eq!(super::rfc3339(i64::MAX), "", "out of range, not a panic");
    }
}
