//! From the command line to a daemon that may start: every refusal is here, before anything runs.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use cantle_clearml::{Client, workers};
use cantle_driver::Driver;
use cantle_model::{Gpu, GpuRequest, QueueSpec, QueueWant};
use tokio::sync::mpsc;

use super::link::Link;
use super::queues::resolve;
use super::{Agent, Config, report, start};
use crate::AgentError;
use crate::node::Node;

/// Seconds without a report after which the server may take the worker for gone; reports come every 30 s.
const WORKER_TIMEOUT_S: u64 = 600;

pub(crate) async fn set_up(mut config: Config) -> Result<Agent, AgentError> {
    let driver = cantle_driver::open(&config.source)?;
    let gpus = config.gpus.select(&driver.gpus()?)?;
    if gpus.is_empty() {
        return Err(AgentError::NoGpu);
    }
    if !config.dynamic {
        config.queues = all_gpus_each(&config.queues, &gpus);
    }
    cantle_sched::validate_queues(&config.queues, &gpus)?;
    let worker = config.worker();
    let link = Link::new(Client::new(&config.server, config.credentials.clone())?);
    let queues = resolve(&link, &config.queues, config.create_queues).await?;

    let node = Node::open(&Node::dir_for(&config.source))?;
    let me = crate::own_holder();
    let claim = node.lock()?.claim(&worker, me, &gpus)?;
    let jobs_dir = config.state_dir.join("agent").join("jobs");
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&jobs_dir);
    made.map_err(|e| AgentError::file(&jobs_dir, &e))?;
    let register = workers::Register {
        worker: worker.clone(),
        timeout: Some(WORKER_TIMEOUT_S),
        queues: queues.iter().map(|queue| queue.id.0.clone()).collect(),
        ..workers::Register::default()
    };
    if let Err(error) = link.call(&register).await {
        claim.release(&node)?;
        return Err(error.into());
    }
    measure_contexts(driver.as_ref(), &config, &gpus);
    tracing::info!(%worker, gpus = gpus.len(), queues = queues.len(), "serving");
    let (ended_sender, ended) = mpsc::unbounded_channel();
    Ok(Agent {
        worker,
        link,
        driver: Arc::clone(&driver),
        node,
        claim,
        gpus,
        queues,
        jobs_dir,
        entries: BTreeMap::new(),
        ended,
        ended_sender,
        reports: report::Reports::default(),
        planning: start::Planning::default(),
        config,
    })
}
