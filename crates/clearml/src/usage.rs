//! `cantle.get_usage`: who had which part of the GPUs for how long.

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
    /// What it is added up by.
    #[serde(deserialize_with = "one_or_many")]
    pub by: Vec<UsageKey>,
    /// What GPUs cost.
    pub prices: Option<PriceSheet>,
}
endpoint!("cantle.get_usage", GetUsage => Usage);

/// What usage is added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// The GPU.
    Gpu,
    /// Its product name.
    Model,
    /// The day, in UTC.
    Day,
    /// The month, in UTC.
    Month,
}

impl UsageKey {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Project,
        Self::User,
        Self::Queue,
        Self::Task,
        Self::Node,
        Self::Gpu,
        Self::Model,
        Self::Day,
        Self::Month,
    ];

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::User => "user",
            Self::Queue => "queue",
            Self::Task => "task",
            Self::Node => "node",
            Self::Gpu => "gpu",
            Self::Model => "model",
            Self::Day => "day",
            Self::Month => "month",
        }
    }
}

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
    /// The account of each GPU; empty for callers who may not see all projects.
    pub gpus: Vec<GpuAccount>,
}

/// Whose time a line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageKind {
    /// Runs had it.
    #[default]
    Allocated,
    /// Nobody had it, and a task could have had it.
    Free,
    /// Nobody had it; the GPU had a fault.
    Faulty,
    /// Nobody had it; the node or the GPU was away.
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
    /// Limit of memory in GiB times seconds.
    pub memory_gib_seconds: f64,
    /// Half of the runs had waited no longer than this, in seconds.
    pub wait_median_s: Option<f64>,
    /// 95 of 100 runs had waited no longer than this, in seconds.
    pub wait_p95_s: Option<f64>,
    /// Runs that were given up, for other tasks or because their node was lost.
    pub given_up: u64,
    /// GPU time of the runs that were given up.
    pub lost_gpu_seconds: f64,
    /// What it cost; absent without a price for all of it.
    pub cost: Option<f64>,
}

/// The account of one GPU: `recorded_seconds` are `allocated_seconds` and what nobody had, less `unrecorded_seconds`.
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
    /// GPU time that nobody had.
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
