//! The settings of the scheduler that the administrator chooses.

use serde::{Deserialize, Serialize};

/// Which queue is served next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// In the order listed: a queue is served only when all before it are empty (ClearML's default).
    #[default]
    Strict,
    /// In turn, one task each, after the queue served last (ClearML's `--order-fairness`).
    Fair,
    /// By project: first the project that is furthest below its share (see [`crate::Project`]), and in a project by
    /// priority.
    Share,
}

/// The placement of a task when there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The place that costs the expected tasks ([`crate::Snapshot::expected`]) the least worth; as `Binpack` where
    /// nothing is known about them.
    #[default]
    Worth,
    /// Fullest first: cut GPUs before fresh ones, the smallest leftover wins.
    Binpack,
    /// Emptiest first.
    Spread,
}

/// The settings of [`crate::plan`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Which queue is served next.
    pub order: Order,
    /// May tasks start past a blocked head, as long as they leave alone what is reserved for it? Without it, a
    /// blocked head blocks everything behind it (`Strict`), its own queue (`Fair`) or its own project (`Share`).
    pub backfill: bool,
    /// The placement of a task.
    pub placement: Placement,
    /// May running tasks be stopped for waiting ones: of other projects that have more than their share, and of the
    /// same project if their priority is lower?
    pub reclaim: bool,
    /// May running tasks be stopped so that they start again elsewhere and make room for one that fits nowhere else?
    pub consolidate: bool,
    /// Share GPUs over quota in whole ones, as KAI-Scheduler does.
    pub kai_compat: bool,
    /// The weight of past use against a project, in percent (KAI's `kValue` times 100). 0: not at all.
    pub usage_weight_percent: u32,
}
