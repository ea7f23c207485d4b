//! The daemon: takes tasks from queues, gives each its slice, watches it, reports it.
//!
//! One loop, one pass per poll. Each task that the daemon has to do with is an [`entry::Entry`] whose stage is computed
//! from files, so that a daemon that was killed goes on where its predecessor stopped.
//!
//! ```text
//! unsure ──► claimed ──► running ──► ended ──► (reported, forgotten)
//! ```

mod adopt;
mod config;
mod entry;
mod finish;
mod link;
mod logs;
mod queues;
mod report;
mod running;
mod setup;
mod start;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use cantle_clearml::Error as WireError;
use cantle_driver::Driver;
use cantle_model::{Gpu, LeaseId};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub use config::Config;

use crate::AgentError;
use crate::node::{Claim, Node};
use entry::Entry;
use link::Link;
use queues::Served;

/// Everything the daemon knows.
struct Agent {
    config: Config,
    worker: String,
    link: Link,
    driver: Arc<dyn Driver>,
    node: Node,
    claim: Claim,
    gpus: Vec<Gpu>,
    queues: Vec<Served>,
    jobs_dir: PathBuf,
    entries: BTreeMap<LeaseId, Entry>,
    /// Leases whose supervisor has ended.
    ended: mpsc::UnboundedReceiver<LeaseId>,
    ended_sender: mpsc::UnboundedSender<LeaseId>,
    reports: report::Reports,
    planning: start::Planning,
}

/// Serves queues until `shutdown`; then stops its tasks as ClearML's agent does and returns.
///
/// # Errors
/// At the start only: what was given does not fit this machine or this server. Later failures are logged, reported and
/// retried.
pub async fn daemon(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), AgentError> {
    let mut agent = setup::set_up(config).await?;
    agent.adopt()?;
    agent.run(shutdown).await;
    agent.stop_everything().await;
    agent.claim.release(&agent.node)
}

impl Agent {
    async fn run(&mut self, shutdown: impl Future<Output = ()> + Send) {
        let mut poll = interval(self.config.poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                Some(lease) = self.ended.recv() => self.supervisor_ended(&lease),
                _ = poll.tick() => {}
            }
            // What ended together is handled together, before anything new is planned.
            while let Ok(lease) = self.ended.try_recv() {
                self.supervisor_ended(&lease);
            }
            tokio::select! {
                biased;
                () = &mut shutdown => return,
                () = self.pass() => {}
            }
        }
    }

    /// Everything there is to do now. Local work is never held up by a server that is away.
    async fn pass(&mut self) {
        self.watch_local();
        if !self.link.is_due() {
            return;
        }
        match self.pass_online().await {
            Ok(()) => self.link.answered(),
            Err(error) if error.is_temporary() => self.link.failed(&error),
            Err(error) => {
                // The server works but refuses; each call that may be refused is handled where it is made.
                tracing::error!(%error, "unexpected answer");
                self.link.failed(&error);
            }
        }
    }

    async fn pass_online(&mut self) -> Result<(), WireError> {
        self.forward_logs().await?;
        self.deliver_ended().await?;
        self.heed_aborts().await?;
        self.settle_unsure().await?;
        self.begin_claimed().await?;
        self.fill().await?;
        self.report(Instant::now()).await?;
        self.link.flush_events().await
    }
}
