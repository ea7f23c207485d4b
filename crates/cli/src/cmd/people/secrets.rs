//! `cantle secrets`: values that the server keeps for one's tasks.

use std::io::{IsTerminal as _, Read as _, Stdin, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use cantle_clearml::secrets::{DeleteSecret, GetSecrets, SecretView, SetSecret};
use clap::{Args, Subcommand};
use ratatui::crossterm::terminal;

use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::Column;

/// More bytes are not read: the server takes fewer.
const LONGEST: u64 = 1 << 20;

/// `cantle secrets …`
#[derive(Subcommand, Debug)]
pub(crate) enum SecretsCommand {
    /// List your secrets, without their values
    List,
    /// Set a secret; its value comes from the terminal without echo, from stdin, or from a file
    Set(SecretArgs),
    /// Delete a secret; tasks that run keep it
    Delete {
        /// The secret's name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `cantle secrets set`
#[derive(Args, Debug)]
pub(crate) struct SecretArgs {
    /// The secret, and the environment variable that tasks of cantle submit --secret NAME get
    #[arg(value_name = "NAME")]
    name: String,
    /// Read the value from this file [default: stdin]; one line feed at the end is removed
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
}

const COLUMNS: [Column<SecretView>; 4] = [
    Column { head: "NAME", wide: false, cell: |secret| secret.name.clone() },
    Column { head: "SET", wide: false, cell: |secret| secret.set.clone() },
    Column { head: "LAST USED", wide: false, cell: |secret| secret.used.clone().unwrap_or_default() },
    Column { head: "STATE", wide: false, cell: state },
];

fn state(secret: &SecretView) -> String {
    if secret.readable { "ok" } else { "unreadable: the server's token.key has changed; set it again" }
        .to_owned()
}

/// Lists, sets or deletes secrets.
pub(crate) fn secrets(context: &Context, command: SecretsCommand) -> CommandResult {
    let (server, printer) = (Connection::open(context)?, &context.printer);
    match command {
        SecretsCommand::List => {
            let found = server.call(&GetSecrets {})?.secrets;
            printer.items(&found, |secret| secret.name.clone(), &COLUMNS);
        }
        SecretsCommand::Set(SecretArgs { name, from_file }) => {
            let value = read(&name, from_file)?;
            server.call(&SetSecret { name: name.clone(), value })?;
            printer.say(&format!("secret {name}: set"));
        }
        SecretsCommand::Delete { name } => {
            server.call(&DeleteSecret { name: name.clone() })?;
            printer.say(&format!("secret {name}: deleted"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(name: &str, file: Option<PathBuf>) -> Result<String, CliError> {
    let usage = |why: String| CliError::new(ErrorKind::Usage, why);
    let mut bytes = Vec::new();
    let stdin = std::io::stdin();
    let read = match &file {
        Some(file) => std::fs::File::open(file).and_then(|open| open.take(LONGEST).read_to_end(&mut bytes)),
        None if stdin.is_terminal() => return typed(name, stdin),
        None => stdin.lock().take(LONGEST).read_to_end(&mut bytes),
    };
    let from = file.map_or_else(|| "stdin".to_owned(), |file| file.display().to_string());
    read.map_err(|why| usage(format!("cannot read {from}: {why}")))?;
    let mut value = String::from_utf8(bytes).map_err(|_| usage(format!("{from}: the value is not UTF-8")))?;
    if value.ends_with('\n') {
        value.pop();
    }
    Ok(value)
}

/// One line of a person, which is not shown.
fn typed(name: &str, mut stdin: Stdin) -> Result<String, CliError> {
    let mut err = std::io::stderr();
    // Before the question: what is pasted at once would be shown.
    terminal::enable_raw_mode().map_err(as_kind(ErrorKind::Failed))?;
    // A terminal that shows no question still gives a line.
    let _ = write!(err, "Value of {name} (not shown): ").and_then(|()| err.flush());
    let line = raw_line(&mut stdin);
    let _ = terminal::disable_raw_mode();
    let _ = writeln!(err);
    let line = line.map_err(as_kind(ErrorKind::Failed))?;
    let line = line.ok_or_else(|| CliError::new(ErrorKind::Usage, "no value was given"))?;
    String::from_utf8(line).map_err(|_| CliError::new(ErrorKind::Usage, "the value is not UTF-8"))
}

/// Bytes up to Enter; `None` after Ctrl-C or Ctrl-D.
fn raw_line(from: &mut impl std::io::Read) -> std::io::Result<Option<Vec<u8>>> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const BACKSPACE: [u8; 2] = [8, 127];
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match (from.read(&mut byte)?, byte[0]) {
            (0, _) | (_, INTERRUPT | END) => return Ok(None),
            (_, b'\r' | b'\n') => return Ok(Some(line)),
            (_, key) if BACKSPACE.contains(&key) => {
                // A letter beyond ASCII has several bytes.
                while line.pop().is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000) {}
            }
            (_, key) => line.push(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_without_what_was_deleted() {
        let line =
            |keys: &str| raw_line(&mut keys.as_bytes()).unwrap().map(|line| String::from_utf8(line).unwrap());
        assert_eq!(line("abc\rd").as_deref(), Some("abc"));
        assert_eq!(line("aü\u{7f}b\n").as_deref(), Some("ab"));
        assert_eq!(line("\u{7f}a\r").as_deref(), Some("a"));
        for aborted in ["", "abc", "abc\u{3}\r", "abc\u{4}\r"] {
            assert_eq!(line(aborted), None, "{aborted:?}");
        }
    }
}
