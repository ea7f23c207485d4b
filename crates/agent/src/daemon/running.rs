//! Tasks that run: watched here, stopped when the server says so.

use std::time::Duration;

use cantle_clearml::events::Event;
use cantle_model::LeaseId;
use cantle_runtime::{Exit, Running};
use tokio::time::{Instant, sleep_until, timeout};

use super::Agent;
use super::entry::{Entry, Stage};
use super::execute::News;
use super::meter::count;
use crate::clock::now_ms;
use crate::job::{Outcome, Stop};
use crate::view;
use crate::watchdog::{Finding, Watch};

/// After the grace of a task, for its supervisor to write down how it ended.
const SUPERVISOR_EXTRA: Duration = Duration::from_secs(3);
/// How often the driver is asked who holds what.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// For the last words to the server.
const GOODBYE: Duration = Duration::from_secs(10);

impl Agent {
    /// Has [`Agent::task_ended`] called when the task and everything it left behind are gone.
    pub(crate) fn watch(&self, lease: LeaseId, mut task: Running) {
        let news = self.news_sender.clone();
        tokio::spawn(async move {
            let exit = task.wait().await;
            // The receiver is gone only when the daemon is; then the next one finds the runtime's own note.
            let _ = news.send((lease, News::Ended(exit)));
        });
    }

    /// Looks at what needs no server.
    pub(crate) fn watch_local(&mut self) {
        let now = Instant::now();
        let mut news = Vec::new();
        for (lease, entry) in &mut self.entries {
            let (Stage::Running(stopper), Some(refusals)) = (&entry.stage, &mut entry.refusals) else {
                continue;
            };
            if let Some(line) = refusals.news(&entry.job.slices, &self.gpus, || stopper.pids(), now) {
                news.push((lease.clone(), line));
            }
            self.meter.refused(&entry.job.slices, &refusals.take_counts());
        }
        for (lease, line) in news {
            self.tell_task("refuse", &lease, &line);
        }
        self.end_tidying();
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            if self.config.metrics_listen.is_some() {
                self.meter.counts().gpus = view::gpus(&self.node, &self.gpus);
            }
            self.watch_memory(now);
        }
    }

    /// Compares what the driver says with what was counted, and stops who goes beyond.
    fn watch_memory(&mut self, now: Instant) {
        if !self.entries.values().any(Entry::is_running) {
            return;
        }
        let entries = &self.entries;
        let ours = |lease: &LeaseId| {
            entries.get(lease).is_some_and(|entry| entry.is_running() && entry.stop.is_none())
        };
        let findings = self.watchdog.look(self.driver.as_ref(), &self.node, &self.gpus, ours, now);
        for (lease, finding) in findings {
            match finding {
                Finding::Suspect(why) => {
                    count(&mut self.meter.counts().watchdog, "warn");
                    self.tell_task("watch", &lease, &why);
                }
                Finding::Guilty(why) if self.config.watch == Watch::Kill => {
                    count(&mut self.meter.counts().watchdog, "kill");
                    let why = format!("{why} (cantle explain watchdog-kill)");
                    self.tell_task("kill", &lease, &format!("killed: {why}"));
                    self.stop_within(&lease, Stop::Enforced(why), Duration::ZERO);
                }
                Finding::Guilty(_) => {}
            }
        }
    }

    /// Notes what happened to a task, with its name, and puts it into the task's own log too.
    pub(crate) fn tell_task(&mut self, kind: &str, lease: &LeaseId, what: &str) {
        let Some(entry) = self.entries.get(lease) else { return };
        let (task, line) = (entry.job.task.0.clone(), format!("task {}: {what}", entry.job.name));
        let event = Event::log(&task, &self.speaker(entry), now_ms(), format!("cantle: {what}\n"));
        self.link.add_to_log(event);
        self.note(kind, Some(&task), None, line);
    }

    pub(crate) fn task_ended(&mut self, lease: &LeaseId, exit: Exit) {
        let outcome = match exit {
            Exit::Lost => Outcome {
                code: None,
                message: Some(
                    "its supervisor was killed, or the machine restarted: nobody saw how it ended".to_owned(),
                ),
            },
            exit => Outcome { code: Some(exit.code()), message: None },
        };
        self.settle(lease, outcome);
    }

    /// Writes down how a task ended, then gives its slice back.
    pub(crate) fn settle(&mut self, lease: &LeaseId, outcome: Outcome) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        let refused = entry.refusals.take().and_then(|mut refusals| {
            let line = refusals.last_words(&entry.job.slices, &self.gpus, Vec::new);
            self.meter.refused(&entry.job.slices, &refusals.take_counts());
            line
        });
        if let Err(error) = entry.dir.set_outcome(&outcome) {
            tracing::error!(%error, "how a task ended is not on disk");
        }
        entry.stage = Stage::Ended;
        if let Some(line) = refused {
            self.tell_task("refuse", lease, &line);
        }
        self.give_back(lease);
    }

    /// Frees a lease whose task has no process any more.
    pub(crate) fn give_back(&mut self, lease: &LeaseId) {
        let freed = self.node.lock().and_then(|locked| match locked.lease(lease)? {
            Some(lease) => locked.retire(&lease),
            None => Ok(()),
        });
        if let Err(error) = freed {
            // The sweep before the next plan tries again.
            tracing::error!(%error, %lease, "a slice is not free yet");
        }
        self.planning.changed = true;
    }

    /// Starts to stop a task; [`Agent::task_ended`] follows when it is gone.
    pub(crate) fn stop(&mut self, lease: &LeaseId, stop: Stop) {
        self.stop_within(lease, stop, self.config.stop_grace);
    }

    fn stop_within(&mut self, lease: &LeaseId, stop: Stop, grace: Duration) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        let Stage::Running(stopper) = &entry.stage else { return };
        if let Err(error) = entry.dir.set_stop(&stop) {
            tracing::error!(%error, "why a task is stopped is not on disk");
        }
        entry.stop = Some(stop);
        let stopper = stopper.clone();
        tokio::spawn(async move { stopper.stop(grace).await });
    }

    /// The end of the daemon: its tasks end with it, as with ClearML's agent.
    pub(crate) async fn stop_everything(&mut self) {
        let until = Instant::now() + self.config.stop_grace + SUPERVISOR_EXTRA;
        while self.entries.values().any(Entry::is_busy) && Instant::now() < until {
            for lease in self.leases_where(|entry| entry.is_running() && entry.stop.is_none()) {
                self.stop(&lease, Stop::Shutdown);
            }
            tokio::select! {
                Some((lease, news)) = self.news.recv() => self.heed(&lease, news),
                () = sleep_until(until) => {}
            }
        }
        match timeout(GOODBYE, self.say_goodbye()).await {
            Ok(Ok(())) => {}
            // What is not delivered is on disk; the next daemon delivers it.
            Ok(Err(error)) => tracing::warn!(%error, "not everything could be reported"),
            Err(_) => tracing::warn!("not everything could be reported in time"),
        }
    }
}
