//! How much one user may have at once.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Resource, TimeLimit};

/// Limits of a user, in addition to those of the projects. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserLimits {
    /// The GPUs that its running tasks hold, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_milli: Option<u64>,
    /// Its tasks in queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// The priority of its tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// How long each of its tasks runs at most, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_s: Option<TimeLimit>,
}

impl UserLimits {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for UserLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.gpu_milli.map(|milli| Resource::Gpu.text(milli)),
            self.queued.map(|most| format!("{most} queued")),
            self.priority.map(|most| format!("priority {most}")),
            self.time_s.map(|most| format!("{most} for each task")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&if parts.is_empty() { "-".to_owned() } else { parts.join(", ") })
    }
}

#[cfg(test)]
mod tests {
    use super::UserLimits;

    #[test]
    fn for_people() {
        let time_s = "90m".parse().ok();
        let some = UserLimits { gpu_milli: Some(1500), queued: Some(10), priority: Some(0), time_s };
        assert_eq!(some.to_string(), "1.5 GPUs, 10 queued, priority 0, 1h30m for each task");
        assert_eq!(UserLimits::default().to_string(), "-");
    }
}
