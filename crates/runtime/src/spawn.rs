//! Starts the confined first process of a task from its spec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use cantle_model::Holder;

use crate::cgroup::Cgroup;
use crate::first::{Orders, Reports};
use crate::processes::{FileId, Scope, child_of, pid_of};
use crate::{Backend, BackendChoice, Privileges, StartError, TaskSpec, environment, holder_of, namespace};

/// The task's stdin, stdout and stderr.
pub(crate) enum Stdio3 {
    /// Those of this process.
    Inherit,
    /// Nothing in, one file for both outputs.
    Log(std::fs::File),
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
    /// The report of the task's first process; none for a task without GPUs, which is its own first process.
    pub(crate) reports: Option<Reports>,
}

/// Starts the task's first process behind the strongest backend that is possible and allowed.
pub(crate) fn spawn(spec: &TaskSpec, stdio: Stdio3, group: Group) -> Result<Spawned, StartError> {
    check(spec)?;
    if spec.slices.is_empty() {
        return spawn_alone(spec, stdio, group);
    }
    // This thread sees the machine. In the task's namespaces the groups are read-only, and `/proc` has other pids.
    let cgroup = Cgroup::make(&spec.lease.0);
    let first = if spec.confinement.backend == BackendChoice::Preload {
        let backend = Backend::Preload { why: "preload was asked for".to_owned() };
        spawn_first(spec, cgroup.as_ref(), backend, stdio, group)
    } else {
        spawn_in_namespace(spec, cgroup.as_ref(), stdio, group)
    };
    let spawned = first.and_then(|first| first.started(spec, cgroup.clone()));
    if let (Err(_), Some(cgroup)) = (&spawned, &cgroup) {
        cgroup.remove();
    }
    spawned
}

/// A task without GPUs.
fn spawn_alone(spec: &TaskSpec, stdio: Stdio3, group: Group) -> Result<Spawned, StartError> {
    let [program, args @ ..] = spec.argv.as_slice() else { return Err(StartError::NoCommand) };
    let mut command = Command::new(program);
    command.args(args);
    let name = program.to_string_lossy().into_owned();
    let child = execute(command, spec, &Backend::None, stdio, group)?.map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => StartError::NotFound(name),
        _ => StartError::NotExecutable { program: name, why },
    })?;
    let own = std::process::id();
    let root = holder_of(own).ok_or_else(|| StartError::setup("read /proc", "own process not found"))?;
    let scope = Scope::below(root, or_nobody(child.id()), None);
    Ok(Spawned { scope, backend: Backend::None, reports: None })
}

fn check(spec: &TaskSpec) -> Result<(), StartError> {
    if spec.argv.is_empty() {
        return Err(StartError::NoCommand);
    }
    // Asked for by itself, because the kernel reports a missing directory as if the program were missing.
    if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(StartError::NoWorkingDirectory(cwd.clone()));
    }
    Ok(())
}

/// A thread enters the namespace, makes the child there, and ends. No other process stays in between, and a failure
/// is an ordinary error.
fn spawn_in_namespace(
    spec: &TaskSpec,
    cgroup: Option<&Cgroup>,
    stdio: Stdio3,
    group: Group,
) -> Result<FirstProcess, StartError> {
    let outcome = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            if let Err(why) = namespace::enter(&spec.confinement) {
                return Err((why, stdio));
            }
            let backend = match spec.confinement.privileges {
                Privileges::Machine => Backend::PrivilegedMountNamespace,
                Privileges::Own | Privileges::NoNew => Backend::MountNamespace,
            };
            Ok(spawn_first(spec, cgroup, backend, stdio, group))
        });
        maker.join()
    });
    let outcome = outcome.map_err(|_| StartError::setup("mount namespace", "the thread panicked"))?;
    match outcome {
        Ok(spawned) => spawned,
        Err((why, stdio)) if why.is_forbidden() && spec.confinement.backend == BackendChoice::Auto => {
            let backend = Backend::Preload { why: format!("no mount namespace: {why}") };
            spawn_first(spec, cgroup, backend, stdio, group)
        }
        Err((why, _)) => Err(StartError::Namespace(why.to_string())),
    }
}

/// A first process of cantle's, which enters the task's control group, gives up privileges and starts the task.
struct FirstProcess {
    pid: u32,
    reports: Reports,
    backend: Backend,
}

fn spawn_first(
    spec: &TaskSpec,
    cgroup: Option<&Cgroup>,
    backend: Backend,
    stdio: Stdio3,
    group: Group,
) -> Result<FirstProcess, StartError> {
    let setup = |what: &'static str| move |why: io::Error| StartError::setup(what, why);
    let is_apart = !matches!(backend, Backend::Preload { .. });
    let (reports, theirs) = Reports::pipe().map_err(setup("pipe"))?;
    let orders = Orders::new(&theirs, cgroup, is_apart, spec.confinement.privileges);
    let command = orders.command(&spec.argv).map_err(setup("first process"))?;
    let first = execute(command, spec, &backend, stdio, group)?.map_err(setup("start the first process"))?;
    Ok(FirstProcess { pid: first.id(), reports, backend })
}

impl FirstProcess {
    /// Waits until it has started the task.
    fn started(mut self, spec: &TaskSpec, cgroup: Option<Cgroup>) -> Result<Spawned, StartError> {
        let program = spec.argv.first().map(|program| program.to_string_lossy().into_owned());
        let root = or_nobody(self.pid);
        if let Err(error) = self.reports.started(&program.unwrap_or_default()) {
            let _ = nix::sys::wait::waitpid(pid_of(&root), None);
            return Err(error);
        }
        let leader = child_of(&root).unwrap_or_else(|| or_nobody(root.pid));
        let is_apart = !matches!(self.backend, Backend::Preload { .. });
        let usage = is_apart.then(|| FileId::of(&spec.confinement.slice_dir.join("usage"))).flatten();
        let scope = Scope { cgroup, ..Scope::below(root, leader, usage) };
        Ok(Spawned { scope, backend: self.backend, reports: Some(self.reports) })
    }
}

/// A child that has ended already, but was not waited for, has no holder; no other process may be mistaken for it.
fn or_nobody(pid: u32) -> Holder {
    holder_of(pid).unwrap_or(Holder { pid, start_ticks: u64::MAX })
}

/// Gives the command the task's surroundings and starts it.
fn execute(
    mut command: Command,
    spec: &TaskSpec,
    backend: &Backend,
    stdio: Stdio3,
    group: Group,
) -> Result<io::Result<Child>, StartError> {
    if spec.clear_env {
        command.env_clear();
    }
    let inherited = |name: &str| if spec.clear_env { None } else { std::env::var_os(name) };
    // The service manager's socket is the agent's.
    command.env_remove("NOTIFY_SOCKET");
    command.env_remove("CANTLE_SLICE_DIR").envs(environment::for_task(spec, backend, inherited));
    if let Some(cwd) = &spec.cwd {
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
