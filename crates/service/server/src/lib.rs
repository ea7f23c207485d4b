//! The server: ClearML's API, cantle's additions to it, and the files that tasks upload.
//!
//! [`Server::bind`] opens the database and the socket, and creates credentials at the first start. [`Server::serve`]
//! answers until it is asked to stop. All state is in the database, so killing the server at any instant loses nothing.

mod api;
mod app;
mod backup;
mod clock;
mod config;
mod door;
mod error;
mod execs;
mod failures;
mod files;
mod filter;
mod gpu_times;
mod health;
#[cfg(test)]
mod hostile;
mod identity;
mod lists;
mod lock;
mod login;
mod metrics;
mod notebooks;
mod notify;
mod open;
mod projection;
mod records;
mod rights;
mod routes;
mod sealer;
mod services;
mod sweep;
mod task_json;
mod tls;
mod ui;
mod usage;
mod waiting;

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_clearml::Credentials;
use cantle_store::{Database, StoreError};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use backup::{BackupContents, backup, restore};
pub use config::ServerConfig;
pub use identity::{CredentialsFile, credentials_path, viewer_path};
pub use lock::StateLock;
pub use login::{KubernetesConfig, LoginError, OidcConfig};
pub use notify::{NotifyConfig, NotifyError};
pub use rights::endpoints;
pub use tls::{TlsError, TlsFiles};

/// A server that is ready to serve.
pub struct Server {
    listener: TcpListener,
    notebooks: Option<TcpListener>,
    tls: Option<(TlsFiles, tls::Shown)>,
    silence: Duration,
    app: Arc<app::App>,
    file: CredentialsFile,
    service: api::Service,
    start_within: Duration,
    kept: sweep::Kept,
    /// Until it has ended.
    _lock: StateLock,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("url", &self.file.url).finish_non_exhaustive()
    }
}

/// Why a server cannot start or has to stop. Each variant is one line that states what is wrong; [`ServerError::hints`]
/// has the remedies.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is invalid or in use.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// As given.
        listen: String,
        /// The cause.
        source: std::io::Error,
    },
    /// `open` on an address that others can reach.
    #[error("--open answers without credentials, so it is allowed on loopback only, not on {0}")]
    Open(SocketAddr),
    /// Plain HTTP on an address that others can reach.
    #[error("http://{0} would send keys and output to other machines in the clear")]
    Plain(SocketAddr),
    /// The certificate or its key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The identity provider.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// Notices to people.
    #[error(transparent)]
    Notify(#[from] NotifyError),
    /// The address that an option names is none.
    #[error("{option} {url} is not an address for clients")]
    Url {
        /// Which option.
        option: &'static str,
        /// As given.
        url: String,
    },
    /// There is an address for notebooks, but no listener.
    #[error("--notebook-url needs --notebook-listen HOST:PORT")]
    NotebookUrl,
    /// Another server runs on the same state directory or database.
    #[error("{} is in use by another server{}", what.display(), process(holder))]
    Taken {
        /// The directory or the database.
        what: PathBuf,
        /// Its process id, if it is known.
        holder: String,
    },
    /// There is nothing to back up.
    #[error("{}: no server ran with this state directory yet", .0.display())]
    NoState(PathBuf),
    /// The file that would be overwritten.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// Neither a directory nor a bucket.
    #[error("--files {0} is neither a directory nor s3://BUCKET[/PREFIX]")]
    Files(String),
    /// A bucket that cannot be used.
    #[error("--files {url} {why}")]
    FileStore {
        /// As given.
        url: String,
        /// The fault.
        why: String,
        /// The store's answer.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// PostgreSQL has tools of its own for this.
    #[error("{0} is a PostgreSQL database, which its own tools back up and restore")]
    OwnTools(String),
    /// A file under the state directory.
    #[error("cannot use {path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The credentials file is not what was written.
    #[error("{path} is damaged: {source}")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

impl ServerError {
    /// Hints for the user.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::InvalidInput => {
                "write HOST:PORT, for example 127.0.0.1:8008"
            }
            Self::Listen { .. } => "choose another address with --listen",
            Self::Open(_) => "listen on 127.0.0.1 or [::1], or leave out --open",
            Self::Plain(_) => {
                return vec![
                    "give --tls-cert and --tls-key".to_owned(),
                    "in a network that you trust, or behind a proxy that speaks TLS, add --insecure-http"
                        .to_owned(),
                ];
            }
            Self::Tls(error) => error.hint(),
            Self::Login(LoginError::File { .. }) => "give a file that the server's user can read",
            Self::Login(LoginError::Cluster(_) | LoginError::NoCluster) => {
                "give --kubernetes-api https://HOST:PORT, --kubernetes-ca FILE and --kubernetes-token-file FILE"
            }
            Self::Login(_) => {
                "write the issuer as the provider's pages have it, for example https://login.example"
            }
            Self::Notify(_) => "cantle server --help describes the options of notices",
            Self::NotebookUrl => "add for example --notebook-listen 0.0.0.0:8009",
            Self::Url { .. } => "write for example https://gpu1.example:8008",
            Self::Taken { .. } => {
                "stop that one first, or give this one another state directory (--state) and database (--database)"
            }
            Self::Files(_) => {
                "write a directory, or s3://BUCKET[/PREFIX] in lower-case letters, digits, dots and dashes"
            }
            Self::FileStore { .. } => {
                "set AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and make the bucket first"
            }
            Self::OwnTools(_) => {
                "pg_dump or your database's own backup; and copy the directory server of the state directory"
            }
            Self::Damaged { .. } => "move it away; the next start makes new credentials",
            Self::Store(error) => return error.hints(),
            Self::NoState(_) => "name the server's own with --state",
            Self::Exists(_) => "move it away, or choose another place",
            Self::File { .. } => return Vec::new(),
        };
        vec![hint.to_owned()]
    }
}

