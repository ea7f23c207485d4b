//! The first call to the server. While it cannot be reached, this module watches the tasks that a former agent left on
//! this node: no other program does.

use std::pin::pin;
use std::time::Duration;

use cantle_clearml::{Client, WireError};
use cantle_driver::Driver;
use cantle_model::{Gpu, QueueSpec};
use cantle_node::{LOOK_INTERVAL, NodeError, NodeStore, Watch, Watchdog};
use cantle_runtime::alive;
use tokio::time::{Instant, sleep, timeout};

use crate::queues::{Served, default_queue, resolve};
use crate::setup::queues_of;
use crate::{AgentConfig, AgentError};

/// Between two attempts.
const RETRY: Duration = Duration::from_secs(2);

/// The node, with the watchdog that scans it until the agent is set up.
pub(crate) struct OrphanWatch<'a> {
    driver: &'a dyn Driver,
    gpus: &'a [Gpu],
    node: &'a NodeStore,
    watchdog: Watchdog,
}

impl<'a> OrphanWatch<'a> {
    pub(crate) fn new(driver: &'a dyn Driver, gpus: &'a [Gpu], node: &'a NodeStore) -> Self {
        Self { driver, gpus, node, watchdog: Watchdog::default() }
    }

    /// The agent's queues, as the server has them. A server that cannot be reached is asked until it answers if there are tasks to
    /// watch meanwhile, and once otherwise.
    pub(crate) async fn queues(
        &mut self,
        server: &Client,
        config: &mut AgentConfig,
    ) -> Result<Vec<Served>, AgentError> {
        let mut is_said = false;
        loop {
            let error = match self.until(ask(server, config, self.gpus)).await {
                Ok((specs, served)) => {
                    config.queues = specs;
                    return Ok(served);
                }
                Err(error) => error,
            };
            let tasks = self.tasks()?;
            let is_away = matches!(&error, AgentError::Server(WireError::Unreachable { .. }));
            if !is_away || tasks == 0 || config.watch != Watch::Kill {
                return Err(error);
            }
            if !is_said {
                tracing::warn!("{error}; watching {tasks} tasks of a former agent until it can be reached");
                is_said = true;
            }
            self.until(sleep(RETRY)).await;
        }
    }

    /// How many tasks have lost the agent that watched them.
    fn tasks(&self) -> Result<usize, NodeError> {
        let leases = if self.gpus.is_empty() { Vec::new() } else { self.node.leases()? };
        Ok(leases.iter().filter(|lease| !lease.kept && !alive(&lease.owner)).count())
    }

    /// Watches until `what` has come.
    async fn until<T>(&mut self, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            if let Ok(done) = timeout(LOOK_INTERVAL, &mut what).await {
                return done;
            }
            // No task has a supervisor in this agent, and the watchdog itself ends processes that no agent owns.
            self.watchdog.scan(self.driver, self.node, self.gpus, |_| false, Instant::now());
        }
    }
}

async fn ask(
    server: &Client,
    config: &AgentConfig,
    gpus: &[Gpu],
) -> Result<(Vec<QueueSpec>, Vec<Served>), AgentError> {
    let named =
        if config.queues.is_empty() { vec![default_queue(server).await?] } else { config.queues.clone() };
    let specs = queues_of(config.allocation_mode, &named, gpus);
    let served = resolve(server, &specs, config.create_queues).await?;
    Ok((specs, served))
}
