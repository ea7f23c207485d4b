//! How callers prove their identity: key pairs, and tokens that are signed with a separate secret. Two pairs are created at
//! the first start: the administrator's, and one that may read everything and change nothing. `rights` knows the owner of
//! each pair.

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

use crate::ServerError;
use crate::app::{COMPANY, USER, VIEWER};
use crate::clock::{new_id, now_us, rfc3339};
use crate::error::ApiError;
use crate::notebooks::NotebookKey;
use crate::rights::{OfSession, OwnRun, People, Principal, Stranger};
use crate::sealer::{Sealer, derived};

/// Clients renew their token when less than 12 hours are left, so it must live longer; ClearML's own live 30 days.
const TOKEN_S: i64 = 30 * 24 * 3600;
/// The maximum difference between the clocks of two servers on one database.
const LEEWAY_US: i64 = 60_000_000;
/// The API version that clients are given; with this one all features of the real clients work.
pub(crate) const API_VERSION: &str = "2.31";

/// The purpose of the key of their cookies.
const NOTEBOOKS: &[u8] = b"cookies of notebooks, 1";

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

impl CredentialsFile {
    /// Reads the credentials of the server with this state directory; `None` if there is no server yet.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn read(state_dir: &Path) -> Result<Option<Self>, ServerError> {
        Self::read_file(credentials_path(state_dir))
    }

    /// As [`CredentialsFile::read`], for the read-only key pair.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
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

/// The data that the server needs to authenticate a caller.
pub(crate) struct Keys {
    signing: EncodingKey,
    verifying: DecodingKey,
    /// Public half of the administrator's and of the viewer's pair in the state directory.
    own: [String; 2],
    open: bool,
}

/// A key pair of the state directory.
pub(crate) struct Pair {
    pub(crate) file: CredentialsFile,
    /// It was made just now.
    pub(crate) is_new: bool,
}

/// The contents of the state directory.
pub(crate) struct Identity {
    pub(crate) admin: Pair,
    pub(crate) viewer: Pair,
    pub(crate) keys: Keys,
    pub(crate) sealer: Sealer,
    pub(crate) notebook_key: NotebookKey,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("open", &self.open).finish_non_exhaustive()
    }
}

/// Reads a key pair, or makes one. The address in the file is always the current one.
fn load_or_make_pair(path: PathBuf, url: &str) -> Result<Pair, ServerError> {
    let old = CredentialsFile::read_file(path.clone())?;
    let is_new = old.is_none();
    let file = match old {
        Some(old) => CredentialsFile { url: url.to_owned(), ..old },
        None => {
            let (access_key, secret_key) = new_pair();
            CredentialsFile { url: url.to_owned(), access_key, secret_key }
        }
    };
    write_private(&path, format!("{:#}\n", json!(file)).as_bytes())?;
    Ok(Pair { file, is_new })
}

/// A public half, and a secret of 244 random bits.
pub(crate) fn new_pair() -> (String, String) {
    (new_id()[..20].to_uppercase(), new_id() + &new_id())
}

