//! Task states, in ClearML's words.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A task is in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// A draft.
    Created,
    /// In a queue.
    Queued,
    /// Taken by an agent, or run by hand.
    InProgress,
    /// Ended on request.
    Stopped,
    /// Ended well.
    Completed,
    /// Ended badly.
    Failed,
    /// Closed by its user.
    Closed,
    /// Made read-only.
    Published,
    /// On its way to being published.
    Publishing,
    /// Not known (ClearML's own last resort).
    Unknown,
}

const WORDS: [(TaskStatus, &str); 10] = [
    (TaskStatus::Created, "created"),
    (TaskStatus::Queued, "queued"),
    (TaskStatus::InProgress, "in_progress"),
    (TaskStatus::Stopped, "stopped"),
    (TaskStatus::Completed, "completed"),
    (TaskStatus::Failed, "failed"),
    (TaskStatus::Closed, "closed"),
    (TaskStatus::Published, "published"),
    (TaskStatus::Publishing, "publishing"),
    (TaskStatus::Unknown, "unknown"),
];

impl TaskStatus {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        WORDS.iter().find(|(status, _)| *status == self).map_or("unknown", |(_, word)| word)
    }

    /// Nothing more will happen without a command.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Stopped | Self::Completed | Self::Failed | Self::Closed | Self::Published)
    }
}

impl fmt::Display for TaskStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for TaskStatus {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = WORDS.iter().find(|(_, word)| *word == text);
        found.map(|(status, _)| *status).ok_or_else(|| {
            let known: Vec<&str> = WORDS.iter().map(|(_, word)| *word).collect();
            format!("\"{text}\" is not a task status; known: {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_wire_names() {
        for (status, word) in WORDS {
            assert_eq!(word.parse(), Ok(status));
            assert_eq!(status.to_string(), word);
        }
        assert!("done".parse::<TaskStatus>().is_err());
    }
}
