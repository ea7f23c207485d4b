//! Time-decayed use: what a project used lately counts more than what it used long ago.

/// A stretch of time in which a project held GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Thousandths of GPUs held.
    pub milli: u64,
    /// From, in milliseconds since the epoch.
    pub from_ms: i64,
    /// To, in milliseconds since the epoch.
    pub to_ms: i64,
}

/// Use in `window_ms` before `now_ms`, in millionths of what a cluster of `capacity_milli` could have given in it.
/// Each span counts `0.5^(age / half_life)`, age being that of its end; no half-life, no decay. (KAI's example: 24
/// GPU-hours in a window of 10 hours on 10 GPUs are 0.24.)
#[must_use]
pub fn decayed_usage_ppm(
    spans: &[Span],
    capacity_milli: u64,
    window_ms: i64,
    half_life_ms: Option<i64>,
    now_ms: i64,
) -> u32 {
    let start_ms = now_ms.saturating_sub(window_ms);
    let used = |span: &Span| {
        let (from, to) = (span.from_ms.max(start_ms), span.to_ms.min(now_ms));
        let length = to.saturating_sub(from).max(0) as f64;
        let age = now_ms.saturating_sub(to).max(0) as f64;
        let decay = half_life_ms.map_or(1.0, |half_life| half_to_the(age / half_life.max(1) as f64));
        span.milli as f64 * length * decay
    };
    let offered = capacity_milli as f64 * window_ms.max(1) as f64;
    let part = spans.iter().map(used).sum::<f64>() / offered.max(1.0);
    to_ppm(part)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 10^6 by the clamp"
)]
fn to_ppm(part: f64) -> u32 {
    (part.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// `0.5^exponent` for an exponent ≥ 0, from multiplications and square roots only, so that it is the same on every
/// machine.
fn half_to_the(exponent: f64) -> f64 {
    if exponent >= 64.0 {
        return 0.0;
    }
    let (mut power, mut rest) = (1.0, exponent);
    while rest >= 1.0 {
        power *= 0.5;
        rest -= 1.0;
    }
    let mut root = 0.5;
    for _ in 0..30 {
        root = f64::sqrt(root);
        rest *= 2.0;
        if rest >= 1.0 {
            power *= root;
            rest -= 1.0;
        }
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    #[test]
    fn without_decay_it_is_the_part_used() {
        // 24 GPU-hours in a window of 10 hours on 10 GPUs.
        let span = Span { milli: 3_000, from_ms: 0, to_ms: 8 * HOUR_MS };
        assert_eq!(decayed_usage_ppm(&[span], 10_000, 10 * HOUR_MS, None, 10 * HOUR_MS), 240_000);
    }

    #[test]
    fn a_half_life_ago_counts_half_and_beyond_the_window_nothing() {
        let span = Span { milli: 1_000, from_ms: 0, to_ms: HOUR_MS };
        let usage = |now_ms| decayed_usage_ppm(&[span], 1_000, 10 * HOUR_MS, Some(HOUR_MS), now_ms);
        assert_eq!(usage(HOUR_MS), 100_000);
        assert_eq!(usage(2 * HOUR_MS), 50_000);
        assert_eq!(usage(12 * HOUR_MS), 0);
    }

    #[test]
    fn powers_of_a_half() {
        for (exponent, power) in [(0.0, 1.0), (1.0, 0.5), (0.5, 0.5f64.sqrt()), (2.25, 0.210_224_103_813_4)] {
            assert!((half_to_the(exponent) - power).abs() < 1e-8, "{exponent}");
        }
    }
}
