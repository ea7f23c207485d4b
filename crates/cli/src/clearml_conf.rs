//! Finds the `clearml.conf` to use: the one that was named, or else the user's own.

use std::path::{Path, PathBuf};

use cantle_clearml::Conf;

use crate::context::Global;
use crate::error::{CliError, ErrorKind};

/// The file that `--config-file` or `CLEARML_CONFIG_FILE` names, if it is there.
pub(crate) fn named(global: &Global) -> Result<Option<Conf>, CliError> {
    global.config_file.as_deref().map_or(Ok(None), read)
}

/// `~/clearml.conf`, if it is there and no other file was named.
pub(crate) fn of_user(global: &Global) -> Result<Option<Conf>, CliError> {
    let home = variable("HOME").map(PathBuf::from).filter(|_| global.config_file.is_none());
    home.map_or(Ok(None), |home| read(&home.join("clearml.conf")))
}

/// The file that ClearML's programs would read here: the one that was named, or else the user's own.
pub(crate) fn effective(global: &Global) -> Result<Conf, CliError> {
    Ok(match named(global)? {
        Some(conf) => conf,
        None => of_user(global)?.unwrap_or_default(),
    })
}

/// The home directory of this user.
pub(crate) fn home() -> Option<PathBuf> {
    variable("HOME").map(PathBuf::from)
}

/// A directory of ClearML's agent. `None` without a home, where the default is.
pub(crate) fn directory(conf: &Conf, key: &str, default: &str) -> Option<PathBuf> {
    let path = conf.text(key).unwrap_or_else(|| default.to_owned());
    match path.strip_prefix("~/") {
        None => Some(PathBuf::from(path)).filter(|path| path.is_absolute()),
        Some(rest) => home().map(|home| home.join(rest)),
    }
}

fn read(path: &Path) -> Result<Option<Conf>, CliError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Conf::parse(&text, &variable).map(Some).map_err(|error| unreadable(path, error)),
        // ClearML's programs continue without it, too: environment variables can replace all of it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, error)),
    }
}

fn unreadable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> CliError {
    CliError::wrap(ErrorKind::Usage, path.display(), error)
}

#[expect(clippy::disallowed_methods, reason = "the file may refer to any variable of the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
