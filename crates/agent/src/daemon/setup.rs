//! From the command line to a daemon that may start: every refusal is here, before anything runs.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use cantle_clearml::{Client, workers};
use cantle_driver::Driver;
use cantle_model::{Gpu, GpuRequest, QueueSpec, QueueWant};
use cantle_runtime::Engine;
use tokio::sync::mpsc;

use super::link::Link;
use super::meter::Meter;
use super::queues::resolve;
use super::{Agent, Config, report, start};
use crate::AgentError;
use crate::launch::Launcher;
use crate::mig::{self, Stages};
use crate::node::Node;
use crate::watchdog::Watchdog;

/// Seconds without a report after which the server may take the worker for gone; reports come every 30 s.
const WORKER_TIMEOUT_S: u64 = 600;

/// Refuses what can be refused without a server: GPUs that are not there or taken, queues that they can't serve.
///
/// # Errors
/// In one line what is wrong.
pub fn check(config: &Config) -> Result<(), AgentError> {
    let (driver, gpus) = fitting_gpus(config)?;
    let node = Node::open(&Node::dir_for(&config.source))?;
    node.lock()?.check_claims(&gpus, &mig::fixed_by_gpu(driver.as_ref(), &gpus))
}

/// The agent's GPUs, if they can serve its queues.
fn fitting_gpus(config: &Config) -> Result<(Arc<dyn Driver>, Vec<Gpu>), AgentError> {
    let driver = cantle_driver::open(&config.source)?;
    let (driver, gpus) = mig::chosen(driver, &config.gpus)?;
    if gpus.is_empty() {
        return Err(AgentError::NoGpu);
    }
    let given = |gpu: &&Gpu| driver.fixed_devices(&gpu.uuid).is_some_and(|devices| devices.len() > 1);
    if let Some(gpu) = gpus.iter().find(given).filter(|_| !config.dynamic) {
        let count = driver.fixed_devices(&gpu.uuid).map_or(0, <[String]>::len);
        return Err(AgentError::SeveralInstances { index: gpu.index, count });
    }
    if config.dynamic {
        cantle_sched::validate_queues(&config.queues, &gpus)?;
    }
    Ok((driver, gpus))
}

pub(crate) async fn set_up(mut config: Config) -> Result<Agent, AgentError> {
    let (driver, mut gpus) = fitting_gpus(&config)?;
    if !config.dynamic {
        config.queues = all_gpus_each(&config.queues, &gpus);
    }
    let engine = match &config.docker {
        Some(docker) => Some(Engine::connect(docker.socket.as_deref()).await?.with_devices().await?),
        None => None,
    };
    let worker = config.worker();
    let link = Link::new(Client::new(&config.server, config.credentials.clone())?);
    let queues = resolve(&link, &config.queues, config.create_queues).await?;

    let node = Node::open(&Node::dir_for(&config.source))?;
    let launcher = Launcher::new(driver.as_ref(), &config.source, &config.lib_dir, &node, config.wish)?;
    let given = mig::fixed_by_gpu(driver.as_ref(), &gpus);
    let claim = node.lock()?.claim(&worker, crate::own_holder(), &gpus, given)?;
    let meter = Meter::new(&config.name);
    if let Err(error) = make_ready(driver.as_ref(), &node, &launcher, &mut gpus, &config, &meter.mig()) {
        claim.release(&node)?;
        return Err(error);
    }
    let jobs_dir = config.state_dir.join("jobs");
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
    tracing::info!(%worker, gpus = gpus.len(), queues = queues.len(), "serving");
    let (news_sender, news) = mpsc::unbounded_channel();
    Ok(Agent {
        worker,
        link,
        driver: Arc::clone(&driver),
        node,
        launcher: Arc::new(launcher),
        engine,
        claim,
        gpus,
        queues,
        jobs_dir,
        entries: BTreeMap::new(),
        news,
        news_sender,
        reports: report::Reports::default(),
        planning: start::Planning::default(),
        watchdog: Watchdog::default(),
        meter,
        looked: None,
        config,
    })
}

/// What is done to GPUs that are ours: MIG mode, instances that nobody holds, the cost of contexts.
fn make_ready(
    driver: &dyn Driver,
    node: &Node,
    launcher: &Launcher,
    gpus: &mut [Gpu],
    config: &Config,
    stages: &Stages,
) -> Result<(), AgentError> {
    if let Some(wanted) = &config.mig {
        mig::turn_on(driver, gpus, wanted)?;
    }
    // First the leases: an instance is held as long as one stands.
    node.lock()?.sweep()?;
    mig::sweep(driver, node, gpus, config.mig_adopt, stages);
    launcher.measure(driver, gpus)
}

/// Without `--dynamic-gpus` a task gets all GPUs of the agent, whatever queue it comes from.
fn all_gpus_each(queues: &[QueueSpec], gpus: &[Gpu]) -> Vec<QueueSpec> {
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let all = |queue: &QueueSpec| QueueSpec {
        name: queue.name.clone(),
        want: QueueWant::Fixed(GpuRequest::Gpus(count)),
    };
    queues.iter().map(all).collect()
}
