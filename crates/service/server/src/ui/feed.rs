//! Polls the database and sends changes to the open pages: one reader for all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cantle_clearml::cantle::{
    EventView, GetEvents, GetNodes, GetQueues, GetTasks, NodeView, QueueView, ReportNode,
};
use cantle_store::StoreError;
use serde::Serialize;
use tokio::sync::broadcast;
use tokio::time::{MissedTickBehavior, interval};

use super::gpu_time::{self, Counted, GpuTime};
use super::history::{EVERY_S, History, Kind, View};
use crate::api::Api;
use crate::clock::now_us;
use crate::error::ApiError;
use crate::metrics::tally::Tally;

/// Interval of polls: how soon a page shows a change.
const EVERY: Duration = Duration::from_millis(500);
/// Number of polls between two samples for the charts. Without an open page these are the only polls.
const SAMPLE_POLLS: u64 = EVERY_S.unsigned_abs() * 2;
/// Number of polls between two saves of the charts: what a server that is killed loses at most.
const SAVE_POLLS: u64 = 10 * SAMPLE_POLLS;
/// Limit of events in one poll; the rest comes with the next one.
const EVENTS: u64 = 500;
/// Limit of waiting tasks of a queue that a page gets; it also gets their number.
const WAITING: usize = 500;
/// Messages that a slow page may be behind before it has to start over.
const BEHIND: usize = 128;

/// A message to all pages.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) event: &'static str,
    pub(crate) data: String,
    /// The tasks that it is about.
    pub(crate) tasks: Vec<String>,
}

impl Message {
    pub(crate) fn new(event: &'static str, data: &impl Serialize) -> Self {
        // These plain types always serialize; a page would ignore an empty message.
        Self { event, data: serde_json::to_string(data).unwrap_or_default(), tasks: Vec::new() }
    }
}

/// The feed that pages subscribe to.
#[derive(Debug)]
pub(crate) struct Feed {
    /// `None` once the server ends, which ends all streams.
    sender: Mutex<Option<broadcast::Sender<Arc<Message>>>>,
    seen: Mutex<PageState>,
    history: Mutex<History>,
    gpu_time: Mutex<GpuTime>,
    tally: Mutex<Tally>,
}

