//! How tasks are chosen and where they go.

use cantle_sched::{Order, Placement, Policy};
use clap::{Args, ValueEnum};

/// Flags of `up` and `daemon` that make its [`Policy`].
#[derive(Args, Debug, Clone)]
pub(crate) struct PolicyArgs {
    /// Serve the queues in turn instead of by priority
    #[arg(long)]
    order_fairness: bool,
    /// Let lower queues use what a blocked task can't, as long as it starts no later
    #[arg(long)]
    backfill: bool,
    /// Under quotas, stop a task that fits elsewhere, and start it there again, where that lets one start that fits
    /// nowhere else
    #[arg(long)]
    consolidate: bool,
    /// Where a task goes when there is a choice
    #[arg(long, value_enum, value_name = "HOW", default_value = "worth")]
    placement: PlacementArg,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum PlacementArg {
    /// Where the least is lost to the tasks that are expected, as they came so far; binpack until 100 have come
    Worth,
    /// Where the least is left over: GPUs that are cut already, fullest first
    Binpack,
    /// Where the most is left over
    Spread,
}

impl PolicyArgs {
    /// What the agent plans by.
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            order: if self.order_fairness { Order::Fair } else { Order::Strict },
            backfill: self.backfill,
            consolidate: self.consolidate,
            placement: match self.placement {
                PlacementArg::Worth => Placement::Worth,
                PlacementArg::Binpack => Placement::Binpack,
                PlacementArg::Spread => Placement::Spread,
            },
            ..Policy::default()
        }
    }
}
