//! `cantle sim …`, and `--sim-gpus` of every command that uses GPUs: both enter a machine that has simulated ones.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use cantle_machine::{Layout, Machine, MachineError};

use super::Context;
use crate::args::{Global, MachineArgs};
use crate::error::{CliError, Kind, Outcome, as_kind};
use crate::out::Format;
use crate::place::Places;

/// How the variables begin that no program in the machine shall see.
const VARIABLES: &str = "CANTLE_SIM_";
/// The options that mean the machine, with their values.
const OPTIONS: [&str; 2] = ["--sim-gpus", "--sim-dir"];

/// As shells and container engines have it.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// `cantle sim machine`: becomes the command.
pub(crate) fn machine(context: &Context, args: &MachineArgs) -> Outcome {
    let machine = Machine {
        home: context.places.sim.clone(),
        gpus: args.gpus.clone().or_else(|| context.global.sim_gpus.clone()),
        driver: args.driver.clone(),
        layout: args.layout,
        lib_dir: context.places.lib.clone(),
    };
    cantle_machine::enter(&machine).map_err(refused)?;
    let (program, words) =
        args.command.split_first().ok_or_else(|| CliError::new(Kind::Usage, "no command"))?;
    become_command(Command::new(program).args(words)).map(|never| match never {})
}

/// Enters the machine with the GPUs of `--sim-gpus` and starts this command again in there, without that option: what runs
/// then finds an installed driver and knows of no simulation.
pub(crate) fn start_again(global: &Global, words: &[OsString]) -> Result<Infallible, CliError> {
    let places = Places::new(global)?;
    enter(&places, global.sim_gpus.clone())?;
    again(words)
}

fn again(words: &[OsString]) -> Result<Infallible, CliError> {
    let program = std::env::current_exe().map_err(as_kind(Kind::Failed))?;
    let mut command = Command::new(program);
    if let Some(name) = words.first() {
        command.arg0(name);
    }
    become_command(command.args(without_options(words.get(1..).unwrap_or_default())))
}

fn enter(places: &Places, gpus: Option<String>) -> Result<(), CliError> {
    let (home, lib_dir) = (places.sim.clone(), places.lib.clone());
    let machine = Machine { home, gpus, driver: None, layout: Layout::default(), lib_dir };
    cantle_machine::enter(&machine).map_err(refused)
}

fn refused(error: MachineError) -> CliError {
    let kind = match error {
        MachineError::Gpus(_) | MachineError::Version(_) => Kind::Usage,
        MachineError::NoDriver(_) | MachineError::NoNamespace(_) | MachineError::Step { .. } => {
            Kind::Unavailable
        }
    };
    as_kind(kind)(error)
}

/// Only what stands before `--` is ours.
fn without_options(words: &[OsString]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            kept.push(word.clone());
            kept.extend(rest.cloned());
            break;
        }
        let text = word.to_string_lossy();
        if OPTIONS.contains(&&*text) {
            rest.next();
        } else if !OPTIONS
            .iter()
            .any(|option| text.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')))
        {
            kept.push(word.clone());
        }
    }
    kept
}

fn become_command(command: &mut Command) -> Result<Infallible, CliError> {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(VARIABLES)) {
        command.env_remove(name);
    }
    let why = command.exec();
    let code = if why.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    Err(CliError::with_code(code, format!("cannot start {}: {why}", command.get_program().to_string_lossy())))
}

/// What the simulated driver itself holds. JSON is the driver's own text, so that nothing of ours stands between.
pub(crate) fn truth(context: &Context) -> Outcome {
    let json = match cantle_machine::truth_json() {
        Ok(json) => json,
        // Outside of the machine: it is entered, unless there is none.
        Err(why) if !context.places.sim.join("state").exists() => {
            return Err(as_kind(Kind::Unavailable)(why));
        }
        Err(_) => {
            enter(&context.places, None)?;
            let words: Vec<OsString> = std::env::args_os().collect();
            return again(&words).map(|never| match never {});
        }
    };
    if context.printer.format == Format::Json {
        context.printer.data(&json);
        return Ok(ExitCode::SUCCESS);
    }
    let truth: serde_json::Value = serde_json::from_str(&json).map_err(as_kind(Kind::Failed))?;
    for gpu in truth["gpus"].as_array().into_iter().flatten() {
        let mib = |value: &serde_json::Value| value.as_u64().unwrap_or(0) >> 20;
        let (used, total) = (mib(&gpu["used_bytes"]), mib(&gpu["memory_bytes"]));
        context.printer.data(&format!("{}  {used} / {total} MiB", gpu["uuid"].as_str().unwrap_or("?")));
        for process in gpu["processes"].as_array().into_iter().flatten() {
            context.printer.data(&format!("  pid {}  {} MiB", process["pid"], mib(&process["used_bytes"])));
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_options_are_left_out_and_nothing_else() {
        let left = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            without_options(&words).into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(left(&["--sim-gpus", "1xT4-16GB", "run", "--gpu", "1"]), ["run", "--gpu", "1"]);
        assert_eq!(left(&["run", "--sim-gpus=1xT4-16GB", "--sim-dir=/x", "--gpu=1"]), ["run", "--gpu=1"]);
        assert_eq!(left(&["run", "--", "x", "--sim-gpus", "y"]), ["run", "--", "x", "--sim-gpus", "y"]);
    }
}
