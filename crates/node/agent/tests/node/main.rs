//! The agent as processes on simulated GPUs: several at a time, killed at will.
//!
//! One program plays all of them: without a role it runs the tests; with a role it is `cantle run`, a daemon, or the
//! supervisor of a task, as the cantle binary is. Needs the simulated driver that `make build` puts into `dist`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test with a main of its own: clippy does not know it for one, and real processes take real time"
)]

mod cluster;
mod crash;
mod daemon;
mod place;
mod role;
mod run;
mod watch;

use std::ffi::OsString;
use std::panic::catch_unwind;
use std::process::ExitCode;

use place::Place;

/// A test, with the name it is known by.
type Test = (&'static str, fn(&Place));

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1).and_then(|arg| arg.to_str()) {
        Some(cantle_runtime::TASK_INIT_COMMAND) => return cantle_runtime::task_init_main(&args[2..]),
        Some(cantle_agent::SDK_TASK_COMMAND) => return cantle_agent::sdk_task_main(&args[2..]),
        Some(cantle_driver::PROBE_CONTEXT_COMMAND) => return cantle_driver::probe_context_main(&args[2..]),
        Some(cantle_driver::MIG_COMMAND) => return cantle_driver::mig_main(&args[2..]),
        Some(role::RUN) => return role::run(&args[2..]),
        Some(role::DAEMON) => return role::serve(&args[2..]),
        _ => {}
    }
    let filter = args.iter().skip(1).filter_map(|arg| arg.to_str()).find(|arg| !arg.starts_with('-'));
    let tests = run::TESTS.iter().chain(daemon::TESTS).chain(watch::TESTS).chain(crash::TESTS).copied();
    let tests = tests.filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter)));
    run_all(tests.collect())
}

fn run_all(tests: Vec<Test>) -> ExitCode {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, test) in tests {
        let Some(place) = Place::new() else {
            println!("test {name} ... skipped: no simulated driver in dist/lib/cantle/sim; run `make build`");
            skipped += 1;
            continue;
        };
        let outcome = catch_unwind(std::panic::AssertUnwindSafe(|| test(&place)));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        if outcome.is_ok() { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
