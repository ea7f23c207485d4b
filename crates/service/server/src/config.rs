//! The settings of a server.

use std::path::PathBuf;
use std::time::Duration;

use cantle_clearml::usage::PriceSheet;

use crate::{KubernetesConfig, NotifyConfig, OidcConfig, TlsFiles};

/// How long events are kept by default.
const KEEP_EVENTS_DAYS: u64 = 90;

/// How long records of the audit are kept by default.
const KEEP_AUDIT_DAYS: u64 = 365;

/// The settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The address to listen on, for example `127.0.0.1:8008`; port 0 takes a free one.
    pub listen: String,
    /// `sqlite:PATH`, a path, or `postgres://…`; by default `server/cantle.db` under `state_dir`.
    pub db: Option<String>,
    /// The location of artifacts, models and debug images: a directory, or `s3://BUCKET[/PREFIX]`; by default `server/files`
    /// under `state_dir`.
    pub files: Option<String>,
    /// The certificate; none: plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Speak plain HTTP to other machines too.
    pub insecure_http: bool,
    /// The address for clients; by default that of the socket, with a name of the certificate.
    pub url: Option<String>,
    /// The address to listen on for notebooks of tasks; by default any free port where `listen` is on loopback, and none otherwise.
    pub notebook_listen: Option<String>,
    /// The address of notebooks for browsers, with a `*` where the id of the task is; by default the host of the page, with another port.
    pub notebook_url: Option<String>,
    /// The identity provider with which people log in.
    pub oidc: Option<OidcConfig>,
    /// The cluster whose tokens are taken.
    pub kubernetes: Option<KubernetesConfig>,
    /// Credentials, database and files are in `server/` under this directory.
    pub state_dir: PathBuf,
    /// Answer without credentials: for a server that only listens on loopback.
    pub open: bool,
    /// Answer as ClearML's open-source server does, without what it lacks: to test clients against that one.
    pub open_source: bool,
    /// A task that an agent took from its queue and has not started after this time goes back to the front. Agents start
    /// a task within seconds of taking it.
    pub start_within: Duration,
    /// A connection on which nothing comes or goes for so long is closed.
    pub silence: Duration,
    /// How long events are kept; `None`: forever. Those of tasks that have not ended stay.
    pub keep_events: Option<Duration>,
    /// How long the output of tasks that ended is kept; `None`: forever.
    pub keep_logs: Option<Duration>,
    /// How long records of the audit are kept; `None`: forever.
    pub keep_audit: Option<Duration>,
    /// Half-life of a project's past use, as it counts against the project; `None`: past use does not count.
    pub usage_half_life: Option<Duration>,
    /// The prices of GPUs, for reports that bring none.
    pub prices: Option<PriceSheet>,
    /// The receivers of notices, with their events and addresses.
    pub notify: NotifyConfig,
}

impl Default for ServerConfig {
    /// A free port on loopback, and the defaults.
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            db: None,
            files: None,
            tls: None,
            insecure_http: false,
            url: None,
            notebook_listen: None,
            notebook_url: None,
            oidc: None,
            kubernetes: None,
            state_dir: PathBuf::from("."),
            open: false,
            open_source: false,
            start_within: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            keep_events: Some(Duration::from_secs(KEEP_EVENTS_DAYS * 24 * 3600)),
            keep_logs: None,
            keep_audit: Some(Duration::from_secs(KEEP_AUDIT_DAYS * 24 * 3600)),
            usage_half_life: None,
            prices: None,
            notify: NotifyConfig::default(),
        }
    }
}
