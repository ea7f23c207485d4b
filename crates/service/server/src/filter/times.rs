//! Conditions on times: `["<2026-10-23"]`, `[">=2026-10-01", "<2026-11-01"]`, or from and to without a sign.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::error::ApiError;

/// The relation between two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Before it.
    Before,
    /// Before it, or it.
    UpTo,
    /// After it, or it.
    From,
    /// After it.
    After,
    /// It.
    At,
}

/// All of these must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// In microseconds since 1970.
    pub(crate) bounds: Vec<(Order, i64)>,
    /// Objects without this time pass, too.
    pub(crate) or_none: bool,
}

impl Times {
    /// From the value of a request's parameter.
    pub(crate) fn parse(field: &str, value: &Value) -> Result<Self, ApiError> {
        let wrong = || {
            let example = r#"["<2026-10-23T12:00:00"] or ["2026-10-01", "2026-11-01"] is needed"#;
            ApiError::invalid(format!("{}: {example}", field.escape_default()))
        };
        let one = std::slice::from_ref(value);
        let items = value.as_array().map_or(one, Vec::as_slice);
        let is_plain = |item: &Value| item.as_str().is_none_or(|text| !text.starts_with(['<', '>']));
        let mut times = Self::default();
        if let [from, to] = items
            && is_plain(from)
            && is_plain(to)
        {
            times.or_none = from.is_null();
            for (order, bound) in [(Order::From, from), (Order::UpTo, to)] {
                if !bound.is_null() {
                    times.bounds.push((order, moment(bound).ok_or_else(wrong)?));
                }
            }
        } else {
            for item in items {
                let (order, rest) = match item.as_str() {
                    Some(text) => sign(text),
                    None => (Order::At, ""),
                };
                let bound = if rest.is_empty() { moment(item) } else { moment(&Value::from(rest)) };
                times.bounds.push((order, bound.ok_or_else(wrong)?));
            }
        }
        if times.bounds.is_empty() { Err(wrong()) } else { Ok(times) }
    }

    /// Whether a time meets the condition.
    pub(crate) fn accept(&self, time_us: Option<i64>) -> bool {
        let Some(time) = time_us else { return self.or_none };
        self.bounds.iter().all(|(order, bound)| match order {
            Order::Before => time < *bound,
            Order::UpTo => time <= *bound,
            Order::From => time >= *bound,
            Order::After => time > *bound,
            Order::At => time == *bound,
        })
    }
}

fn sign(text: &str) -> (Order, &str) {
    for (sign, order) in [("<=", Order::UpTo), (">=", Order::From), ("<", Order::Before), (">", Order::After)]
    {
        if let Some(rest) = text.strip_prefix(sign) {
            return (order, rest);
        }
    }
    (Order::At, text)
}

/// A moment as clients write it: a date, with or without time and zone (UTC), or seconds since 1970.
fn moment(value: &Value) -> Option<i64> {
    match value {
        Value::Number(seconds) => of_seconds(seconds.as_f64()?),
        Value::String(text) => read(text),
        _ => None,
    }
}

/// As [`moment`], from text.
pub(super) fn read(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return of_seconds(seconds);
    }
    let in_utc =
        |time: DateTime| time.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp().as_microsecond());
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_microsecond());
    }
    let spaced = text.strip_suffix(" UTC").unwrap_or(text);
    spaced.parse::<DateTime>().ok().and_then(in_utc).or_else(|| {
        let date: Date = spaced.parse().ok()?;
        in_utc(date.to_datetime(jiff::civil::Time::midnight()))
    })
}

#[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer there is")]
fn of_seconds(seconds: f64) -> Option<i64> {
    seconds.is_finite().then_some((seconds * 1e6) as i64)
}
