//! A connection to one container engine.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::query_parameters::{CreateContainerOptions, ListContainersOptions, StartContainerOptions};
use cantle_model::LeaseId;

use super::admission::{self, Host};
use super::calls::{self, CALL_LIMIT, limited};
use super::contents::{edits_over, slice_edits};
use super::copies::{self, DriverCopies, DriverCopy, LibraryCopies};
use super::machine_root::MachineRoot;
use super::output::ContainerOutput;
use super::package::{self, Packages};
use super::plan::{self, InjectionMode, LABEL_LEASE, LABEL_TASK, Plan};
use super::searched::Searched;
use super::task::Container;
use super::{ContainerSpec, EngineError};
use crate::cdi::{self, Published};
use crate::running::TaskKind;
use crate::task_directory::ContainerRef;
use crate::{RunningTask, StartError, TaskSpec};

/// The report of `cantle doctor` about an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// Its socket.
    pub socket: PathBuf,
    /// Its version.
    pub version: String,
    /// Version of the cgroup hierarchy it uses, 1 or 2.
    pub cgroup: String,
    /// The program that makes the groups of its containers: `cgroupfs` (its runtime) or `systemd`.
    pub cgroup_driver: String,
    /// Runtimes it knows, e.g. `runc`, `nvidia`.
    pub runtimes: Vec<String>,
    /// Directories where it looks for CDI specs; none if it does not support CDI.
    pub cdi_dirs: Vec<String>,
}

impl EngineInfo {
    /// Whether a container can be started in a group that cantle has made.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn takes_groups(&self) -> Result<(), String> {
        match self.cgroup_driver.as_str() {
            "cgroupfs" => Ok(()),
            "" | "none" => Err("the container engine makes no control groups".to_owned()),
            driver => Err(format!(
                "the control groups of the container engine are made by {driver} (cgroupfs would let cantle make one)"
            )),
        }
    }
}

/// A container of cantle's that is on the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The lease it was made for.
    pub lease: LeaseId,
    /// Its id.
    pub id: String,
}

/// A container engine.
#[derive(Clone, Debug)]
pub struct Engine {
    docker: Docker,
    socket: PathBuf,
    /// The directory for specs of slices as devices; none: they come by mounts.
    cdi_dir: Option<PathBuf>,
    pub(super) searched: Searched,
    pub(super) packages: Packages,
}

impl Engine {
    /// Docker's socket.
    pub const DOCKER_SOCKET: &str = "/run/docker.sock";
    /// The socket of Podman's service.
    pub const PODMAN_SOCKET: &str = "/run/podman/podman.sock";

    /// Connects to the engine at `socket`; to the first that is there if none is given.
    ///
    /// # Errors
    /// If there is none, or it does not answer.
    pub async fn connect(socket: Option<&Path>) -> Result<Self, EngineError> {
        let usual = || {
            let mut sockets = [Self::DOCKER_SOCKET, Self::PODMAN_SOCKET].into_iter().map(Path::new);
            sockets.find(|path| path.exists()).unwrap_or_else(|| Path::new(Self::DOCKER_SOCKET))
        };
        let socket = socket.unwrap_or_else(usual).to_owned();
        let docker = calls::client(&socket)?;
        let (searched, packages) = (Searched::default(), Packages::default());
        let engine = Self { docker, socket, cdi_dir: None, searched, packages };
        // No call for its version: an engine runs three programs to find that out.
        match limited("ping", CALL_LIMIT, engine.docker.ping()).await {
            Ok(_) => Ok(engine),
            Err(_) if !engine.socket.exists() => Err(EngineError::NotThere(engine.socket)),
            Err(error) => Err(error),
        }
    }

    /// Keeps what images have of the driver's libraries in the file `searched`, so that each is searched once, and compatibility packages
    /// that are used in the directory `packages`.
    #[must_use]
    pub fn remembering(mut self, searched: PathBuf, packages: PathBuf) -> Self {
        self.searched = Searched(Some(searched));
        self.packages = Packages(Some(packages));
        self
    }

