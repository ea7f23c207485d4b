//! Periodic work of the leading server. It puts a task whose agent died between taking and starting it, or whose node is
//! gone, back to the front of its queue. It records the length of the queues and the projects' use of GPUs.

use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::ArrayElement;
use cantle_clearml::tasks::HyperParams;
use cantle_store::{ArrayStep, Change, Settled};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::ServerConfig;
use crate::app::App;
use crate::clock::{new_id, now_us};
use crate::services::fleet::nodes::is_recent;
use crate::services::{count_budgets, keep_usage_days};
use crate::{gpu_times, usage};

/// The time that a node needs to end a run at its fence: it polls twice a second, and the last signal cannot be
/// ignored.
pub(crate) const SLACK_MS: i64 = 5000;

const EVERY: Duration = Duration::from_secs(10);
/// ClearML's limit for a task that no cantle agent holds: after so long without a word from it or its worker it is stopped.
const SILENT_US: i64 = 2 * 3600 * 1_000_000;
/// ClearML's words for it.
const SILENT: &str = "Forced stop (non-responsive)";

/// Maximum number of events, and of pieces of output, that are deleted at once: others wait no longer than for that.
const PRUNED_AT_ONCE: i64 = 5000;
/// Maximum number of these deletions in one round.
const PRUNED_IN_A_ROUND: usize = 20;

/// The time for which events, and the output of ended tasks, are kept; `None`: forever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) events: Option<Duration>,
    pub(crate) logs: Option<Duration>,
    pub(crate) audit: Option<Duration>,
}

impl Kept {
    pub(crate) const fn of(config: &ServerConfig) -> Self {
        Self { events: config.keep_events, logs: config.keep_logs, audit: config.keep_audit }
    }
}

/// Polls without end. A task that was taken and not started within `start_within` goes back to its queue; an agent that
/// starts it later is refused.
pub(crate) async fn run(app: Arc<App>, start_within: Duration, kept: Kept) {
    let start_within_us = i64::try_from(start_within.as_micros()).unwrap_or(i64::MAX);
    let mut ticks = tokio::time::interval(EVERY.min(start_within));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = app.led.notified() => {}
        }
        if !app.leads() {
            continue;
        }
        let now_us = now_us();
        match app.store.reclaim(now_us.saturating_sub(start_within_us), now_us).await {
            Ok(tasks) => tasks.iter().for_each(
                |task| tracing::warn!(%task, "the task was taken and never started; it is queued again"),
            ),
            Err(error) => tracing::error!("tasks that never started cannot be found: {error}"),
        }
        stop_silent(&app, now_us).await;
        end_overdue(&app, now_us).await;
        requeue_lost(&app, now_us).await;
        prune(&app, kept, now_us).await;
        if let Some(half_life_ms) = app.usage_half_life_ms
            && let Err(error) = usage::count(&app.store, half_life_ms, now_us).await
        {
            tracing::error!("the projects' use of GPUs cannot be counted: {error}");
        }
        if let Err(error) = gpu_times::silent(&app.store, now_us).await {
            tracing::error!("the GPUs of silent nodes cannot be recorded: {error}");
        }
        if let Err(error) = app.store.note_quotas(now_us).await {
            tracing::error!("the quotas cannot be recorded for the accounts: {error}");
        }
        if let Err(error) = keep_usage_days(&app.store, &app.first_usage, now_us).await {
            tracing::error!("the usage of days that are over cannot be kept: {}", error.message);
        }
        if let Err(error) = count_budgets(&app.store, now_us).await {
            tracing::error!("the budgets cannot be counted: {error}");
        }
        let sampled = app.store.sample_queues(now_us).await;
        app.health.note(&sampled);
        if let Err(error) = sampled {
            tracing::error!("the length of the queues cannot be recorded: {error}");
        }
    }
}

/// Stops tasks whose process was killed: nothing was heard of them for long. Tasks of cantle's agents are left alone,
/// because their agent adopts them when it is back.
async fn stop_silent(app: &App, now_us: i64) {
    let change =
        Change { now_us, reason: SILENT.to_owned(), message: SILENT.to_owned(), ..Change::default() };
    match app.store.stop_silent(now_us.saturating_sub(SILENT_US), &change).await {
        Ok(tasks) => {
            tasks.iter().for_each(
                |task| tracing::warn!(%task, "nothing was heard of the task for 2 hours; it is stopped"),
            );
        }
        Err(error) => tracing::error!("silent tasks cannot be stopped: {error}"),
    }
}

/// The longest time that an agent with knowledge of limits needs to end a task: it polls, and leaves the task its grace
/// period.
const OVERDUE_SLACK_US: i64 = 60 * 1_000_000;

