//! `cantle run`: runs one task now, on this machine, without a server.

mod loan;
mod place;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle_driver::{Driver, Installation};
use cantle_model::{
    Bytes, ComputeError, ComputeRequest, EnforceMode, Gpu, GpuList, GpuRequest, Isolation, Lease, LeaseId,
    TimeLimit,
};
use cantle_runtime::{
    Backend, BackendChoice, Cgroup, Command, ContainerOutput, ContainerSpec, DockerRun, Engine, Exit,
    Privileges, RunningTask, StartError, Stopper, TaskSpec, start_attached,
};
use cantle_sched::connection;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::NodeError;
use crate::clock::now_ms;
use crate::compute::ComputeArbiter;
use crate::launch::{Launcher, OUTSIDE, enforced_by, got};
use crate::mig::{self, Stages, make_instances};
use crate::native_limit::note_group;
use crate::refusals::Refusals;
use crate::store::NodeStore;
use crate::suspend::Recovery;
use crate::watchdog::{Finding, LOOK_INTERVAL, Watchdog};
use loan::Loan;
use place::wait_for_capacity;

/// The time between SIGTERM and SIGKILL for a command whose time is over, as an agent leaves its tasks.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// The request to `cantle run`.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The GPU request.
    pub request: GpuRequest,
    /// Of which GPUs, or in which MIG instances as they are.
    pub gpus: GpuList,
    /// The most memory of its GPU that it may have, if that is more than the request.
    pub memory_limit: Option<Bytes>,
    /// The required isolation.
    pub isolation: Isolation,
    /// How compute time is divided.
    pub compute: ComputeRequest,
    /// The command.
    pub command: Command,
    /// Memory of each slice that is kept for modules.
    pub module_reserve_bytes: u64,
    /// How long to wait for capacity; none: not at all.
    pub timeout: Option<Duration>,
    /// How long the command may run.
    pub time: Option<TimeLimit>,
    /// The driver whose GPUs are meant.
    pub installation: Installation,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: PathBuf,
    /// The accepted backends.
    pub backend: BackendChoice,
    /// The wanted backend of memory limits.
    pub enforce: EnforceMode,
    /// Extra privileges of the task.
    pub privileges: Privileges,
    /// The container to run it in, if any; of a command line of docker's the engine only.
    pub image: Option<Docker>,
}

/// `--docker [IMAGE ARGS…]`, `--podman [IMAGE ARGS…]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Docker {
    /// For tasks that name none.
    pub image: Option<String>,
    /// `docker run` options for tasks that name no image.
    pub options: Vec<String>,
    /// `docker run` options for all, before those.
    pub extra_options: Vec<String>,
    /// The engine's socket; the first of the usual ones that is there if none is given.
    pub socket: Option<PathBuf>,
}

/// Runs one task with the stdin, stdout and stderr of this process and returns its exit code. `notify` gets lines for
/// people: what the task got, and what happens to it.
///
/// # Errors
/// If it cannot be started; then nothing of it is left.
pub async fn run_here(request: RunRequest, notify: &dyn Fn(&str)) -> Result<i32, NodeError> {
    run(request, None, notify).await
}

/// Runs a `docker run` command line with a slice of the GPU that it names, and returns its exit code.
///
/// # Errors
/// If an option would lift the limit, or it cannot be started; then nothing of it is left.
pub async fn run_docker(
    request: RunRequest,
    docker: &DockerRun,
    notify: &dyn Fn(&str),
) -> Result<i32, NodeError> {
    run(request, Some(docker), notify).await
}

