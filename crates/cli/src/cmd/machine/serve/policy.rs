//! The scheduling policy of an agent.

use cantle_sched::{Order, Placement, Policy};
use clap::{Args, ValueEnum};

/// The flags of a [`Policy`].
#[derive(Args, Debug, Clone)]
pub(super) struct PolicyArgs {
    /// Serve the queues in turn instead of by priority
    #[arg(long)]
    order_fairness: bool,
    /// Let tasks of lower queues start while a task is blocked, as long as they do not delay it
    #[arg(long)]
    backfill: bool,
    /// Under quotas, restart a running task on another GPU if that lets a task start that fits nowhere else
    #[arg(long)]
    consolidate: bool,
    /// How a GPU is chosen for a task
    #[arg(long, value_enum, value_name = "HOW", default_value = "worth")]
    placement: PlacementArg,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum PlacementArg {
    /// The GPU that costs the least capacity for the tasks expected from past arrivals; binpack for the first 100 tasks
    Worth,
    /// The GPU with the least free capacity that fits: GPUs that are shared already, fullest first
    Binpack,
    /// The GPU with the most free capacity
    Spread,
}

impl PolicyArgs {
    pub(super) fn policy(&self) -> Policy {
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
