//! `cantle completions | man | reference`: generated from the declaration of the command line, which is an argument.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap_complete::env::Shells;

use crate::complete::ASKED_BY;
use crate::config;
use crate::context::CommandResult;
use crate::error::{CliError, ErrorKind, as_kind};

/// `cantle completions`
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL")]
    shell: String,
}

/// `cantle man`
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory, created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// `cantle reference`
#[derive(Args, Debug)]
pub(crate) struct ReferenceArgs {
    /// Print the configuration file of this command instead, with every option as a comment
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

/// The script with which a shell asks `cantle` itself at every Tab, so that it knows queues and tasks too.
pub(crate) fn completions(CompletionsArgs { shell }: &CompletionsArgs) -> CommandResult {
    let shells = Shells::builtins();
    let known = shells.names().collect::<Vec<_>>().join(", ");
    let completer = shells.completer(shell).ok_or_else(|| {
        CliError::new(ErrorKind::Usage, format!("no completions for the shell \"{shell}\""))
            .with_hint(format!("there are {known}"))
    })?;
    let mut script = Vec::new();
    completer
        .write_registration(ASKED_BY, "cantle", "cantle", "cantle", &mut script)
        .map_err(as_kind(ErrorKind::Failed))?;
    print(&script)
}

/// One manual page for each command.
pub(crate) fn man(ManArgs { dir }: &ManArgs, command_line: clap::Command) -> CommandResult {
    let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command_line, dir));
    written.map_err(|error| {
        let what = format!("cannot write manual pages to {}", dir.display());
        CliError::wrap(ErrorKind::Failed, what, error)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// All commands and flags as Markdown, or one command's as a file for `--config`.
pub(crate) fn reference(args: &ReferenceArgs, command_line: &clap::Command) -> CommandResult {
    if let Some(name) = &args.command {
        let command = command_line
            .find_subcommand(name)
            .ok_or_else(|| CliError::new(ErrorKind::Usage, format!("\"{name}\" is no command")))?;
        return print(config::template(command).as_bytes());
    }
    let options = clap_markdown::MarkdownOptions::new()
        .title("Command line".to_owned())
        .show_footer(false)
        .show_table_of_contents(false);
    print(clap_markdown::help_markdown_command_custom(command_line, &options).as_bytes())
}

fn print(text: &[u8]) -> CommandResult {
    std::io::stdout().write_all(text).map_err(as_kind(ErrorKind::Failed))?;
    Ok(ExitCode::SUCCESS)
}
