//! The data that every part of the agent uses and none changes: settings, server, GPUs, lease store.

use std::path::PathBuf;
use std::sync::Arc;

use cantle_clearml::Client;
use cantle_clearml::cantle::EventView;
use cantle_clearml::events::ReportedEvent;
use cantle_driver::Driver;
use cantle_model::{Gpu, LeaseId, Measured};
use cantle_node::clock::now_ms;
use cantle_node::{ComputeArbiter, Launcher, NodeHost, NodeStore};
use cantle_runtime::Engine;

use crate::AgentConfig;
use crate::entry::LeasedTask;
use crate::journal::Journal;
use crate::meter::Meter;
use crate::queues::Served;
use crate::task_record::TaskRecord;

/// Shared by reference. Only what locks itself (the journal, the meter, the lease store) changes.
pub(crate) struct Environment {
    pub(crate) config: AgentConfig,
    /// The server's name for this agent's part of the machine.
    pub(crate) node_name: String,
    /// The agent's own worker id.
    pub(crate) worker: String,
    pub(crate) server: Client,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) node: NodeStore,
    pub(crate) gpus: Vec<Gpu>,
    /// The processors and main memory of the node, of which its slices have parts.
    pub(crate) host: NodeHost,
    pub(crate) queues: Vec<Served>,
    pub(crate) jobs_dir: PathBuf,
    pub(crate) launcher: Launcher,
    /// The file of the authorities that programs in tasks trust.
    pub(crate) authorities: Option<PathBuf>,
    /// The container engine, with `--docker`.
    pub(crate) engine: Option<Engine>,
    pub(crate) meter: Meter,
    pub(crate) journal: Journal,
    /// Opens and closes the gates of slices whose compute is shared by weight, for as long as the agent runs.
    pub(crate) _compute: ComputeArbiter,
}

impl Environment {
    /// Notes a decision, with its reason, for the log and for the server.
    pub(crate) fn note(&self, kind: &str, task: Option<&str>, queue: Option<&str>, message: String) {
        self.journal.note(EventView {
            kind: kind.to_owned(),
            task: task.map(str::to_owned),
            queue: queue.map(str::to_owned),
            node: Some(self.node_name.clone()),
            message,
            ..EventView::default()
        });
    }

    /// Notes what happened to a task, with its name, and adds it to the task's own log.
    pub(crate) fn note_in_task_log(&self, kind: &str, entry: &LeasedTask, what: &str) {
        let task = &entry.job.task.0;
        let text = format!("cantle: {what}\n");
        self.journal.add_to_log(ReportedEvent::log(task, self.worker_of(&entry.job), now_ms(), text));
        self.note(kind, Some(task), None, format!("task {}: {what}", entry.job.name));
    }

    /// The worker id under which a task reports: its own, or the agent's.
    pub(crate) fn worker_of<'a>(&'a self, job: &'a TaskRecord) -> &'a str {
        job.worker.as_deref().unwrap_or(&self.worker)
    }

    /// The measurements of the task of a lease until now.
    pub(crate) fn measured(&self, lease: &LeaseId) -> Measured {
        cantle_node::measured(&self.node.slice_dir(lease))
    }

    /// Frees a lease whose task has no process any more.
    pub(crate) fn free(&self, lease: &LeaseId) {
        let freed = self.node.lock().and_then(|locked| match locked.lease(lease)? {
            Some(lease) => locked.retire(&lease),
            None => Ok(()),
        });
        if let Err(error) = freed {
            // The sweep before the next plan tries again.
            tracing::error!(%error, %lease, "a slice is not free yet");
        }
        self.journal.note_node_changed();
    }
}