/// Reads key pairs and signing secret, or makes them.
pub(crate) fn load_or_make(state_dir: &Path, url: &str, open: bool) -> Result<Identity, ServerError> {
    let admin = load_or_make_pair(credentials_path(state_dir), url)?;
    let viewer = load_or_make_pair(viewer_path(state_dir), url)?;
    let secret_path = state_dir.join("server").join("token.key");
    let secret = match std::fs::read(&secret_path) {
        Ok(secret) if secret.len() >= 32 => secret,
        Ok(_) => make_secret(&secret_path)?,
        Err(error) if error.kind() == ErrorKind::NotFound => make_secret(&secret_path)?,
        Err(source) => return Err(ServerError::File { path: secret_path, source }),
    };
    let own = [admin.file.access_key.clone(), viewer.file.access_key.clone()];
    let (signing, verifying) = (EncodingKey::from_secret(&secret), DecodingKey::from_secret(&secret));
    let made = Sealer::new(&secret).and_then(|sealer| Ok((sealer, derived(&secret, NOTEBOOKS)?)));
    let (sealer, notebook_key) = made.map_err(|_| ServerError::File {
        path: secret_path,
        source: std::io::Error::other("no key can be derived from it"),
    })?;
    let keys = Keys { signing, verifying, own, open };
    Ok(Identity { admin, viewer, keys, sealer, notebook_key: NotebookKey(notebook_key) })
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
    /// A new token for this caller.
    pub(crate) fn token(
        &self,
        who: &Principal,
        now_us: i64,
        lives_s: Option<i64>,
    ) -> Result<String, ApiError> {
        if let Some(run) = &who.run {
            return self.token_of_run(&who.user, run, now_us);
        }
        let identity = json!({
            "user": who.user, "company": COMPANY, "role": who.clearml_role(), "user_name": who.name,
            "company_name": COMPANY, "key": who.access_key, "session": who.session,
        });
        self.sign(identity, now_us, lives_s)
    }

    /// The token of a run: its owner need not be there any more.
    pub(crate) fn token_of_run(&self, owner: &str, run: &OwnRun, now_us: i64) -> Result<String, ApiError> {
        let identity = json!({
            "user": owner, "company": COMPANY, "role": "user", "company_name": COMPANY, "key": null,
            "task": run.task, "lease": run.lease,
        });
        self.sign(identity, now_us, None)
    }

    fn sign(&self, identity: Value, now_us: i64, lives_s: Option<i64>) -> Result<String, ApiError> {
        let iat = now_us / 1_000_000;
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

    /// Callers need no credentials.
    pub(crate) const fn is_open(&self) -> bool {
        self.open
    }

    /// Identifies the caller by key pair or token. Whether a run still lasts is another question
    /// ([`crate::rights::lasts`]).
    pub(crate) fn check(&self, people: &People, authorization: Option<&str>) -> Result<Principal, ApiError> {
        if self.open {
            return Ok(Principal::server());
        }
        let Some(value) = authorization else {
            return Err(ApiError::unauthorized(NO_CREDENTIALS, "missing credentials"));
        };
        match value.split_once(' ') {
            Some((scheme, pair)) if scheme.eq_ignore_ascii_case("basic") => {
                let bad = || ApiError::unauthorized(BAD_CREDENTIALS, "malformed Basic credentials");
                let decoded = STANDARD.decode(pair.trim()).map_err(|_| bad())?;
                let decoded = String::from_utf8(decoded).map_err(|_| bad())?;
                let (access_key, secret_key) = decoded.split_once(':').ok_or_else(bad)?;
                people.by_key(access_key, secret_key).map_err(|stranger| unknown(&stranger))
            }
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                self.check_token(people, token.trim())
            }
            _ => Err(ApiError::unauthorized(BAD_CREDENTIALS, "write Basic or Bearer credentials")),
        }
    }

    fn check_token(&self, people: &People, token: &str) -> Result<Principal, ApiError> {
        let mut validation = Validation::new(Algorithm::HS256);
        // Below, so that a clock that is off shows.
        validation.validate_exp = false;
        let claims = decode::<Claims>(token, &self.verifying, &validation).map_err(|error| {
            ApiError::unauthorized(INVALID_TOKEN, format!("invalid token: {error}")).caused_by(error)
        })?;
        let (exp_us, now_us) = (claims.claims.exp.saturating_mul(1_000_000), now_us());
        if exp_us.saturating_add(LEEWAY_US) < now_us {
            let text = format!("the token expired at {}; it is {} here", rfc3339(exp_us), rfc3339(now_us));
            return Err(ApiError::unauthorized(INVALID_TOKEN, text));
        }
        let identity = claims.claims.identity;
        let text = |name: &str| identity.get(name).and_then(Value::as_str);
        let found = if identity.get("key").is_none() {
            // Of 0.1.0, which had these two pairs alone.
            let viewer = text("role") == Some("guest");
            let (user, key) = if viewer { (VIEWER, &self.own[1]) } else { (USER, &self.own[0]) };
            people.by_token(user, Some(key), None)
        } else if let (Some(task), Some(lease)) = (text("task"), text("lease")) {
            let run = OwnRun { task: task.to_owned(), lease: lease.to_owned() };
            people.by_run(text("user").unwrap_or_default(), run)
        } else {
            let age_us = now_us.saturating_sub(claims.claims.iat.saturating_mul(1_000_000));
            let session = text("session").map(|id| OfSession { id, age_us });
            people.by_token(text("user").unwrap_or_default(), text("key"), session)
        };
        found.map_err(|stranger| unknown(&stranger))
    }
}

