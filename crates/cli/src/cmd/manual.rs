//! `cantle completions | man | reference`: what the command line says about itself.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::env::Shells;

use crate::args::Cli;
use crate::complete::ASKED_BY;
use crate::error::{CliError, Kind, Outcome, as_kind};

/// The script with which a shell asks `cantle` itself at every Tab, so that it knows queues and tasks too.
pub(crate) fn completions(shell: &str) -> Outcome {
    let shells = Shells::builtins();
    let known = shells.names().collect::<Vec<_>>().join(", ");
    let completer = shells.completer(shell).ok_or_else(|| {
        CliError::new(Kind::Usage, format!("no completions for the shell \"{shell}\"; there are {known}"))
    })?;
    let mut script = Vec::new();
    completer
        .write_registration(ASKED_BY, "cantle", "cantle", "cantle", &mut script)
        .map_err(as_kind(Kind::Failed))?;
    print(&script)
}

/// One manual page for each command.
pub(crate) fn man(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir)).map_err(
        |e| CliError::new(Kind::Failed, format!("cannot write manual pages to {}: {e}", dir.display())),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// All commands and flags as Markdown.
pub(crate) fn reference() -> Outcome {
    let options = clap_markdown::MarkdownOptions::new()
        .title("Command line".to_owned())
        .show_footer(false)
        .show_table_of_contents(false);
    print(clap_markdown::help_markdown_command_custom(&Cli::command(), &options).as_bytes())
}

fn print(text: &[u8]) -> Outcome {
    std::io::stdout().write_all(text).map_err(as_kind(Kind::Failed))?;
    Ok(ExitCode::SUCCESS)
}
