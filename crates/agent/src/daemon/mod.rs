//! The daemon: takes tasks from queues, gives each its slice, watches it, reports it.
//!
//! One loop, one pass per poll. Each task that the daemon has to do with is an [`entry::Entry`] whose stage is computed
//! from files, so that a daemon that was killed goes on where its predecessor stopped.
//!
//! ```text
//! unsure ──► claimed ──► running ──► ended ──► (reported, forgotten)
//! ```

mod abort;
mod adopt;
mod children;
mod command;
mod config;
mod container;
mod entry;
mod execute;
mod finish;
mod fleet;
mod history;
mod hours;
mod link;
mod load;
mod logs;
mod meter;
mod queues;
mod report;
mod running;
mod schedule;
mod settle;
mod setup;
mod start;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::Error as WireError;
use cantle_clearml::cantle::EventView;
use cantle_driver::Driver;
use cantle_model::{Gpu, LeaseId};
use cantle_runtime::Engine;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub use abort::AbortCommand;
pub use config::{Config, Gives};
pub use container::Docker;
pub use schedule::{Hours, Schedule, ScheduleError};
pub use setup::check;

use crate::AgentError;
use crate::launch::Launcher;
use crate::node::{Claim, Node};
use crate::watchdog::Watchdog;
use entry::Entry;
use execute::News;
use link::Link;
use meter::Meter;
use queues::Served;

/// How long a pass may take to end when the daemon is to stop.
const FINISH_PASS: Duration = Duration::from_secs(5);

/// Everything the daemon knows.
struct Agent {
    config: Config,
    /// What the server calls this agent's part of the machine.
    node_name: String,
    worker: String,
    link: Link,
    driver: Arc<dyn Driver>,
    node: Node,
    claim: Claim,
    gpus: Vec<Gpu>,
    queues: Vec<Served>,
    jobs_dir: PathBuf,
    entries: BTreeMap<LeaseId, Entry>,
    launcher: Arc<Launcher>,
    /// Where containers run, with `--docker`.
    engine: Option<Engine>,
    /// From what runs beside the loop.
    news: mpsc::UnboundedReceiver<(LeaseId, News)>,
    news_sender: mpsc::UnboundedSender<(LeaseId, News)>,
    reports: report::Reports,
    planning: start::Planning,
    property: hours::Property,
    history: history::History,
    watchdog: Watchdog,
    meter: Meter,
    looked: Option<Instant>,
}

/// Serves queues until `stop` becomes true or its sender is gone; then stops its tasks as ClearML's agent does and
/// returns. `ready` is called once, when tasks can come.
///
/// # Errors
/// At the start only: what was given does not fit this machine or this server. Later failures are logged, reported and
/// retried.
pub async fn daemon(
    config: Config,
    mut stop: watch::Receiver<bool>,
    ready: impl FnOnce(),
) -> Result<(), AgentError> {
    let mut agent = setup::set_up(config).await?;
    let scraped = match &agent.config.metrics_listen {
        Some(listen) => Some(agent.meter.serve(listen).await?),
        None => None,
    };
    agent.adopt()?;
    agent.remove_leftovers().await?;
    ready();
    agent.run(&mut stop).await;
    agent.stop_everything().await;
    if let Some(scraped) = scraped {
        scraped.abort();
    }
    agent.claim.release(&agent.node)
}

impl Agent {
    async fn run(&mut self, stop: &mut watch::Receiver<bool>) {
        let mut poll = interval(self.config.poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                Some((lease, news)) = self.news.recv() => self.heed(&lease, news),
                _ = poll.tick() => {}
            }
            // What happened together is handled together, before anything new is planned.
            while let Ok((lease, news)) = self.news.try_recv() {
                self.heed(&lease, news);
            }
            let mut pass = std::pin::pin!(self.pass());
            tokio::select! {
                biased;
                () = &mut pass => {}
                // What it answers borrows a lock; that must not be held over the wait below.
                () = async { drop(stop.wait_for(|stop| *stop).await) } => {
                    // What is half done is finished, unless the server keeps it waiting. What is cut off then is on
                    // disk, as if we had been killed.
                    let _ = timeout(FINISH_PASS, pass).await;
                    return;
                }
            }
        }
    }

    /// Everything there is to do now. Local work is never held up by a server that is away.
    async fn pass(&mut self) {
        self.watch_local();
        if !self.link.is_due() {
            return;
        }
        let passed = self.pass_online().await;
        self.meter.counts().server_up = !passed.as_ref().is_err_and(WireError::is_temporary);
        match passed {
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
        self.settle_unsettled().await?;
        self.begin_claimed().await?;
        self.fill().await?;
        self.report(Instant::now()).await?;
        self.link.flush().await
    }

    /// The leases of the entries that match.
    fn leases_where(&self, matches: impl Fn(&Entry) -> bool) -> Vec<LeaseId> {
        self.entries.iter().filter(|(_, entry)| matches(entry)).map(|(lease, _)| lease.clone()).collect()
    }

    /// Notes a decision, with its reason, for the log and for the server.
    fn note(&mut self, kind: &str, task: Option<&str>, queue: Option<&str>, message: String) {
        self.link.note(EventView {
            kind: kind.to_owned(),
            task: task.map(str::to_owned),
            queue: queue.map(str::to_owned),
            node: Some(self.node_name.clone()),
            message,
            ..EventView::default()
        });
    }
}
