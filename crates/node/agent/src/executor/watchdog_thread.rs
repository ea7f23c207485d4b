//! The watchdog of an agent. It has a thread of its own, which neither the server nor a slow disk delays. It ends a task
//! itself; the executor receives the finding and reports it.

use std::sync::Arc;
use std::thread;

use cantle_model::LeaseId;
use cantle_node::{Finding, LOOK_INTERVAL, Lender, Watch, Watchdog};
use cantle_runtime::Stopper;
use tokio::time::Instant;

use super::{Update, UpdateSender};
use crate::environment::Environment;
use crate::look_thread::{LookThread, WeakTasks};

/// The tasks that are watched.
pub(super) struct WatchdogThread(LookThread<Stopper>);

impl WatchdogThread {
    /// Begins to watch; findings go to `sender`.
    pub(super) fn start(env: &Arc<Environment>, sender: UpdateSender) -> Self {
        let env = Arc::clone(env);
        Self(LookThread::start(move |known| watch(&env, known, &sender)))
    }

    pub(super) fn add(&self, lease: LeaseId, stopper: Stopper) {
        self.0.tasks().insert(lease, stopper);
    }

    pub(super) fn remove(&self, lease: &LeaseId) {
        self.0.tasks().remove(lease);
    }
}

fn watch(env: &Environment, watched: &WeakTasks<Stopper>, sender: &UpdateSender) {
    let mut watchdog = Watchdog::default();
    let mut lender = Lender::default();
    while let Some(alive) = watched.upgrade() {
        let began = Instant::now();
        let known = alive.lock().clone();
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
        if watchdog.has_borrowers() {
            lender.look(env.driver.as_ref(), &env.node, &env.gpus);
        }
        watchdog.news().into_iter().for_each(|what| env.note("gpu", None, None, what));
        drop(alive);
        // The duration of a scan does not delay the next one.
        thread::park_timeout(LOOK_INTERVAL.saturating_sub(began.elapsed()));
    }
}
