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

use super::history::History;
use super::link::Link;
use super::meter::Meter;
use super::queues::{default_queue, resolve};
use super::{Agent, Config, Gives, hours, report, start};
use crate::AgentError;
use crate::launch::Launcher;
use crate::mig::{self, Stages};
use crate::node::Node;
use crate::watchdog::Watchdog;

/// Seconds without a report after which the server may take the worker for gone; reports come every 30 s.
pub(crate) const WORKER_TIMEOUT_S: u64 = 600;

/// Refuses what can be refused without a server: GPUs that are not there or taken, queues that they can't serve.
///
/// # Errors
/// In one line what is wrong.
pub fn check(config: &Config) -> Result<(), AgentError> {
    let (driver, gpus) = fitting_gpus(config)?;
    let node = Node::open(&config.node_dir())?;
    node.lock()?.check_claims(&config.worker(), &gpus, &mig::fixed_by_gpu(driver.as_ref(), &gpus))
}

/// The agent's GPUs, if they can serve its queues.
fn fitting_gpus(config: &Config) -> Result<(Arc<dyn Driver>, Vec<Gpu>), AgentError> {
    if config.gives.is_gpuless() {
        return Ok((cantle_driver::no_gpus(), Vec::new()));
    }
    let driver = cantle_driver::open(&config.installation)?;
    let (driver, gpus) = mig::chosen(driver, &config.gpus)?;
    if gpus.is_empty() {
        return Err(AgentError::NoGpu);
    }
    let given = |gpu: &&Gpu| driver.fixed_devices(&gpu.uuid).is_some_and(|devices| devices.len() > 1);
    if let Some(gpu) = gpus.iter().find(given).filter(|_| config.gives == Gives::AllGpus) {
        let count = driver.fixed_devices(&gpu.uuid).map_or(0, <[String]>::len);
        return Err(AgentError::SeveralInstances { index: gpu.index, count });
    }
    if config.gives == Gives::Slices {
        cantle_sched::validate_queues(&config.queues, &gpus)?;
    }
    Ok((driver, gpus))
}

pub(crate) async fn set_up(mut config: Config) -> Result<Agent, AgentError> {
    let (driver, mut gpus) = fitting_gpus(&config)?;
    let engine = match &config.docker {
        Some(docker) => Some(Engine::connect(docker.socket.as_deref()).await?.with_devices().await?),
        None => None,
    };
    let worker = config.worker();
    let node_name = node_name(&config, driver.as_ref(), &gpus)?;
    let link = Link::new(Client::new(&config.server, config.credentials.clone())?);
    if config.queues.is_empty() {
        config.queues.push(default_queue(&link).await?);
    }
    config.queues = queues_of(&config, &gpus);
    let queues = resolve(&link, &config.queues, config.create_queues).await?;

    let node = Node::open(&config.node_dir())?;
    let launcher = Launcher::new(driver.as_ref(), &config.lib_dir, &node, config.wish)?;
    let given = mig::fixed_by_gpu(driver.as_ref(), &gpus);
    let claim = node.lock()?.claim(&worker, crate::own_holder(), &gpus, given)?;
    let meter = Meter::new(&node_name);
    if let Err(error) = make_ready(driver.as_ref(), &node, &launcher, &mut gpus, &config, &meter.mig()) {
        claim.release(&node)?;
        return Err(error);
    }
    // Whoever adopts a job must have its lease.
    let jobs_dir = config.state_dir.join(if config.gives.is_gpuless() { "cpu-jobs" } else { "jobs" });
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
    let history = History::open(&config.state_dir, &worker);
    Ok(Agent {
        node_name,
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
        property: hours::Property::default(),
        history,
        watchdog: Watchdog::default(),
        meter,
        looked: None,
        config,
    })
}

/// An agent that gives out all GPUs of the machine is the machine. Any other is a node of its own beside its neighbours:
/// neither speaks for the other, whoever is there and whoever came first.
fn node_name(config: &Config, driver: &dyn Driver, gpus: &[Gpu]) -> Result<String, AgentError> {
    let given = |gpu: &Gpu| driver.fixed_devices(&gpu.uuid).is_some();
    let is_part = config.gives.is_gpuless() || gpus.iter().any(given) || gpus.len() < driver.gpus()?.len();
    Ok(if is_part { config.worker() } else { config.name.clone() })
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

/// Without `--dynamic-gpus` a task gets all GPUs of the agent, or none, whatever queue it comes from.
fn queues_of(config: &Config, gpus: &[Gpu]) -> Vec<QueueSpec> {
    let all = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let want = |queue: &QueueSpec| match config.gives {
        Gives::Slices => queue.want.clone(),
        Gives::AllGpus => QueueWant::Fixed(GpuRequest::Gpus(all)),
        Gives::NoGpu | Gives::Services { .. } => QueueWant::None,
    };
    config.queues.iter().map(|queue| QueueSpec { name: queue.name.clone(), want: want(queue) }).collect()
}
