//! Makes notices from events, and delivers them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::tasks::HyperParams;
use cantle_clearml::{SECTION, TaskRequest};
use cantle_model::TaskStatus;
use cantle_store::{EventRow, NoticeRow, ReceiverRow, StoreError, TaskFilter, TaskRow};
use serde::Deserialize as _;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::message::{Message, MessageTask, cut};
use super::watch;
use crate::app::App;
use crate::clock::{now_us, rfc3339};

const EVERY: Duration = Duration::from_secs(1);
/// Events that are read at once.
const PAGE: i64 = 500;
/// Deliveries at once.
const MOST_AT_ONCE: usize = 64;
/// A notice that could not be delivered for so long is given up. Older events are not notified.
const KEEP_US: i64 = 24 * 3600 * 1_000_000;
/// The pause after the first try that failed; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Owner and name of a receiver.
type Key = (String, String);

/// The server's memory of a receiver; after a start it tries at once.
#[derive(Debug, Default)]
struct Way {
    is_busy: bool,
    failures: u32,
    not_before: Option<Instant>,
    /// The address that it is about: another one is tried at once.
    address: String,
}

/// Notifies people while this server leads, without end.
pub(crate) async fn run(app: Arc<App>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut ways, mut sending) = (BTreeMap::<Key, Way>::new(), JoinSet::<(Key, bool)>::new());
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Some(done) = sending.join_next() => {
                if let Ok((key, sent)) = done {
                    ways.entry(key).or_default().ended(sent);
                }
                // A delivery that panicked names no receiver.
                if sending.is_empty() {
                    ways.values_mut().for_each(|way| way.is_busy = false);
                }
            }
        }
        if !app.leads() {
            continue;
        }
        let done = async {
            collect(&app).await?;
            begin(&app, &mut ways, &mut sending).await
        };
        if let Err(error) = done.await {
            tracing::error!("notices cannot be read or written: {error}");
        }
    }
}

impl Way {
    fn ended(&mut self, sent: bool) {
        self.is_busy = false;
        self.failures = if sent { 0 } else { self.failures.saturating_add(1) };
        self.not_before = (!sent).then(|| Instant::now() + pause(self.failures));
    }

    fn is_free(&self) -> bool {
        !self.is_busy && self.not_before.is_none_or(|at| at <= Instant::now())
    }
}

/// The pause after this number of failures, one after the other.
fn pause(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(20));
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

/// Begins the next delivery for each receiver that is not busy.
async fn begin(
    app: &Arc<App>,
    ways: &mut BTreeMap<Key, Way>,
    sending: &mut JoinSet<(Key, bool)>,
) -> Result<(), StoreError> {
    let heads = app.store.next_notices().await?;
    if heads.is_empty() {
        ways.retain(|_, way| way.is_busy);
        return Ok(());
    }
    for (owner, receiver, count) in app.store.drop_notices(now_us() - KEEP_US).await? {
        tracing::error!(%receiver, %owner, count, "notices could not be delivered for a day and are given up");
    }
    let receivers = app.store.receivers(None).await?;
    for notice in heads {
        let key = (notice.owner.clone(), notice.receiver.clone());
        let known = receivers.iter().chain(&app.notify.own);
        let Some(to) = known.into_iter().find(|row| row.owner == key.0 && row.name == key.1) else {
            app.store.notice_failed(&notice, "there is no such receiver any more", true).await?;
            continue;
        };
        let way = ways.entry(key).or_default();
        if way.address != to.address && !way.is_busy {
            *way = Way { address: to.address.clone(), ..Way::default() };
        }
        if !way.is_free() || sending.len() >= MOST_AT_ONCE {
            continue;
        }
        way.is_busy = true;
        sending.spawn(deliver(Arc::clone(app), to.clone(), notice, way.failures));
    }
    Ok(())
}