async fn run(
    request: RunRequest,
    docker: Option<&DockerRun>,
    notify: &dyn Fn(&str),
) -> Result<i32, NodeError> {
    check_compute(&request, docker)?;
    let driver = cantle_driver::open(&request.installation)?;
    let wanted = match docker {
        Some(docker) => GpuList::Indices(vec![docker.gpu_index().map_err(StartError::from)?]),
        None => request.gpus.clone(),
    };
    let (driver, gpus) = mig::chosen(driver, &wanted)?;
    let driver = driver.as_ref();
    let node = NodeStore::open(&NodeStore::dir_for(&request.installation))?;
    let launcher =
        Launcher::new(driver, &request.lib_dir, &node, request.backend)?.with_privileges(request.privileges);
    let launcher = launcher.with_enforce(request.enforce);
    let engine = match &request.image {
        Some(image) => Some(remembering(Engine::connect(image.socket.as_deref()).await?, node.dir())),
        None => None,
    };
    let launcher = match &engine {
        Some(engine) => launcher.in_containers(engine, driver, &gpus).await?,
        None => launcher,
    };
    let lease = wait_for_capacity(driver, &node, &gpus, &request, notify).await?;
    let _arbiter = lease.compute.map(|_| ComputeArbiter::start(&node));
    let on = Equipment { driver, node: &node, gpus: &gpus, launcher: &launcher, engine: engine.as_ref() };
    let ran = run_under(&on, &request, docker, lease.clone(), notify).await;
    let locked = node.lock()?;
    // As it is on disk: it has got a control group meanwhile.
    let lease = locked.lease(&lease.id)?.unwrap_or(lease);
    locked.retire(&lease)?;
    drop(locked);
    if let Some(reason) = lease.suspension.and_then(|suspension| suspension.reason) {
        notify(&format!("the task was ended: {reason}"));
    }
    ran
}

/// A refusal is better than a promise that nothing enforces.
fn check_compute(request: &RunRequest, docker: Option<&DockerRun>) -> Result<(), NodeError> {
    let (compute, mode) = (&request.compute, request.compute.mode);
    compute.check(&request.request)?;
    if compute.is_enforced() && request.isolation == Isolation::Mig {
        return Err(ComputeError::Mig(mode).into());
    }
    if compute.is_enforced() && (docker.is_some() || request.backend == BackendChoice::Preload) {
        let what = if docker.is_some() { "docker-run" } else { "LD_PRELOAD" };
        return Err(ComputeError::Unenforceable { mode, what: what.to_owned() }.into());
    }
    Ok(())
}

/// The parts that are needed to run a task under a lease.
struct Equipment<'a> {
    driver: &'a dyn Driver,
    node: &'a NodeStore,
    gpus: &'a [Gpu],
    launcher: &'a Launcher,
    /// Of a task that is a container.
    engine: Option<&'a Engine>,
}

