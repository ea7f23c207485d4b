//! Chooses the suite that starts next, in parallel to those that run.

/// The capacity of a core, in the unit of [`Load`].
const CORE: Load = 10;

/// The load of a suite on the machine, in tenths of a core.
pub(super) type Load = u32;

/// The first of `waiting` for which `cores` have something left next to `running`. A suite that needs more than the machine
/// has runs alone.
pub(super) fn next(waiting: &[Load], running: &[Load], cores: usize) -> Option<usize> {
    if running.is_empty() {
        return (!waiting.is_empty()).then_some(0);
    }
    let all = Load::try_from(cores).unwrap_or(Load::MAX).saturating_mul(CORE);
    let free = all.saturating_sub(running.iter().sum());
    waiting.iter().position(|&load| load <= free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_waits_until_the_machine_has_enough_left() {
        assert_eq!(next(&[10, 5], &[], 2), Some(0));
        assert_eq!(next(&[10, 5], &[10], 2), Some(0));
        assert_eq!(next(&[10, 5], &[12], 2), Some(1), "a small one goes ahead");
        assert_eq!(next(&[10, 5], &[12, 5], 2), None);
        assert_eq!(next(&[10, 5], &[12, 5], 4), Some(0));
        assert_eq!(next(&[], &[], 2), None);
    }

    #[test]
    fn a_suite_that_is_too_large_runs_alone() {
        assert_eq!(next(&[30], &[], 2), Some(0));
        assert_eq!(next(&[30], &[1], 2), None);
        assert_eq!(next(&[1], &[30], 2), None);
    }
}
