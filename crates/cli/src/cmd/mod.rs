//! The commands, one module per family.

pub(crate) mod bundle;
pub(crate) mod check;
pub(crate) mod controller;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod explain;
mod finding;
pub(crate) mod image;
pub(crate) mod limits;
pub(crate) mod list;
pub(crate) mod manual;
pub(crate) mod mig;
pub(crate) mod move_task;
pub(crate) mod quota;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod task;
pub(crate) mod top;
pub(crate) mod up;

use crate::args::Global;
use crate::error::{CliError, Kind, as_kind};
use crate::out::Printer;
use crate::place::Places;

/// What every command gets.
pub(crate) struct Context {
    pub(crate) printer: Printer,
    pub(crate) places: Places,
    pub(crate) global: Global,
}

/// A single-threaded runtime: a client waits for one answer at a time, and an idle agent should cost little.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(as_kind(Kind::Failed))
}
