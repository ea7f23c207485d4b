//! Time-decayed use: recent use of a project counts more than old use.
//!
//! Use loses half of its weight in one half-life. A project's use is the weighted sum of what it held at all times: `∫
//! held(t) · 0.5^((now − t) / half-life) dt`, in thousandths of a GPU times milliseconds. It is carried forward from one
//! round to the next, so no past values are kept. There is no window in addition to the half-life: after ten half-lives
//! a thousandth is left.

use std::f64::consts::LN_2;

/// The weight of use `elapsed_ms` later.
#[must_use]
pub fn decayed_use(used: f64, elapsed_ms: i64, half_life_ms: i64) -> f64 {
    used * half_to_the(periods(elapsed_ms, half_life_ms))
}

/// The present weight of holding `milli` for the last `length_ms`.
#[must_use]
pub fn recent_use(milli: u64, length_ms: i64, half_life_ms: i64) -> f64 {
    for_ever(milli, half_life_ms) * (1.0 - half_to_the(periods(length_ms, half_life_ms)))
}

/// Use in millionths of what a cluster of `capacity_milli` would be worth had it always been full: a project that
/// always holds half of it comes to half a million.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 10^6 by the clamp"
)]
pub fn usage_ppm(used: f64, capacity_milli: u64, half_life_ms: i64) -> u32 {
    let part = used / for_ever(capacity_milli.max(1), half_life_ms);
    (part.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// The weight of always having held `milli`.
fn for_ever(milli: u64, half_life_ms: i64) -> f64 {
    milli as f64 * half_life_ms.max(1) as f64 / LN_2
}

fn periods(length_ms: i64, half_life_ms: i64) -> f64 {
    length_ms.max(0) as f64 / half_life_ms.max(1) as f64
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
    fn who_always_held_a_half_has_used_a_half() {
        let used = recent_use(5_000, 1_000 * HOUR_MS, HOUR_MS);
        assert_eq!(usage_ppm(used, 10_000, HOUR_MS), 500_000);
        assert_eq!(usage_ppm(used, 0, HOUR_MS), 1_000_000, "of a cluster that is gone");
    }

    #[test]
    fn a_half_life_later_it_counts_half() {
        let used = recent_use(1_000, HOUR_MS, HOUR_MS);
        assert_eq!(usage_ppm(used, 1_000, HOUR_MS), 500_000, "one half-life of all time is half of it");
        assert_eq!(usage_ppm(decayed_use(used, HOUR_MS, HOUR_MS), 1_000, HOUR_MS), 250_000);
        assert_eq!(usage_ppm(decayed_use(used, 100 * HOUR_MS, HOUR_MS), 1_000, HOUR_MS), 0);
    }

    #[test]
    fn how_often_one_looks_makes_no_difference() {
        let at_once = recent_use(700, 3 * HOUR_MS, HOUR_MS);
        let mut in_steps = 0.0;
        for _ in 0..1080 {
            in_steps =
                decayed_use(in_steps, HOUR_MS / 360, HOUR_MS) + recent_use(700, HOUR_MS / 360, HOUR_MS);
        }
        assert!((at_once - in_steps).abs() < at_once * 1e-6, "{at_once} {in_steps}");
        assert!((decayed_use(at_once, -5, HOUR_MS) - at_once).abs() < 1.0, "a clock that was set back");
    }

    #[test]
    fn powers_of_a_half() {
        for (exponent, power) in [(0.0, 1.0), (1.0, 0.5), (0.5, 0.5f64.sqrt()), (2.25, 0.210_224_103_813_4)] {
            assert!((half_to_the(exponent) - power).abs() < 1e-8, "{exponent}");
        }
    }
}