/// The state that the pages have.
#[derive(Debug, Default)]
struct PageState {
    nodes: BTreeMap<String, NodeView>,
    queues: BTreeMap<String, QueueView>,
    /// Why tasks wait, by task: agents send it in their reports, not in events.
    waiting: BTreeMap<String, String>,
    last_event: Option<i64>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Feed {
    /// A feed that has seen nothing yet, with the charts that the server saved last.
    pub(crate) async fn open(api: &Api) -> Result<Self, StoreError> {
        let history = Mutex::new(History::restore(api.app.store.charts().await?));
        let sender = Mutex::new(Some(broadcast::Sender::new(BEHIND)));
        Ok(Self {
            sender,
            seen: Mutex::default(),
            history,
            gpu_time: Mutex::default(),
            tally: Mutex::default(),
        })
    }

    /// The messages from now on; `None` once the server ends.
    pub(crate) fn listen(&self) -> Option<broadcast::Receiver<Arc<Message>>> {
        lock(&self.sender).as_ref().map(broadcast::Sender::subscribe)
    }

    /// The first messages of a page that is new or too far behind. `reset` makes it fetch the rest.
    pub(crate) fn picture(&self) -> Vec<Message> {
        let seen = lock(&self.seen);
        let nodes: Vec<_> = seen.nodes.values().collect();
        let queues: Vec<_> = seen.queues.values().collect();
        vec![
            Message::new("nodes", &nodes),
            Message::new("all_queues", &queues),
            Message::new("reset", &serde_json::json!({})),
        ]
    }

    /// Ends all streams.
    pub(crate) fn close(&self) {
        lock(&self.sender).take();
    }

    /// Reads the counts.
    pub(crate) fn with_tally(&self, read: impl FnOnce(&Tally)) {
        read(&lock(&self.tally));
    }

    /// The kept samples.
    pub(crate) fn history(&self, kind: Kind, id: &str) -> View {
        lock(&self.history).view(kind, id)
    }

    /// The tasks that had time on a GPU in the last hour.
    pub(crate) fn gpu_time_tasks(&self, uuid: &str) -> BTreeSet<String> {
        lock(&self.gpu_time).tasks(uuid)
    }

    /// The slices that they held, for a caller that may see these tasks.
    pub(crate) fn gpu_time(&self, uuid: &str, may_see: &BTreeSet<String>) -> gpu_time::View {
        lock(&self.gpu_time).view(uuid, may_see)
    }

    /// The server that leads saves the samples of charts since the last save. After a failure they are in the next save of their line.
    pub(crate) async fn save(&self, api: &Api) {
        if !api.app.leads() {
            return;
        }
        let (changed, gone) = lock(&self.history).unsaved();
        if changed.is_empty() && gone.is_empty() {
            return;
        }
        if let Err(error) = api.app.store.save_charts(&changed, &gone).await {
            tracing::warn!("charts are not saved: {error}");
        }
    }

    fn listeners(&self) -> usize {
        lock(&self.sender).as_ref().map_or(0, broadcast::Sender::receiver_count)
    }

    fn send<T: Serialize>(&self, event: &'static str, items: &[T], tasks: Vec<String>) {
        if !items.is_empty()
            && let Some(sender) = lock(&self.sender).as_ref()
        {
            // An error means that no page listens.
            let _ = sender.send(Arc::new(Message { tasks, ..Message::new(event, &items) }));
        }
    }
}

/// Polls without end.
pub(crate) async fn run(api: &Api, feed: &Feed) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for poll_number in 0u64.. {
        ticks.tick().await;
        let sample = poll_number.is_multiple_of(SAMPLE_POLLS);
        if (feed.listeners() > 0 || sample)
            && let Err(error) = poll(api, feed, sample).await
        {
            tracing::warn!("the web page is not up to date: {error}");
        }
        if poll_number.is_multiple_of(SAVE_POLLS) {
            feed.save(api).await;
        }
    }
}

async fn poll(api: &Api, feed: &Feed, sample: bool) -> Result<(), ApiError> {
    let nodes = api.ask(&GetNodes {}).await?.nodes;
    if sample {
        remember(api, feed, &nodes).await?;
    }
    let changed = changed_nodes(&mut lock(&feed.seen), nodes);
    feed.send("nodes", &changed, Vec::new());
    queues(api, feed).await?;
    let events = events(api, feed).await?;
    events.iter().for_each(|event| lock(&feed.tally).count(event));
    let mut about: BTreeSet<String> = events.iter().filter_map(|event| event.task.clone()).collect();
    about.extend(changed_reasons(api, feed).await?);
    if !about.is_empty() {
        let tasks =
            api.ask(&GetTasks { id: about.into_iter().collect(), ..GetTasks::default() }).await?.tasks;
        let ids = tasks.iter().map(|task| task.id.clone()).collect();
        feed.send("tasks", &tasks, ids);
    }
    let ids = events.iter().filter_map(|event| event.task.clone()).collect();
    feed.send("events", &events, ids);
    Ok(())
}

/// Nodes that changed. A new report with the same content is no change.
fn changed_nodes(seen: &mut PageState, nodes: Vec<NodeView>) -> Vec<NodeView> {
    let mut changed = Vec::new();
    for node in nodes {
        let before = seen.nodes.get(&node.node);
        if before
            .is_none_or(|before| NodeView { last_seen: node.last_seen.clone(), ..before.clone() } != node)
        {
            changed.push(node.clone());
        }
        seen.nodes.insert(node.node.clone(), node);
    }
    changed
}