/// Refuses to serve an address that other machines reach without keys, or without encryption.
fn may_listen(config: &ServerConfig, reachable: Option<SocketAddr>) -> Result<(), ServerError> {
    match reachable {
        Some(address) if config.open => Err(ServerError::Open(address)),
        Some(address) if config.tls.is_none() && !config.insecure_http => Err(ServerError::Plain(address)),
        _ => Ok(()),
    }
}

impl Server {
    /// Opens database and socket. Connections wait from now on; they are answered by [`Server::serve`].
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn bind(config: &ServerConfig) -> Result<Self, ServerError> {
        let busy = |source| ServerError::Listen { listen: config.listen.clone(), source };
        let dir = config.state_dir.join("server");
        let database = database(config.db.as_deref(), &dir)?;
        let certificate = config.tls.as_ref().map(|files| tls::Shown::load(files, clock::now_us()));
        let certificate = certificate.transpose()?;
        let login = config.oidc.as_ref().map(login::Login::new).transpose()?;
        let kubernetes = config.kubernetes.as_ref().map(login::Kubernetes::new).transpose()?;
        let public_url = config.url.as_deref().map(|url| public_url("--url", url)).transpose()?;
        let listener = TcpListener::bind(&config.listen).await;
        let address = listener.as_ref().ok().and_then(|listener| listener.local_addr().ok());
        may_listen(config, address.filter(|address| !address.ip().is_loopback()))?;
        // A server that runs here has the address too, as a rule; it is the one to name.
        let lock = StateLock::hold(&config.state_dir)?.and_database(&database)?;
        let listener = listener.map_err(busy)?;
        let address = listener.local_addr().map_err(busy)?;
        let notebooks = notebooks::bind(config, address).await?;
        let (notebooks, notebook_address) = notebooks.unzip();
        let is_given = public_url.is_some();
        let url = match public_url {
            Some(url) => url,
            None => own_url(reachable(address), certificate.as_ref()),
        };
        let identity = identity::load_or_make(&config.state_dir, &url, config.open)?;
        let notify = notify::Notices::new(&config.notify, &url)?;
        let (store, people) = waiting::open(&database, &listener, &identity).await?;
        let location = files::Location::parse(config.files.as_deref(), &dir)?;
        let files = files::Files::open(location.clone()).await?;
        location.record(&dir)?;
        let app = Arc::new(app::App {
            store,
            keys: identity.keys,
            sealer: identity.sealer,
            people,
            refusals: rights::audit::Refusals::default(),
            logins: rights::audit::Logins::default(),
            files,
            usage_half_life_ms: config.usage_half_life.map(half_life_ms),
            prices: config.prices.clone(),
            health: health::Health::default(),
            lists: lists::Lists::default(),
            first_usage: services::FirstUsage::default(),
            execs: execs::Execs::default(),
            notebooks: notebooks::Notebooks::default(),
            notebook_address,
            notebook_key: identity.notebook_key,
            page: app::PageAddress { url: url.clone(), is_given, port: address.port() },
            failures: failures::Failures::default(),
            deleted: files::Deleted::default(),
            leads: AtomicBool::new(false),
            led: tokio::sync::Notify::new(),
            notify,
            login: login.map(|login| login.for_server(&url)),
            kubernetes,
            door: door_settings(config),
        });
        let service = if config.open_source { api::Service::OpenSource } else { api::Service::Whole };
        Ok(Self {
            listener,
            notebooks,
            tls: config.tls.clone().zip(certificate),
            silence: config.silence,
            app,
            file: identity.admin.file,
            service,
            start_within: config.start_within,
            kept: sweep::Kept::of(config),
            _lock: lock,
        })
    }