/// Ends tasks whose time is over, of agents that know no limits (ClearML's, those of older versions, the controller of Kubernetes'
/// queues): they stop a task that has failed.
async fn end_overdue(app: &App, now_us: i64) {
    let ended = async {
        let alive = app.store.nodes().await?.into_iter().filter(|row| is_recent(row, now_us));
        let alive: Vec<String> = alive.map(|row| row.node).collect();
        app.store.end_overdue(&alive, OVERDUE_SLACK_US, now_us).await
    };
    match ended.await {
        Ok(tasks) => tasks.iter().for_each(|task| tracing::info!(%task, "the time of the task is over")),
        Err(error) => tracing::error!("tasks whose time is over cannot be ended: {error}"),
    }
}

/// Gives tasks whose node is gone to others, where the queue's policy requires it and the run has certainly ended.
async fn requeue_lost(app: &App, now_us: i64) {
    match app.store.requeue_lost(SLACK_MS, now_us).await {
        Ok(tasks) => tasks.iter().for_each(|(task, node)| {
            tracing::warn!(%task, %node, "the node is silent; the task is queued again");
        }),
        Err(error) => tracing::error!("tasks of silent nodes cannot be queued again: {error}"),
    }
}

/// How often the leading server looks whether tasks have ended that others wait for, and whether arrays have room for more tasks.
const ADMIT_EVERY: Duration = Duration::from_millis(500);

/// Lets tasks into their queues that waited for the end of others, or for room in their array, without end.
pub(crate) async fn admit(app: Arc<App>) {
    let mut ticks = tokio::time::interval(ADMIT_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if app.leads() {
            settle_after(&app).await;
            step_arrays(&app).await;
        }
    }
}

async fn settle_after(app: &App) {
    match app.store.settle_after(now_us()).await {
        Ok(settled) => settled.iter().for_each(|(task, what)| match what {
            Settled::Queued(_) => {
                tracing::info!(%task, "what the task waited for has ended; it is queued")
            }
            Settled::Stopped(why) => tracing::warn!(%task, "the task can never start: {why}"),
        }),
        Err(error) => tracing::error!("tasks that wait for others cannot be found: {error}"),
    }
}

async fn step_arrays(app: &App) {
    match app.store.step_arrays(now_us(), new_id, element_params).await {
        Ok(steps) => steps.iter().for_each(|ArrayStep { array, made, ended }| match ended {
            None => tracing::debug!(%array, made, "tasks of an array are queued"),
            Some((state, line)) => tracing::info!(%array, "the array is {state}: {line}"),
        }),
        Err(error) => tracing::error!("arrays cannot be served: {error}"),
    }
}

/// The document of an array becomes that of its task with this index.
fn element_params(doc: &mut Map<String, Value>, array: &str, index: u64) {
    // They were readable when they were written.
    let params = doc.get("hyperparams").and_then(|params| HyperParams::deserialize(params).ok());
    let mut params = params.unwrap_or_default();
    ArrayElement { array: array.to_owned(), index }.put_into(&mut params);
    doc.insert("hyperparams".to_owned(), json!(params));
}

/// How often a server checks whether another one changed users or rights: how late a revoked key is refused at most.
const RIGHTS_EVERY: Duration = Duration::from_secs(2);

/// Keeps what is known of users up to date, without end.
pub(crate) async fn rights(app: Arc<App>) {
    let mut ticks = tokio::time::interval(RIGHTS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 0_u64.. {
        ticks.tick().await;
        let mut done = app.people.refresh(&app.store).await;
        if round.is_multiple_of(5) {
            done = done.and(app.people.save_uses(&app.store).await);
        }
        if let Err(error) = done {
            tracing::error!("the users cannot be read or written: {error}");
        }
    }
}

/// Takes away what is older than it is to be kept.
async fn prune(app: &App, kept: Kept, now_us: i64) {
    let before = |kept: Option<Duration>| {
        let kept = kept.and_then(|kept| i64::try_from(kept.as_micros()).ok());
        kept.map_or(i64::MIN, |kept_us| now_us.saturating_sub(kept_us))
    };
    if let Err(error) = app.store.prune_audit(before(kept.audit), PRUNED_AT_ONCE).await {
        tracing::error!("old records of the audit cannot be deleted: {error}");
    }
    for _ in 0..PRUNED_IN_A_ROUND {
        match app.store.prune(before(kept.events), before(kept.logs), PRUNED_AT_ONCE).await {
            Ok((0, 0)) => return,
            Ok((events, logs)) => {
                tracing::debug!(events, logs, "old records are deleted");
                if events.max(logs) < PRUNED_AT_ONCE.unsigned_abs() {
                    return;
                }
            }
            Err(error) => return tracing::error!("old records cannot be deleted: {error}"),
        }
    }
}
