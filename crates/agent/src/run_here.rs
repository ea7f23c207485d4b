//! `cantle run`: one task, now, on this machine, without a server.

use std::time::Duration;

use cantle_driver::{Driver, Installation};
use cantle_model::{
    ComputeMode, Gpu, GpuList, GpuRequest, Isolation, Lease, LeaseId, QueueSpec, QueueWant, TaskId,
};
use cantle_runtime::{
    Backend, BackendWish, ContainerSpec, DockerRun, Engine, Output, Running, StartError, Stopper, TaskSpec,
    start_attached,
};
use cantle_sched::{Policy, Queue, Reason, Waiting};
use tokio::time::{Instant, sleep, timeout};

use crate::Docker;
use crate::capacity;
use crate::clock::now_ms;
use crate::launch::{Command, Launcher, enforced_by, got, new_lease};
use crate::mig::{self, Stages, make_instances};
use crate::node::{Locked, Node};
use crate::refusals::Refusals;
use crate::watchdog::{Finding, Watchdog};
use crate::{AgentError, own_holder};

/// How often room is looked for while there is none.
const ROOM_EVERY: Duration = Duration::from_millis(100);

/// How often it is looked at what the task was refused, and what it takes all the same.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What `cantle run` was asked for.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// How much GPU.
    pub request: GpuRequest,
    /// Of which GPUs, or in which MIG instances as they are.
    pub gpus: GpuList,
    /// What must keep it apart from its neighbours.
    pub isolation: Isolation,
    /// How compute time is divided.
    pub compute: ComputeMode,
    /// What to run.
    pub command: Command,
    /// How long to wait for room; none: not at all.
    pub timeout: Option<Duration>,
    /// The driver whose GPUs are meant.
    pub installation: Installation,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: std::path::PathBuf,
    /// Which enforcement is accepted.
    pub wish: BackendWish,
    /// The container to run it in, if any.
    pub image: Option<Docker>,
}

/// Runs one task with our stdin, stdout and stderr and gives its exit code. `talk` gets one line about what it got.
///
/// # Errors
/// If it can't be started; then nothing of it is left.
pub async fn run_here(request: RunRequest, talk: &dyn Fn(&str)) -> Result<i32, AgentError> {
    run(request, None, talk).await
}

/// Runs a `docker run` command line with a slice of the GPU that it names, and gives its exit code.
///
/// # Errors
/// If an option would lift the limit, or it can't be started; then nothing of it is left.
pub async fn run_docker(
    request: RunRequest,
    docker: &DockerRun,
    talk: &dyn Fn(&str),
) -> Result<i32, AgentError> {
    run(request, Some(docker), talk).await
}

async fn run(
    request: RunRequest,
    docker: Option<&DockerRun>,
    talk: &dyn Fn(&str),
) -> Result<i32, AgentError> {
    // Promised and not kept would be worse than refused.
    match request.compute {
        ComputeMode::Even => {}
        ComputeMode::Fair => return Err(AgentError::Compute("fair".to_owned())),
        ComputeMode::Strict => return Err(AgentError::Compute("strict".to_owned())),
    }
    let driver = cantle_driver::open(&request.installation)?;
    let wanted = match docker {
        Some(docker) => GpuList::Indices(vec![docker.gpu_index().map_err(StartError::from)?]),
        None => request.gpus.clone(),
    };
    let (driver, gpus) = mig::chosen(driver, &wanted)?;
    let driver = driver.as_ref();
    let node = Node::open(&Node::dir_for(&request.installation))?;
    let launcher = Launcher::new(driver, &request.lib_dir, &node, request.wish)?;
    let lease = wait_for_room(driver, &node, &gpus, &request, talk).await?;
    let place = Place { driver, node: &node, gpus: &gpus, launcher: &launcher };
    let ran = run_under(&place, &request, docker, lease.clone(), talk).await;
    node.lock()?.retire(&lease)?;
    ran
}

/// Where a task runs.
struct Place<'a> {
    driver: &'a dyn Driver,
    node: &'a Node,
    gpus: &'a [Gpu],
    launcher: &'a Launcher,
}

async fn run_under(
    place: &Place<'_>,
    request: &RunRequest,
    docker: Option<&DockerRun>,
    mut lease: Lease,
    talk: &dyn Fn(&str),
) -> Result<i32, AgentError> {
    let &Place { driver, node, gpus, launcher } = place;
    make_instances(driver, node, gpus, &mut lease, &Stages::default())?;
    launcher.make_region(driver, node, &lease, gpus)?;
    let spec = launcher.spec(node, &lease.id, &lease.slices, &request.command);
    let mut task = match (docker, &request.image) {
        (Some(docker), _) => start_attached(&docker_client(spec, docker, &lease, driver)?)?,
        (None, Some(image)) => start_in(image, spec, &lease, driver, talk).await?,
        (None, None) => start_attached(&spec)?,
    };
    let backend = if docker.is_some() { &Backend::Container } else { task.backend() };
    let enforced = enforced_by(backend);
    lease.leader = Some(task.leader());
    lease.enforcement = backend.enforcement();
    node.lock()?.put(&lease)?;
    // An instance may be larger than what was asked for.
    let is_instance = lease.slices.iter().any(|slice| slice.mig.is_some());
    let asked = if is_instance { format!("asked {}, got ", request.request) } else { String::new() };
    talk(&format!("{asked}{}, {enforced}", got(&lease.slices, gpus)));
    let stopper = task.stopper();
    let mut eye = Eye {
        driver,
        node,
        gpus,
        lease: &lease,
        refusals: Refusals::of(&node.slice_dir(&lease.id)),
        watchdog: Watchdog::default(),
    };
    loop {
        let ended = timeout(LOOK_EVERY, task.wait()).await;
        if let Ok(exit) = ended {
            eye.last_look(talk);
            return Ok(exit.code());
        }
        if eye.look(&stopper, talk) {
            stopper.kill().await;
        }
    }
}

