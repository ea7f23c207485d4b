//! `cantle.get_usage`: who had which part of the GPUs for how long.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::wire::{endpoint, one_or_many};

/// `cantle.get_usage`: GPU time between two times, added up by some keys. Runs that the caller may not see are one line,
/// so that the lines add up to the time of all GPUs for everybody.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetUsage {
    /// The first moment, RFC 3339.
    pub from: String,
    /// The first moment after it, RFC 3339; what is still to come does not count.
    pub to: String,
    /// The keys by which it is added up.
    #[serde(deserialize_with = "keys")]
    pub by: Vec<UsageKey>,
    /// The prices of GPUs; absent: those of the server, if it has any.
    pub prices: Option<PriceSheet>,
    /// At most this number of lines of runs: those that left most of their memory unused, the most first. Runs whose peak is not known do
    /// not count.
    pub most_unused: Option<usize>,
}
endpoint!("cantle.get_usage", GetUsage => Usage);

/// One key or several, with the error of the wrong one.
fn keys<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<UsageKey>, D::Error> {
    let words: Vec<String> = one_or_many(deserializer)?;
    words.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// A key by which usage is added up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum UsageKey {
    /// The task's project.
    Project,
    /// Whose task it was.
    User,
    /// The queue that the task came from.
    Queue,
    /// The task.
    Task,
    /// The node of the GPU.
    Node,
    /// The pools of the GPU.
    Pool,
    /// The GPU.
    Gpu,
    /// Its product name.
    Model,
    /// Whether it was within the quota of the project: `guaranteed` or `borrowed`.
    Side,
    /// The day, in UTC.
    Day,
    /// The month, in UTC.
    Month,
    /// The value of the task's tag `KEY:VALUE` or `KEY=VALUE`, by its key.
    Label(String),
}

/// Keys of which each has one word.
const WORDS: [(&str, UsageKey); 11] = [
    ("project", UsageKey::Project),
    ("user", UsageKey::User),
    ("queue", UsageKey::Queue),
    ("task", UsageKey::Task),
    ("node", UsageKey::Node),
    ("pool", UsageKey::Pool),
    ("gpu", UsageKey::Gpu),
    ("model", UsageKey::Model),
    ("side", UsageKey::Side),
    ("day", UsageKey::Day),
    ("month", UsageKey::Month),
];
const LABEL: &str = "label:";

impl fmt::Display for UsageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, WORDS.iter().find(|(_, key)| key == self)) {
            (Self::Label(key), _) => write!(f, "{LABEL}{key}"),
            (_, found) => f.write_str(found.map_or("", |(word, _)| word)),
        }
    }
}

impl FromStr for UsageKey {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Self, UnknownKey> {
        match text.strip_prefix(LABEL) {
            Some(key) if !key.is_empty() => return Ok(Self::Label(key.to_owned())),
            _ => {}
        }
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, key)| key.clone()).ok_or_else(|| UnknownKey(text.to_owned()))
    }
}

impl TryFrom<String> for UsageKey {
    type Error = UnknownKey;

    fn try_from(text: String) -> Result<Self, UnknownKey> {
        text.parse()
    }
}

impl From<UsageKey> for String {
    fn from(key: UsageKey) -> Self {
        key.to_string()
    }
}

/// It is no [`UsageKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownKey(pub String);

impl fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = WORDS.iter().map(|(word, _)| *word).collect();
        write!(f, "\"{}\" is none of {}, {LABEL}KEY", self.0, words.join(", "))
    }
}

impl Error for UnknownKey {}

/// Prices of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceSheet {
    /// The currency, an ISO 4217 code.
    pub currency: String,
    /// The prices.
    #[serde(rename = "price")]
    pub prices: Vec<PriceEntry>,
}

/// The price of the GPUs of one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceEntry {
    /// Product name of the GPUs; `*`: all that no other price names.
    pub model: String,
    /// Price of a GPU-hour in the currency; a share costs its part.
    pub gpu_hour: f64,
    /// When it begins to be valid, RFC 3339; absent: it always was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The first moment at which it is no longer valid, RFC 3339; absent: it stays valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// Answer of `cantle.get_usage`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// The first moment that counted, RFC 3339.
    pub from: String,
    /// The first moment that did not count any more, RFC 3339.
    pub to: String,
    /// The lines, by their kind and keys.
    pub lines: Vec<UsageLine>,
    /// The account of each GPU.
    pub gpus: Vec<GpuAccount>,
    /// The prices of the costs; absent: the lines have no cost.
    pub prices: Option<PriceSheet>,
}

/// Whose time a line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageKind {
    /// Runs had it.
    #[default]
    Allocated,
    /// No run had it, and a task could have had it.
    Free,
    /// No run had it; the GPU had a fault.
    Faulty,
    /// No run had it; the node or the GPU was away.
    Away,
}

