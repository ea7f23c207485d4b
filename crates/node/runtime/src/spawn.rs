//! Starts the confined first process of a task from its spec.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use cantle_model::Holder;
use nix::fcntl::OFlag;

use crate::cgroup::Cgroup;
use crate::error::Why as _;
use crate::first::{Go, Orders, Reports};
use crate::processes::{FileId, Scope, child_of, pid_of};
use crate::sandbox::{self, Inside};
use crate::{
    Backend, BackendChoice, Confinement, Privileges, StartError, TaskSpec, TaskUser, environment, holder_of,
};

/// The task's stdin, stdout and stderr.
pub(crate) enum Stdio3 {
    /// Those of this process.
    Inherit,
    /// Nothing in, one file for both outputs.
    Log(File),
}

/// Whether the task shares the process group of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// It does: the terminal's signals reach both, and job control works by itself.
    Shared,
    /// It has its own.
    Own,
}

pub(crate) struct Spawned {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    /// The report of the task's first process; none for the client of an engine.
    pub(crate) reports: Option<Reports>,
    /// To be kept as long as the task lives.
    pub(crate) accounting: Accounting,
}

/// The files of a slice's accounting, open for writing: as long as they are, the kernel gives no process of the task a lease on them
/// (`F_SETLEASE`), which would delay everybody else who opens them.
pub(crate) struct Accounting {
    _files: Vec<File>,
}

impl Accounting {
    /// Those that are there; a task without GPUs has none.
    fn open(confinement: &Confinement) -> Self {
        let files = confinement.slice_files().into_iter();
        let open = |name| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
            options.open(confinement.slice_dir.join(name)).ok()
        };
        Self { _files: files.filter_map(|(name, _)| open(name)).collect() }
    }
}

/// Starts the task behind the strongest backend that is possible and allowed. `record` writes down where its processes are found, before
/// its first instruction; without that, it does not start.
pub(crate) fn spawn(
    spec: &TaskSpec,
    stdio: Stdio3,
    group: Group,
    record: impl FnOnce(&Scope, &Backend) -> Result<(), StartError>,
) -> Result<Spawned, StartError> {
    if spec.argv.is_empty() {
        return Err(StartError::NoCommand);
    }
    let directory = sandbox::working_directory(spec)?;
    if spec.is_client {
        return spawn_client(spec, stdio, group);
    }
    let accounting = Accounting::open(&spec.confinement);
    // This thread sees the machine. In the task's namespaces the groups do not exist, and `/proc` has other pids.
    let cgroup = cgroup_of(spec)?;
    let first = if spec.confinement.backend == BackendChoice::Preload && !spec.slices.is_empty() {
        let backend = Backend::Preload { why: "preload was asked for".to_owned() };
        spawn_first(spec, cgroup.as_ref(), &directory, backend, None, stdio, group)
    } else {
        spawn_in_sandbox(spec, cgroup.as_ref(), &directory, stdio, group)
    };
    let spawned = first.and_then(|first| first.started(spec, &directory, cgroup.clone(), accounting, record));
    if let (Err(_), Some(cgroup)) = (&spawned, &cgroup) {
        cgroup.remove();
    }
    spawned
}

/// The control group of a task, with the limits of its processors and memory. One that is there already has them.
fn cgroup_of(spec: &TaskSpec) -> Result<Option<Cgroup>, StartError> {
    match (&spec.cgroup, &spec.host) {
        (Some(cgroup), _) => Ok(Some(cgroup.clone())),
        (None, None) => Ok(Cgroup::make(&spec.lease.0)),
        (None, Some(host)) => Cgroup::make_limited(&spec.lease.0, host)
            .map(Some)
            .map_err(|why| StartError::setup(format!("limit its processors and memory to {host}"), why)),
    }
}

