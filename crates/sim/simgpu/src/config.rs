//! The settings of the simulated driver, all from the environment: a driver library has no command line.

use std::env;
use std::path::PathBuf;

use crate::state::Site;

/// One environment variable, if it is set and not empty.
#[expect(clippy::disallowed_methods, reason = "this is the crate's config module")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// `CANTLE_SIM_GPUS`: the GPUs of the machine.
pub(crate) fn spec() -> Option<String> {
    variable("CANTLE_SIM_GPUS")
}

/// The location of the machine: in `CANTLE_SIM_DIR`, else in `/dev` if its nodes are there, else in `sim` under the
/// state directory.
pub(crate) fn site() -> Site {
    match variable("CANTLE_SIM_DIR") {
        Some(dir) => Site::Directory(dir.into()),
        None => Site::of_nodes().unwrap_or_else(|| Site::Directory(default_directory())),
    }
}

fn default_directory() -> PathBuf {
    if let Some(state) = variable("CANTLE_STATE_DIR") {
        return PathBuf::from(state).join("sim");
    }
    // SAFETY: `geteuid` takes no arguments and has no preconditions.
    match (unsafe { libc::geteuid() }, variable("HOME")) {
        (0, _) | (_, None) => "/var/lib/cantle/sim".into(),
        (_, Some(home)) => PathBuf::from(home).join(".local/state/cantle/sim"),
    }
}

/// `CUDA_VISIBLE_DEVICES`, where empty means "none" and unset means "all".
#[expect(
    clippy::disallowed_methods,
    reason = "this is the crate's config module; here empty differs from unset"
)]
pub(crate) fn cuda_visible_devices() -> Option<String> {
    env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// When modules take their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModuleLoading {
    Lazy,
    Eager,
}

/// `CUDA_MODULE_LOADING`.
pub(crate) fn module_loading() -> ModuleLoading {
    match variable("CUDA_MODULE_LOADING") {
        Some(setting) if setting == "EAGER" => ModuleLoading::Eager,
        _ => ModuleLoading::Lazy,
    }
}