impl UsageKind {
    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Free => "free",
            Self::Faulty => "faulty",
            Self::Away => "away",
        }
    }
}

/// GPU time with the same keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageLine {
    /// Whose it is.
    pub kind: UsageKind,
    /// The values of the keys, in the order of the request; empty where it has none.
    pub keys: Vec<String>,
    /// Name of the task, where the lines are by task.
    pub name: Option<String>,
    /// Number of runs.
    pub runs: u64,
    /// Share of the GPUs times seconds.
    pub gpu_seconds: f64,
    /// The part of it that was within the quota of a project.
    pub guaranteed_gpu_seconds: f64,
    /// The rest of what runs had.
    pub borrowed_gpu_seconds: f64,
    /// The part of the project's quota that others had; only in lines by project, or by project and day or month.
    pub lent_gpu_seconds: Option<f64>,
    /// Limit of memory in GiB times seconds.
    pub memory_gib_seconds: f64,
    /// Half of the runs had waited no longer than this, in seconds.
    pub wait_median_s: Option<f64>,
    /// 95 of 100 runs had waited no longer than this, in seconds.
    pub wait_p95_s: Option<f64>,
    /// Runs that were given up, for other tasks or because their node was lost.
    pub given_up: u64,
    /// The part of their memory limits that runs had at their peaks, weighted by their GPU time; only of runs whose peak is known.
    pub memory_peak: Option<f64>,
    /// GPU time of the runs that were given up.
    pub lost_gpu_seconds: f64,
    /// Its cost; absent without a price for all of it.
    pub cost: Option<f64>,
}

impl UsageLine {
    /// GPU time × the part of the memory limits that its runs never had; 0 if no peak is known.
    #[must_use]
    pub fn unused_gpu_seconds(&self) -> f64 {
        self.memory_peak.map_or(0.0, |peak| self.gpu_seconds * (1.0 - peak))
    }
}

/// The account of one GPU: `recorded_seconds` are `allocated_seconds` and the time that no run had, less
/// `unrecorded_seconds`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAccount {
    /// Its UUID.
    pub gpu: String,
    /// The node that had it last.
    pub node: String,
    /// Time for which its state is known.
    pub recorded_seconds: f64,
    /// GPU time of runs.
    pub allocated_seconds: f64,
    /// GPU time that no run had.
    pub free_seconds: f64,
    /// The same, of a GPU with a fault.
    pub faulty_seconds: f64,
    /// The same, while it was away.
    pub away_seconds: f64,
    /// GPU time of runs while no state of the GPU was recorded.
    pub unrecorded_seconds: f64,
    /// GPU time that was not counted for runs whose end was reported late, because the next run had begun.
    pub late_seconds: f64,
    /// Whether its times have neither gaps nor overlaps and the parts add up, exactly.
    pub closes: bool,
}

/// `cantle.get_advice`: tasks whose runs would have fitted into a smaller share of a GPU. Of the runs that the caller may see.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetAdvice {
    /// Runs of which a part lies after this moment, RFC 3339.
    pub from: String,
    /// And a part before this one, RFC 3339.
    pub to: String,
}
endpoint!("cantle.get_advice", GetAdvice => Advised);

/// Answer of `cantle.get_advice`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Advised {
    /// The first moment that counted, RFC 3339.
    pub from: String,
    /// The first moment that did not count any more, RFC 3339.
    pub to: String,
    /// The greatest saving first.
    pub lines: Vec<AdviceLine>,
}

/// A smaller share for the tasks of one project and name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdviceLine {
    /// Name of the project.
    pub project: Option<String>,
    /// Name of the tasks.
    pub name: String,
    /// The share of the newest run, in thousandths of a GPU.
    pub milli: u32,
    /// The share that would have held all runs, with a tenth of their memory to spare.
    pub enough_milli: u32,
    /// The most memory that any of the runs had at a time.
    pub peak_bytes: u64,
    /// The memory of the smaller share, on the smallest GPU on which one of them ran.
    pub limit_bytes: u64,
    /// The number of runs.
    pub runs: u64,
    /// GPU time that the smaller share would have left to others, in seconds of a whole GPU.
    pub spare_gpu_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        let labels = [UsageKey::Label("team".to_owned()), UsageKey::Label("a:b".to_owned())];
        for key in WORDS.map(|(_, key)| key).into_iter().chain(labels) {
            assert_eq!(key.to_string().parse(), Ok(key.clone()));
            assert_eq!(serde_json::from_value::<UsageKey>(serde_json::json!(key)).unwrap(), key);
        }
        for wrong in ["team", "label:", "label", "Project", ""] {
            let error = wrong.parse::<UsageKey>().unwrap_err().to_string();
            assert!(error.contains("project, user") && error.ends_with("month, label:KEY"), "{error}");
        }
    }
}