async fn deliver(app: Arc<App>, to: ReceiverRow, notice: NoticeRow, failures: u32) -> (Key, bool) {
    let sent = match serde_json::from_str(&notice.body) {
        Ok(message) => app.notify.send(&to, &notice.id, &message).await,
        Err(error) => Err(error.to_string()),
    };
    let owner = app.people.register().name(&to.owner).to_owned();
    let (receiver, is_sent) = (&to.name, sent.is_ok());
    let noted = match &sent {
        Ok(()) => {
            if failures > 0 {
                tracing::info!(%receiver, %owner, "notices are delivered again");
            }
            app.store.notice_sent(&notice, now_us()).await
        }
        Err(why) => {
            // The first failure has a line, and then each that follows a long pause.
            let pause_s = pause(failures.saturating_add(1)).as_secs();
            if failures == 0 || pause_s == LONGEST_PAUSE.as_secs() {
                tracing::warn!(%receiver, %owner, "notices cannot be delivered, next try in {pause_s} s: {why}");
            }
            app.store.notice_failed(&notice, why, false).await
        }
    };
    if let Err(error) = noted {
        tracing::error!("a delivery cannot be recorded, so that its notice is sent again: {error}");
        return ((notice.owner, notice.receiver), false);
    }
    ((notice.owner, notice.receiver), is_sent)
}

/// Makes notices of the events that are new.
async fn collect(app: &App) -> Result<(), StoreError> {
    loop {
        let receivers = app.store.receivers(None).await?;
        if receivers.is_empty() && app.notify.own.is_empty() {
            return Ok(());
        }
        let place = app.store.notice_place().await?;
        let events = app.store.events(None, Some(place), PAGE).await?;
        let Some(last) = events.last().map(|event| event.id) else { return Ok(()) };
        let is_whole = events.len() == usize::try_from(PAGE).unwrap_or(usize::MAX);
        let since_us = now_us() - KEEP_US;
        let new: Vec<EventRow> = events.into_iter().filter(|event| event.time_us >= since_us).collect();
        let mut notices = of_server(app, &new);
        if !receivers.is_empty() {
            notices.extend(of_tasks(app, &receivers, &new).await?);
        }
        app.store.add_notices(&notices, Some(last)).await?;
        if !is_whole {
            return Ok(());
        }
    }
}

fn notice(to: &ReceiverRow, event: &EventRow, message: &Message) -> Option<NoticeRow> {
    Some(NoticeRow {
        // Made once more after a crash, it is the same one.
        id: format!("{:020}-{}-{}", event.id, to.owner, to.name),
        owner: to.owner.clone(),
        receiver: to.name.clone(),
        body: serde_json::to_string(message).ok()?,
        created_us: now_us(),
    })
}

fn wants(to: &ReceiverRow, what: &str) -> bool {
    to.happens.split(',').any(|one| one == what)
}

/// For the receivers of the configuration.
fn of_server(app: &App, events: &[EventRow]) -> Vec<NoticeRow> {
    let mut notices = Vec::new();
    for event in events {
        let Some(what) = watch::wanted_by(&event.kind) else { continue };
        let message = Message {
            kind: event.kind.clone(),
            time: rfc3339(event.time_us),
            text: cut(&event.message),
            task: None,
            node: event.node.clone(),
        };
        let to = app.notify.own.iter().filter(|to| wants(to, what));
        notices.extend(to.filter_map(|to| notice(to, event, &message)));
    }
    notices
}

