//! The conditions that a task waits for: the end of other tasks.

use std::fmt;
use std::str::FromStr;

use crate::TaskStatus;

/// How another task must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Completed.
    Ok,
    /// In any way.
    Any,
    /// Failed or stopped.
    Fail,
}

/// Whether a dependency is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// It is.
    Yes,
    /// The other task has not ended.
    NotYet,
    /// It ended in another way.
    Never,
}

impl Ending {
    /// The word that users write.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Any => "any",
            Self::Fail => "fail",
        }
    }

    /// Whether another task in this state has ended so.
    #[must_use]
    pub const fn is_met_by(self, status: TaskStatus) -> Met {
        let is_good = match status {
            TaskStatus::Created | TaskStatus::Queued | TaskStatus::InProgress | TaskStatus::Unknown => {
                return Met::NotYet;
            }
            TaskStatus::Completed | TaskStatus::Publishing | TaskStatus::Published | TaskStatus::Closed => {
                true
            }
            TaskStatus::Stopped | TaskStatus::Failed => false,
        };
        match self {
            Self::Ok if !is_good => Met::Never,
            Self::Fail if is_good => Met::Never,
            _ => Met::Yes,
        }
    }
}

impl FromStr for Ending {
    type Err = AfterError;

    fn from_str(word: &str) -> Result<Self, AfterError> {
        let known = [Self::Ok, Self::Any, Self::Fail].into_iter().find(|ending| ending.word() == word);
        known.ok_or_else(|| AfterError { given: word.to_owned() })
    }
}

/// One task that another waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct After {
    /// How that task must end.
    pub ending: Ending,
    /// That task: its id, or as a user names it.
    pub task: String,
}

/// A text names no tasks to wait for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is no dependency; write ok:TASK, any:TASK or fail:TASK, several with commas between them"
)]
pub struct AfterError {
    given: String,
}

impl FromStr for After {
    type Err = AfterError;

    fn from_str(text: &str) -> Result<Self, AfterError> {
        let wrong = || AfterError { given: text.to_owned() };
        let (ending, task) = text.split_once(':').ok_or_else(wrong)?;
        let ending = ending.trim().parse().map_err(|_| wrong())?;
        let task = task.trim();
        if task.is_empty() { Err(wrong()) } else { Ok(Self { ending, task: task.to_owned() }) }
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.ending.word(), self.task)
    }
}

/// All tasks that one waits for: `ok:A,any:B`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AfterList(pub Vec<After>);

impl FromStr for AfterList {
    type Err = AfterError;

    fn from_str(text: &str) -> Result<Self, AfterError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for AfterList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, after) in self.0.iter().enumerate() {
            write!(f, "{}{after}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_as_they_are_printed() {
        let list: AfterList = "ok:a, any:b,fail:train 1".parse().unwrap();
        assert_eq!(list.0.iter().map(|after| after.task.as_str()).collect::<Vec<_>>(), ["a", "b", "train 1"]);
        assert_eq!(list.to_string(), "ok:a,any:b,fail:train 1");
        assert_eq!(list.to_string().parse(), Ok(list));
        for wrong in ["", "a", "ok:", "ok: ", "OK:a", "okay:a", "ok:a,", ",ok:a", "ok:a,,any:b"] {
            assert!(
                wrong.parse::<AfterList>().is_err_and(|e| e.to_string().contains("write ok:TASK")),
                "{wrong}"
            );
        }
    }

    #[test]
    fn an_end_meets_what_it_is_and_never_the_contrary() {
        use TaskStatus::{Completed, Created, Failed, InProgress, Published, Queued, Stopped};
        let met = |status| [Ending::Ok, Ending::Any, Ending::Fail].map(|ending| ending.is_met_by(status));
        for status in [Created, Queued, InProgress] {
            assert_eq!(met(status), [Met::NotYet; 3], "{status}");
        }
        for status in [Completed, Published] {
            assert_eq!(met(status), [Met::Yes, Met::Yes, Met::Never], "{status}");
        }
        for status in [Failed, Stopped] {
            assert_eq!(met(status), [Met::Never, Met::Yes, Met::Yes], "{status}");
        }
    }
}
