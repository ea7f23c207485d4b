//! Checks the settings and the machine before the daemon starts. Every refusal is here, before anything runs.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use cantle_clearml::leases::RenewLeases;
use cantle_clearml::{Client, workers};
use cantle_driver::Driver;
use cantle_model::{Gpu, GpuRequest, QueueSpec, QueueWant};
use cantle_node::mig::{self, Stages};
use cantle_node::{ComputeArbiter, Launcher, NodeError, NodeHost, NodeStore};
use cantle_runtime::Engine;
use nix::unistd::geteuid;

use crate::agent::Agent;
use crate::authorities;
use crate::environment::Environment;
use crate::first_call::OrphanWatch;
use crate::journal::Journal;
use crate::meter::Meter;
use crate::planner::History;
use crate::{AgentConfig, AgentError, AllocationMode};

/// Seconds without a report after which the server may take the worker for gone; reports come every 30 s.
pub(crate) const WORKER_TIMEOUT_S: u64 = 600;

/// Refuses what can be refused without a server: GPUs that do not exist or are claimed, queues that they cannot serve.
///
/// # Errors
/// In one line what is wrong.
pub fn check(config: &AgentConfig) -> Result<(), AgentError> {
    config.task_user.check(geteuid().is_root())?;
    let (driver, gpus) = fitting_gpus(config)?;
    let node = NodeStore::open(&config.node_dir())?;
    Ok(node.lock()?.check_claims(&config.worker(), &gpus, &mig::fixed_by_gpu(driver.as_ref(), &gpus))?)
}

/// The agent's GPUs, if they can serve its queues.
fn fitting_gpus(config: &AgentConfig) -> Result<(Arc<dyn Driver>, Vec<Gpu>), AgentError> {
    if config.allocation_mode.is_gpuless() {
        return Ok((cantle_driver::no_gpus(), Vec::new()));
    }
    let driver = cantle_driver::open(&config.installation)?;
    let (driver, gpus) = mig::chosen(driver, &config.gpus)?;
    if gpus.is_empty() {
        return Err(NodeError::NoGpu.into());
    }
    let given = |gpu: &&Gpu| driver.fixed_devices(&gpu.uuid).is_some_and(|devices| devices.len() > 1);
    if let Some(gpu) = gpus.iter().find(given).filter(|_| config.allocation_mode == AllocationMode::AllGpus) {
        let count = driver.fixed_devices(&gpu.uuid).map_or(0, <[String]>::len);
        return Err(NodeError::SeveralInstances { index: gpu.index, count }.into());
    }
    if config.allocation_mode == AllocationMode::Slices {
        cantle_sched::validate_queues(&config.queues, &gpus)?;
    }
    Ok((driver, gpus))
}

/// Starts tasks as the settings say; refused if these require a limit of the driver that it does not have.
async fn launcher(
    driver: &dyn Driver,
    node: &NodeStore,
    gpus: &[Gpu],
    (config, engine): (&AgentConfig, Option<&Engine>),
) -> Result<Launcher, NodeError> {
    let launcher = Launcher::new(driver, &config.lib_dir, node, config.wish)?;
    let launcher = launcher.with_privileges(config.privileges).with_enforce(config.enforce);
    let launcher = match engine {
        Some(engine) => launcher.in_containers(engine, driver, gpus).await?,
        None => launcher,
    };
    if launcher.check_enforce(driver, gpus)? {
        tracing::info!("the driver enforces the memory limits of tasks too");
    }
    Ok(launcher)
}

