//! `--module-reserve`.

use cantle_model::Bytes;
use clap::Args;

use super::values;

/// Memory that slices keep for the driver's own use.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct ReserveArgs {
    /// Memory of each slice (a part of a GPU) that is kept for kernels which libraries load later, for example 600Mi; at most half
    /// of the slice [default: none]
    #[arg(long, value_name = "AMOUNT", value_parser = values::bytes)]
    module_reserve: Option<Bytes>,
}

impl ReserveArgs {
    pub(crate) fn bytes(self) -> u64 {
        self.module_reserve.map_or(0, |reserve| reserve.0)
    }
}
