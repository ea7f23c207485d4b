//! The checks that need no server: refused allocations, findings of the watchdog, and stops that are due.

use std::time::Duration;

use cantle_node::{Finding, Watch};
use tokio::time::Instant;

use super::Executor;
use super::make_room::MakingRoom;
use super::run::Run;
use crate::environment::Environment;
use crate::idle::IdleWatch;
use crate::meter::count;
use crate::task_record::Stop;
use crate::view;

/// How often the GPUs are described for the metrics.
const DESCRIBE_INTERVAL: Duration = Duration::from_millis(500);

impl Executor {
    /// One scan of everything that needs no server.
    pub(crate) fn scan(&mut self, env: &Environment) {
        let now = Instant::now();
        self.tasks.values_mut().for_each(|run| run.entry_mut().take_over_again());
        self.tasks.values_mut().for_each(|run| run.note_first_process(env));
        self.tasks.values_mut().for_each(|run| run.scan_refusals(env, now));
        self.tasks.values_mut().for_each(|run| run.end_pre_stop(env, now));
        self.tasks.values_mut().for_each(|run| run.end_time(env, now));
        self.tasks.values_mut().for_each(|run| run.follow_idle(&self.idle));
        self.follow(env);
        if self.described_at.is_none_or(|at| now.duration_since(at) >= DESCRIBE_INTERVAL) {
            self.described_at = Some(now);
            if env.config.metrics_listen.is_some() {
                env.meter.counts().gpus = view::gpus(env.driver.as_ref(), &env.node, &env.gpus);
            }
        }
    }
}

impl Run {
    /// A task that makes room for others cannot work meanwhile.
    fn follow_idle(&mut self, idle: &IdleWatch) {
        let is_active = std::mem::take(&mut self.is_cared_for)
            || !matches!(self.room, MakingRoom::Holds | MakingRoom::Stays);
        let job = &self.entry().job;
        idle.follow(&job.lease, &job.slices, job.idle_limit, is_active);
    }

    /// Reports what the watchdog found out; the task is ended already if it was to be.
    pub(super) fn found(&mut self, env: &Environment, finding: Finding) {
        match finding {
            Finding::Suspect(why) | Finding::Trouble(why) => {
                count(&mut env.meter.counts().watchdog, "warn");
                env.note_in_task_log("watch", self.entry(), &why);
            }
            Finding::Guilty(why) if env.config.watch == Watch::Kill && !self.is_enforced() => {
                count(&mut env.meter.counts().watchdog, "kill");
                let why = format!("{why} (cantle explain watchdog-kill)");
                env.note_in_task_log("kill", self.entry(), &format!("killed: {why}"));
                self.stop_within(Stop::Enforced(why), Duration::ZERO);
            }
            Finding::Guilty(_) => {}
        }
    }
}