/// A program of the machine's: the client of an engine, which starts the task elsewhere.
fn spawn_client(spec: &TaskSpec, stdio: Stdio3, group: Group) -> Result<Spawned, StartError> {
    let [program, args @ ..] = spec.argv.as_slice() else { return Err(StartError::NoCommand) };
    let mut command = Command::new(program);
    command.args(args);
    let name = program.to_string_lossy().into_owned();
    let surroundings = Surroundings { backend: &Backend::None, enters: true };
    let child = execute(command, spec, surroundings, stdio, group)?.map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => StartError::NotFound(name),
        _ => StartError::NotExecutable { program: name, why },
    })?;
    let own = std::process::id();
    let root = holder_of(own).ok_or_else(|| StartError::setup("read /proc", "own process not found"))?;
    let scope = Scope::below(root, or_nobody(child.id()), None);
    let accounting = Accounting { _files: Vec::new() };
    Ok(Spawned { scope, backend: Backend::None, reports: None, accounting })
}

/// A thread enters the task's namespaces, makes the child there, and ends. No other process stays in between, and a failure
/// is an ordinary error.
fn spawn_in_sandbox(
    spec: &TaskSpec,
    cgroup: Option<&Cgroup>,
    directory: &Path,
    stdio: Stdio3,
    group: Group,
) -> Result<FirstProcess, StartError> {
    let privileges = spec.confinement.privileges;
    let outcome = thread::scope(|scope| {
        let maker = thread::Builder::new().spawn_scoped(scope, || {
            if let Err(why) = sandbox::enter(spec) {
                return Err((why, stdio));
            }
            let backend = match privileges {
                _ if spec.slices.is_empty() => Backend::None,
                Privileges::Machine => Backend::PrivilegedMountNamespace,
                Privileges::Own | Privileges::NoNew => Backend::MountNamespace,
            };
            Ok(spawn_first(spec, cgroup, directory, backend, Some(Inside { privileges }), stdio, group))
        });
        let maker = maker.map_err(|why| StartError::setup("start a thread", why))?;
        maker.join().map_err(|_| StartError::setup("mount namespace", "the thread panicked"))
    })?;
    match outcome {
        Ok(spawned) => spawned,
        // Without GPUs there is no limit that another backend could enforce.
        Err((why, stdio)) if why.is_forbidden() && spec.slices.is_empty() => {
            spawn_first(spec, cgroup, directory, Backend::None, None, stdio, group)
        }
        Err((why, stdio)) if why.is_forbidden() && spec.confinement.backend == BackendChoice::Auto => {
            let backend = Backend::Preload { why: format!("no mount namespace: {why}") };
            spawn_first(spec, cgroup, directory, backend, None, stdio, group)
        }
        Err((why, _)) if why.cause().is_out_of_room() => Err(StartError::Setup {
            what: "make the sandbox".to_owned(),
            why: why.to_string(),
            is_out_of_room: true,
        }),
        Err((why, _)) => Err(StartError::Namespace(why.to_string())),
    }
}

/// A first process of cantle's, which enters the task's control group, gives up privileges and starts the task.
struct FirstProcess {
    pid: u32,
    go: Go,
    reports: Reports,
    backend: Backend,
    is_apart: bool,
}

fn spawn_first(
    spec: &TaskSpec,
    cgroup: Option<&Cgroup>,
    directory: &Path,
    backend: Backend,
    inside: Option<Inside>,
    stdio: Stdio3,
    group: Group,
) -> Result<FirstProcess, StartError> {
    let setup = |what: &'static str| move |why: io::Error| StartError::setup(what, why);
    let is_apart = inside.is_some();
    let (reports, theirs) = Reports::pipe().map_err(setup("pipe"))?;
    let (go, awaited) = Go::pipe().map_err(setup("pipe"))?;
    let orders = Orders {
        report: theirs.as_raw_fd(),
        go: awaited.as_raw_fd(),
        door: cgroup.map(Cgroup::door),
        more_doors: cgroup.map(|group| group.more_doors.clone()).unwrap_or_default(),
        inside,
        no_new_privileges: spec.confinement.privileges == Privileges::NoNew,
        user: spec.user.clone(),
        directory: directory.to_owned(),
    };
    let command = orders.command(&spec.argv).map_err(setup("first process"))?;
    let surroundings = Surroundings { backend: &backend, enters: false };
    let first = execute(command, spec, surroundings, stdio, group)?;
    let first = first.map_err(setup("start the first process"))?;
    Ok(FirstProcess { pid: first.id(), go, reports, backend, is_apart })
}

