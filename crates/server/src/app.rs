//! What all calls share, and the context of one call.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_clearml::StopRequest;
use cantle_store::{Change, Store};
use tokio::sync::Notify;

use crate::clock::now_us;
use crate::files::Files;
use crate::health::Health;
use crate::identity::Keys;

/// ClearML knows companies and users; a cantle server has one of each.
pub(crate) const COMPANY: &str = "cantle";
/// See [`COMPANY`].
pub(crate) const USER: &str = "cantle-user";

/// What all calls share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    pub(crate) files: Files,
    /// Half-life of past use; `None`: past use does not count.
    pub(crate) usage_half_life_ms: Option<i64>,
    pub(crate) health: Health,
    /// Of several servers on one database, this one does the periodic work.
    pub(crate) leads: AtomicBool,
    /// `leads` has changed.
    pub(crate) led: Notify,
}

impl App {
    /// Whether this server does the periodic work.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }
}

/// One call: the shared state, its time, and the caller's address.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) now_us: i64,
    pub(crate) ip: String,
}

impl Call {
    pub(crate) fn new(app: Arc<App>, ip: String) -> Self {
        Self { app, now_us: now_us(), ip }
    }

    /// A change of state now, with the caller's reason and message.
    pub(crate) fn change(&self, force: bool, reason: Option<String>, message: Option<String>) -> Change {
        let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
        let stop_asked = StopRequest::parse(&message) == Some(StopRequest::Abort);
        Change { now_us: self.now_us, force, reason, message, stop_asked, run: None }
    }
}

impl Deref for Call {
    type Target = App;
    fn deref(&self) -> &App {
        &self.app
    }
}
