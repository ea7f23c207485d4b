//! The state that all calls share, and the context of one call.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_clearml::StopRequest;
use cantle_clearml::usage::PriceSheet;
use cantle_store::{AuditRow, Change, ProjectRow, Store, StoreError, TaskFilter};
use tokio::sync::Notify;

use crate::clock::now_us;
use crate::error::ApiError;
use crate::execs::Execs;
use crate::failures::Failures;
use crate::files::{Deleted, Files};
use crate::health::Health;
use crate::identity::Keys;
use crate::lists::Lists;
use crate::login::{Kubernetes, Login, foreign_token};
use crate::notebooks::{NotebookAddress, NotebookKey, Notebooks};
use crate::notify::Notices;
use crate::records::Records;
use crate::rights::audit::{Logins, Refusals};
use crate::rights::{self, Passed, People, Principal, Right, Used, Via};
use crate::sealer::Sealer;
use crate::services::FirstUsage;

/// ClearML knows companies; a cantle server has one.
pub(crate) const COMPANY: &str = "cantle";
/// Id of the administrator, the owner of everything that was created before there were users.
pub(crate) const USER: &str = "cantle-user";
/// Id of the user who reads everything and changes nothing.
pub(crate) const VIEWER: &str = "cantle-viewer";

/// HTTP's status for wrong keys.
const UNAUTHORIZED: u16 = 401;
/// Subcode of 401 for a token of Kubernetes: ClearML's for an invalid one.
const REFUSED_TOKEN: u32 = 30;

/// The state that all calls share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    /// Encrypts the secrets of users.
    pub(crate) sealer: Sealer,
    pub(crate) files: Files,
    pub(crate) deleted: Deleted,
    pub(crate) people: People,
    pub(crate) refusals: Refusals,
    pub(crate) logins: Logins,
    /// Half-life of past use; `None`: past use does not count.
    pub(crate) usage_half_life_ms: Option<i64>,
    /// The prices of GPUs, for reports that bring none.
    pub(crate) prices: Option<PriceSheet>,
    pub(crate) health: Health,
    pub(crate) lists: Lists,
    pub(crate) first_usage: FirstUsage,
    pub(crate) execs: Execs,
    pub(crate) notebooks: Notebooks,
    /// Where they are opened; none: nowhere.
    pub(crate) notebook_address: Option<NotebookAddress>,
    pub(crate) notebook_key: NotebookKey,
    pub(crate) page: PageAddress,
    /// Wrong keys.
    pub(crate) failures: Failures,
    /// Of several servers on one database, this one does the periodic work.
    pub(crate) leads: AtomicBool,
    /// `leads` has changed.
    pub(crate) led: Notify,
    pub(crate) door: DoorSettings,
    /// Notices to people.
    pub(crate) notify: Notices,
    /// Login with an identity provider.
    pub(crate) login: Option<Arc<Login>>,
    /// The cluster whose tokens are taken.
    pub(crate) kubernetes: Option<Kubernetes>,
}

impl App {
    /// Whether this server does the periodic work.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }
}

/// The address of the web page.
#[derive(Clone, Debug)]
pub(crate) struct PageAddress {
    pub(crate) url: String,
    /// `--url` names it. Otherwise a browser may know this server by another name.
    pub(crate) is_given: bool,
    pub(crate) port: u16,
}

/// The properties of the listener.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DoorSettings {
    /// Connections are encrypted, so cookies go over no others.
    pub(crate) is_tls: bool,
    /// Agents show certificates.
    pub(crate) needs_client_certificates: bool,
}

impl DoorSettings {
    /// The scheme of the server's addresses.
    pub(crate) const fn scheme(self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Calls by which an agent identifies itself and takes work. The calls of tasks and people are not among them.
    const OF_AGENTS: [&str; 4] =
        ["cantle.report_node", "queues.get_next_task", "workers.register", "workers.status_report"];

    /// Whether a caller without a certificate is refused.
    pub(crate) fn wants_certificate(self, endpoint: &str) -> bool {
        self.needs_client_certificates && Self::OF_AGENTS.contains(&endpoint)
    }
}

/// One call: the shared state, its time, the caller, and its address.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) now_us: i64,
    pub(crate) ip: String,
    /// The caller.
    pub(crate) who: Arc<Principal>,
    /// The store, as far as this caller may use it.
    pub(crate) store: Records,
    /// Objects that the table of rights has let through.
    pub(crate) passed: Passed,
}

