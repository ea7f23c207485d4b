//! `--enforce`.

use cantle_model::EnforceMode;
use clap::Args;

/// The mechanism that enforces memory limits.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct EnforceArgs {
    /// What enforces memory limits of processes: auto, filter or driver. auto is the filter, and the driver's own limit where there is one
    /// (driver 615 or newer, as root). driver refuses to start without that limit
    #[arg(long, value_name = "BACKEND", default_value_t)]
    enforce: EnforceMode,
}

impl EnforceArgs {
    pub(crate) const fn mode(self) -> EnforceMode {
        self.enforce
    }
}
