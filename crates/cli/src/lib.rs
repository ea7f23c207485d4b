//! `cantle`, the one binary: reads the command line, calls the crate that does the work, prints the result.

mod announced;
mod args;
mod clearml_conf;
mod cmd;
mod command_line;
mod complete;
mod config;
mod connect;
mod containers;
mod context;
mod directories;
mod error;
mod exec_here;
mod frames;
mod help;
mod host;
mod keys_file;
mod logged_in;
mod named;
mod otlp;
mod out;
mod shared_args;
mod terminal;
mod tunnel;

use std::error::Error as _;
use std::ffi::OsString;
use std::num::{ParseFloatError, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _};
use tracing::Metadata;
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use args::{Cli, Command};
use cmd::machine::sim::SimCommand;
use context::{CommandResult, Context, Global};
use error::{CliError, ErrorKind};
use out::Format;

/// Runs the command that the process was started with; its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    // Hidden commands are steps of starting a task, measuring a GPU or changing it: they must be quick and need no parser.
    match words.get(1).and_then(|word| word.to_str()) {
        Some(cantle_runtime::TASK_INIT_COMMAND) => return cantle_runtime::task_init_main(&words[2..]),
        Some(cantle_runtime::COVER_IMAGE_COMMAND) => return cantle_runtime::cover_image_main(&words[2..]),
        Some(cantle_agent::SDK_TASK_COMMAND) => return cantle_agent::sdk_task_main(&words[2..]),
        Some(cantle_driver::PROBE_CONTEXT_COMMAND) => return cantle_driver::probe_context_main(&words[2..]),
        Some(cantle_driver::CHECKPOINT_COMMAND) => return cantle_driver::checkpoint_main(&words[2..]),
        Some(cantle_driver::MIG_COMMAND) => return cantle_driver::mig_main(&words[2..]),
        _ => {}
    }
    complete::answer_shell(Cli::command);
    let plain = containers::carried(words.clone(), Cli::command);
    let carried = match config::with_file(plain.clone(), Cli::command) {
        Ok(words) => words,
        Err(error) => {
            out::complain(&error, false);
            return error.exit_code();
        }
    };
    let is_from_file = carried != plain;
    let again = if is_from_file { command_line::without_options(&carried, &["--config"]) } else { words };
    let called = help::called(&text(&carried), &Cli::command());
    let parsed = help::grouped(Cli::command()).try_get_matches_from(carried);
    let cli = match parsed.and_then(|found| Cli::from_arg_matches(&found)) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    if cli.global.sim_gpus.is_some() && cli.command.uses_gpus() {
        // While this process has one thread.
        let Err(error) = cmd::machine::sim::start_again(&cli.global, &again, is_from_file);
        return complain(&error, &cli.global);
    }
    let (global, spans) = (cli.global.clone(), observe(&cli.global));
    if global.background {
        cantle_node::leave_terminal();
    }
    let done = dispatch(cli).map_err(|error| error.in_words_of(&called));
    let code = done.unwrap_or_else(|error| complain(&error, &global));
    if let Some(spans) = spans {
        spans.finish();
    }
    if out::is_cut() { ExitCode::FAILURE } else { code }
}

