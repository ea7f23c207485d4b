//! The agent's main loop, and the messages between its parts.

use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::WireError;
use cantle_model::{Cause, Gpu, LeaseId, Milli, Slice, TaskId};
use cantle_node::{GpuClaim, Locked, NodeError};
use cantle_runtime::alive;
use cantle_sched::Eviction;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::backoff::Backoff;
use crate::claims::{Claims, Handover};
use crate::entry::{LeasedTask, OwnTasks};
use crate::environment::Environment;
use crate::executor::{Departure, Executor, Update};
use crate::listener::Listener;
use crate::planner::{History, Lent, PlanInputs, Planner, fleet};
use crate::release::{Ended, Release};
use crate::reporter::{self, Reporter};
use crate::task_record::{TaskFiles, TaskRecord};
use crate::visitors::serve_visitors;
use crate::wakeups::Wakeups;
use crate::{AgentConfig, AgentError, setup};

/// The longest time that a pass may take to end when the daemon has to stop.
const FINISH_PASS: Duration = Duration::from_secs(5);
/// After the grace period of a task, for its supervisor to record how it ended.
const SUPERVISOR_EXTRA: Duration = Duration::from_secs(3);
/// For the last reports to the server.
const GOODBYE: Duration = Duration::from_secs(10);

/// The parts, and what they work with.
pub(crate) struct Agent {
    env: Arc<Environment>,
    planner: Planner,
    claims: Claims,
    executor: Executor,
    reporter: Reporter,
    backoff: Backoff,
    wakeups: Wakeups,
    visitors: Listener,
    /// The GPUs are this agent's.
    claim: GpuClaim,
    /// The driver's libraries on this machine are no longer those that were opened.
    driver_replaced: bool,
}

/// Serves queues until `stop` becomes true or its sender is gone. Then it stops its tasks as ClearML's agent does, or leaves them
/// to the next agent ([`AgentConfig::keep_tasks`]), and returns. `ready` is called once, when tasks can come.
///
/// # Errors
/// At the start only: what was given does not fit this machine or this server. Later failures are logged, reported and
/// retried.
pub async fn daemon(
    config: AgentConfig,
    mut stop: watch::Receiver<bool>,
    ready: impl FnOnce(),
) -> Result<(), AgentError> {
    let mut release = Release::listen()?;
    let mut ended = serve(config.clone(), &mut stop, &mut release, Opened::First, ready).await?;
    while let Some(closed) = ended.closed_for() {
        if release.wait(&mut stop, closed).await {
            break;
        }
        ended = match serve(config.clone(), &mut stop, &mut release, Opened::Again, || ()).await {
            Ok(ended) => ended,
            Err(error) => {
                tracing::error!(%error, "the GPUs cannot be served again yet");
                Ended::DriverReplaced
            }
        };
    }
    Ok(())
}

/// How the driver is opened: for the first time, or again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    First,
    /// The administrator who had it closed has finished the reset.
    Again,
}

/// From the opening of the driver to its end.
async fn serve(
    config: AgentConfig,
    stop: &mut watch::Receiver<bool>,
    release: &mut Release,
    opened: Opened,
    ready: impl FnOnce(),
) -> Result<Ended, AgentError> {
    // It may wait for the server.
    let mut agent = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => return Ok(Ended::Stopped),
        made = setup::set_up(config) => made?,
    };
    if opened == Opened::Again {
        agent.env.node.forget_gpu_faults(&agent.env.gpus)?;
    }
    let metrics = match &agent.env.config.metrics_listen {
        Some(listen) => Some(agent.env.meter.serve(listen).await?),
        None => None,
    };
    agent.adopt()?;
    agent.claims.remove_leftovers(&agent.env).await?;
    ready();
    let ended = agent.run(stop, release).await;
    // Tasks that are kept are left as by an agent that was killed: what the next one needs is on disk.
    if !(agent.env.config.keep_tasks && matches!(ended, Ended::Stopped)) {
        agent.stop_everything().await;
    }
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    agent.close().await?;
    Ok(ended)
}

