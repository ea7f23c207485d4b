//! `cantle sim …`

use std::ffi::OsString;

use cantle_machine::Layout;
use clap::{Args, Subcommand};

/// `cantle sim …`
#[derive(Subcommand, Debug)]
pub(crate) enum SimCommand {
    /// What the simulated driver itself holds: the outside witness of every test
    Truth,
    /// Run a command on a machine that has GPUs as an installed driver makes them appear; they are simulated
    Machine(MachineArgs),
}

/// `cantle sim machine`
#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    /// Where the driver's files lie: debian, rhel, driver-container or wsl
    #[arg(long, value_name = "LAYOUT", default_value_t = Layout::Debian)]
    pub(crate) layout: Layout,
    /// Its GPUs, e.g. 3xA100-40GB or 2xH100-80GB:mig,1xT4-16GB; default: those it has, or 1xA100-40GB
    #[arg(long, value_name = "SPEC")]
    pub(crate) gpus: Option<String>,
    /// Version of its driver; default: the one it has, or 550.163.01
    #[arg(long, value_name = "VERSION")]
    pub(crate) driver: Option<String>,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
