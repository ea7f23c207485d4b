//! Prints what the driver shows: `gpus real` or `gpus sim SIM_DIR LIB_DIR`. The tests of this crate also run it for the
//! steps that need a process of their own.

use std::env;
use std::io::Write as _;
use std::process::ExitCode;

use cantle_driver::{DriverError, Installation, MIG_COMMAND, PROBE_CONTEXT_COMMAND};

fn main() -> ExitCode {
    let args: Vec<_> = env::args_os().skip(1).collect();
    if args.first().is_some_and(|arg| arg == PROBE_CONTEXT_COMMAND) {
        return cantle_driver::probe_context_main(&args[1..]);
    }
    if args.first().is_some_and(|arg| arg == MIG_COMMAND) {
        return cantle_driver::mig_main(&args[1..]);
    }
    let source = match args.as_slice() {
        [_sim, dir, lib_dir] => Installation::in_directory(dir.into(), lib_dir.into()),
        _ => Installation::of_this_machine(),
    };
    match describe(&source) {
        Ok(text) => {
            let _ = write!(std::io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::from(7)
        }
    }
}

fn describe(source: &Installation) -> Result<String, DriverError> {
    let driver = cantle_driver::open(source)?;
    let mut text = format!("{:?}\n{:#?}\n", driver.versions(), driver.libraries()?);
    for gpu in driver.gpus()? {
        let (location, memory) = (driver.location(&gpu.uuid)?, driver.memory(&gpu.uuid)?);
        let context = driver.context_memory(&gpu.uuid, &gpu.uuid.0)?;
        let processes = driver.processes(&gpu.uuid)?;
        text += &format!("{gpu:?}\n  {location:?}\n  {memory:?}\n  {context:?}\n  {processes:?}\n");
    }
    Ok(text)
}
