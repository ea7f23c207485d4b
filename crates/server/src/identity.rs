//! Who may call: two key pairs, made at the first start, and tokens that are signed with a separate secret. One pair
//! may do everything, the other only read.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_clearml::Credentials;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::ServerError;
use crate::app::{COMPANY, USER};
use crate::clock::new_id;
use crate::error::ApiError;

/// Clients renew their token when less than 12 hours are left, so it must live longer; ClearML's own live 30 days.
const TOKEN_S: i64 = 30 * 24 * 3600;
/// The API version that clients are given; with this one all features of the real clients work.
pub(crate) const API_VERSION: &str = "2.31";

/// Subcodes of 401.
const NO_CREDENTIALS: u32 = 20;
const BAD_CREDENTIALS: u32 = 21;
const INVALID_CREDENTIALS: u32 = 22;
const INVALID_TOKEN: u32 = 30;

/// `server/credentials.json` under the state directory: address and keys of the local server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialsFile {
    /// The server's address.
    pub url: String,
    /// Access key.
    pub access_key: String,
    /// Secret key.
    pub secret_key: String,
}

/// Path of the credentials of the server with this state directory.
#[must_use]
pub fn credentials_path(state_dir: &Path) -> PathBuf {
    state_dir.join("server").join("credentials.json")
}

/// Path of the read-only key pair, in the same form.
#[must_use]
pub fn viewer_path(state_dir: &Path) -> PathBuf {
    state_dir.join("server").join("viewer.json")
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    Full,
    /// Read everything, change nothing.
    ReadOnly,
}

/// ClearML's name for read-only users.
const GUEST: &str = "guest";

impl Role {
    /// ClearML's name of the role, as tokens hold it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "user",
            Self::ReadOnly => GUEST,
        }
    }

    /// A read-only caller may call an endpoint only if its name says that it only reads.
    pub(crate) fn may_call(self, endpoint: &str) -> bool {
        // It takes the task out of the queue.
        const TAKES: &str = "queues.get_next_task";
        let action = endpoint.split_once('.').map_or("", |(_, action)| action);
        let reads = action.starts_with("get_") && endpoint != TAKES;
        let known = [
            "auth.fixed_users_mode",
            "auth.login",
            "auth.logout",
            "auth.validate_token",
            "cantle.explain_task",
            "debug.ping",
            "events.clear_scroll",
            "events.debug_images",
            "events.multi_task_scalar_metrics_iter_histogram",
            "events.next_debug_image_sample",
            "events.next_plot_sample",
            "events.plots",
            "events.scalar_metrics_iter_histogram",
            "events.scalar_metrics_iter_raw",
            "events.vector_metrics_iter_histogram",
            "login.logout",
            "login.supported_modes",
            "projects.validate_delete",
            "queues.peek_task",
            "server.info",
            "server.endpoints",
            "tasks.validate",
        ];
        self == Self::Full || reads || known.contains(&endpoint)
    }
}

impl CredentialsFile {
    /// Reads the credentials of the server with this state directory; `None` if there is no server yet.
    ///
    /// # Errors
    /// If the file can't be read or is damaged.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, ServerError> {
        Self::read_file(credentials_path(state_dir))
    }

    /// As [`CredentialsFile::read`], for the read-only key pair.
    ///
    /// # Errors
    /// If the file can't be read or is damaged.
    pub fn read_viewer(state_dir: &Path) -> Result<Option<Self>, ServerError> {
        Self::read_file(viewer_path(state_dir))
    }

    fn read_file(path: PathBuf) -> Result<Option<Self>, ServerError> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ServerError::File { path, source }),
        };
        serde_json::from_str(&text).map(Some).map_err(|source| ServerError::Damaged { path, source })
    }

    /// The key pair alone.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        Credentials { access_key: self.access_key.clone(), secret_key: self.secret_key.clone() }
    }
}

/// What the server needs to authenticate a caller.
pub(crate) struct Keys {
    full: Credentials,
    viewer: Credentials,
    signing: EncodingKey,
    verifying: DecodingKey,
    open: bool,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("open", &self.open).finish_non_exhaustive()
    }
}

/// Reads a key pair, or makes one. The address in the file is always the current one.
fn load_or_make_pair(path: PathBuf, url: &str) -> Result<CredentialsFile, ServerError> {
    let file = match CredentialsFile::read_file(path.clone())? {
        Some(old) => CredentialsFile { url: url.to_owned(), ..old },
        None => {
            let (access_key, secret_key) = (new_id()[..20].to_uppercase(), new_id() + &new_id());
            CredentialsFile { url: url.to_owned(), access_key, secret_key }
        }
    };
    write_private(&path, format!("{:#}\n", json!(file)).as_bytes())?;
    Ok(file)
}

