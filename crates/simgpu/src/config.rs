//! The settings of the simulated driver, all from the environment: a driver library has no command line.

use std::env;
use std::path::PathBuf;

/// One environment variable, if it is set and not empty.
#[expect(clippy::disallowed_methods, reason = "this is the crate's config module")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// `CANTLE_SIM_GPUS`: the GPUs of the machine.
pub(crate) fn spec() -> Option<String> {
    variable("CANTLE_SIM_GPUS")
}

/// `CANTLE_SIM_DIR`, or `sim` under the state directory: where the machine lives.
pub(crate) fn directory() -> PathBuf {
    if let Some(dir) = variable("CANTLE_SIM_DIR") {
        return dir.into();
    }
    if let Some(state) = variable("CANTLE_STATE_DIR") {
        return PathBuf::from(state).join("sim");
    }
    // SAFETY: geteuid has no preconditions and can't fail.
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
