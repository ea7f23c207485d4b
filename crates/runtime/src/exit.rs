use serde::{Deserialize, Serialize};

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// It returned.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It is gone, and its end was not observed: its supervisor was killed.
    Lost,
}

impl Exit {
    /// As a shell reports it: the code, 128+N for a signal; 125 if unknown.
    #[must_use]
    pub const fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Lost => 125,
        }
    }
}
