//! The action on a running task that has to make room for another one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The actions that are tried, in order, on a running task that has to make room for another one. A task that cannot be
/// suspended is always queued again, so there are two lists only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub enum Preempt {
    /// It is stopped, and starts again from its beginning.
    #[default]
    Requeue,
    /// Its GPU memory goes to host memory, and it goes on later. Where the driver cannot do that, it is queued again.
    SuspendOrRequeue,
}

impl Preempt {
    /// Is it the list of one that set nothing?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Is a suspension tried first?
    #[must_use]
    pub const fn suspends(self) -> bool {
        matches!(self, Self::SuspendOrRequeue)
    }

    const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Requeue => &["requeue"],
            Self::SuspendOrRequeue => &["suspend", "requeue"],
        }
    }
}

/// As users write it: `suspend,requeue`.
impl fmt::Display for Preempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(","))
    }
}

/// A text is no list of ways to make room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is no way to make room; write suspend,requeue or requeue (what cannot be suspended is queued again)"
)]
pub struct PreemptError {
    given: String,
}

impl FromStr for Preempt {
    type Err = PreemptError;

    fn from_str(text: &str) -> Result<Self, PreemptError> {
        let given: Vec<&str> = text.split(',').map(str::trim).collect();
        let known = [Self::Requeue, Self::SuspendOrRequeue];
        let found = known.into_iter().find(|known| known.words() == given);
        found.ok_or_else(|| PreemptError { given: text.to_owned() })
    }
}

impl TryFrom<Vec<String>> for Preempt {
    type Error = PreemptError;

    fn try_from(words: Vec<String>) -> Result<Self, PreemptError> {
        words.join(",").parse()
    }
}

impl From<Preempt> for Vec<String> {
    fn from(preempt: Preempt) -> Self {
        preempt.words().iter().map(|&word| word.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_as_users_write_them() {
        assert_eq!("requeue".parse(), Ok(Preempt::Requeue));
        assert_eq!("suspend, requeue".parse(), Ok(Preempt::SuspendOrRequeue));
        for wrong in ["", "suspend", "requeue,suspend", "requeue,requeue", "kill"] {
            let error = wrong.parse::<Preempt>().unwrap_err().to_string();
            assert!(error.contains("write suspend,requeue or requeue"), "{error}");
        }
        let text = serde_json::to_string(&Preempt::SuspendOrRequeue).unwrap();
        assert_eq!(text, r#"["suspend","requeue"]"#);
        assert_eq!(serde_json::from_str::<Preempt>(&text).unwrap(), Preempt::SuspendOrRequeue);
    }
}