/// What is looked at while the task runs.
struct Eye<'a> {
    driver: &'a dyn Driver,
    node: &'a Node,
    gpus: &'a [Gpu],
    lease: &'a Lease,
    refusals: Option<Refusals>,
    watchdog: Watchdog,
}

impl Eye<'_> {
    /// Tells what there is to tell; true if the task must be stopped.
    fn look(&mut self, stopper: &Stopper, talk: &dyn Fn(&str)) -> bool {
        let now = Instant::now();
        let slices = &self.lease.slices;
        let refusals = self.refusals.as_mut();
        if let Some(line) = refusals.and_then(|it| it.news(slices, self.gpus, || stopper.pids(), now)) {
            talk(&line);
        }
        let ours = |lease: &LeaseId| *lease == self.lease.id;
        let mut guilty = false;
        for (_, finding) in self.watchdog.look(self.driver, self.node, self.gpus, ours, now) {
            match finding {
                Finding::Suspect(why) => talk(&why),
                Finding::Guilty(why) => {
                    talk(&format!("the task is killed: {why} (cantle explain watchdog-kill)"));
                    guilty = true;
                }
            }
        }
        guilty
    }

    /// Tells what has not been told when the task has ended.
    fn last_look(&mut self, talk: &dyn Fn(&str)) {
        let slices = &self.lease.slices;
        if let Some(line) = self.refusals.as_mut().and_then(|it| it.last_words(slices, self.gpus, Vec::new)) {
            talk(&line);
        }
    }
}

/// In a container of ours, shown as if it were a process of ours.
async fn start_in(
    image: &Docker,
    spec: TaskSpec,
    lease: &Lease,
    driver: &dyn Driver,
    talk: &dyn Fn(&str),
) -> Result<Running, AgentError> {
    let engine = Engine::connect(image.socket.as_deref()).await?;
    let parts = driver.container_parts(&lease.slices)?;
    let container = ContainerSpec {
        task: lease.task.clone(),
        image: image.image.clone().unwrap_or_default(),
        options: image.options.clone(),
        devices: parts.devices,
        driver_files: parts.files,
    };
    Ok(engine.start_and_tell(&spec, &container, Output::Inherit, talk).await?)
}

/// The slice is put into the container; docker's own client runs without one.
fn docker_client(
    spec: TaskSpec,
    docker: &DockerRun,
    lease: &Lease,
    driver: &dyn Driver,
) -> Result<TaskSpec, AgentError> {
    let parts = driver.container_parts(&lease.slices)?;
    let words =
        docker.with_slice(&spec, &lease.task, &parts.devices, &parts.files).map_err(StartError::from)?;
    Ok(TaskSpec { argv: words.into_iter().map(Into::into).collect(), slices: Vec::new(), ..spec })
}

async fn wait_for_room(
    driver: &dyn Driver,
    node: &Node,
    gpus: &[Gpu],
    request: &RunRequest,
    talk: &dyn Fn(&str),
) -> Result<Lease, AgentError> {
    let until = request.timeout.map(|timeout| Instant::now() + timeout);
    let mut told = String::new();
    loop {
        let reason = match take(driver, &node.lock()?, gpus, request)? {
            Ok(lease) => return Ok(lease),
            Err(reason) => reason,
        };
        if matches!(reason, Reason::Never { .. }) {
            return Err(AgentError::Never(reason.to_string()));
        }
        if until.is_none_or(|until| Instant::now() >= until) {
            return Err(AgentError::NoRoom(reason.to_string()));
        }
        let reason = reason.to_string();
        if reason != told {
            talk(&format!("waiting: {reason}"));
            told = reason;
        }
        sleep(ROOM_EVERY).await;
    }
}

/// Plans for this one task, and takes what the plan gives it.
fn take(
    driver: &dyn Driver,
    locked: &Locked<'_>,
    gpus: &[Gpu],
    request: &RunRequest,
) -> Result<Result<Lease, Reason>, AgentError> {
    let id = TaskId(format!("run-{}", own_holder().pid));
    let spec = QueueSpec { name: "run".to_owned(), want: QueueWant::Task };
    let now = now_ms();
    let mut waiting = Waiting::new(id.clone(), now).wanting(request.request.clone());
    waiting.isolation = request.isolation;
    let leases = locked.sweep()?;
    let state =
        capacity::state(driver, locked.node(), "here", gpus, &leases, vec![Queue::new(spec, vec![waiting])]);
    let decided = capacity::decide(&state, &Policy::default(), now)?;
    if let Some(wait) = decided.waits.into_iter().next() {
        return Ok(Err(wait.reason));
    }
    let mut slices = decided.starts.into_iter().next().map(|start| start.slices).unwrap_or_default();
    mig::name_given(driver, &mut slices)?;
    let name = request.command.argv.first().map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    let lease = new_lease(id, name, None, slices);
    locked.put(&lease)?;
    Ok(Ok(lease))
}
