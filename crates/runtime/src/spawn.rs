//! From a spec to a first process, confined.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use cantle_model::Holder;

use crate::processes::FileId;
use crate::{Backend, BackendChoice, StartError, TaskSpec, environment, holder_of, namespace, privileges};

/// Where the task's stdin, stdout and stderr go.
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
    pub(crate) child: Child,
    pub(crate) leader: Holder,
    pub(crate) backend: Backend,
    /// See [`Scope::usage`](crate::processes::Scope).
    pub(crate) usage: Option<FileId>,
}

/// Starts the task's first process behind the strongest backend that is possible and allowed.
pub(crate) fn spawn(spec: &TaskSpec, stdio: Stdio3, group: Group) -> Result<Spawned, StartError> {
    check(spec)?;
    if spec.slices.is_empty() {
        let child = execute(spec, &Backend::None, stdio, group)?;
        return Ok(spawned(spec, child, Backend::None));
    }
    if spec.confinement.backend == BackendChoice::Preload {
        return spawn_preloaded(spec, stdio, group, "preload was asked for".to_owned());
    }
    spawn_in_namespace(spec, stdio, group)
}

fn check(spec: &TaskSpec) -> Result<(), StartError> {
    if spec.argv.is_empty() {
        return Err(StartError::NoCommand);
    }
    // Asked for by itself, because the kernel reports a missing directory as if the program were missing.
    if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(StartError::NoWorkingDirectory(cwd.clone()));
    }
    if !spec.slices.is_empty() {
        let shim = &spec.confinement.shim_dir;
        let filters = ["libcuda.so", "libnvidia-ml.so"].map(|stem| spec.confinement.filter(stem));
        for file in filters.into_iter().chain([shim.join("libcantle-preload.so")]) {
            if !file.is_file() {
                return Err(StartError::NotInstalled(file));
            }
        }
    }
    Ok(())
}

/// A thread enters the namespace, makes the child there, and ends. No other process stays in between, and a failure
/// is an ordinary error.
fn spawn_in_namespace(spec: &TaskSpec, stdio: Stdio3, group: Group) -> Result<Spawned, StartError> {
    let outcome = thread::scope(|scope| {
        let maker = scope.spawn(|| {
            if let Err(why) = namespace::enter(&spec.confinement) {
                return Err((why, stdio));
            }
            if let Err(why) = privileges::withhold() {
                return Ok(Err(StartError::setup("withhold capabilities", why)));
            }
            Ok(execute(spec, &Backend::MountNamespace, stdio, group))
        });
        maker.join()
    });
    let outcome = outcome.map_err(|_| StartError::setup("mount namespace", "the thread panicked"))?;
    match outcome {
        Ok(child) => Ok(spawned(spec, child?, Backend::MountNamespace)),
        Err((why, stdio)) if why.is_forbidden() && spec.confinement.backend == BackendChoice::Auto => {
            spawn_preloaded(spec, stdio, group, format!("no mount namespace: {why}"))
        }
        Err((why, _)) => Err(StartError::Namespace(why.to_string())),
    }
}

fn spawn_preloaded(spec: &TaskSpec, stdio: Stdio3, group: Group, why: String) -> Result<Spawned, StartError> {
    let backend = Backend::Preload { why };
    let child = execute(spec, &backend, stdio, group)?;
    Ok(spawned(spec, child, backend))
}

fn spawned(spec: &TaskSpec, child: Child, backend: Backend) -> Spawned {
    let pid = child.id();
    // A child that has ended already, but was not waited for, has no holder; no other process may be mistaken for it.
    let leader = holder_of(pid).unwrap_or(Holder { pid, start_ticks: u64::MAX });
    let usage = match backend {
        Backend::MountNamespace => FileId::of(&spec.confinement.slice_dir.join("usage")),
        _ => None,
    };
    Spawned { child, leader, backend, usage }
}

fn execute(spec: &TaskSpec, backend: &Backend, stdio: Stdio3, group: Group) -> Result<Child, StartError> {
    let [program, args @ ..] = spec.argv.as_slice() else { return Err(StartError::NoCommand) };
    let mut command = Command::new(program);
    command.args(args);
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
    let program = program.to_string_lossy().into_owned();
    command.spawn().map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => StartError::NotFound(program),
        _ => StartError::NotExecutable { program, why },
    })
}