pub(crate) async fn set_up(mut config: AgentConfig) -> Result<Agent, AgentError> {
    let (driver, mut gpus) = fitting_gpus(&config)?;
    let engine = match &config.docker {
        Some(docker) => {
            let engine = Engine::connect(docker.socket.as_deref()).await?.with_devices().await?;
            Some(cantle_node::remembering(engine, &config.node_dir()))
        }
        None => None,
    };
    let worker = config.worker();
    let node_name = node_name(&config, driver.as_ref(), &gpus)?;
    let server = Client::with_tls(&config.server, config.credentials.clone(), &config.tls)?;
    let server = server.renewed_from(config.key_source.clone());
    let node = NodeStore::open(&config.node_dir())?;
    let queues = OrphanWatch::new(driver.as_ref(), &gpus, &node).queues(&server, &mut config).await?;
    if is_cantle(&server, &node_name).await? {
        config.hosts.complete(&config.server);
    }
    let authorities = authorities::for_tasks(&config.tls, &config.server, &config.state_dir)?;
    let launcher = launcher(driver.as_ref(), &node, &gpus, (&config, engine.as_ref())).await?;
    let given = mig::fixed_by_gpu(driver.as_ref(), &gpus);
    let claim = node.lock()?.claim(&worker, cantle_node::own_holder(), &gpus, given)?;
    let claim = claim.with_task_user(&node, config.whose_tasks())?;
    node.set_parked_memory(config.parked_memory)?;
    let meter = Meter::new(&node_name);
    if let Err(error) = make_ready(driver.as_ref(), &node, &launcher, &mut gpus, &config, &meter.mig()) {
        claim.release(&node)?;
        return Err(error);
    }
    let jobs_dir = make_jobs_dir(&config)?;
    let hidden: Vec<_> = config.secrets.iter().chain([&config.state_dir]).cloned().collect();
    cantle_node::hide_from_tasks(&hidden)?;
    let register = workers::Register {
        worker: worker.clone(),
        timeout: Some(WORKER_TIMEOUT_S),
        queues: queues.iter().map(|queue| queue.id.0.clone()).collect(),
        tags: config.report_tags.clone(),
        ..workers::Register::default()
    };
    if let Err(error) = server.call(&register).await {
        claim.release(&node)?;
        return Err(error.into());
    }
    tracing::info!(%worker, gpus = gpus.len(), queues = queues.len(), "serving");
    tracing::info!("tasks run as {}", config.whose_tasks());
    let history = History::open(&config.state_dir, &worker);
    let compute = ComputeArbiter::start(&node);
    let host = NodeHost::read(driver.as_ref()).map_err(NodeError::from)?;
    let env = Environment {
        config,
        node_name,
        worker,
        server,
        driver,
        node,
        gpus,
        host,
        queues,
        jobs_dir,
        launcher,
        authorities,
        engine,
        meter,
        journal: Journal::default(),
        _compute: compute,
    };
    Ok(Agent::new(env, claim, history))
}

/// An agent that adopts a task must have its lease.
fn make_jobs_dir(config: &AgentConfig) -> Result<PathBuf, AgentError> {
    let name = if config.allocation_mode.is_gpuless() { "cpu-jobs" } else { "jobs" };
    let dir = config.state_dir.join(name);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(|e| AgentError::file(&dir, e))?;
    Ok(dir)
}

/// Is the server cantle's? Any answer but "no such call" shows that: this worker may lack the right to ask.
async fn is_cantle(server: &Client, node: &str) -> Result<bool, AgentError> {
    match server.call_extended(&RenewLeases { node: node.to_owned(), leases: Vec::new() }).await {
        Ok(answer) => Ok(answer.is_some()),
        Err(error) if error.is_temporary() => Err(error.into()),
        Err(_) => Ok(true),
    }
}

/// An agent with all GPUs of the machine reports for the whole machine. Any other agent is a separate node: it reports
/// nothing about its neighbors, for any set and order of agents.
fn node_name(config: &AgentConfig, driver: &dyn Driver, gpus: &[Gpu]) -> Result<String, AgentError> {
    let given = |gpu: &Gpu| driver.fixed_devices(&gpu.uuid).is_some();
    let is_part =
        config.allocation_mode.is_gpuless() || gpus.iter().any(given) || gpus.len() < driver.gpus()?.len();
    Ok(if is_part { config.worker() } else { config.name.clone() })
}

/// Prepares the agent's GPUs: turns on MIG mode, removes instances that no lease holds, measures contexts.
fn make_ready(
    driver: &dyn Driver,
    node: &NodeStore,
    launcher: &Launcher,
    gpus: &mut [Gpu],
    config: &AgentConfig,
    stages: &Stages,
) -> Result<(), AgentError> {
    if let Some(wanted) = &config.mig {
        mig::turn_on(driver, gpus, wanted)?;
    }
    // First the leases: an instance is held as long as its lease is active.
    node.lock()?.sweep()?;
    mig::sweep(driver, node, gpus, config.mig_adopt, stages);
    Ok(launcher.measure(driver, gpus)?)
}

/// Without `--dynamic-gpus` a task gets all GPUs of the agent, or none, whatever queue it comes from.
pub(crate) fn queues_of(mode: AllocationMode, named: &[QueueSpec], gpus: &[Gpu]) -> Vec<QueueSpec> {
    let all = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let want = |queue: &QueueSpec| match mode {
        AllocationMode::Slices => queue.want.clone(),
        AllocationMode::AllGpus => QueueWant::Fixed(GpuRequest::Gpus(all)),
        AllocationMode::NoGpu | AllocationMode::Services { .. } => QueueWant::None,
    };
    named.iter().map(|queue| QueueSpec { name: queue.name.clone(), want: want(queue) }).collect()
}