async fn run_under(
    on: &Equipment<'_>,
    request: &RunRequest,
    docker: Option<&DockerRun>,
    mut lease: Lease,
    notify: &dyn Fn(&str),
) -> Result<i32, NodeError> {
    let &Equipment { driver, node, gpus, launcher, engine } = on;
    make_instances(driver, node, gpus, &mut lease, &Stages::default())?;
    launcher.make_region(driver, node, &lease, gpus)?;
    let mut spec = launcher.spec(node, &lease, &request.command);
    launcher.hold_by_driver((driver, node), &mut lease, &mut spec, gpus)?;
    let confinement = spec.confinement.clone();
    let mut task = match (docker.zip(engine), engine.zip(request.image.as_ref())) {
        (Some((docker, engine)), _) => {
            start_attached(&docker_client(engine, spec.clone(), docker, &lease, driver, notify).await?)?
        }
        (None, Some((engine, image))) => start_in(engine, image, &spec, &lease, driver, notify).await?,
        (None, None) => start_attached(&spec)?,
    };
    if docker.is_none() {
        launcher.require_group(&spec, &mut task).await?;
    }
    let backend = if docker.is_some() { &Backend::Container } else { task.backend() };
    // That of docker's client is not that of the container.
    let cgroup = lease.cgroup.clone().filter(|_| docker.is_some()).or_else(|| task.cgroup());
    if note_group(&mut lease, cgroup) {
        notify(OUTSIDE);
    }
    let enforced = match &lease.compute {
        Some(share) => {
            let mask =
                if lease.compute_units.is_empty() { "" } else { " by a mask that a program can change" };
            format!("compute {}{mask}, {}", share.mode, enforced_by(backend, lease.limited_by()))
        }
        None => enforced_by(backend, lease.limited_by()),
    };
    lease.leader = Some(task.leader());
    lease.enforcement = backend.enforcement();
    lease.ends_ms = request.time.map(|limit| now_ms().saturating_add(limit.ms()));
    node.lock()?.put(&lease)?;
    // An instance may be larger than the request.
    let is_instance = lease.slices.iter().any(|slice| slice.mig.is_some());
    let asked = if is_instance { format!("asked {}, got ", request.request) } else { String::new() };
    let burst = lease.burst.as_ref().map(|burst| format!(" (up to {} where free)", Bytes(burst.limit_bytes)));
    notify(&format!("{asked}{}{}, {enforced}", got(&lease.slices, gpus), burst.unwrap_or_default()));
    connection(&driver.topology(), gpus, &lease.slices).iter().for_each(|how| notify(how));
    let stopper = task.stopper();
    let mut monitor = Monitor {
        driver,
        node,
        gpus,
        lease: &lease,
        refusals: Refusals::of(&node.slice_dir(&lease.id)),
        watchdog: Watchdog::since(Instant::now()),
        recovery: Recovery::new(&request.installation),
        loan: Loan::of(&lease, &request.installation),
    };
    let over = request.time.map(|limit| (Instant::now() + limit.duration(), limit));
    // Never begun again: a second wait for a container would not find the result that the first one has read and
    // removed.
    let mut ended = std::pin::pin!(task.wait());
    if let Some(engine) = engine.filter(|_| docker.is_some()) {
        tokio::select! {
            found = engine.verify_of(&lease.id, &confinement) => {
                let found = found?;
                if let Some(container) = found.unconfined {
                    return Err(container.end(engine).await.into());
                }
                note_outside(node, &lease, found.pid, notify)?;
            }
            // The client's end is the container's.
            exit = &mut ended => {
                monitor.final_report(notify);
                return Ok(reported(exit, notify));
            }
        }
    }
    Ok(watch(&mut monitor, ended, over, &stopper, notify).await)
}

/// Notes if docker's client has started the container, with this first process, outside of the group that was made for it.
fn note_outside(node: &NodeStore, lease: &Lease, pid: u32, notify: &dyn Fn(&str)) -> Result<(), NodeError> {
    let is_in =
        |dir: &PathBuf| Cgroup::at(dir).members().contains(&pid) || cantle_runtime::holder_of(pid).is_none();
    let mut noted = lease.clone();
    if lease.cgroup.as_ref().is_some_and(is_in) || !note_group(&mut noted, None) {
        return Ok(());
    }
    notify(OUTSIDE);
    node.lock()?.put(&noted)
}

/// Watches a task until it has ended, and ends it when its time is over; its exit code.
async fn watch(
    monitor: &mut Monitor<'_>,
    mut ended: std::pin::Pin<&mut impl Future<Output = Exit>>,
    mut over: Option<(Instant, TimeLimit)>,
    stopper: &Stopper,
    notify: &dyn Fn(&str),
) -> i32 {
    let mut looks = looks();
    let mut is_killed = false;
    loop {
        tokio::select! {
            biased;
            exit = &mut ended => {
                monitor.final_report(notify);
                // Of a task that was killed here, the line is out.
                return if is_killed { exit.code() } else { reported(exit, notify) };
            }
            _ = looks.tick() => {}
        }
        if let Some((_, limit)) = over.take_if(|(end, _)| Instant::now() >= *end) {
            notify(&limit.is_over());
            stop_in_time(stopper);
        }
        match monitor.poll(stopper, notify) {
            Verdict::Runs => {}
            // It has some time to tidy up, and is watched meanwhile.
            Verdict::Stop => stop_in_time(stopper),
            Verdict::Kill => {
                is_killed = true;
                stopper.kill().await;
            }
        }
    }
}

/// Asks a task to end, and ends it after a while.
fn stop_in_time(stopper: &Stopper) {
    let stopper = stopper.clone();
    tokio::spawn(async move { stopper.stop(STOP_GRACE).await });
}

/// The exit code, after a line about what it does not say.
fn reported(exit: Exit, notify: &dyn Fn(&str)) -> i32 {
    if let Some(reason) = exit.reason() {
        notify(&reason);
    }
    exit.code()
}

