use std::path::PathBuf;
use std::time::Duration;

use cantle_model::Holder;

use crate::attached::Attached;
use crate::container::{Container, ContainerStopper};
use crate::detached::Detached;
use crate::processes::Scope;
use crate::{Backend, Cgroup, Exit};

/// A task that was started or adopted.
#[derive(Debug)]
pub struct RunningTask {
    pub(crate) kind: TaskKind,
}

#[derive(Debug)]
pub(crate) enum TaskKind {
    Attached(Attached),
    Detached(Detached),
    Container(Container),
}

impl RunningTask {
    /// Its first process.
    #[must_use]
    pub const fn leader(&self) -> Holder {
        self.scope().leader
    }

    /// The backend that enforces its limit.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        match &self.kind {
            TaskKind::Attached(task) => &task.backend,
            TaskKind::Detached(task) => &task.backend,
            TaskKind::Container(task) => &task.backend,
        }
    }

    /// The directory of its control group, if it has one.
    #[must_use]
    pub fn cgroup(&self) -> Option<PathBuf> {
        let cgroup = match &self.kind {
            // An engine makes it.
            TaskKind::Container(task) if task.scope.cgroup.is_none() => {
                Cgroup::of_container(task.scope.leader.pid)
            }
            _ => self.scope().cgroup.clone(),
        };
        cgroup.map(|cgroup| cgroup.dir().to_owned())
    }

    /// Waits until the task and every process it left behind are gone. May be cancelled and called again.
    pub async fn wait(&mut self) -> Exit {
        match &mut self.kind {
            TaskKind::Attached(task) => task.wait().await,
            TaskKind::Detached(task) => task.wait().await,
            TaskKind::Container(task) => task.wait().await,
        }
    }

    /// A handle that stops it, usable while another thread waits.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        let engine = match &self.kind {
            TaskKind::Container(task) => Some(task.stopper()),
            TaskKind::Attached(_) | TaskKind::Detached(_) => None,
        };
        Stopper { scope: self.scope().clone(), engine }
    }

    /// Every living process of the task.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.scope().members().iter().map(|member| member.pid).collect()
    }

    const fn scope(&self) -> &Scope {
        match &self.kind {
            TaskKind::Attached(task) => &task.scope,
            TaskKind::Detached(task) => &task.scope,
            TaskKind::Container(task) => &task.scope,
        }
    }
}

/// Stops one task.
#[derive(Clone, Debug)]
pub struct Stopper {
    scope: Scope,
    engine: Option<ContainerStopper>,
}

impl Stopper {
    /// Every living process of the task.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.scope.members().iter().map(|member| member.pid).collect()
    }

    /// Its first process.
    #[must_use]
    pub const fn leader(&self) -> Holder {
        self.scope.leader
    }

    /// The CPU time of the task until now. It may decrease when a process ends, in a task without a control group of version 2.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        self.scope.cpu_time()
    }

    /// SIGTERM to every process of the task, and SIGKILL to those that are left after `grace`. Returns when none is.
    pub async fn stop(&self, grace: Duration) {
        self.end(grace).await;
    }

    /// SIGKILL at once.
    pub async fn kill(&self) {
        self.end(Duration::ZERO).await;
    }

    /// One SIGKILL to all that the kernel counts to the task, without the help of an engine and without waiting. Call [`Self::kill`]
    /// as well, which waits for their end.
    pub fn kill_now(&self) {
        self.scope.kill_once();
    }

    async fn end(&self, grace: Duration) {
        match &self.engine {
            Some(engine) if engine.stop(grace).await => {}
            // No engine, or one that hangs: its processes are ended nevertheless.
            _ => self.scope.end(grace).await,
        }
    }
}
