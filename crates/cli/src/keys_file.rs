//! `--keys FILE` and systemd's credentials: the key pair of an agent, which everybody could read on a command line or in an
//! environment.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cantle_clearml::{Conf, Credentials, KeySource};

use crate::context::Global;
use crate::error::{CliError, ErrorKind};

/// The credential's name: `LoadCredential=cantle-keys:FILE`.
const CREDENTIAL: &str = "cantle-keys";

/// The file's keys and, if it has one, its server: that of `--keys`, or the one that systemd gave this service.
pub(crate) fn read(global: &Global) -> Result<Option<(Option<String>, Credentials)>, CliError> {
    if let Some(path) = &global.keys {
        refuse_if_open(path)?;
        return parse(path).map(Some);
    }
    let given = global.credentials_directory.as_ref().map(|dir| dir.join(CREDENTIAL));
    given.filter(|path| path.exists()).map(|path| parse(&path)).transpose()
}

/// The file of `--keys`, for a program that reads it again while it runs. The copy that systemd gives a service stays as it was.
pub(crate) fn source(global: &Global) -> Option<KeySource> {
    let path = global.keys.clone()?;
    let read = move || {
        let found = refuse_if_open(&path).and_then(|()| parse(&path));
        found.map(|(_, keys)| keys).map_err(|error| error.to_string())
    };
    Some(KeySource::new(read))
}

/// A file that other users can read is no secret. systemd sees to its own.
fn refuse_if_open(path: &Path) -> Result<(), CliError> {
    let mode = std::fs::metadata(path).map_err(|error| unreadable(path, error))?.mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let text = format!("--keys {}: other users can read it (mode {mode:o})", path.display());
    Err(CliError::new(ErrorKind::Usage, text).with_hint(format!("chmod 600 {}", path.display())))
}

/// As the server writes its own (`credentials.json`), or a clearml.conf.
fn parse(path: &Path) -> Result<(Option<String>, Credentials), CliError> {
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, error))?;
    let conf = Conf::parse(&text, &|_| None).map_err(|error| unreadable(path, error))?;
    let either = |short: &str, long: &str| conf.text(short).or_else(|| conf.text(long));
    let access_key = either("access_key", "api.credentials.access_key");
    let secret_key = either("secret_key", "api.credentials.secret_key");
    let (access_key, secret_key) = access_key.zip(secret_key).ok_or_else(|| {
        let text = format!("--keys {}: no access_key and secret_key in it", path.display());
        CliError::new(ErrorKind::Usage, text)
            .with_hint(r#"write {"access_key": "…", "secret_key": "…"}, or a clearml.conf"#)
    })?;
    Ok((either("url", "api.api_server"), Credentials { access_key, secret_key }))
}

fn unreadable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> CliError {
    CliError::wrap(ErrorKind::Usage, format!("--keys {}", path.display()), error)
}