/// Reads key pairs and signing secret, or makes them.
pub(crate) fn load_or_make(
    state_dir: &Path,
    url: &str,
    open: bool,
) -> Result<(CredentialsFile, Keys), ServerError> {
    let file = load_or_make_pair(credentials_path(state_dir), url)?;
    let viewer = load_or_make_pair(viewer_path(state_dir), url)?.credentials();
    let secret_path = state_dir.join("server").join("token.key");
    let secret = match std::fs::read(&secret_path) {
        Ok(secret) if secret.len() >= 32 => secret,
        Ok(_) => make_secret(&secret_path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => make_secret(&secret_path)?,
        Err(source) => return Err(ServerError::File { path: secret_path, source }),
    };
    let full = file.credentials();
    let (signing, verifying) = (EncodingKey::from_secret(&secret), DecodingKey::from_secret(&secret));
    Ok((file, Keys { full, viewer, signing, verifying, open }))
}

fn make_secret(path: &Path) -> Result<Vec<u8>, ServerError> {
    let secret = (new_id() + &new_id()).into_bytes();
    write_private(path, &secret)?;
    Ok(secret)
}

/// Writes a file that only its owner can read, whole or not at all.
fn write_private(path: &Path, content: &[u8]) -> Result<(), ServerError> {
    let fail = |source| ServerError::File { path: path.to_owned(), source };
    let next = path.with_extension("new");
    let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next);
    let mut file = options.map_err(fail)?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(fail)?;
    std::fs::rename(&next, path).map_err(fail)
}

/// The content of a token. Clients read it without checking the signature.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    iat: i64,
    exp: i64,
    session_id: String,
    auth_type: String,
    identity: Value,
    env: String,
    api_version: String,
    server_version: String,
    server_build: String,
    feature_set: String,
}

impl Keys {
    /// A new token for this role.
    pub(crate) fn token(&self, role: Role, now_us: i64, lives_s: Option<i64>) -> Result<String, ApiError> {
        let iat = now_us / 1_000_000;
        let identity = json!({
            "user": USER, "company": COMPANY, "role": role.name(), "user_name": USER, "company_name": COMPANY,
        });
        let claims = Claims {
            iat,
            exp: iat + lives_s.filter(|s| (1..=TOKEN_S).contains(s)).unwrap_or(TOKEN_S),
            session_id: new_id(),
            auth_type: "Bearer".to_owned(),
            identity,
            env: "<unknown>".to_owned(),
            api_version: API_VERSION.to_owned(),
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            server_build: "cantle".to_owned(),
            // Anything else makes clients call endpoints of ClearML's paid server (vaults, cluster reports).
            feature_set: "basic".to_owned(),
        };
        encode(&Header::new(Algorithm::HS256), &claims, &self.signing)
            .map_err(|error| ApiError::new(500, 0, format!("token: {error}")).caused_by(error))
    }

    /// The public half of the key pair of a role.
    pub(crate) fn access_key(&self, role: Role) -> &str {
        match role {
            Role::Full => &self.full.access_key,
            Role::ReadOnly => &self.viewer.access_key,
        }
    }

    /// Callers need no credentials.
    pub(crate) const fn is_open(&self) -> bool {
        self.open
    }

    /// Authenticates a caller by key pair or token, and returns its role.
    pub(crate) fn check(&self, authorization: Option<&str>) -> Result<Role, ApiError> {
        if self.open {
            return Ok(Role::Full);
        }
        let Some(value) = authorization else {
            return Err(ApiError::unauthorized(NO_CREDENTIALS, "missing credentials"));
        };
        match value.split_once(' ') {
            Some((scheme, pair)) if scheme.eq_ignore_ascii_case("basic") => self.check_pair(pair.trim()),
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => self.check_token(token.trim()),
            _ => Err(ApiError::unauthorized(BAD_CREDENTIALS, "write Basic or Bearer credentials")),
        }
    }