    /// Offers slices as devices from here on, if the engine takes devices by name.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn with_devices(mut self) -> Result<Self, EngineError> {
        // The last directory has precedence, and is the one for specs that come and go.
        self.cdi_dir = self.info().await?.cdi_dirs.pop().map(PathBuf::from);
        Ok(self)
    }

    pub(super) const fn docker(&self) -> &Docker {
        &self.docker
    }

    /// The kind of this engine.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn info(&self) -> Result<EngineInfo, EngineError> {
        let info = limited("info", CALL_LIMIT, self.docker.info()).await?;
        Ok(EngineInfo {
            socket: self.socket.clone(),
            version: info.server_version.unwrap_or_default(),
            cgroup: info.cgroup_version.map(|version| version.to_string()).unwrap_or_default(),
            cgroup_driver: info.cgroup_driver.map(|driver| driver.to_string()).unwrap_or_default(),
            runtimes: info.runtimes.into_iter().flatten().map(|(name, _)| name).collect(),
            cdi_dirs: info.cdi_spec_dirs.unwrap_or_default(),
        })
    }

    /// Starts a task in a container. The slice's accounting must exist in `spec.confinement.slice_dir`;
    /// `spec.cwd` is not used, because the machine's directories mean nothing in a container.
    ///
    /// # Errors
    /// If the task's options are refused, the image is not available, or the container does not start. Nothing is left
    /// behind then.
    pub async fn start(
        &self,
        spec: &TaskSpec,
        container: &ContainerSpec,
        output: ContainerOutput,
    ) -> Result<RunningTask, StartError> {
        self.start_and_notify(spec, container, output, |_| ()).await
    }

    /// The same, with reports of steps that take long: in the task's log, or by `notify` where there is none.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_and_notify(
        &self,
        spec: &TaskSpec,
        container: &ContainerSpec,
        output: ContainerOutput,
        notify: impl Fn(&str),
    ) -> Result<RunningTask, StartError> {
        let mut protected = plan::protected(spec);
        protected.sources.extend(self.packages.0.clone());
        let admitted = admission::admit(&container.options, &protected, &Machine)?;
        let admitted = admission::of_user(admitted, spec.user.as_ref())?;
        let none = BTreeSet::new();
        check_files(spec, container)?;
        let mut device = self.offer(spec, container, &none);
        let mode = if device.is_some() { InjectionMode::Device } else { InjectionMode::Mounts };
        let plan = plan::plan(spec, container, &admitted, mode, &none)?;
        output.begin(&plan.log_head).map_err(|why| StartError::setup("output file", why))?;
        self.have_image(&container.image, &plan, |line| output.note(line, &notify)).await?;
        let mut id = self.create(&plan, &spec.lease).await?;
        let copies = self.copies(&id, spec, |line| output.note(line, &notify)).await;
        if let Ok(copies) = &copies
            && let Some(summary) = copies.summary()
        {
            output.note(&summary, &notify);
            let (mut spec, mut container) = (spec.clone(), container.clone());
            if let Some(package) = &copies.package {
                package.put_before(&mut spec, &mut container.driver_files);
            }
            match mode {
                InjectionMode::Device => {
                    // The engine reads the description when the container starts. The old one goes before the new one comes.
                    drop(device.take());
                    device = self.offer(&spec, &container, &copies.covered);
                }
                InjectionMode::Mounts => {
                    self.remove(&id).await?;
                    let plan = plan::plan(&spec, &container, &admitted, mode, &copies.covered)?;
                    id = self.create(&plan, &spec.lease).await?;
                }
            }
        }
        let started = match copies {
            Ok(_) => self.run_created(&id, spec, output).await,
            Err(error) => Err(error.into()),
        };
        drop(device);
        if started.is_err() {
            // The first error is the one to report.
            let _ = self.remove(&id).await;
        }
        Ok(RunningTask { kind: TaskKind::Container(started?) })
    }

    /// The image's own copies of the driver's libraries, which a task with a slice must not load without the filter.
    pub(super) async fn copies(
        &self,
        id: &str,
        spec: &TaskSpec,
        notify: impl Fn(&str),
    ) -> Result<DriverCopies, EngineError> {
        if spec.slices.is_empty() {
            return Ok(DriverCopies::default());
        }
        let LibraryCopies { covered, image } = copies::find(&self.docker, id, &self.searched).await?;
        let driver = &spec.confinement.libraries;
        let newer = package::newer(&covered, driver).zip(image);
        let Some((libcuda, image)) = newer else { return Ok(DriverCopies { covered, package: None }) };
        let package = self.packages.of_image((&self.docker, id), &image, &libcuda, driver).await;
        let package = package.unwrap_or_else(|why| {
            notify(&format!(
                "the driver's own libcuda is used, {} could not be copied: {why}",
                libcuda.display()
            ));
            None
        });
        Ok(DriverCopies { covered, package })
    }

    async fn run_created(
        &self,
        id: &str,
        spec: &TaskSpec,
        output: ContainerOutput,
    ) -> Result<Container, StartError> {
        let call = self.docker.start_container(id, None::<StartContainerOptions>);
        if let Err(error) = limited("start", CALL_LIMIT, call).await {
            let program = spec.argv.first().map(|word| word.to_string_lossy().into_owned());
            return Err(explain(error, program.unwrap_or_default()));
        }
        let at = ContainerRef { socket: self.socket.clone(), id: id.to_owned() };
        Container::watch(self.docker.clone(), at, spec, output).await
    }

    /// The engine reads the spec at the start and never again: it goes with what is returned.
    fn offer(
        &self,
        spec: &TaskSpec,
        container: &ContainerSpec,
        copies: &BTreeSet<DriverCopy>,
    ) -> Option<Published> {
        let dir = self.cdi_dir.as_ref().filter(|_| !spec.slices.is_empty())?;
        let container_edits = edits_over(spec, &container.devices, &container.driver_files, copies);
        let device = cdi::CdiDevice { name: spec.lease.0.clone(), container_edits };
        // Without the right to write there the container gets the same by mounts.
        cdi::Spec::of_slices(vec![device]).publish(dir, &spec.lease.0).ok()
    }

    /// Makes the container, or finds it made: an answer may get lost, and the name is the lease's own.
    async fn create(&self, plan: &Plan, lease: &LeaseId) -> Result<String, EngineError> {
        let options =
            CreateContainerOptions { name: Some(plan.name.clone()), platform: plan.extra.platform.clone() };
        let call = self.docker.create_container(Some(options), plan.body.clone());
        let error = match limited("create", CALL_LIMIT, call).await {
            Ok(created) => return Ok(created.id),
            Err(error) => error,
        };
        let found = self.leftovers().await?.into_iter().find(|leftover| leftover.lease == *lease);
        found.map(|leftover| leftover.id).ok_or(error)
    }

    /// Every container of cantle's that is on the engine, running or not. The caller removes those without a lease.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub async fn leftovers(&self) -> Result<Vec<Leftover>, EngineError> {
        let filters = [("label".to_owned(), vec![LABEL_LEASE.to_owned(), LABEL_TASK.to_owned()])];
        let options =
            ListContainersOptions { all: true, filters: Some(filters.into()), ..Default::default() };
        let list = limited("list", CALL_LIMIT, self.docker.list_containers(Some(options))).await?;
        let leftover = |summary: bollard::models::ContainerSummary| {
            let lease = summary.labels?.remove(LABEL_LEASE)?;
            Some(Leftover { lease: LeaseId(lease), id: summary.id? })
        };
        Ok(list.into_iter().filter_map(leftover).collect())
    }

    /// Ends and removes a container.
    ///
    /// # Errors
    /// If the engine does not answer. A container that is not there is no error.
    pub async fn remove(&self, id: &str) -> Result<(), EngineError> {
        calls::remove(&self.docker, id).await
    }
}