/// Sends the changed queues, or all of them if one was deleted.
async fn queues(api: &Api, feed: &Feed) -> Result<(), ApiError> {
    let mut now: BTreeMap<String, QueueView> = BTreeMap::new();
    for mut queue in api.ask(&GetQueues {}).await?.queues {
        queue.tasks.truncate(WAITING);
        now.insert(queue.id.clone(), queue);
    }
    let (event, changed) = {
        let mut seen = lock(&feed.seen);
        let gone = seen.queues.keys().any(|id| !now.contains_key(id));
        let changed: Vec<QueueView> =
            now.values().filter(|queue| gone || seen.queues.get(&queue.id) != Some(queue)).cloned().collect();
        seen.queues = now;
        (if gone { "all_queues" } else { "queues" }, changed)
    };
    feed.send(event, &changed, Vec::new());
    Ok(())
}

/// Events since the last poll; none at the first poll.
async fn events(api: &Api, feed: &Feed) -> Result<Vec<EventView>, ApiError> {
    let after = lock(&feed.seen).last_event;
    let limit = Some(if after.is_some() { EVENTS } else { 1 });
    let mut events = api.ask(&GetEvents { after, limit, ..GetEvents::default() }).await?.events;
    let last = events.last().map(|event| event.id).or(after).unwrap_or(0);
    lock(&feed.seen).last_event = Some(last);
    if after.is_none() {
        events.clear();
    }
    Ok(events)
}

/// Tasks whose reason to wait changed.
async fn changed_reasons(api: &Api, feed: &Feed) -> Result<Vec<String>, ApiError> {
    let mut now = BTreeMap::new();
    for node in api.app.store.nodes().await? {
        let report: Result<ReportNode, _> = serde_json::from_str(&node.report);
        for waiting in report.map(|report| report.waiting).unwrap_or_default() {
            now.insert(waiting.task, waiting.reason);
        }
    }
    let mut seen = lock(&feed.seen);
    let differs = |(task, reason): &(&String, &String)| seen.waiting.get(*task) != Some(*reason);
    let mut changed: Vec<String> = now.iter().filter(differs).map(|(task, _)| task.clone()).collect();
    changed.extend(seen.waiting.keys().filter(|task| !now.contains_key(*task)).cloned());
    seen.waiting = now;
    Ok(changed)
}

/// Adds the current state to the history.
async fn remember(api: &Api, feed: &Feed, nodes: &[NodeView]) -> Result<(), ApiError> {
    let now_us = now_us();
    let now_s = now_us / 1_000_000;
    let queues = api.app.store.queues().await?;
    count_gpu_time(&mut lock(&feed.gpu_time), nodes);
    let mut history = lock(&feed.history);
    let mut tasks: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for slice in
        nodes.iter().filter(|node| node.alive).flat_map(|node| &node.gpus).flat_map(|gpu| &gpu.slices)
    {
        let (used, limit) = tasks.entry(&slice.task).or_default();
        *used += slice.memory_used_bytes;
        *limit += slice.memory_limit_bytes;
    }
    for (task, (used_bytes, limit_bytes)) in tasks {
        history.task(task, now_s, used_bytes, limit_bytes);
    }
    for queue in &queues {
        let since_us = queue.entries.iter().map(|(_, added_us)| *added_us).min();
        let longest_us = since_us.map_or(0, |since_us| now_us.saturating_sub(since_us).max(0));
        let waiting = u64::try_from(queue.entries.len()).unwrap_or(u64::MAX);
        history.queue(&queue.name, now_s, waiting, longest_us.unsigned_abs() / 1_000_000);
    }
    history.keep_queues(|name| queues.iter().any(|queue| queue.name == name));
    Ok(())
}

/// Notes what the slices with a compute share had of their GPUs.
fn count_gpu_time(gpu_time: &mut GpuTime, nodes: &[NodeView]) {
    for node in nodes.iter().filter(|node| node.alive) {
        let Some(reported_us) = crate::clock::from_rfc3339(&node.last_seen) else { continue };
        for gpu in &node.gpus {
            let counted = gpu.slices.iter().filter_map(|slice| {
                let gpu_time_us = slice.compute?.gpu_time_us;
                Some(Counted { lease: slice.lease.clone(), task: slice.task.clone(), gpu_time_us })
            });
            gpu_time.add(&gpu.uuid, reported_us, &counted.collect::<Vec<_>>());
        }
    }
}
