//! What needs no server: refused allocations, memory outside of slices, and stops that are due.

use std::time::Duration;

use cantle_model::LeaseId;
use cantle_node::{Finding, Watch};
use tokio::time::Instant;

use super::Executor;
use crate::environment::Environment;
use crate::meter::count;
use crate::task_record::Stop;
use crate::view;

/// How often the driver is asked which process holds what.
const SCAN_EVERY: Duration = Duration::from_millis(500);

impl Executor {
    /// One scan of everything that needs no server.
    pub(crate) fn scan(&mut self, env: &Environment) {
        let now = Instant::now();
        self.tasks.values_mut().for_each(|run| run.scan_refusals(env, now));
        self.tasks.values_mut().for_each(|run| run.end_pre_stop(env, now));
        if self.scanned_at.is_none_or(|at| now.duration_since(at) >= SCAN_EVERY) {
            self.scanned_at = Some(now);
            if env.config.metrics_listen.is_some() {
                env.meter.counts().gpus = view::gpus(&env.node, &env.gpus);
            }
            self.scan_memory(env, now);
        }
    }

    /// Compares what the driver says with what was counted, and stops the tasks that hold more.
    fn scan_memory(&mut self, env: &Environment, now: Instant) {
        if self.running().is_empty() {
            return;
        }
        let tasks = &self.tasks;
        let ours = |lease: &LeaseId| tasks.get(lease).is_some_and(|run| run.is_running_unstopped());
        let findings = self.watchdog.scan(env.driver.as_ref(), &env.node, &env.gpus, ours, now);
        for (lease, finding) in findings {
            let Some(mut found) = self.tasks.find(&lease) else { continue };
            let run = found.get_mut();
            match finding {
                Finding::Suspect(why) => {
                    count(&mut env.meter.counts().watchdog, "warn");
                    env.note_in_task_log("watch", run.entry(), &why);
                }
                Finding::Guilty(why) if env.config.watch == Watch::Kill => {
                    count(&mut env.meter.counts().watchdog, "kill");
                    let why = format!("{why} (cantle explain watchdog-kill)");
                    env.note_in_task_log("kill", run.entry(), &format!("killed: {why}"));
                    run.stop_within(Stop::Enforced(why), Duration::ZERO);
                }
                Finding::Guilty(_) => {}
            }
        }
    }
}