/// An engine reports a missing file only after it has fetched the image, and without the reason.
fn check_files(spec: &TaskSpec, container: &ContainerSpec) -> Result<(), StartError> {
    let edits = slice_edits(spec, &container.devices, &container.driver_files);
    let machine = MachineRoot::own().map_err(|why| StartError::setup("the machine's files", why))?;
    let missing = machine.missing(edits.host_paths());
    if missing.is_empty() { Ok(()) } else { Err(StartError::NotOnMachine(missing)) }
}

/// Recognizes the messages of container runtimes for a program that is not in the image, or cannot be executed; engines
/// pass them on.
fn explain(error: EngineError, program: String) -> StartError {
    let says = |text: &str| matches!(&error, EngineError::Refused { why, .. } if why.contains(text));
    let about_program = says("exec: ");
    if about_program && (says("executable file not found") || says("no such file or directory")) {
        return StartError::NotFound(program);
    }
    if about_program && says("permission denied") {
        return StartError::NotExecutable { program, why: io::ErrorKind::PermissionDenied.into() };
    }
    error.into()
}

/// The machine that the agent runs on.
pub(super) struct Machine;

impl Host for Machine {
    fn resolve(&self, path: &Path) -> PathBuf {
        // A source that does not exist yet is made by the engine; links further up still count.
        let real = path.ancestors().find_map(|ancestor| Some((ancestor, ancestor.canonicalize().ok()?)));
        let Some((ancestor, real)) = real else { return path.to_owned() };
        match path.strip_prefix(ancestor) {
            Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
            _ => real,
        }
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        fs::read_to_string(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_whose_runtime_makes_groups_takes_one() {
        let by = |driver: &str| EngineInfo {
            socket: PathBuf::new(),
            version: String::new(),
            cgroup: "2".to_owned(),
            cgroup_driver: driver.to_owned(),
            runtimes: Vec::new(),
            cdi_dirs: Vec::new(),
        };
        assert_eq!(by("cgroupfs").takes_groups(), Ok(()));
        assert_eq!(
            by("systemd").takes_groups().unwrap_err(),
            "the control groups of the container engine are made by systemd (cgroupfs would let cantle make one)"
        );
        assert_eq!(by("none").takes_groups().unwrap_err(), "the container engine makes no control groups");
    }
}
