//! Suspends tasks that have to make room for others, where their queue or project wants it and the driver can.

use std::thread;

use cantle_model::{Lease, Suspension};
use cantle_node::make_room;

use super::run::Run;
use super::{Executor, Update, UpdateSender};
use crate::environment::Environment;

/// How far a task has got with making room for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MakingRoom {
    /// It holds its slices.
    #[default]
    Holds,
    /// It is being suspended.
    Suspending,
    /// It is suspended: it holds nothing. `returns`: it comes back without a command.
    Out { returns: bool },
    /// It cannot be suspended, so it is stopped for others.
    Stays,
}

impl Executor {
    /// Are there suspended tasks that come back as soon as there is room?
    pub(crate) fn has_returning(&self) -> bool {
        self.tasks.values().any(|run| run.room == MakingRoom::Out { returns: true })
    }

    /// Brings suspended tasks back that have got slices.
    pub(crate) fn bring_back(&self, env: &Environment, leases: &[Lease]) {
        self.recovery.look(&env.node, leases);
    }
}

impl Run {
    /// Makes room for another task by a suspension, if it can: `false` if it has to be stopped for that.
    pub(super) fn suspend(&mut self, env: &Environment, reason: &str, sender: &UpdateSender) -> bool {
        match self.room {
            MakingRoom::Stays => return false,
            MakingRoom::Suspending | MakingRoom::Out { .. } => return true,
            MakingRoom::Holds => self.room = MakingRoom::Suspending,
        }
        env.note("stop", Some(&self.entry().job.task.0), None, format!("making room: {reason}"));
        env.meter.counts().preemptions += 1;
        let (installation, node) = (env.config.installation.clone(), env.node.clone());
        let (lease, sender) = (self.entry().job.lease.clone(), sender.clone());
        // A thread of its own, as for a recovery: the end of the agent does not wait for the driver, and the next agent undoes what was begun.
        thread::spawn(move || {
            let made = make_room(&installation, &node, &lease).map_err(|error| error.to_string());
            let _ = sender.send((lease, Update::MadeRoom(made)));
        });
        true
    }

    /// The suspension has ended. A task that could not be suspended is stopped at the next look at the evictions.
    pub(super) fn made_room(&mut self, env: &Environment, made: Result<(), String>) {
        if self.room != MakingRoom::Suspending {
            return;
        }
        match made {
            // Its lease records that, and is read before the next look.
            Ok(()) => self.room = MakingRoom::Out { returns: true },
            Err(why) => {
                self.room = MakingRoom::Stays;
                // The server tells the task that it is to stop.
                self.is_changed = true;
                env.note_in_task_log("suspend", self.entry(), &format!("it is not suspended: {why}"));
            }
        }
    }

    /// Whether it is out, by its lease.
    pub(super) fn note_room(&mut self, lease: &Lease) {
        let out = lease.suspension.as_ref().filter(|suspension| suspension.is_suspended());
        self.room = match (out, self.room) {
            (Some(Suspension { yields, .. }), _) => MakingRoom::Out { returns: *yields },
            (None, MakingRoom::Out { .. }) => MakingRoom::Holds,
            (None, room) => room,
        };
    }
}
