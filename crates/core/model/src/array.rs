//! Arrays: many tasks that differ in one index, made from one.

use std::fmt;
use std::str::FromStr;

/// The most elements of an array.
const MOST: u64 = 100_000;
/// The greatest index.
const GREATEST: u64 = 1_000_000_000;

/// Indices from one to another in equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    step: u64,
}

/// The indices of an array, and how many of its tasks run at once: `0-99%8`, `1,4,10-20:5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// Each has one index at least, all of them are in ascending order.
    ranges: Vec<Range>,
    most: Option<u32>,
}

impl Range {
    const fn len(self) -> u64 {
        (self.last - self.first) / self.step + 1
    }
}

impl ArraySpec {
    /// How many elements it has, 1 to 100,000.
    #[must_use]
    pub fn count(&self) -> u32 {
        let count: u64 = self.ranges.iter().map(|range| range.len()).sum();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// How many of its tasks run at once at most, if that is limited.
    #[must_use]
    pub const fn most(&self) -> Option<u32> {
        self.most
    }

    /// The index of the element at this position; the first element is at 0.
    #[must_use]
    pub fn index(&self, position: u32) -> Option<u64> {
        let mut left = u64::from(position);
        for range in &self.ranges {
            if left < range.len() {
                return Some(range.first + left * range.step);
            }
            left -= range.len();
        }
        None
    }
}

/// A text is no array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// It has another form.
    #[error(
        "\"{0}\" is no array; write FIRST-LAST as in 0-99, with :STEP for steps and %N for at most N at once"
    )]
    Form(String),
    /// An index is not above the one before.
    #[error("array {0}: the indices have to ascend")]
    Order(String),
    /// An index is too great.
    #[error("array {text}: index {index} is above {GREATEST}")]
    Index {
        /// The array.
        text: String,
        /// The index.
        index: u64,
    },
    /// It has too many elements.
    #[error("array {text} has {count} elements; an array has at most {MOST}")]
    TooMany {
        /// The array.
        text: String,
        /// How many.
        count: u64,
    },
}

impl FromStr for ArraySpec {
    type Err = ArrayError;

    fn from_str(text: &str) -> Result<Self, ArrayError> {
        let form = || ArrayError::Form(text.to_owned());
        let (indices, most) = match text.split_once('%') {
            None => (text, None),
            Some((indices, most)) => {
                let most: u32 = number(most).and_then(|most| most.try_into().ok()).ok_or_else(form)?;
                (indices, Some(most).filter(|most| *most > 0))
            }
        };
        if text.contains('%') && most.is_none() {
            return Err(form());
        }
        let mut ranges: Vec<Range> = Vec::new();
        for part in indices.split(',') {
            let range = range(part.trim()).ok_or_else(form)?;
            if range.last > GREATEST {
                return Err(ArrayError::Index { text: text.to_owned(), index: range.last });
            }
            if range.first > range.last || ranges.last().is_some_and(|before| range.first <= before.last) {
                return Err(ArrayError::Order(text.to_owned()));
            }
            ranges.push(range);
        }
        let count = ranges.iter().map(|range| range.len()).sum();
        if count > MOST {
            return Err(ArrayError::TooMany { text: text.to_owned(), count });
        }
        Ok(Self { ranges, most })
    }
}

/// `7`, `0-99` or `0-99:10`.
fn range(text: &str) -> Option<Range> {
    let Some((first, rest)) = text.split_once('-') else {
        let index = number(text)?;
        return Some(Range { first: index, last: index, step: 1 });
    };
    let (last, step) = rest.split_once(':').unwrap_or((rest, "1"));
    let step = number(step).filter(|step| *step > 0)?;
    Some(Range { first: number(first)?, last: number(last)?, step })
}

/// Digits only: `+1` is no index.
fn number(text: &str) -> Option<u64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Range { first, last, step }) in self.ranges.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (first == last, step) {
                (true, _) => write!(f, "{comma}{first}")?,
                (false, 1) => write!(f, "{comma}{first}-{last}")?,
                (false, step) => write!(f, "{comma}{first}-{last}:{step}")?,
            }
        }
        self.most.map_or(Ok(()), |most| write!(f, "%{most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(text: &str) -> Vec<u64> {
        let array: ArraySpec = text.parse().unwrap();
        assert_eq!(array.to_string(), text);
        assert_eq!(array.index(array.count()), None);
        (0..array.count()).map(|position| array.index(position).unwrap()).collect()
    }

    #[test]
    fn indices_are_read_as_they_are_printed() {
        assert_eq!(indices("0-3"), [0, 1, 2, 3]);
        assert_eq!(indices("7"), [7]);
        assert_eq!(indices("1,4,10-20:5%2"), [1, 4, 10, 15, 20]);
        assert_eq!(indices("0-10:4"), [0, 4, 8]);
        assert_eq!(indices("0-99999").len(), 100_000);
        assert_eq!("0-99%8".parse::<ArraySpec>().unwrap().most(), Some(8));
        assert_eq!("0-99".parse::<ArraySpec>().unwrap().most(), None);
    }

    #[test]
    fn what_is_no_array_is_refused_with_the_reason() {
        let says = |text: &str| text.parse::<ArraySpec>().unwrap_err().to_string();
        for wrong in
            ["", "-", "a", "0-", "-3", "+1-3", "0-9:0", "0-9%0", "0-9%", "0-9%x", "0..9", "1,,2", "0-9%8%8"]
        {
            assert!(says(wrong).contains("write FIRST-LAST"), "{wrong}: {}", says(wrong));
        }
        for wrong in ["9-0", "0-9,5", "3,3", "5,1-2"] {
            assert!(says(wrong).contains("have to ascend"), "{wrong}");
        }
        assert!(says("0-100000").contains("100001 elements; an array has at most 100000"));
        assert!(says("0-9999999").contains("10000000 elements"));
        assert!(says("5-99999999999").contains("index 99999999999 is above 1000000000"));
    }
}
