//! Queue specifications of the daemon: `NAME=F`, `NAME=N`, `NAME=MIN-MAX`, `NAME=task`, `NAME=none`.

use serde::{Deserialize, Serialize};

use crate::{GpuRequest, Milli};

/// The slice of a task from a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueWant {
    /// The same for each task.
    Fixed(GpuRequest),
    /// As many whole GPUs as are free, from `min` to `max`.
    Range {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// The task's own request; one whole GPU without one.
    Task,
    /// No GPU, for any request of the task.
    None,
}

impl QueueWant {
    /// The least number of GPUs that a task of this queue touches.
    #[must_use]
    pub const fn min_gpus(&self) -> u32 {
        match self {
            Self::Fixed(request) => request.gpus(),
            Self::Range { min, .. } => *min,
            Self::Task => 1,
            Self::None => 0,
        }
    }

    /// The request of a task of this queue, given its own request; none if it gets no GPU.
    #[must_use]
    pub fn request_for(&self, own: Option<&GpuRequest>) -> Option<GpuRequest> {
        match self {
            Self::Fixed(request) => Some(request.clone()),
            Self::Range { min, .. } => Some(GpuRequest::Gpus(*min)),
            Self::Task => Some(own.cloned().unwrap_or(GpuRequest::Gpus(1))),
            Self::None => None,
        }
    }
}

/// One `--queue NAME=SPEC` item. Their order in the command line is their priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Queue name or id.
    pub name: String,
    /// The slice of its tasks.
    pub want: QueueWant,
}

impl QueueSpec {
    /// Parses `NAME=SPEC`.
    ///
    /// # Errors
    /// One line that names the queue, what was given and what would be right.
    pub fn parse(text: &str) -> Result<Self, QueueSpecError> {
        let Some((name, spec)) = text.rsplit_once('=') else {
            return Err(QueueSpecError::NoSpec(text.to_owned()));
        };
        if name.is_empty() {
            return Err(QueueSpecError::NoName(text.to_owned()));
        }
        if name.contains(',') {
            return Err(QueueSpecError::Several(text.to_owned(), text.replace(',', " ")));
        }
        let want = match spec.split_once('-') {
            _ if spec == "task" => QueueWant::Task,
            _ if spec == "none" => QueueWant::None,
            Some((min, max)) if !min.is_empty() => range(text, min, max)?,
            _ => QueueWant::Fixed(amount(text, spec)?),
        };
        Ok(Self { name: name.to_owned(), want })
    }
}

fn amount(text: &str, spec: &str) -> Result<GpuRequest, QueueSpecError> {
    let milli: Milli = spec.parse().map_err(|_| QueueSpecError::NotANumber(text.to_owned()))?;
    match milli.0 {
        0 => Err(QueueSpecError::Zero(text.to_owned())),
        m if m > 1000 && m % 1000 != 0 => {
            Err(QueueSpecError::NotWhole(text.to_owned(), m / 1000, m / 1000 + 1))
        }
        m if m >= 1000 => Ok(GpuRequest::Gpus(m / 1000)),
        m => Ok(GpuRequest::Fraction(Milli(m).into())),
    }
}

fn range(text: &str, min: &str, max: &str) -> Result<QueueWant, QueueSpecError> {
    let whole = |s: &str| s.parse::<u32>().map_err(|_| QueueSpecError::RangeNotWhole(text.to_owned()));
    let (min, max) = (whole(min)?, whole(max)?);
    if min == 0 || max < min {
        return Err(QueueSpecError::RangeOrder(text.to_owned()));
    }
    Ok(QueueWant::Range { min, max })
}

/// Why a `NAME=SPEC` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueSpecError {
    /// No `=`.
    #[error("--queue {0}: --dynamic-gpus needs NAME=SPEC, for example {0}=0.5, {0}=1, {0}=1-4 or {0}=task")]
    NoSpec(String),
    /// Nothing before the `=`.
    #[error("--queue {0}: the queue has no name; write NAME=SPEC, for example half_gpu=0.5")]
    NoName(String),
    /// Several in one, or a name that would read like that.
    #[error("--queue {0}: the name of a queue has no comma; for several queues write --queue {1}")]
    Several(String, String),
    /// Not a number.
    #[error(
        "--queue {0}: not a number of GPUs; write a part in steps of 0.001 (0.1), a whole number, MIN-MAX, task or none"
    )]
    NotANumber(String),
    /// Zero.
    #[error("--queue {0}: zero GPUs; the smallest part is 0.001, and none gives no GPU")]
    Zero(String),
    /// Above one and not whole.
    #[error("--queue {0}: above one GPU only whole numbers are possible; nearest are {1} and {2}")]
    NotWhole(String, u32, u32),
    /// A range of something else than whole GPUs.
    #[error("--queue {0}: a range is MIN-MAX in whole GPUs, for example 1-4")]
    RangeNotWhole(String),
    /// A range upside down.
    #[error("--queue {0}: a range needs 1 ≤ MIN ≤ MAX, for example 1-4")]
    RangeOrder(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_specs() {
        let want = |text: &str| QueueSpec::parse(text).map(|q| q.want);
        assert_eq!(want("dual_gpus=2"), Ok(QueueWant::Fixed(GpuRequest::Gpus(2))));
        assert_eq!(want("quarter_gpu=0.25"), Ok(QueueWant::Fixed(GpuRequest::Fraction(Milli(250).into()))));
        assert_eq!(want("half_gpu=0.500"), Ok(QueueWant::Fixed(GpuRequest::Fraction(Milli(500).into()))));
        assert_eq!(want("twentieth=0.05"), Ok(QueueWant::Fixed(GpuRequest::Fraction(Milli(50).into()))));
        assert_eq!(want("least=0.001"), Ok(QueueWant::Fixed(GpuRequest::Fraction(Milli(1).into()))));
        assert_eq!(want("single_gpu=1"), Ok(QueueWant::Fixed(GpuRequest::Gpus(1))));
        assert_eq!(want("opp=1-4"), Ok(QueueWant::Range { min: 1, max: 4 }));
        assert_eq!(want("default=task"), Ok(QueueWant::Task));
        assert_eq!(want("services=none"), Ok(QueueWant::None));
        assert_eq!(QueueSpec::parse("a=b=1").unwrap().name, "a=b");
    }

    #[test]
    fn refusals_name_the_queue_and_the_remedy() {
        let says = |text: &str| QueueSpec::parse(text).unwrap_err().to_string();
        assert!(says("third=0.3333").contains("in steps of 0.001"));
        assert_eq!(
            says("half=1.25"),
            "--queue half=1.25: above one GPU only whole numbers are possible; nearest are 1 and 2"
        );
        assert!(says("half=0").starts_with("--queue half=0: zero GPUs; the smallest part is 0.001"));
        assert!(says("x=abc").contains("not a number of GPUs"));
        assert!(says("x=-2").contains("not a number of GPUs"));
        assert!(says("half_gpu").contains("NAME=SPEC"));
        assert!(says("=1").contains("no name"));
        assert_eq!(
            says("a=1,b=2"),
            "--queue a=1,b=2: the name of a queue has no comma; for several queues write --queue a=1 b=2"
        );
        assert!(says("o=3-1").contains("MIN ≤ MAX"));
        assert!(says("o=0.25-1").contains("whole GPUs"));
    }
}
