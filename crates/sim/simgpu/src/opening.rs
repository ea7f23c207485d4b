//! Finds the machine that a driver library of this process belongs to.

use crate::state::{Sim, SimOpenError, Site};

/// Opens the machine that the settings name. The first failure is printed to stderr: a driver library has no other place for a
/// sentence, and an error code alone would leave the user guessing.
pub(crate) fn open_configured() -> Result<&'static Sim, SimOpenError> {
    let result = match crate::control::chosen_site() {
        Some(site) => Sim::open(&site, None),
        None => Sim::open(&crate::config::site(), crate::config::spec().as_deref()),
    };
    if let Err(error) = &result {
        static PRINTED: std::sync::Once = std::sync::Once::new();
        PRINTED.call_once(|| print(error));
    }
    result
}

#[expect(clippy::print_stderr, reason = "the one line a user sees when the simulated GPUs cannot be used")]
fn print(error: &SimOpenError) {
    eprintln!("cantle simulated driver: {error}");
}

/// Opens a machine by path.
pub(crate) fn open_dir(dir: &str, spec: Option<&str>) -> Result<&'static Sim, SimOpenError> {
    Sim::open(&Site::Directory(dir.into()), spec)
}
