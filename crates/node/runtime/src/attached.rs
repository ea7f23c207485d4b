//! A task as a child of this process, on its terminal: `cantle run`.

use std::fs::OpenOptions;
use std::thread;

use cantle_model::Holder;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use tokio::sync::oneshot;

use crate::processes::{Scope, pid_of};
use crate::running::TaskKind;
use crate::signals::{self, FromTerminal, Signals};
use crate::spawn::{Group, Stdio3, spawn};
use crate::{Backend, Exit, RunningTask, StartError, TaskSpec, supervisor};

#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    ended: oneshot::Receiver<Exit>,
    exit: Option<Exit>,
    signals: Signals,
}

/// Starts a task with this process's own stdin, stdout and stderr. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 that this
/// process gets while it waits go to the task. Needs a tokio runtime.
///
/// One such task per process: this process becomes the reaper of everything the task leaves behind, so it must have
/// no other children.
///
/// # Errors
/// If the task does not start; nothing is left behind then.
pub fn start_attached(spec: &TaskSpec) -> Result<RunningTask, StartError> {
    let setup = |what: &'static str| move |why: nix::Error| StartError::setup(what, why);
    set_child_subreaper(true).map_err(setup("adopt the task's orphans"))?;
    // Before the task exists: a signal in between must not end this process and leave the task unsupervised.
    let (group, from_terminal) = if has_terminal() {
        (Group::Shared, FromTerminal::Caught)
    } else {
        (Group::Own, FromTerminal::Forwarded)
    };
    let signals = signals::for_task(from_terminal).map_err(|why| StartError::setup("signals", why))?;
    let spawned = spawn(spec, Stdio3::Inherit, group, |_, _| Ok(()))?;
    let scope = spawned.scope;
    let (sender, ended) = oneshot::channel();
    let (waiting, reports, accounting) = (scope.clone(), spawned.reports, spawned.accounting);
    // A thread of its own, not the async runtime's pool: that one would have to end before the runtime can.
    thread::spawn(move || {
        let _accounting = accounting;
        sender.send(supervisor::wait_for_all(&waiting, reports))
    });
    let task = Attached { scope, backend: spawned.backend, ended, exit: None, signals };
    Ok(RunningTask { kind: TaskKind::Attached(task) })
}

impl Attached {
    pub(crate) async fn wait(&mut self) -> Exit {
        loop {
            if let Some(exit) = self.exit {
                return exit;
            }
            tokio::select! {
                exit = &mut self.ended => self.exit = Some(exit.unwrap_or(Exit::Lost)),
                Some(signal) = self.signals.recv() => forward(&self.scope.leader, signal),
            }
        }
    }
}

/// Whether there is a terminal that sends signals to the foreground process group, ours and the task's.
fn has_terminal() -> bool {
    OpenOptions::new().read(true).open("/dev/tty").is_ok()
}

fn forward(leader: &Holder, signal: Signal) {
    // Gone in the meantime: its end is about to be seen.
    let _ = kill(pid_of(leader), signal);
}
