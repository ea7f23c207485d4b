//! What the administrator decides.

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
}

/// Where a task goes when there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Where the least worth is lost to the tasks that are expected ([`crate::State::expected`]); as `Binpack` where
    /// nothing is known about them.
    #[default]
    Worth,
    /// Fullest first: cut GPUs before fresh ones, the smallest leftover wins.
    Binpack,
    /// Emptiest first.
    Spread,
}

/// How [`crate::plan`] decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// Which queue is served next.
    pub order: Order,
    /// May tasks start past a blocked head, as long as they leave alone what is reserved for it? Without it, a
    /// blocked head blocks everything behind it (`Strict`) or its own queue (`Fair`).
    pub backfill: bool,
    /// Where a task goes.
    pub placement: Placement,
}