fn text(words: &[OsString]) -> Vec<String> {
    words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn complain(error: &CliError, global: &Global) -> ExitCode {
    out::complain(error, global.is_verbose());
    error.exit_code()
}

fn dispatch(cli: Cli) -> CommandResult {
    let context = Context::new(&cli.global)?;
    if context.printer.format == Format::Focus && !matches!(cli.command, Command::Usage(_)) {
        return Err(CliError::new(ErrorKind::Usage, "-o focus is for cantle usage"));
    }
    match cli.command {
        Command::Run(args) => cmd::machine::run::run(&context, args),
        Command::DockerRun(args) => cmd::machine::run::docker_run(&context, args),
        Command::Up(args) => cmd::machine::up::up(&context, *args),
        Command::Server(args) => cmd::fleet::server::server(&context, *args),
        Command::Daemon(args) => cmd::machine::daemon::daemon(&context, &args),
        Command::Submit(args) => cmd::tasks::submit::submit(&context, args),
        Command::Tasks(args) => cmd::tasks::list::tasks(&context, args),
        Command::Gpus(args) => cmd::tasks::list::gpus(&context, &args),
        Command::Ps => cmd::machine::here::ps(&context),
        Command::Queues(args) => cmd::fleet::queues::queues(&context, args),
        Command::Nodes => cmd::tasks::list::nodes(&context),
        Command::Projects(args) => cmd::people::quota::projects(&context, &args),
        Command::Notify(command) => cmd::people::notify::notify(&context, command),
        Command::Secrets(command) => cmd::people::secrets::secrets(&context, command),
        Command::Pools(command) => cmd::fleet::pools::pools(&context, command),
        Command::Budget(command) => cmd::people::budget::budget(&context, command),
        Command::Quota(command) => cmd::people::quota::quota(&context, command),
        Command::Usage(args) => cmd::people::usage::usage(&context, &args),
        Command::Advise(args) => cmd::people::advise::advise(&context, &args),
        Command::Events(args) => cmd::tasks::list::events(&context, args),
        Command::Why(args) => cmd::tasks::one::why(&context, &args),
        Command::Logs(args) => cmd::tasks::one::logs(&context, &args),
        Command::Exec(args) => cmd::tasks::exec::exec(&context, args),
        Command::Shell(args) => cmd::tasks::shell::shell(&context, args),
        Command::Notebook(args) => cmd::tasks::notebook::notebook(&context, &args),
        Command::Forward(args) => cmd::tasks::forward::forward(&context, args),
        Command::Attach(args) => cmd::tasks::shell::attach(&context, &args),
        Command::Stop(args) => cmd::tasks::one::stop(&context, &args),
        Command::Requeue(args) => cmd::tasks::one::requeue(&context, &args),
        Command::Suspend(args) => cmd::machine::suspend::suspend(&context, &args),
        Command::Resume(args) => cmd::machine::suspend::resume(&context, &args),
        Command::Resize(args) => cmd::machine::suspend::resize(&context, &args),
        Command::Move(args) => cmd::tasks::move_task::move_task(&context, &args),
        Command::Extend(args) => cmd::tasks::extend::extend(&context, &args),
        Command::Wait(args) => cmd::tasks::wait::wait(&context, &args),
        Command::Top(args) => cmd::machine::top::top(&context, &args),
        Command::Controller(args) => cmd::kubernetes::controller::controller(&context, args),
        Command::Mig(command) => cmd::machine::mig::mig(&context, &command),
        Command::ImageSlice(args) => cmd::machine::image::slice(&context, &args),
        Command::Limits => cmd::machine::limits::limits(&context),
        Command::Credentials(args) => cmd::people::credentials::credentials(&context, &args),
        Command::Login(args) => cmd::people::login::login(&context, &args),
        Command::Users(command) => cmd::people::users::users(&context, command),
        Command::Audit(args) => cmd::people::users::audit(&context, args),
        Command::Backup(args) => cmd::fleet::backup::backup(&context, &args),
        Command::Db(args) => cmd::fleet::db::db(&context, &args),
        Command::Restore(args) => cmd::fleet::backup::restore(&context, &args),
        Command::Sim(SimCommand::Truth) => cmd::machine::sim::truth(&context),
        Command::Sim(SimCommand::Machine(args)) => cmd::machine::sim::machine(&context, &args),
        Command::Simulate(args) => cmd::machine::simulate::simulate(&context, &args),
        Command::Explain(args) => cmd::explain::explain(&context, &args),
        Command::Doctor(args) => cmd::machine::doctor::doctor(&context, &args),
        Command::Check(command) => cmd::kubernetes::check::check(&context, command),
        Command::Completions(args) => cmd::manual::completions(&args),
        Command::Man(args) => cmd::manual::man(&args, Cli::command()),
        Command::Reference(args) => cmd::manual::reference(&args, &Cli::command()),
    }
}

/// Help and version go to stdout; anything else is a wrong command line.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Printing to a closed pipe is not our error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let line = paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    // clap puts its own words before the message of our parsers, which is complete without them.
    let ours = line.split_once("': ").filter(|_| line.starts_with("invalid value"));
    let usage = |message: &str| CliError::new(ErrorKind::Usage, message);
    let help = format!("see {} --help", command(&text));
    let known = similar(error).or_else(|| mistyped(error));
    let error = match (no_number(error), ours, known) {
        (Some(message), ..) => usage(&message),
        (_, Some((_, message)), _) => usage(&named(error, message)),
        (.., Some(known)) => usage(line).with_hint(format!("did you mean {known}?")),
        _ if is_a_command(error, &text) => {
            usage(line).with_hint("write -- before the command").with_hint(help)
        }
        // In place of an error, clap has all of the help here.
        _ if error.kind() == ClapErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            usage("the command is missing").with_hint(help)
        }
        _ => usage(line).with_hint(help),
    };
    // The flags are not known, -v neither; there are no causes.
    out::complain(&error, false);
    error.exit_code()
}

