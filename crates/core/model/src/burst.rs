//! A slice that may use more memory than it was allocated, as long as no other task needs it.

use serde::{Deserialize, Serialize};

use crate::{Bytes, GRANULE_BYTES, GpuRequest, Isolation, Milli, Share, whole_granules};

/// The terms of a slice whose memory limit is above its request. The request is what the slice is counted as; what it has beyond
/// that is lent to it, and comes back when another task needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Burst {
    /// Share of the GPU that the slice is counted as, in thousandths.
    pub request_milli: Milli,
    /// Memory that the task can always have, in bytes.
    pub request_bytes: u64,
    /// Memory that it may have at most, in bytes: more than the request.
    pub limit_bytes: u64,
    /// The recall of what it uses beyond its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<Recall>,
}

/// Memory that was lent to a task is asked back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// Memory that it may keep, in bytes.
    pub keep_bytes: u64,
    /// Until when it has time, in milliseconds since 1970. Then it is suspended or queued again.
    pub until_ms: i64,
    /// When the task that needs the memory asked last, in milliseconds since 1970. One that does not ask any more needs it no more.
    pub asked_ms: i64,
}

impl Burst {
    /// Of a slice of this share, on a GPU of `gpu_bytes`, with this limit; none if there is no more than the share.
    #[must_use]
    pub fn of(share: Share, limit: Bytes, gpu_bytes: u64) -> Option<Self> {
        let limit_bytes = whole_granules(limit.0.min(gpu_bytes));
        (limit_bytes > share.memory_limit_bytes).then_some(Self {
            request_milli: share.milli,
            request_bytes: share.memory_limit_bytes,
            limit_bytes,
            recall: None,
        })
    }

    /// The memory that a slice in use needs when it comes back after a suspension with `used_bytes`.
    #[must_use]
    pub const fn needed_bytes(&self, used_bytes: u64) -> u64 {
        let used = used_bytes.next_multiple_of(GRANULE_BYTES);
        if used > self.request_bytes { used } else { self.request_bytes }
    }
}

impl Recall {
    /// How long a task is believed to need memory after it has asked for it, in milliseconds.
    const STANDS_MS: i64 = 10_000;
    /// How long after that nobody is suspended for it any more, in milliseconds. An agent asks every two seconds.
    const PRESSES_MS: i64 = 5_000;

    /// Does the task that asked still need the memory?
    #[must_use]
    pub const fn stands(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.asked_ms) < Self::STANDS_MS
    }

    /// The line about it in the task's log.
    #[must_use]
    pub fn notice(&self, now_ms: i64) -> String {
        let (keep, left_s) = (Bytes(self.keep_bytes), (self.until_ms - now_ms).max(0) / 1000);
        format!("another task needs GPU memory: this one may keep {keep} and has {left_s} s to free the rest")
    }

    /// Is the time over that the task had to give the memory back, and does somebody still ask for it?
    #[must_use]
    pub const fn is_overdue(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.asked_ms) < Self::PRESSES_MS && now_ms >= self.until_ms
    }
}

/// Checks a memory limit against the request and the isolation that it is given with.
///
/// # Errors
/// Says what is wrong, and what would be right.
pub fn check_memory_limit(
    limit: Bytes,
    request: Option<&GpuRequest>,
    isolation: Isolation,
) -> Result<(), BurstError> {
    match request {
        None => Err(BurstError::NoRequest),
        _ if isolation == Isolation::Mig => Err(BurstError::Mig),
        Some(GpuRequest::MigProfile(_)) => Err(BurstError::Mig),
        Some(GpuRequest::Gpus(_)) => Err(BurstError::WholeGpu),
        Some(GpuRequest::Memory(request)) if limit.0 <= request.0 => {
            Err(BurstError::TooSmall { limit, request: *request })
        }
        Some(GpuRequest::Memory(_) | GpuRequest::Fraction(_)) => Ok(()),
    }
}

/// Why a memory limit cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BurstError {
    /// The size of the slice is not known.
    #[error("a limit of GPU memory needs a request: a part of a GPU or an amount of its memory")]
    NoRequest,
    /// An instance has the size of its profile.
    #[error("a MIG instance has the memory of its profile and no other limit")]
    Mig,
    /// There is nothing more to have.
    #[error("a whole GPU has all of its memory: a limit is for a part of one")]
    WholeGpu,
    /// The limit is not above the request.
    #[error("the limit of GPU memory is {limit}, which is not more than the request of {request}")]
    TooSmall {
        /// As given.
        limit: Bytes,
        /// As given.
        request: Bytes,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_limit_is_above_its_request_and_within_the_gpu() {
        let share = Share::of(8 * GIB, 40 * GIB);
        let limit = |bytes| Burst::of(share, Bytes(bytes), 40 * GIB).map(|burst| burst.limit_bytes);
        assert_eq!(limit(24 * GIB), Some(24 * GIB));
        assert_eq!(limit(80 * GIB), Some(40 * GIB), "no more than the GPU has");
        assert_eq!(limit(8 * GIB), None);
        assert_eq!(limit(8 * GIB + 1), None, "less than a granule more");
    }

    #[test]
    fn limits_that_mean_nothing_are_refused() {
        let check = |request: Option<&str>, isolation| {
            let request = request.map(|text| GpuRequest::from_memory(text).unwrap());
            check_memory_limit(Bytes(8 * GIB), request.as_ref(), isolation)
        };
        assert_eq!(check(Some("4Gi"), Isolation::Any), Ok(()));
        assert_eq!(check(None, Isolation::Any), Err(BurstError::NoRequest));
        assert_eq!(check(Some("4Gi"), Isolation::Mig), Err(BurstError::Mig));
        let text = check(Some("8Gi"), Isolation::Any).unwrap_err().to_string();
        assert_eq!(text, "the limit of GPU memory is 8 GiB, which is not more than the request of 8 GiB");
        let whole = check_memory_limit(Bytes(GIB), Some(&GpuRequest::Gpus(1)), Isolation::Any);
        assert_eq!(whole, Err(BurstError::WholeGpu));
    }

    #[test]
    fn a_recall_ends_with_the_task_that_asks() {
        let recall = Recall { keep_bytes: 0, until_ms: 5_000, asked_ms: 1_000 };
        assert!(recall.stands(10_999) && !recall.stands(11_000));
        assert!(!recall.is_overdue(4_999) && recall.is_overdue(5_000));
        assert!(!recall.is_overdue(6_000), "nobody asks any more");
    }
}
