//! The instances that a GPU had lately, for planning. The driver is asked less and less often while nothing
//! changes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cantle_model::GpuUuid;

use crate::{GpuInstance, Result};

/// How long an answer counts at first, and at most.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

struct Answer {
    mark: u64,
    at: Instant,
    lasts: Duration,
    found: Result<Vec<GpuInstance>>,
}

#[derive(Default)]
pub(crate) struct Recent(Mutex<BTreeMap<GpuUuid, Answer>>);

impl Recent {
    fn answers(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, Answer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer of before, or `ask`'s if there is none for `mark` or it is too old. Nothing is locked while it asks.
    pub(crate) fn get(
        &self,
        gpu: &GpuUuid,
        mark: u64,
        ask: impl FnOnce() -> Result<Vec<GpuInstance>>,
    ) -> Result<Vec<GpuInstance>> {
        let now = now();
        if let Some(known) = self.answers().get(gpu)
            && known.mark == mark
            && now.duration_since(known.at) < known.lasts
        {
            return known.found.clone();
        }
        let found = ask();
        let mut answers = self.answers();
        let same =
            answers.get(gpu).filter(|known| known.mark == mark && known.found == found && found.is_ok());
        let lasts = same.map_or(FIRST, |known| (known.lasts * 2).min(LONGEST));
        answers.insert(gpu.clone(), Answer { mark, at: now, lasts, found: found.clone() });
        found
    }

    /// The last answer, if it was one.
    pub(crate) fn last(&self, gpu: &GpuUuid) -> Option<Vec<GpuInstance>> {
        self.answers().get(gpu)?.found.as_ref().ok().cloned()
    }

    /// An instance there may have changed.
    pub(crate) fn forget(&self, gpu: &GpuUuid) {
        self.answers().remove(gpu);
    }
}

#[expect(clippy::disallowed_methods, reason = "how old an answer is; the agent's clock is not in this crate")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_until_the_mark_changes_or_it_is_forgotten() {
        let (recent, gpu) = (Recent::default(), GpuUuid::from("GPU-a"));
        let asked = std::cell::Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            Ok(Vec::new())
        };
        for (mark, times) in [(1, 1), (1, 1), (2, 2), (2, 2)] {
            recent.get(&gpu, mark, ask).unwrap();
            assert_eq!(asked.get(), times);
        }
        recent.forget(&gpu);
        recent.get(&gpu, 2, ask).unwrap();
        assert_eq!(asked.get(), 3);
    }
}