/// The command whose help lists what is possible, from the line of its usage, which clap leaves out of some messages.
fn command(text: &str) -> String {
    let words = text.split_whitespace().skip_while(|word| *word != "Usage:").skip(1);
    let words: Vec<&str> = words.take_while(|word| !word.starts_with(['[', '<', '-'])).collect();
    if words.is_empty() { "cantle".to_owned() } else { words.join(" ") }
}

/// A message of our parsers, with the option in front unless it names one.
fn named(error: &clap::Error, message: &str) -> String {
    let option = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let option = option.split(' ').next().filter(|option| option.starts_with("--"));
    match option {
        Some(option) if !message.contains(option) => format!("{option}: {message}"),
        _ => message.to_owned(),
    }
}

/// The option and its value, where the standard library refused a number: its own message names neither.
fn no_number(error: &clap::Error) -> Option<String> {
    let source = error.source()?;
    let wanted = match (source.is::<ParseIntError>(), source.is::<ParseFloatError>()) {
        (true, _) => "a whole number",
        (_, true) => "a number",
        _ => return None,
    };
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (option, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let option = option.split(' ').next().unwrap_or_default();
    Some(format!("{option} {value} is not {wanted}"))
}

/// The option or command that was probably meant.
fn similar(error: &clap::Error) -> Option<String> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    match kinds.into_iter().find_map(|kind| error.get(kind))? {
        ContextValue::String(known) => Some(known.clone()),
        ContextValue::Strings(known) => known.first().cloned(),
        _ => None,
    }
}

/// The command that was probably meant where clap suggests none: with two letters exchanged, or one wrong, missing or too much.
fn mistyped(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let commands = Cli::command();
    let mut names =
        commands.get_subcommands().filter(|known| !known.is_hide_set()).map(clap::Command::get_name);
    names.find(|name| is_one_slip(given, name)).map(str::to_owned)
}

fn is_one_slip(given: &str, name: &str) -> bool {
    let (given, name): (Vec<char>, Vec<char>) = (given.chars().collect(), name.chars().collect());
    let same = given.iter().zip(&name).take_while(|(a, b)| a == b).count();
    let (given, name) = (&given[same..], &name[same..]);
    let tail = |list: &[char], n: usize| list.get(n..).unwrap_or_default().to_vec();
    let exchanged = given.len() > 1 && name.len() > 1 && given[0] == name[1] && given[1] == name[0];
    (exchanged && tail(given, 2) == tail(name, 2))
        || tail(given, 1) == tail(name, 1)
        || tail(given, 1) == name
        || given == tail(name, 1)
}

/// A word where an option was expected, of a command that runs others: `cantle run --gpu 0.5 python3 train.py`.
fn is_a_command(error: &clap::Error, text: &str) -> bool {
    let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    let takes_commands = text.split_once("Usage:").is_some_and(|(_, usage)| usage.contains("-- <CMD>"));
    error.kind() == ClapErrorKind::UnknownArgument && !argument.starts_with('-') && takes_commands
}

/// Log lines go to stderr, spans to a collector if there is one.
fn observe(global: &Global) -> Option<otlp::Exporter> {
    let level = match (global.quiet, global.verbose) {
        (true, _) => "error",
        (false, 0) => "warn,cantle=info",
        (false, 1) => "info,cantle=debug",
        (false, _) => "trace",
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(global.color.is_wanted())
        .with_target(false)
        // A line is complete without the spans around it.
        .with_filter(EnvFilter::new(level).and(filter_fn(is_line)));
    let (layer, exporter, problem) = match otlp::from_environment() {
        Ok(found) => {
            let (layer, exporter) = found.unzip();
            (layer, exporter, None)
        }
        Err(problem) => (None, None, Some(problem)),
    };
    let spans = layer.map(|layer| layer.with_filter(filter_fn(otlp::SpanLayer::wants)));
    tracing_subscriber::registry().with(lines).with(spans).init();
    if let Some(problem) = problem {
        tracing::warn!("no spans are sent: {problem}");
    }
    exporter
}

fn is_line(metadata: &Metadata<'_>) -> bool {
    metadata.is_event()
}

#[cfg(test)]
mod tests {
    use super::is_one_slip;

    #[test]
    fn one_slip_of_the_finger() {
        for given in ["rnu", "rn", "run1", "ron", "urn", "un"] {
            assert!(is_one_slip(given, "run"), "{given}");
        }
        for given in ["up", "nur", "r", "rnux"] {
            assert!(!is_one_slip(given, "run"), "{given}");
        }
    }
}