/// The time of the next scan of the task: the duration of a scan does not delay the next one.
fn looks() -> Interval {
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks.reset();
    looks
}

/// The result of a look at a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Runs,
    /// It has time to tidy up.
    Stop,
    Kill,
}

/// Watches the task while it runs.
struct Monitor<'a> {
    driver: &'a dyn Driver,
    node: &'a NodeStore,
    gpus: &'a [Gpu],
    lease: &'a Lease,
    refusals: Option<Refusals>,
    watchdog: Watchdog,
    recovery: Recovery,
    loan: Loan,
}

impl Monitor<'_> {
    /// Reports refusals and findings.
    fn poll(&mut self, stopper: &Stopper, notify: &dyn Fn(&str)) -> Verdict {
        let now = Instant::now();
        let mut verdict = Verdict::Runs;
        // The watchdog reports leases that cannot be read.
        if let Ok(leases) = self.node.leases() {
            self.recovery.look(self.node, &leases);
            if let Some(why) = self.loan.look((self.driver, self.node, self.gpus), &leases, notify) {
                notify(&format!("the task is ended: {why}"));
                verdict = Verdict::Stop;
            }
        }
        let slices = &self.lease.slices;
        let refusals = self.refusals.as_mut();
        if let Some(line) = refusals.and_then(|it| it.report(slices, self.gpus, || stopper.pids(), now)) {
            notify(&line);
        }
        let ours = |lease: &LeaseId| *lease == self.lease.id;
        for (_, finding) in self.watchdog.scan(self.driver, self.node, self.gpus, ours, now) {
            match finding {
                Finding::Suspect(why) | Finding::Trouble(why) => notify(&why),
                Finding::Guilty(why) => {
                    notify(&format!("the task is killed: {why} (cantle explain watchdog-kill)"));
                    verdict = Verdict::Kill;
                }
            }
        }
        verdict
    }

    /// Reports what was held back until the end of the task.
    fn final_report(&mut self, notify: &dyn Fn(&str)) {
        let slices = &self.lease.slices;
        if let Some(line) = self.refusals.as_mut().and_then(|it| it.final_report(slices, self.gpus, Vec::new))
        {
            notify(&line);
        }
    }
}

/// The engine, with what is kept of images in and next to the node directory `node_dir`.
#[must_use]
pub fn remembering(engine: Engine, node_dir: &Path) -> Engine {
    engine.remembering(NodeStore::searched_images(node_dir), NodeStore::packages(node_dir))
}

/// Starts the task in a container with the streams of this process.
async fn start_in(
    engine: &Engine,
    image: &Docker,
    spec: &TaskSpec,
    lease: &Lease,
    driver: &dyn Driver,
    notify: &dyn Fn(&str),
) -> Result<RunningTask, NodeError> {
    let parts = driver.container_parts(&lease.slices)?;
    let container = ContainerSpec {
        task: lease.task.clone(),
        image: image.image.clone().unwrap_or_default(),
        options: image.options.clone(),
        devices: parts.devices,
        driver_files: parts.files,
    };
    Ok(engine.start_and_notify(spec, &container, ContainerOutput::Inherit, notify).await?)
}

/// The slice is put into the container; docker's own client runs without one.
async fn docker_client(
    engine: &Engine,
    spec: TaskSpec,
    docker: &DockerRun,
    lease: &Lease,
    driver: &dyn Driver,
    notify: &dyn Fn(&str),
) -> Result<TaskSpec, NodeError> {
    let parts = driver.container_parts(&lease.slices)?;
    let copies = engine.copies_in(docker, &spec, &lease.task, notify).await.map_err(StartError::from)?;
    if let Some(summary) = copies.summary() {
        notify(&summary);
    }
    let words = docker.with_slice(&spec, &lease.task, &parts.devices, &parts.files, &copies);
    let words = words.map_err(StartError::from)?;
    Ok(TaskSpec {
        argv: words.into_iter().map(Into::into).collect(),
        slices: Vec::new(),
        cgroup: None,
        host: None,
        is_client: true,
        secrets: std::collections::BTreeMap::new(),
        ..spec
    })
}
