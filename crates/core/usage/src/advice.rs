//! Advice on sizes: the share of a GPU that would have been enough for the runs of a task.

/// The margin that is added to a peak before it is compared with a limit, in percent: the next run may need a little
/// more.
pub const RESERVE_PERCENT: u64 = 10;

/// Fewer runs than this do not show what the next one needs.
pub const LEAST_RUNS: usize = 3;

/// The shares that people ask for, in thousandths.
const SIZES: [u32; 7] = [125, 250, 375, 500, 625, 750, 875];

/// A run that ended without a stop, with a share of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// All memory of its GPU.
    pub gpu_bytes: u64,
    /// Its share in thousandths.
    pub milli: u32,
    /// The most memory that it had at a time.
    pub peak_bytes: u64,
    /// How long it held its slice, in microseconds.
    pub held_us: u64,
}

/// A smaller share that would have held all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallerShare {
    /// The share of the newest run, in thousandths.
    pub milli: u32,
    /// The share that would have been enough, in thousandths.
    pub enough_milli: u32,
    /// The most that any of the runs had at a time.
    pub peak_bytes: u64,
    /// The memory of the smaller share, on the smallest GPU on which one of them ran.
    pub limit_bytes: u64,
    /// The number of runs.
    pub runs: usize,
    /// The capacity that the smaller share would have left to others, in thousandths of a GPU times microseconds.
    pub spare: u128,
}

/// The smallest usual share that would have held each of these runs, the newest last, with [`RESERVE_PERCENT`] to spare. `None` if
/// it is not smaller than the newest run's, or there are fewer than [`LEAST_RUNS`].
#[must_use]
pub fn advise(samples: &[Sample]) -> Option<SmallerShare> {
    let newest = samples.last().filter(|_| samples.len() >= LEAST_RUNS)?;
    let part = |milli: u32, bytes: u64| u128::from(bytes) * u128::from(milli) / 1000;
    let needed = |sample: &Sample| u128::from(sample.peak_bytes) * u128::from(100 + RESERVE_PERCENT) / 100;
    let holds_all =
        |milli: &u32| samples.iter().all(|sample| needed(sample) <= part(*milli, sample.gpu_bytes));
    let smaller = SIZES.into_iter().filter(|milli| *milli < newest.milli);
    let enough_milli = smaller.into_iter().find(holds_all)?;
    let least_bytes = samples.iter().map(|sample| sample.gpu_bytes).min()?;
    let spare =
        |sample: &Sample| u128::from(sample.milli.saturating_sub(enough_milli)) * u128::from(sample.held_us);
    Some(SmallerShare {
        milli: newest.milli,
        enough_milli,
        peak_bytes: samples.iter().map(|sample| sample.peak_bytes).max()?,
        limit_bytes: u64::try_from(part(enough_milli, least_bytes)).unwrap_or(u64::MAX),
        runs: samples.len(),
        spare: samples.iter().map(spare).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    const fn run(gpu_gib: u64, milli: u32, peak_gib: u64) -> Sample {
        Sample { gpu_bytes: gpu_gib * GIB, milli, peak_bytes: peak_gib * GIB, held_us: 10 }
    }

    #[test]
    fn the_smallest_share_that_held_all_runs() {
        let advice = advise(&[run(40, 500, 3), run(40, 500, 9), run(40, 500, 5)]).unwrap();
        let is = (advice.milli, advice.enough_milli, advice.peak_bytes, advice.limit_bytes, advice.runs);
        assert_eq!(is, (500, 250, 9 * GIB, 10 * GIB, 3));
        assert_eq!(advice.spare, 3 * 250 * 10);
    }

    #[test]
    fn a_tenth_is_kept_in_reserve() {
        let enough = |peak| advise(&[run(40, 500, peak); 3]).map(|advice| advice.enough_milli);
        assert_eq!([9, 10, 13, 14, 19].map(enough), [Some(250), Some(375), Some(375), None, None]);
    }

    #[test]
    fn each_run_is_measured_by_its_own_gpu() {
        let mixed = [run(80, 500, 9), run(40, 500, 9), run(24, 500, 9)];
        assert_eq!(advise(&mixed), None, "9 GiB need half of 24");
        let advice = advise(&[run(80, 500, 9), run(40, 500, 9), run(48, 500, 9)]).unwrap();
        assert_eq!((advice.enough_milli, advice.limit_bytes), (250, 10 * GIB));
    }

    #[test]
    fn too_few_runs_and_small_ones_say_nothing() {
        assert_eq!(advise(&[run(40, 500, 1); 2]), None);
        assert_eq!(advise(&[run(40, 125, 1); 3]), None);
        // The newest is small already.
        assert_eq!(advise(&[run(40, 500, 1), run(40, 500, 1), run(40, 125, 1)]), None);
    }
}
