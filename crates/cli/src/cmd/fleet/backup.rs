//! `cantle backup` and `cantle restore`: all data of a server, in one file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};

/// `cantle backup`
#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    /// Database of the server [default: in the state directory]
    #[arg(long = "database", alias = "db", value_name = "sqlite:PATH")]
    db: Option<String>,
    /// File to write; it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// `cantle restore`
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// A file that cantle backup wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Copies database, keys and artifacts of this machine's server; the server may run.
pub(crate) fn backup(context: &Context, args: &BackupArgs) -> CommandResult {
    let made = cantle_server::backup(&context.dirs.state, args.db.as_deref(), &args.file);
    let contents = runtime()?.block_on(made)?;
    let file = args.file.display();
    context.printer.say(&format!("{file}: {} tasks and {} files, checked", contents.tasks, contents.files));
    if let Some(bucket) = &contents.bucket {
        let text = format!("artifacts, models and debug images are not in it: back up {bucket} itself");
        context.printer.say(&text);
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the state directory from a backup.
pub(crate) fn restore(context: &Context, args: &RestoreArgs) -> CommandResult {
    std::fs::metadata(&args.file)
        .map_err(|error| CliError::wrap(ErrorKind::NotFound, args.file.display(), error))?;
    let contents = runtime()?.block_on(cantle_server::restore(&context.dirs.state, &args.file))?;
    let state = context.dirs.state.display();
    context.printer.say(&format!("{state}: {} tasks and {} files are back", contents.tasks, contents.files));
    if let Some(bucket) = &contents.bucket {
        context.printer.say(&format!("its files are in {bucket}: start it with --files {bucket}"));
    }
    Ok(ExitCode::SUCCESS)
}
