//! `--parked-memory`.

use cantle_model::Bytes;
use clap::Args;

use super::values;

/// The host memory that suspended tasks may take.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct ParkedArgs {
    /// Host memory that all suspended tasks of the machine may take, for example 64G; 0G: none is suspended [default: what is available]
    #[arg(long, value_name = "M", value_parser = values::bytes)]
    parked_memory: Option<Bytes>,
}

impl ParkedArgs {
    pub(crate) fn bytes(self) -> Option<u64> {
        self.parked_memory.map(|parked| parked.0)
    }
}
