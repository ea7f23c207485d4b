//! The watchdog of an agent. It has a thread of its own, which neither the server nor a slow disk delays. It ends a task
//! itself; the executor receives the finding and reports it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cantle_model::LeaseId;
use cantle_node::{Finding, LOOK_INTERVAL, Watch, Watchdog, lend};
use cantle_runtime::Stopper;
use tokio::time::Instant;

use super::{Update, UpdateSender};
use crate::environment::Environment;

/// How often free memory is lent.
const LEND_EVERY: Duration = Duration::from_secs(1);

type Watched = Mutex<BTreeMap<LeaseId, Stopper>>;

/// The tasks that are watched. The thread ends with this value, and with it its use of the driver.
pub(super) struct WatchdogThread {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

impl WatchdogThread {
    /// Begins to watch; findings go to `sender`.
    pub(super) fn start(env: &Arc<Environment>, sender: UpdateSender) -> Self {
        let watched = Arc::new(Watched::default());
        let (env, known) = (Arc::clone(env), Arc::downgrade(&watched));
        let thread = Some(thread::spawn(move || watch(&env, &known, &sender)));
        Self { watched, thread }
    }

    pub(super) fn add(&self, lease: LeaseId, stopper: Stopper) {
        lock(&self.watched).insert(lease, stopper);
    }

    pub(super) fn remove(&self, lease: &LeaseId) {
        lock(&self.watched).remove(lease);
    }
}

impl Drop for WatchdogThread {
    fn drop(&mut self) {
        self.watched = Arc::default();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its result cannot fail this.
            let _ = thread.join();
        }
    }
}

fn lock(watched: &Watched) -> MutexGuard<'_, BTreeMap<LeaseId, Stopper>> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(env: &Environment, watched: &Weak<Watched>, sender: &UpdateSender) {
    let mut watchdog = Watchdog::default();
    let mut lent_at: Option<Instant> = None;
    while let Some(alive) = watched.upgrade() {
        let began = Instant::now();
        let known = lock(&alive).clone();
        let ours = |lease: &LeaseId| known.contains_key(lease);
        for (lease, finding) in watchdog.scan(env.driver.as_ref(), &env.node, &env.gpus, ours, began) {
            let is_to_end = matches!(finding, Finding::Guilty(_)) && env.config.watch == Watch::Kill;
            let stopper = known.get(&lease).filter(|_| is_to_end);
            // First, so that the reason is known when the end is.
            let _ = sender.send((lease, Update::Found(finding)));
            if let Some(stopper) = stopper {
                stopper.kill_now();
            }
        }
        if lent_at.is_none_or(|at| at.elapsed() >= LEND_EVERY) {
            lent_at = Some(began);
            if let Err(error) = lend(env.driver.as_ref(), &env.node, &env.gpus) {
                tracing::warn!(%error, "free GPU memory cannot be lent now");
            }
        }
        watchdog.news().into_iter().for_each(|what| env.note("gpu", None, None, what));
        drop(alive);
        // The duration of a scan does not delay the next one.
        thread::park_timeout(LOOK_INTERVAL.saturating_sub(began.elapsed()));
    }
}