/// For the receivers of users.
async fn of_tasks(
    app: &App,
    receivers: &[ReceiverRow],
    events: &[EventRow],
) -> Result<Vec<NoticeRow>, StoreError> {
    let happened = |event: &EventRow| match event.kind.as_str() {
        "start" => Some(("start", TaskStatus::InProgress, String::new())),
        // The warning of an agent.
        "idle" => Some(("idle", TaskStatus::InProgress, event.message.clone())),
        _ => event.ending().map(|(status, reason)| (status.as_str(), status, reason.to_owned())),
    };
    let of_tasks: Vec<_> = events.iter().filter_map(|event| Some((event, happened(event)?))).collect();
    let ids: BTreeSet<String> = of_tasks.iter().filter_map(|(event, _)| event.task.clone()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let filter = TaskFilter { ids: ids.into_iter().collect(), ..TaskFilter::default() };
    let tasks = app.store.tasks(&filter).await?;
    let names = Names {
        projects: app.store.projects().await?.into_iter().map(|row| (row.id, row.name)).collect(),
        queues: app.store.queue_names().await?.into_iter().collect(),
    };
    let mut notices = Vec::new();
    for (event, (what, status, reason)) in of_tasks {
        let Some(task) = tasks.iter().find(|task| event.task.as_ref() == Some(&task.index.id)) else {
            continue;
        };
        let own: Vec<&ReceiverRow> = receivers.iter().filter(|to| to.owner == task.owner).collect();
        let Some(named) = (!own.is_empty()).then(|| named_by(task)).flatten() else { continue };
        let message = about(app, task, event, (what, status, &reason), &names);
        let to = own.into_iter().filter(|to| wants(to, what) && (to.always || named.contains(&to.name)));
        notices.extend(to.filter_map(|to| notice(to, event, &message)));
    }
    Ok(notices)
}

struct Names {
    projects: BTreeMap<String, String>,
    queues: BTreeMap<String, String>,
}

/// The receivers that a task names; `None`: it is a task of an array, which has notices as a whole.
fn named_by(task: &TaskRow) -> Option<Vec<String>> {
    let Some(params) = task.doc.get("hyperparams").and_then(|it| HyperParams::deserialize(it).ok()) else {
        return Some(Vec::new());
    };
    if params.get(SECTION).is_some_and(|section| section.contains_key("array_id")) {
        return None;
    }
    Some(TaskRequest::flow_of(&params).map(|flow| flow.notify).unwrap_or_default())
}

fn about(
    app: &App,
    task: &TaskRow,
    event: &EventRow,
    (what, status, reason): (&str, TaskStatus, &str),
    names: &Names,
) -> Message {
    // The task's own reason is about its newest run.
    let is_newest = task.index.status == status;
    let exit_code = task.exit_code.filter(|_| is_newest && status.is_final());
    let own = task.reason.as_deref().filter(|_| is_newest && status.is_final());
    let code = exit_code.filter(|code| *code != 0).map(|code| format!("exit code {code}"));
    let why = own.map(str::to_owned).or_else(|| (!reason.is_empty()).then(|| reason.to_owned()));
    let why = match (why, code) {
        (Some(why), Some(code)) if !why.contains(&code) => Some(format!("{why}, {code}")),
        (why, code) => why.or(code),
    };
    let name = &task.index.name;
    // An agent's line begins with the name.
    let why = why.map(|why| why.strip_prefix(&format!("task {name}: ")).unwrap_or(&why).to_owned());
    let mut text = match status {
        TaskStatus::InProgress if what == "idle" => format!("Task {name}"),
        TaskStatus::InProgress => format!("Task {name} runs"),
        TaskStatus::Completed => format!("Task {name} is completed"),
        TaskStatus::Failed => format!("Task {name} has failed"),
        other => format!("Task {name} is {other}"),
    };
    if let Some(node) = &event.node {
        text += &format!(" on {node}");
    }
    if let Some(why) = why.as_ref().filter(|_| status != TaskStatus::Completed) {
        text += &format!(": {why}");
    }
    let id = task.index.id.clone();
    Message {
        kind: format!("task.{what}"),
        time: rfc3339(event.time_us),
        text: cut(&text),
        node: event.node.clone(),
        task: Some(MessageTask {
            url: format!("{}/ui/tasks/{id}", app.notify.url),
            id,
            name: cut(name),
            project: task.index.project.as_ref().and_then(|id| names.projects.get(id).cloned()),
            queue: task.index.queue.as_ref().and_then(|id| names.queues.get(id).cloned()),
            state: status.to_string(),
            reason: why.map(|why| cut(&why)),
            exit_code,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let pauses: Vec<u64> = [1, 2, 3, 7, 8, 9, 1000].map(|n| pause(n).as_secs()).to_vec();
        assert_eq!(pauses, [5, 10, 20, 320, 600, 600, 600]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_fails_is_left_alone_for_a_while() {
        let mut way = Way { is_busy: true, ..Way::default() };
        assert!(!way.is_free());
        way.ended(false);
        assert!(!way.is_free());
        tokio::time::advance(FIRST_PAUSE).await;
        assert!(way.is_free());
        way.ended(true);
        assert!(way.is_free() && way.failures == 0);
    }
}
