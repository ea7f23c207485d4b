//! `cantle sim …`, and `--sim-gpus` of every command that uses GPUs: both enter a machine with simulated GPUs.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use cantle_machine::{Layout, Machine};
use clap::{Args, Subcommand};

use crate::command_line::without_options;
use crate::context::{CommandResult, Context, Global};
use crate::directories::Directories;
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::Format;

/// `cantle sim …`
#[derive(Subcommand, Debug)]
pub(crate) enum SimCommand {
    /// Print what the simulated driver itself holds, independently of cantle's own accounting
    Truth,
    /// Run a command on a machine with simulated GPUs, which appear as with an installed driver
    Machine(MachineArgs),
}

/// `cantle sim machine`
#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    /// File layout of the driver: debian, rhel, driver-container, wsl, flatcar, cos or nixos
    #[arg(long, value_name = "LAYOUT", default_value_t = Layout::Debian)]
    layout: Layout,
    /// Its GPUs, e.g. 3xA100-40GB, 2xH100-80GB:mig,1xT4-16GB or 2xMI300X [default: those it has, or 1xA100-40GB]
    #[arg(long, value_name = "SPEC")]
    gpus: Option<String>,
    /// Version of its driver [default: the one it has, or 580.95.05]
    #[arg(long, value_name = "VERSION")]
    driver: Option<String>,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Prefix of the variables that are hidden from programs in the machine.
const VARIABLES: &str = "CANTLE_SIM_";
/// The options that describe the machine; each takes a value.
const OPTIONS: [&str; 2] = ["--sim-gpus", "--sim-dir"];

/// `cantle sim machine`: becomes the command.
pub(crate) fn machine(context: &Context, args: &MachineArgs) -> CommandResult {
    let machine = Machine {
        home: context.dirs.sim.clone(),
        gpus: args.gpus.clone().or_else(|| context.global.sim_gpus.clone()),
        driver: args.driver.clone(),
        layout: args.layout,
        lib_dir: context.dirs.lib.clone(),
    };
    cantle_machine::enter(&machine)?;
    let (program, words) =
        args.command.split_first().ok_or_else(|| CliError::new(ErrorKind::Usage, "no command"))?;
    become_command(Command::new(program).args(words)).map(|never| match never {})
}

/// Enters the machine with the GPUs of `--sim-gpus` and starts this command again inside, without that option: it then finds
/// an installed driver and knows of no simulation. With `is_from_file` the words contain all settings of `--config`.
/// The variable that may name the file is removed: it would apply them a second time, with the GPUs.
pub(crate) fn start_again(
    global: &Global,
    words: &[OsString],
    is_from_file: bool,
) -> Result<Infallible, CliError> {
    enter(&global.directories()?, global.sim_gpus.clone())?;
    again(words, is_from_file)
}

fn again(words: &[OsString], is_from_file: bool) -> Result<Infallible, CliError> {
    let program = std::env::current_exe().map_err(as_kind(ErrorKind::Failed))?;
    let mut command = Command::new(program);
    if let Some(name) = words.first() {
        command.arg0(name);
    }
    if is_from_file {
        command.env_remove(crate::config::VARIABLE);
    }
    become_command(command.args(without_options(words.get(1..).unwrap_or_default(), &OPTIONS)))
}

fn enter(dirs: &Directories, gpus: Option<String>) -> Result<(), CliError> {
    let (home, lib_dir) = (dirs.sim.clone(), dirs.lib.clone());
    let machine = Machine { home, gpus, driver: None, layout: Layout::default(), lib_dir };
    Ok(cantle_machine::enter(&machine)?)
}

fn become_command(command: &mut Command) -> Result<Infallible, CliError> {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(VARIABLES)) {
        command.env_remove(name);
    }
    let why = command.exec();
    // As shells and container engines have it.
    let kind = match why.kind() {
        std::io::ErrorKind::NotFound => ErrorKind::NoSuchProgram,
        _ => ErrorKind::NotExecutable,
    };
    let what = format!("cannot start {}", command.get_program().to_string_lossy());
    Err(CliError::wrap(kind, what, why))
}

/// The simulated driver's own figures. JSON is the driver's own text, unchanged.
pub(crate) fn truth(context: &Context) -> CommandResult {
    let json = match cantle_machine::truth_json() {
        Ok(json) => json,
        // Outside the machine: enter it, unless there is none.
        Err(why) if !context.dirs.sim.join("state").exists() => {
            return Err(CliError::of(ErrorKind::Unavailable, why));
        }
        Err(_) => {
            enter(&context.dirs, None)?;
            let words: Vec<OsString> = std::env::args_os().collect();
            return again(&words, false).map(|never| match never {});
        }
    };
    if context.printer.format == Format::Json {
        context.printer.data(&json);
        return Ok(ExitCode::SUCCESS);
    }
    let truth: serde_json::Value = serde_json::from_str(&json).map_err(as_kind(ErrorKind::Failed))?;
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