    fn check_pair(&self, pair: &str) -> Result<Role, ApiError> {
        let bad = || ApiError::unauthorized(BAD_CREDENTIALS, "malformed Basic credentials");
        let decoded = STANDARD.decode(pair).map_err(|_| bad())?;
        let decoded = String::from_utf8(decoded).map_err(|_| bad())?;
        let (access_key, secret_key) = decoded.split_once(':').ok_or_else(bad)?;
        // Comparing digests takes as long for a near miss as for a far one.
        let same = |a: &str, b: &str| Sha256::digest(a) == Sha256::digest(b);
        for (role, pair) in [(Role::Full, &self.full), (Role::ReadOnly, &self.viewer)] {
            let known = same(access_key, &pair.access_key);
            if known & same(secret_key, &pair.secret_key) {
                return Ok(role);
            }
        }
        Err(ApiError::unauthorized(INVALID_CREDENTIALS, "invalid credentials"))
    }

    fn check_token(&self, token: &str) -> Result<Role, ApiError> {
        let validation = Validation::new(Algorithm::HS256);
        match decode::<Claims>(token, &self.verifying, &validation) {
            Ok(token) if token.claims.identity["role"] == GUEST => Ok(Role::ReadOnly),
            Ok(_) => Ok(Role::Full),
            Err(error) => {
                let message = format!("invalid token: {error}");
                Err(ApiError::unauthorized(INVALID_TOKEN, message).caused_by(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::clock::now_us;

    fn made() -> (tempfile::TempDir, CredentialsFile, Keys) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("server")).unwrap();
        let (file, keys) = load_or_make(dir.path(), "http://127.0.0.1:1", false).unwrap();
        (dir, file, keys)
    }

    #[test]
    fn keys_stay_and_only_their_owner_reads_them() {
        let (dir, file, keys) = made();
        let mode = std::fs::metadata(credentials_path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let token = keys.token(Role::Full, now_us(), None).unwrap();
        let (again, keys) = load_or_make(dir.path(), "http://127.0.0.1:2", false).unwrap();
        assert_eq!(again, CredentialsFile { url: "http://127.0.0.1:2".into(), ..file });
        assert_eq!(
            keys.check(Some(&format!("Bearer {token}"))).ok(),
            Some(Role::Full),
            "tokens outlive a restart"
        );
    }

    #[test]
    fn who_may_only_look_stays_so() {
        let (dir, file, keys) = made();
        let viewer = CredentialsFile::read_viewer(dir.path()).unwrap().unwrap();
        assert_ne!(viewer.access_key, file.access_key);
        let pair = STANDARD.encode(format!("{}:{}", viewer.access_key, viewer.secret_key));
        assert_eq!(keys.check(Some(&format!("Basic {pair}"))).ok(), Some(Role::ReadOnly));
        let token = keys.token(Role::ReadOnly, now_us(), None).unwrap();
        assert_eq!(keys.check(Some(&format!("Bearer {token}"))).ok(), Some(Role::ReadOnly));
        let mixed = STANDARD.encode(format!("{}:{}", viewer.access_key, file.secret_key));
        assert!(keys.check(Some(&format!("Basic {mixed}"))).is_err());
    }

    #[test]
    fn what_who_may_only_look_may_call() {
        for endpoint in ["auth.login", "tasks.get_all", "cantle.get_nodes", "cantle.explain_task"] {
            assert!(Role::ReadOnly.may_call(endpoint), "{endpoint}");
        }
        for endpoint in
            ["queues.get_next_task", "tasks.stop", "events.add_batch", "cantle.report_node", "get_"]
        {
            assert!(!Role::ReadOnly.may_call(endpoint) && Role::Full.may_call(endpoint), "{endpoint}");
        }
    }

    #[test]
    fn who_is_let_in() {
        let (_dir, file, keys) = made();
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        let good = basic(&format!("{}:{}", file.access_key, file.secret_key));
        assert_eq!(keys.check(Some(&good)).ok(), Some(Role::Full));
        let subcode = |value: Option<&str>| keys.check(value).unwrap_err().subcode;
        assert_eq!(subcode(None), 20);
        assert_eq!(subcode(Some("Basic !!!")), 21);
        assert_eq!(subcode(Some("Digest x")), 21);
        assert_eq!(subcode(Some(&basic(&format!("{}:wrong", file.access_key)))), 22);
        let long_ago = now_us() - 40 * 24 * 3600 * 1_000_000;
        let expired = format!("Bearer {}", keys.token(Role::Full, long_ago, None).unwrap());
        assert_eq!(subcode(Some(&expired)), 30);
        assert_eq!(subcode(Some("Bearer x.y.z")), 30);
    }
}