    /// The address for clients.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.file.url
    }

    /// The key pair that clients need.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        self.file.credentials()
    }

    /// Answers until `shutdown` completes, then finishes what it has begun.
    ///
    /// # Errors
    /// If the database cannot be read, or the socket fails.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServerError> {
        let api = api::Api::new(Arc::clone(&self.app), self.service);
        let ui = ui::Ui::open(api.clone()).await?;
        let sweeper = tokio::spawn(sweep::run(Arc::clone(&self.app), self.start_within, self.kept));
        let admit = tokio::spawn(sweep::admit(Arc::clone(&self.app)));
        let rights = tokio::spawn(sweep::rights(Arc::clone(&self.app)));
        let mut noting = tokio::task::JoinSet::new();
        noting.spawn(notify::run(Arc::clone(&self.app)));
        noting.spawn(notify::watch(Arc::clone(&self.app)));
        let leading = tokio::spawn(lead(Arc::clone(&self.app)));
        let unshared = tokio::spawn(files::warn_if_unshared(Arc::clone(&self.app)));
        let wakeups = tokio::spawn(carry_wakeups(Arc::clone(&self.app)));
        let watcher = tokio::spawn(ui.clone().watch());
        let notebook_api = api.clone();
        let service = api::router(api, ui.clone()).into_make_service_with_connect_info::<door::Peer>();
        let mut keeper = tokio::task::JoinSet::new();
        let shown = self.tls.map(|(files, certificate)| {
            let (bytes, config) = certificate.into_parts();
            let (show, shown) = watch::channel(config);
            keeper.spawn(tls::keep(files, bytes, show));
            shown
        });
        if let Some(listener) = self.notebooks {
            keeper.spawn(notebooks::serve_listener(listener, notebook_api, self.silence, shown.clone()));
        }
        let (streams, app) = (ui.clone(), Arc::clone(&self.app));
        let stopping = async move {
            streams.until(shutdown).await;
            app.store.close_wakeups();
            app.execs.close();
        };
        let served = axum::serve(door::Door::new(self.listener, self.silence, shown), service)
            .with_graceful_shutdown(stopping)
            .await;
        watcher.abort();
        ui.save().await;
        sweeper.abort();
        admit.abort();
        rights.abort();
        noting.shutdown().await;
        if let Err(error) = self.app.people.save_uses(&self.app.store).await {
            tracing::warn!("the last use of keys is not saved: {error}");
        }
        leading.abort();
        unshared.abort();
        wakeups.abort();
        self.app.store.close().await;
        served.map_err(|source| ServerError::Listen { listen: self.file.url, source })
    }
}