fn unknown(stranger: &Stranger) -> ApiError {
    let text = match stranger {
        Stranger::Key => "invalid credentials".to_owned(),
        Stranger::Revoked { access_key, user } => {
            format!(
                "the key {access_key} of {user} was revoked; an administrator or {user} can make another one"
            )
        }
        Stranger::Session => "this login was ended; log in again".to_owned(),
        Stranger::User(user) => format!("the user {user} was removed; ask an administrator"),
    };
    ApiError::unauthorized(INVALID_CREDENTIALS, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use cantle_store::Store;

    use super::*;
    use crate::rights::{Right, bootstrap};

    struct Made {
        dir: tempfile::TempDir,
        admin: CredentialsFile,
        keys: Keys,
        people: People,
    }

    async fn made_in(dir: tempfile::TempDir) -> Made {
        std::fs::create_dir_all(dir.path().join("server")).unwrap();
        let identity = load_or_make(dir.path(), "http://127.0.0.1:1", false).unwrap();
        let store = Store::open(&dir.path().join("server/cantle.db")).await.unwrap();
        let people = bootstrap(&store, &identity, now_us()).await.unwrap();
        store.close().await;
        Made { dir, admin: identity.admin.file, keys: identity.keys, people }
    }

    async fn made() -> Made {
        made_in(tempfile::tempdir().unwrap()).await
    }

    impl Made {
        fn name(&self, authorization: &str) -> Result<String, u32> {
            let found = self.keys.check(&self.people, Some(authorization));
            found.map(|who| who.name).map_err(|error| error.subcode)
        }
    }

    fn basic(access_key: &str, secret_key: &str) -> String {
        format!("Basic {}", STANDARD.encode(format!("{access_key}:{secret_key}")))
    }

    #[tokio::test]
    async fn keys_stay_and_only_their_owner_reads_them() {
        let made = made().await;
        let mode = std::fs::metadata(credentials_path(made.dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let who = made.people.by_key(&made.admin.access_key, &made.admin.secret_key).unwrap();
        let token = format!("Bearer {}", made.keys.token(&who, now_us(), None).unwrap());
        assert_eq!(made.name(&token).as_deref(), Ok("admin"));
        let old = made.admin.clone();
        let again = made_in(made.dir).await;
        assert_eq!(again.admin, old);
        assert_eq!(again.name(&token).as_deref(), Ok("admin"), "tokens outlive a restart");
    }

    #[tokio::test]
    async fn who_may_only_look_stays_so() {
        let made = made().await;
        let viewer = CredentialsFile::read_viewer(made.dir.path()).unwrap().unwrap();
        assert_ne!(viewer.access_key, made.admin.access_key);
        let who = made.people.by_key(&viewer.access_key, &viewer.secret_key).unwrap();
        assert!(who.may_everywhere(Right::Read) && !who.may_somewhere(Right::Submit));
        let token = made.keys.token(&who, now_us(), None).unwrap();
        assert_eq!(made.name(&format!("Bearer {token}")).as_deref(), Ok("viewer"));
        assert_eq!(made.name(&basic(&viewer.access_key, &made.admin.secret_key)), Err(22));
    }

    #[tokio::test]
    async fn tokens_of_the_first_version_are_the_administrators_and_the_viewers() {
        let made = made().await;
        let claims = |role: &str| {
            json!({
                "iat": 1, "exp": now_us() / 1_000_000 + 100, "session_id": "", "auth_type": "Bearer", "env": "",
                "identity": {"user": "cantle-user", "company": "cantle", "role": role},
                "api_version": "2.31", "server_version": "0.1.0", "server_build": "cantle", "feature_set": "basic",
            })
        };
        for (role, name) in [("user", "admin"), ("guest", "viewer")] {
            let token = encode(&Header::new(Algorithm::HS256), &claims(role), &made.keys.signing).unwrap();
            assert_eq!(made.name(&format!("Bearer {token}")).as_deref(), Ok(name));
        }
    }

    #[tokio::test]
    async fn who_is_let_in() {
        let made = made().await;
        assert_eq!(made.name(&basic(&made.admin.access_key, &made.admin.secret_key)).as_deref(), Ok("admin"));
        assert_eq!(made.keys.check(&made.people, None).unwrap_err().subcode, 20);
        assert_eq!(made.name("Basic !!!"), Err(21));
        assert_eq!(made.name("Digest x"), Err(21));
        assert_eq!(made.name(&basic(&made.admin.access_key, "wrong")), Err(22));
        let who = made.people.by_key(&made.admin.access_key, &made.admin.secret_key).unwrap();
        let long_ago = now_us() - 40 * 24 * 3600 * 1_000_000;
        let expired = format!("Bearer {}", made.keys.token(&who, long_ago, None).unwrap());
        assert_eq!(made.name(&expired), Err(30));
        // It shows which clock is wrong.
        let error = made.keys.check(&made.people, Some(&expired)).unwrap_err();
        assert!(error.message.contains("the token expired at 20") && error.message.contains("; it is 20"));
        assert_eq!(made.name("Bearer x.y.z"), Err(30));
    }
}