impl Agent {
    pub(crate) fn new(env: Environment, claim: GpuClaim, history: History) -> Self {
        let env = Arc::new(env);
        let executor = Executor::new(&env);
        let (wakeups, visitors) = (Wakeups::new(&env), serve_visitors(&env));
        Self {
            env,
            planner: Planner::new(history),
            claims: Claims::default(),
            executor,
            reporter: Reporter::default(),
            backoff: Backoff::default(),
            wakeups,
            visitors,
            claim,
            driver_replaced: false,
        }
    }

    /// Closes the driver, then releases the claim on its GPUs: a program that waits for the claim finds the driver
    /// closed.
    async fn close(self) -> Result<(), AgentError> {
        let Self { env, executor, wakeups, visitors, claim, .. } = self;
        let node = env.node.clone();
        wakeups.close().await;
        visitors.close().await;
        drop((executor, env));
        Ok(claim.release(&node)?)
    }

    async fn run(&mut self, stop: &mut watch::Receiver<bool>, release: &mut Release) -> Ended {
        let mut poll = interval(self.env.config.poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.wakeups.set_room(self.has_room());
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ended::Stopped,
                () = release.asked() => {
                    if self.own_tasks().leases.is_empty() {
                        return Ended::Released;
                    }
                    tracing::warn!("the driver stays open: tasks run here");
                }
                Some((lease, update)) = self.executor.next_update() => self.handle(&lease, update),
                () = self.wakeups.woken() => {}
                // More output of a task that has ended; what else there is to do comes in between.
                () = std::future::ready(()), if self.reporter.is_behind() && self.backoff.is_due() => {}
                _ = poll.tick() => {}
            }
            if let Some(library) = self.env.launcher.replaced_library() {
                if self.own_tasks().leases.is_empty() {
                    let library = library.display();
                    tracing::warn!(%library, "another driver has been installed: it is opened again");
                    return Ended::DriverReplaced;
                }
                self.meet_replaced_driver();
            }
            // All updates of one moment are handled together, before anything new is planned.
            while let Some((lease, update)) = self.executor.try_next_update() {
                self.handle(&lease, update);
            }
            let mut pass = std::pin::pin!(self.pass());
            tokio::select! {
                biased;
                () = &mut pass => {}
                // Its result borrows a lock, which must not be held over the wait below.
                () = async { drop(stop.wait_for(|stop| *stop).await) } => {
                    // Unfinished steps are completed, unless the server keeps them waiting. The state of an aborted
                    // step is on disk, as after a kill.
                    let _ = timeout(FINISH_PASS, pass).await;
                    return Ended::Stopped;
                }
            }
        }
    }

    /// Takes over every job of this server that no living daemon answers for: its task runs on under its limits. Needs no
    /// server.
    ///
    /// # Errors
    /// Names the file that cannot be read.
    fn adopt(&mut self) -> Result<(), AgentError> {
        // First the leases: what no living process holds now cannot be started under its lease any more.
        self.env.node.lock()?.sweep()?;
        for (dir, job) in TaskFiles::all(&self.env.jobs_dir)? {
            if job.server == self.env.config.server && !alive(&job.daemon) {
                self.adopt_job(dir, job)?;
            }
        }
        Ok(())
    }

    fn adopt_job(&mut self, dir: TaskFiles, job: TaskRecord) -> Result<(), AgentError> {
        let has_ended = dir.outcome()?.is_some();
        // The server repeats its request; the task may be in its abort callback.
        let stop = dir.stop()?.filter(|stop| !stop.is_told());
        let mut entry = LeasedTask::new(dir, job, stop);
        entry.take_over()?;
        if has_ended {
            self.reporter.take(entry);
        } else if let Some(running) =
            cantle_runtime::adopt(entry.dir.task_directory()).map_err(NodeError::from)?
        {
            // The runtime knows the task: it was started.
            self.start(Some(Handover::Adopt { entry, running: Box::new(running) }));
        } else {
            self.claims.adopt(entry);
        }
        Ok(())
    }

    /// Gives an update to the part that has the task.
    fn handle(&mut self, lease: &LeaseId, update: Update) {
        match (update, self.reporter.entry(lease)) {
            // The task was faster.
            (Update::PreStopEnded(how), Some(ended)) => self.env.note_in_task_log("stop", ended, &how),
            (update, _) => {
                let departure = self.executor.handle(&self.env, lease, update);
                self.pass_on(departure);
            }
        }
    }

    /// From the claims to the executor.
    fn start(&mut self, handover: Option<Handover>) {
        if let Some(handover) = handover {
            let departure = self.executor.take(&self.env, handover);
            self.pass_on(departure);
        }
    }

    /// From the executor to the others.
    fn pass_on(&mut self, departure: Option<Departure>) {
        match departure {
            Some(Departure::Returned(entry, why)) => self.claims.take_back(entry, why),
            Some(Departure::Ended(entry)) => self.reporter.take(entry),
            None => {}
        }
    }

    /// Everything there is to do now. An unreachable server never delays local work.
    async fn pass(&mut self) {
        self.executor.scan(&self.env);
        if !self.backoff.is_due() {
            return;
        }
        let passed = self.pass_online().await;
        self.env.meter.counts().server_up = !passed.as_ref().is_err_and(WireError::is_temporary);
        match passed {
            Ok(()) => self.backoff.answered(),
            Err(error) if error.is_temporary() => self.backoff.failed(&error),
            Err(error) => {
                // The server works but refuses; each call that may be refused is handled where it is made.
                tracing::error!(%error, "unexpected answer");
                self.backoff.failed(&error);
            }
        }
    }

    async fn pass_online(&mut self) -> Result<(), WireError> {
        // First: a task that this agent does not hold any more has nothing to report.
        self.executor.renew_leases(&self.env).await?;
        self.executor.report_changes(&self.env).await?;
        self.reporter.forward_logs(&self.env, self.executor.entries().collect()).await?;
        self.reporter.deliver(&self.env).await?;
        self.executor.handle_aborts(&self.env).await?;
        for lease in self.claims.unsettled() {
            let handover = self.claims.settle(&self.env, &lease).await?;
            self.start(handover);
        }
        self.start_claimed().await?;
        self.start_waiting().await?;
        let (waits, suspended) = (self.planner.waits(), self.executor.suspended());
        self.reporter.report(&self.env, &self.executor.running(), waits, suspended).await?;
        self.env.journal.flush(&self.env.server).await
    }

    /// Starts what is claimed: freshly, or again after the server was away.
    async fn start_claimed(&mut self) -> Result<(), WireError> {
        for lease in self.claims.claimed() {
            let handover = self.claims.announce(&self.env, &lease).await?;
            self.start(handover);
        }
        Ok(())
    }

    /// Tasks that run keep the old driver loaded. New ones wait for their end.
    fn meet_replaced_driver(&mut self) {
        if !std::mem::replace(&mut self.driver_replaced, true) {
            tracing::warn!(
                "another driver has been installed: no task is started until those that run have ended"
            );
        }
    }

    /// Starts the tasks that can start now, and requests the stop of others for those that could start then.
    async fn start_waiting(&mut self) -> Result<(), WireError> {
        if self.driver_replaced || self.executor.is_full() {
            return Ok(());
        }
        let fleet = fleet::read_fleet(&self.env).await?;
        self.executor.handle_evictions(&self.env, &fleet).await?;
        let has_returning = self.executor.has_returning();
        let Some(inputs) = self.planner.read(&self.env, fleet, has_returning).await? else { return Ok(()) };
        let (reserved, evictions) = self.place(&inputs).unwrap_or_else(|error| {
            tracing::error!(%error, "nothing new is started");
            Default::default()
        });
        if self.claims.claim(&self.env, reserved).await? {
            self.executor.wait_for_room();
        }
        self.start_claimed().await?;
        if let Some(fleet) = fleet::request_evictions(&self.env, evictions, &inputs.fleet).await? {
            self.executor.handle_evictions(&self.env, &fleet).await?;
        }
        Ok(())
    }

    /// Some GPU is not wholly taken by our tasks. The holdings of others are not considered.
    fn has_room(&self) -> bool {
        let taken = |gpu: &Gpu| -> u32 {
            let own = self.claims.entries().chain(self.executor.entries()).chain(self.reporter.entries());
            let slices = own.flat_map(|entry| &entry.job.slices);
            slices.filter(|slice| slice.gpu == gpu.uuid).map(|slice| slice.milli.0).sum()
        };
        let mut gpus = self.env.gpus.iter();
        self.env.config.allocation_mode.is_gpuless() || gpus.any(|gpu| taken(gpu) < Milli::ONE.0)
    }

    /// Plans, and records each placement while no other process can decide about the GPUs.
    fn place(&mut self, inputs: &PlanInputs) -> Result<(Vec<LeaseId>, Vec<Eviction>), AgentError> {
        let mut own = self.own_tasks();
        cantle_node::mig::look(self.env.driver.as_ref(), &self.env.node, &self.env.gpus);
        let locked = self.env.node.lock()?;
        let leases = locked.sweep()?;
        let (mut plan, returns) = self.planner.plan(&self.env, inputs, leases, &own)?;
        let mut is_returning = false;
        let mut lent = Lent::new();
        for back in returns {
            if take_back(&self.env, &locked, (back.task(), back.slices()), &mut plan.evictions, &mut lent)? {
                is_returning |= back.begin(&self.env, &locked)?;
            }
        }
        if is_returning {
            self.executor.bring_back(&self.env, &locked.leases()?);
        }
        let mut reserved = Vec::new();
        for start in plan.starts {
            // One by one: what a start takes is not taken back for the next one.
            if take_back(&self.env, &locked, (&start.task, &start.slices), &mut plan.evictions, &mut lent)? {
                let extras = inputs.extras(&self.env, &start);
                reserved.push(self.claims.reserve(&self.env, &locked, (start, extras), &mut own)?);
            }
        }
        self.planner.set_lent(&self.env, lent);
        Ok((reserved, plan.evictions))
    }

    fn own_tasks(&self) -> OwnTasks {
        let mut own = OwnTasks::default();
        self.claims.entries().chain(self.executor.entries()).for_each(|entry| own.add(entry, false));
        self.reporter.entries().for_each(|entry| own.add(entry, true));
        own
    }

    /// The end of the daemon: its tasks end with it, as with ClearML's agent.
    async fn stop_everything(&mut self) {
        let until = Instant::now() + self.env.config.stop_grace + SUPERVISOR_EXTRA;
        while self.executor.is_busy() && Instant::now() < until {
            self.executor.stop_all(&self.env);
            tokio::select! {
                Some((lease, update)) = self.executor.next_update() => self.handle(&lease, update),
                () = sleep_until(until) => {}
            }
        }
        match timeout(GOODBYE, self.say_goodbye()).await {
            Ok(Ok(())) => {}
            // Undelivered results are on disk; the next daemon delivers them.
            Ok(Err(error)) => tracing::warn!(%error, "not everything could be reported"),
            Err(_) => tracing::warn!("not everything could be reported in time"),
        }
    }

    /// The last reports: results, tasks that were not started after all, and that this agent is gone.
    async fn say_goodbye(&mut self) -> Result<(), WireError> {
        loop {
            self.reporter.deliver(&self.env).await?;
            if !self.reporter.is_behind() {
                break;
            }
        }
        for lease in self.claims.claimed() {
            let handover = self.claims.give_up(&self.env, &lease).await?;
            self.start(handover);
        }
        reporter::report_node(&self.env, Vec::new(), self.executor.suspended()).await?;
        self.env.journal.flush(&self.env.server).await?;
        reporter::unregister(&self.env).await
    }
}

/// Takes memory back that is lent of a task's new slices. `false`: others use it, and the task waits, which is noted in `lent`. A borrower that had
/// its time to give it back is evicted.
fn take_back(
    env: &Environment,
    locked: &Locked<'_>,
    (task, slices): (&TaskId, &[Slice]),
    evictions: &mut Vec<Eviction>,
    lent: &mut Lent,
) -> Result<bool, AgentError> {
    let awaited = cantle_node::take_back(env.driver.as_ref(), locked, &env.gpus, slices)?;
    let Some(awaited) = awaited else { return Ok(true) };
    let is_new = |lease: &LeaseId| evictions.iter().all(|eviction| eviction.lease != *lease);
    let overdue: Vec<_> = awaited.0.iter().filter(|it| it.is_overdue && is_new(&it.lease)).collect();
    evictions.extend(overdue.into_iter().map(|borrower| Eviction {
        task: borrower.task.clone(),
        lease: borrower.lease.clone(),
        node: env.node_name.clone(),
        for_task: task.clone(),
        cause: Cause::Lent,
    }));
    lent.insert(task.0.clone(), awaited);
    Ok(false)
}
