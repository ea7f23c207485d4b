//! Ends tasks that hold a slice and do nothing: looks at them, and decides.
//!
//! A thread of its own looks at each task that has an idle time, so that neither the server, nor a GPU that does not answer, nor a
//! notebook that does not answer delays the agent. The executor gets an [`IdleNews`] and acts.
//!
//! Nothing of it is kept on disk: a new agent counts from its start, and so ends no task too early.

mod decide;
mod look;
mod notebook;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cantle_model::{IdleTime, LeaseId, Slice};
use cantle_runtime::Stopper;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::environment::Environment;
use crate::look_thread::{LookThread, WeakTasks};
use decide::Idleness;
pub(crate) use decide::{IdleNews, shown};
use look::{BusyGpus, Looker};

/// How often the driver is asked: it keeps for a few seconds who was busy.
const EVERY: Duration = Duration::from_secs(5);

/// A task that is looked at.
#[derive(Clone)]
struct IdleTask {
    stopper: Stopper,
    slices: Vec<Slice>,
    /// For how long it may be idle; `None`: as long as it likes.
    limit: Option<IdleTime>,
    /// Something happened to it that counts as activity.
    is_active: bool,
}

/// The tasks that are looked at.
pub(crate) struct IdleWatch(LookThread<IdleTask>);

impl IdleWatch {
    /// Begins to look; what it finds goes to `send`.
    pub(crate) fn start(env: &Arc<Environment>, send: impl Fn(LeaseId, IdleNews) + Send + 'static) -> Self {
        let env = Arc::clone(env);
        Self(LookThread::start(move |known| watch(&env, known, send)))
    }

    /// A task has a process.
    pub(crate) fn add(&self, lease: LeaseId, stopper: Stopper) {
        let task = IdleTask { stopper, slices: Vec::new(), limit: None, is_active: false };
        self.0.tasks().insert(lease, task);
    }

    pub(crate) fn remove(&self, lease: &LeaseId) {
        self.0.tasks().remove(lease);
    }

    /// The task as the executor knows it. `is_active`: it cannot work, as a suspended task, or somebody changed its limits.
    pub(crate) fn follow(&self, lease: &LeaseId, slices: &[Slice], limit: Option<IdleTime>, is_active: bool) {
        let mut tasks = self.0.tasks();
        let Some(task) = tasks.get_mut(lease) else { return };
        if task.slices != slices {
            task.slices = slices.to_vec();
        }
        task.limit = limit;
        task.is_active |= is_active;
    }
}

fn watch(env: &Environment, known: &WeakTasks<IdleTask>, send: impl Fn(LeaseId, IdleNews)) {
    // For the calls to notebooks.
    let runtime = match Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!(%error, "no task is ended for being idle"),
    };
    let (mut found, mut busy) = (BTreeMap::new(), BusyGpus::default());
    while let Some(alive) = known.upgrade() {
        let began = Instant::now();
        let mut tasks = BTreeMap::new();
        for (lease, task) in alive.lock().iter_mut() {
            tasks.insert(lease.clone(), task.clone());
            task.is_active = false;
        }
        drop(alive);
        tasks.retain(|_, task| task.limit.is_some());
        found.retain(|lease, _| tasks.contains_key(lease));
        busy.look(env, tasks.values().flat_map(|task| &task.slices));
        for (lease, task) in tasks {
            if let Some(news) = look(env, &runtime, &mut found, &busy, &lease, &task) {
                send(lease, news);
            }
        }
        // The duration of a look does not delay the next one.
        thread::park_timeout(EVERY.saturating_sub(began.elapsed()));
    }
}

/// One look at a task.
fn look(
    env: &Environment,
    runtime: &Runtime,
    found: &mut BTreeMap<LeaseId, (Idleness, Looker)>,
    busy: &BusyGpus,
    lease: &LeaseId,
    task: &IdleTask,
) -> Option<IdleNews> {
    let limit = task.limit?;
    let now = Instant::now();
    let (idleness, looker) =
        found.entry(lease.clone()).or_insert_with(|| (Idleness::new(limit, now), Looker::new(&task.stopper)));
    let gone = idleness.set_limit(limit, now);
    if task.is_active {
        looker.note_active();
    }
    looker.note_gpus(env, busy, lease, &task.stopper, &task.slices);
    if !idleness.is_window_over(now) {
        return gone;
    }
    let window = idleness.window(now);
    let what = looker.close(window, &task.stopper, runtime);
    idleness.close(what, Instant::now()).or(gone)
}
