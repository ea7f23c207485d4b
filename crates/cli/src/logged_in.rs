//! The stored login of `cantle login`: a token that expires within the hour, and the provider's refresh token for the
//! next one.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cantle_clearml::{Client, ClientTls, WireError};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::context::runtime;
use crate::error::{CliError, ErrorKind};

/// A token that ends sooner is refreshed before it is used, in seconds.
const SOON_S: i64 = 300;

/// `login.json` in the state directory, readable by its owner only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Login {
    /// The server, without a slash at the end.
    pub(crate) url: String,
    /// The name of the user who logged in, for display.
    pub(crate) user: String,
    token: String,
    /// When the token ends, in seconds since 1970.
    ends_s: i64,
    refresh_token: Option<String>,
}

fn path(state: &Path) -> PathBuf {
    state.join("login.json")
}

fn failed(path: &Path, error: std::io::Error) -> CliError {
    CliError::wrap(ErrorKind::Failed, path.display(), error)
}

impl Login {
    /// The login that is kept, if there is one.
    pub(crate) fn read(state: &Path) -> Result<Option<Self>, CliError> {
        let path = path(state);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                CliError::wrap(ErrorKind::Failed, format!("{} is damaged", path.display()), error)
                    .with_hint("cantle login writes it again")
            }),
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&path, error)),
        }
    }

    /// From the server's answer; it keeps the refresh token that it has if there is no new one.
    pub(crate) fn of_answer(url: &str, answer: &Value) -> Option<Self> {
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            url: url.trim_end_matches('/').to_owned(),
            user: text("user")?,
            token: text("token")?,
            ends_s: Timestamp::now().as_second() + answer.get("lives_s")?.as_i64()?,
            refresh_token: text("refresh_token"),
        })
    }

    /// Writes it whole, readable by its owner only.
    pub(crate) fn write(&self, state: &Path) -> Result<(), CliError> {
        let (path, next) = (path(state), state.join("login.json.new"));
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
        made.map_err(|error| failed(state, error))?;
        // One that is left over may have other permissions.
        let _ = std::fs::remove_file(&next);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next);
        let mut file = file.map_err(|error| failed(&next, error))?;
        let written =
            file.write_all(format!("{:#}\n", json!(self)).as_bytes()).and_then(|()| file.sync_all());
        written.and_then(|()| std::fs::rename(&next, &path)).map_err(|error| failed(&path, error))
    }

    /// Removes what is kept; whether there was something.
    pub(crate) fn forget(state: &Path) -> Result<bool, CliError> {
        match std::fs::remove_file(path(state)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(&path(state), error)),
        }
    }

    fn is_fresh(&self) -> bool {
        self.ends_s > Timestamp::now().as_second() + SOON_S
    }

    /// Address and a token that is good for some minutes; refreshed if need be.
    pub(crate) fn usable(self, state: &Path, tls: &ClientTls) -> Result<(String, String), CliError> {
        if self.is_fresh() {
            return Ok((self.url, self.token));
        }
        // A refresh token is good once: programs that run side by side take turns, and the later ones find the new token.
        let lock = state.join("login.json.lock");
        let held = File::create(&lock).and_then(|file| file.lock().map(|()| file));
        let _held = held.map_err(|error| failed(&lock, error))?;
        let mut login = Self::read(state)?.unwrap_or(self);
        if !login.is_fresh() {
            login = login.refreshed(tls)?;
            login.write(state)?;
        }
        Ok((login.url, login.token))
    }

    fn refreshed(self, tls: &ClientTls) -> Result<Self, CliError> {
        let ended = |why: &str| {
            let text = format!("the login of {} at {} has ended{why}", self.user, self.url);
            CliError::new(ErrorKind::Auth, text).with_hint("log in again with cantle login")
        };
        let old = self.refresh_token.as_ref().ok_or_else(|| ended(""))?;
        let client = Client::with_token(&self.url, String::new(), tls)?;
        let body = json!({ "refresh_token": old });
        let answer = runtime()?.block_on(client.call_without_keys("cantle.login_refresh", &body));
        let answer = answer.map_err(|error| match error {
            WireError::Unauthorized { message, .. } => ended(&format!(": {message}")),
            WireError::Refused { code: 400 | 403 | 404, message, .. } => ended(&format!(": {message}")),
            other => other.into(),
        })?;
        Self::of_answer(&self.url, &answer).ok_or_else(|| ended(": the server's answer has no token"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_its_owner_reads_it() {
        let dir = std::env::temp_dir().join(format!("cantle-login-{}", uuid::Uuid::new_v4()));
        assert_eq!(Login::read(&dir).unwrap(), None);
        let answer = json!({"user": "anna", "token": "t", "lives_s": 3600, "refresh_token": "r"});
        let login = Login::of_answer("http://127.0.0.1:1/", &answer).unwrap();
        login.write(&dir).unwrap();
        let mode = std::fs::metadata(path(&dir)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert_eq!(Login::read(&dir).unwrap().as_ref(), Some(&login));
        assert!(login.is_fresh() && !Login { ends_s: Timestamp::now().as_second() + 10, ..login }.is_fresh());
        assert!(Login::forget(&dir).unwrap() && !Login::forget(&dir).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