impl App {
    /// A call from outside. An unknown caller is recorded.
    pub(crate) async fn call(
        self: &Arc<Self>,
        authorization: Option<&str>,
        from: IpAddr,
        endpoint: &str,
    ) -> Result<Call, ApiError> {
        let ip = from.to_string();
        match self.caller(authorization, &ip).await {
            Ok(who) => {
                let call = Call::new(Arc::clone(self), ip, who);
                if call.who.via == Via::Kubernetes {
                    self.logins.note(&call).await;
                }
                Ok(call)
            }
            Err(error) => {
                let action = endpoint.to_owned();
                let record = AuditRow { time_us: now_us(), from_ip: ip, action, ..AuditRow::default() };
                self.refusals.note(self, record, &error).await;
                Err(error)
            }
        }
    }

    /// Identifies the caller by the `Authorization` header, and records that the key was used. The answer to wrong keys is delayed
    /// ([`Failures`]).
    pub(crate) async fn caller(
        &self,
        authorization: Option<&str>,
        ip: &str,
    ) -> Result<Arc<Principal>, ApiError> {
        let found = self.identify(authorization, ip).await;
        if authorization.is_some() && found.as_ref().is_err_and(|error| error.code == UNAUTHORIZED) {
            tokio::time::sleep(self.failures.delay(ip.parse().ok())).await;
        }
        found
    }

    async fn identify(&self, authorization: Option<&str>, ip: &str) -> Result<Arc<Principal>, ApiError> {
        let token = foreign_token(authorization).filter(|_| !self.keys.is_open());
        let who = match (&self.kubernetes, token) {
            (Some(kubernetes), Some(token)) => self.of_cluster(kubernetes, token).await?,
            _ => self.keys.check(&self.people, authorization)?,
        };
        if let Some(run) = &who.run {
            rights::lasts(&self.store, run, now_us()).await?;
        }
        if let Some(access_key) = &who.access_key {
            self.people.note_use(Used::Key(access_key.clone()), now_us(), ip);
        }
        if let Some(session) = &who.session {
            self.people.note_use(Used::Session(session.clone()), now_us(), ip);
        }
        Ok(Arc::new(who))
    }

    /// The user of a token of Kubernetes.
    async fn of_cluster(&self, kubernetes: &Kubernetes, token: &str) -> Result<Principal, ApiError> {
        let refused = || {
            ApiError::unauthorized(
                REFUSED_TOKEN,
                "Kubernetes refuses the token, or it is for another audience",
            )
        };
        let who = kubernetes.who(token).await?.ok_or_else(refused)?;
        let found = self.people.by_identity(&self.store, &who, now_us()).await;
        let found = found.map_err(|error| match error {
            StoreError::NoUser(_) => ApiError::unauthorized(
                REFUSED_TOKEN,
                format!("the user {} was removed; ask an administrator", who.name),
            ),
            other => other.into(),
        })?;
        Ok(Principal { via: Via::Kubernetes, ..found })
    }
}

impl Call {
    pub(crate) fn new(app: Arc<App>, ip: String, who: Arc<Principal>) -> Self {
        let store = Records::new(Arc::clone(&app));
        Self { app, now_us: now_us(), ip, who, store, passed: Passed::default() }
    }

    /// The projects that the caller may see, by name.
    pub(crate) async fn projects(&self) -> Result<Vec<ProjectRow>, StoreError> {
        self.store.projects(&self.seen()).await
    }

    /// The waiting and running tasks that the caller may see; `None`: all.
    pub(crate) async fn active_seen(&self) -> Result<Option<BTreeSet<String>>, StoreError> {
        Ok(self.store.active_seen(&self.seen()).await?.map(|ids| ids.into_iter().collect()))
    }

    /// Whether the caller may read the output of a task.
    pub(crate) async fn may_read(&self, task: &str) -> Result<bool, StoreError> {
        let read = self.read();
        let filter = TaskFilter { ids: vec![task.to_owned()], ..TaskFilter::default() };
        Ok(read.is_all() || !self.store.task_ids(&read, filter).await?.is_empty())
    }

    /// A change of state now, with the caller's reason and message.
    pub(crate) fn change(&self, force: bool, reason: Option<String>, message: Option<String>) -> Change {
        let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
        let stop_asked = StopRequest::parse(&message) == Some(StopRequest::Abort);
        // Agents put back what they took.
        let is_wish = !self.who.may_everywhere(Right::Serve);
        Change {
            now_us: self.now_us,
            force,
            reason,
            message,
            stop_asked,
            run: None,
            is_wish,
            who: self.who.label(),
        }
    }
}

impl Deref for Call {
    type Target = App;
    fn deref(&self) -> &App {
        &self.app
    }
}