impl FirstProcess {
    /// Waits until it has started the task.
    fn started(
        mut self,
        spec: &TaskSpec,
        directory: &Path,
        cgroup: Option<Cgroup>,
        accounting: Accounting,
        record: impl FnOnce(&Scope, &Backend) -> Result<(), StartError>,
    ) -> Result<Spawned, StartError> {
        let program = spec.argv.first().map(|program| program.to_string_lossy().into_owned());
        let root = or_nobody(self.pid);
        let usage = self
            .is_apart
            .then(|| FileId::of(&spec.confinement.slice_dir.join(cantle_ledger::USAGE_FILE)))
            .flatten();
        let scope = Scope { cgroup, ..Scope::below(root, root, usage) };
        let (go, reports, user) = (self.go, &mut self.reports, spec.user.as_ref());
        let started = record(&scope, &self.backend).and_then(|()| {
            go.say(&spec.secrets).map_err(|why| StartError::setup("first process", why))?;
            reports.started(&program.unwrap_or_default(), directory, user)
        });
        if let Err(error) = started {
            // The first error is the one to report.
            let _ = nix::sys::wait::waitpid(pid_of(&root), None);
            return Err(error);
        }
        let scope = Scope { leader: child_of(&root).unwrap_or(root), ..scope };
        Ok(Spawned { scope, backend: self.backend, reports: Some(self.reports), accounting })
    }
}

/// A child that has ended already, but was not waited for, has no holder; no other process may be mistaken for it.
fn or_nobody(pid: u32) -> Holder {
    holder_of(pid).unwrap_or(Holder { pid, start_ticks: u64::MAX })
}

/// The surroundings of a command, in addition to its spec.
struct Surroundings<'a> {
    backend: &'a Backend,
    /// It starts in the task's working directory; otherwise the program enters it.
    enters: bool,
}

/// Gives the command the task's surroundings and starts it.
fn execute(
    mut command: Command,
    spec: &TaskSpec,
    Surroundings { backend, enters }: Surroundings<'_>,
    stdio: Stdio3,
    group: Group,
) -> Result<io::Result<Child>, StartError> {
    if spec.clear_env {
        command.env_clear();
    }
    let inherited = |name: &str| if spec.clear_env { None } else { std::env::var_os(name) };
    // The service manager's socket is the agent's.
    command.env_remove("NOTIFY_SOCKET");
    if spec.user.is_some() {
        for name in TaskUser::not_for_it() {
            command.env_remove(name);
        }
    }
    command.env_remove("CANTLE_SLICE_DIR").envs(environment::for_task(spec, backend, inherited));
    if let Some(workspace) = &spec.workspace {
        let is_mounted = workspace.is_mounted && !enters;
        let path = if is_mounted { Path::new(sandbox::WORKSPACE_DIR) } else { &workspace.directory };
        command.env(crate::WORKSPACE, path);
    }
    let has_authorities =
        spec.env.contains_key(crate::AUTHORITIES) || inherited(crate::AUTHORITIES).is_some();
    if let Some(authorities) = spec.authorities.as_ref().filter(|_| !has_authorities) {
        command
            .env(crate::AUTHORITIES, if enters { authorities } else { Path::new(sandbox::AUTHORITIES_FILE) });
    }
    if let Some(cwd) = spec.cwd.as_ref().filter(|_| enters) {
        command.current_dir(cwd);
    }
    if group == Group::Own {
        command.process_group(0);
    }
    if let Stdio3::Log(file) = stdio {
        let second = file.try_clone().map_err(|why| StartError::setup("output file", why))?;
        command.stdin(Stdio::null()).stdout(file).stderr(second);
    }
    Ok(command.spawn())
}
