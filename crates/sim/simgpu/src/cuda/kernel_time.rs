//! Reads the duration of a kernel from its name.

use super::CuResult;
use super::effects::Effect;
use super::timeline::{Destination, timeline};
use crate::time::Op;

const BUSY: &str = "cantle_sim_busy_us_";
const SPIN: &str = "cantle_sim_spin_until_";

/// The effect of a function on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing, as any other kernel here.
    NoTime,
    /// Keeps it busy.
    Busy { ns: u64 },
    /// Runs until that many of a group run at the same time.
    Spin { ranks: u32 },
}

impl Takes {
    /// By name, which a compiler may have put more around.
    pub(super) fn of(name: &str) -> Self {
        let number = |prefix: &str| {
            let (_, rest) = name.split_once(prefix)?;
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            rest[..digits].parse::<u64>().ok().filter(|number| *number > 0)
        };
        if let Some(us) = number(BUSY) {
            return Self::Busy { ns: us.saturating_mul(1000) };
        }
        match number(SPIN).and_then(|ranks| u32::try_from(ranks).ok()) {
            Some(ranks) => Self::Spin { ranks },
            None => Self::NoTime,
        }
    }

    /// Queues one launch.
    pub(super) fn queue(self, place: Destination, blocks: u32) -> CuResult {
        let Some(timeline) = timeline() else { return Ok(()) };
        let queued = match self {
            Self::NoTime => return Ok(()),
            Self::Busy { ns } => timeline.submit(place, Op::Busy { ns }, None),
            Self::Spin { ranks } => {
                timeline.submit(place, Op::Spin { ranks, group: u64::from(blocks) }, Some(Effect::Spin))
            }
        };
        queued.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_long() {
        assert_eq!(Takes::of("cantle_sim_busy_us_20"), Takes::Busy { ns: 20_000 });
        assert_eq!(Takes::of("_Z22cantle_sim_busy_us_100v"), Takes::Busy { ns: 100_000 });
        assert_eq!(Takes::of("cantle_sim_spin_until_2"), Takes::Spin { ranks: 2 });
        for none in ["kernel", "cantle_sim_busy_us_", "cantle_sim_busy_us_0", "cantle_sim_spin_until_x", ""] {
            assert_eq!(Takes::of(none), Takes::NoTime, "{none}");
        }
    }
}
