//! Signals that this process ignores because who started it did, as `nohup` and the background of a script do. A program that is started
//! inherits that. A program that another user runs in a task must not depend on the way an agent was started: Ctrl-C
//! would do nothing there.

use std::fs;
use std::sync::Arc;

use signal_hook::consts::FORBIDDEN;
use signal_hook::consts::signal::SIGPIPE;

/// A program that this process starts from now on ignores nothing. This process itself still survives the signals that it ignored: it catches
/// them, and the kernel gives a started program the default action for a caught one.
pub(crate) fn ignore_nothing() {
    for signal in ignored().unwrap_or_default() {
        // `Command` restores the one for pipes.
        if signal != SIGPIPE && !FORBIDDEN.contains(&signal) {
            // The kernel refuses none of these.
            let _ = signal_hook::flag::register(signal, Arc::default());
        }
    }
}

/// `None` without procfs.
fn ignored() -> Option<Vec<i32>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some((1..32).filter(|signal| mask >> (signal - 1) & 1 == 1).collect())
}
