//! `cantle credentials`: prints the local server's keys.

use std::process::ExitCode;

use cantle_server::{CredentialsFile, credentials_path};
use clap::Args;

use crate::connect;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::{Column, Format};

/// `cantle credentials`
#[derive(Args, Debug)]
pub(crate) struct CredentialsArgs {
    /// Show the pair that can read everything and change nothing
    #[arg(long)]
    read_only: bool,
}

const KEY_COLUMNS: [Column<CredentialsFile>; 3] = [
    Column { head: "URL", wide: false, cell: |k| k.url.clone() },
    Column { head: "ACCESS KEY", wide: false, cell: |k| k.access_key.clone() },
    Column { head: "SECRET KEY", wide: false, cell: |k| k.secret_key.clone() },
];

/// Prints the keys, as `clearml.conf` if that format was requested.
pub(crate) fn credentials(context: &Context, args: &CredentialsArgs) -> CommandResult {
    let state = &context.dirs.state;
    let found = if args.read_only {
        CredentialsFile::read_viewer(state).map_err(as_kind(ErrorKind::Failed))?
    } else {
        connect::local(state)?
    };
    let keys = found.ok_or_else(|| {
        let file = credentials_path(state);
        let text = format!("{}: no server ran with this state directory yet", file.display());
        CliError::new(ErrorKind::NotFound, text)
    })?;
    if context.printer.format == Format::Conf {
        context.printer.data(&clearml_conf(&keys));
    } else {
        context.printer.items(&[keys], |k| k.access_key.clone(), &KEY_COLUMNS);
    }
    Ok(ExitCode::SUCCESS)
}

/// The text that ClearML's clients read from `~/clearml.conf`.
fn clearml_conf(keys: &CredentialsFile) -> String {
    let CredentialsFile { url, access_key, secret_key } = keys;
    let lines = [
        "api {".to_owned(),
        format!("    api_server: {url}"),
        // clearml-init wants three different addresses.
        format!("    web_server: {url}/ui"),
        format!("    files_server: {url}/files"),
        "    credentials {".to_owned(),
        format!("        access_key: \"{access_key}\""),
        format!("        secret_key: \"{secret_key}\""),
        "    }".to_owned(),
        "}".to_owned(),
    ];
    lines.join("\n")
}