fn half_life_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).max(1)
}

fn door_settings(config: &ServerConfig) -> app::DoorSettings {
    app::DoorSettings {
        is_tls: config.tls.is_some(),
        needs_client_certificates: config.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
    }
}

/// Knows at any time whether this server does the periodic work.
async fn lead(app: Arc<app::App>) {
    let tell = |leads| {
        app.leads.store(leads, Ordering::Relaxed);
        app.led.notify_one();
        if app.store.is_shared() {
            tracing::info!(leads, "the leader of the periodic work has changed");
        }
    };
    app.store.lead(tell).await;
}

async fn carry_wakeups(app: Arc<app::App>) {
    app.store.carry_wakeups().await;
}

fn process(holder: &str) -> String {
    if holder.is_empty() { String::new() } else { format!(" (process {holder})") }
}

/// An address that a client on this machine can use: one cannot connect to "all interfaces".
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    }
}

/// The address of an option, without a slash at its end.
fn public_url(option: &'static str, url: &str) -> Result<String, ServerError> {
    let wrong = || ServerError::Url { option, url: url.to_owned() };
    let parsed: axum::http::Uri = url.parse().map_err(|_| wrong())?;
    let scheme = parsed.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
    scheme.zip(parsed.host()).filter(|(_, host)| !host.is_empty()).ok_or_else(wrong)?;
    if parsed.query().is_some() || parsed.authority().is_some_and(|all| all.as_str().contains('@')) {
        return Err(wrong());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// The address of the socket; with TLS under a name that the certificate has.
fn own_url(address: SocketAddr, certificate: Option<&tls::Shown>) -> String {
    match certificate.map(|shown| shown.name_for(address.ip())) {
        None => format!("http://{address}"),
        Some(None) => format!("https://{address}"),
        Some(Some(name)) => format!("https://{name}:{}", address.port()),
    }
}

fn database(db: Option<&str>, dir: &Path) -> Result<Database, ServerError> {
    match db {
        None => Ok(Database::Sqlite(dir.join("cantle.db"))),
        Some(db) => Ok(db.parse()?),
    }
}

/// The file of a database, for what only SQLite needs.
fn database_file(db: Option<&str>, dir: &Path) -> Result<PathBuf, ServerError> {
    match database(db, dir)? {
        Database::Sqlite(path) => Ok(path),
        other => Err(ServerError::OwnTools(other.to_string())),
    }
}

fn create_private_dir(dir: &Path) -> Result<(), ServerError> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| ServerError::File { path: dir.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases() {
        let dir = Path::new("/state/server");
        let file = |db| database_file(db, dir).map_err(|error| error.to_string());
        assert_eq!(file(None).unwrap(), dir.join("cantle.db"));
        assert_eq!(file(Some("sqlite:/x/y.db")).unwrap(), Path::new("/x/y.db"));
        assert_eq!(file(Some("/x/y.db")).unwrap(), Path::new("/x/y.db"));
        for db in ["sqlite:", "mysql://x"] {
            assert!(
                matches!(database(Some(db), dir), Err(ServerError::Store(StoreError::Scheme(_)))),
                "{db}"
            );
        }
        let shown = database(Some("postgres://me:secret@host:5433/db"), dir).unwrap().to_string();
        assert_eq!(shown, "postgres://host:5433/db", "without the password");
        assert!(file(Some("postgres://me:secret@host/db")).unwrap_err().contains("its own tools"));
    }

    #[test]
    fn everywhere_is_reached_through_loopback() {
        let text = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(text("0.0.0.0:8008"), "127.0.0.1:8008");
        assert_eq!(text("[::]:8008"), "[::1]:8008");
        assert_eq!(text("192.0.2.1:80"), "192.0.2.1:80");
    }
}
