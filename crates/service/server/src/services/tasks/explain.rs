//! Explains why a task waits, from its queue and from the reports of the nodes.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::cantle::{NodeReason, TaskExplanation};
use cantle_decide::pool_rules;
use cantle_model::{Bytes, Met, Pool, PoolRule, QueueWant, Resource, TaskStatus, pools_of};
use cantle_store::{
    AfterRow, ArrayProgress, FenceRow, HeldBack, LOST, QueueRow, TaskFilter, TaskRow, WorkerRow,
};

use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::services::fleet::nodes;
use crate::services::fleet::nodes::Node;
use crate::services::people::quotas::ProjectQuotas;
use crate::services::people::shares;
use crate::sweep;

/// Stock agents report every 30 seconds.
const WORKER_LATE_US: i64 = 90_000_000;

/// Everything that the reasons of waiting tasks depend on, read once.
pub(crate) struct Board {
    /// Without their entries.
    queues: BTreeMap<String, QueueRow>,
    /// Places of waiting tasks in their queues. A list asks for hundreds of them, and queues may have thousands of entries.
    positions: BTreeMap<String, usize>,
    pub(crate) nodes: Vec<Node>,
    workers: Vec<WorkerRow>,
    /// Waiting tasks whose users hold what they may, by task.
    held_back: BTreeMap<String, HeldBack>,
    /// Runs that their nodes end by themselves, by task.
    fences: BTreeMap<String, FenceRow>,
    /// Queues that give tasks of lost nodes to others.
    requeues: BTreeMap<String, i64>,
    /// The tasks that a waiting task waits for, by task, as the caller may know it.
    after: BTreeMap<String, String>,
    arrays: BTreeMap<String, ArrayProgress>,
    /// Pools, which quotas may name.
    pools: Vec<Pool>,
    quotas: ProjectQuotas,
}

impl Board {
    pub(crate) async fn read(call: &Call) -> Result<Self, ApiError> {
        let (mut queues, mut positions) = (BTreeMap::new(), BTreeMap::new());
        for mut queue in call.store.queues().await? {
            let entries = std::mem::take(&mut queue.entries).into_iter().enumerate();
            positions.extend(entries.map(|(position, (task, _))| (task, position)));
            queues.insert(queue.id.clone(), queue);
        }
        let workers = call.store.workers(call.now_us - WORKER_LATE_US).await?;
        let (fences, requeues) = (call.store.fences().await?, call.store.requeues().await?);
        let limited = call.people.register().limits_gpus();
        let held_back = if limited { call.store.held_back().await? } else { Vec::new() };
        let held_back = held_back.into_iter().map(|waits| (waits.task.clone(), waits)).collect();
        let (pools, quotas) = (call.store.pools().await?, ProjectQuotas::read(call).await?);
        let nodes = nodes::all(call).await?;
        let (after, arrays) = (after(call).await?, call.store.open_arrays().await?);
        Ok(Self {
            queues,
            positions,
            nodes,
            workers,
            held_back,
            fences,
            requeues,
            after,
            arrays,
            pools,
            quotas,
        })
    }

    /// The restrictions to pools of a task that needs a GPU.
    fn pool_rules(&self, task: &TaskRow, queue: &str) -> Vec<PoolRule> {
        if self.pools.is_empty() || shares::spec(&self.nodes, queue).want == QueueWant::None {
            return Vec::new();
        }
        pool_rules(&self.quotas.views(), self.quotas.counted_to(task.index.project.as_ref()).as_deref())
    }

    fn has_gpu_for(&self, node: &Node, rules: &[PoolRule]) -> bool {
        let of = |model: &str| pools_of(&self.pools, &node.report.node, model);
        node.report.gpus.iter().any(|gpu| rules.iter().all(|rule| rule.allows(&of(&gpu.model))))
    }

    pub(crate) fn queue_name(&self, id: &str) -> Option<&str> {
        self.queues.get(id).map(|queue| queue.name.as_str())
    }

    /// Id of the queue with this name or id.
    pub(crate) fn queue_id(&self, wanted: &str) -> Option<String> {
        let found = self.queues.values().find(|queue| queue.id == wanted || queue.name == wanted);
        found.map(|queue| queue.id.clone())
    }

    /// Its user or its project holds what they may.
    pub(crate) fn waits_for_a_quota(&self, task: &TaskRow) -> bool {
        self.held_back.contains_key(&task.index.id)
            || self.quotas.kept_back(task.index.project.as_ref()).is_some()
    }

    pub(crate) fn has_quotas(&self) -> bool {
        self.quotas.own().next().is_some()
    }

    fn position(&self, task: &TaskRow) -> Option<usize> {
        self.positions.get(&task.index.id).copied()
    }

    /// One line: why it waits, where it runs, or how it ended.
    pub(crate) fn reason(&self, task: &TaskRow) -> Option<String> {
        match task.index.status {
            TaskStatus::Created => None,
            TaskStatus::Queued => Some(self.why_it_waits(task)),
            TaskStatus::InProgress if task.stop_asked => Some("asked to stop".to_owned()),
            TaskStatus::InProgress => {
                let silent = self.silent_node(task).or_else(|| self.suspended(task));
                silent.or_else(|| was_evicted(task, "making room"))
            }
            _ => [task.reason.as_deref(), Some(&task.status_reason), Some(&task.status_message)]
                .into_iter()
                .flatten()
                .find(|text| !text.is_empty())
                .map(str::to_owned),
        }
    }

    /// The node that holds the task no longer reports. It may come back and continue, so nothing is decided here.
    fn silent_node(&self, task: &TaskRow) -> Option<String> {
        let holder = task.node.as_deref().filter(|_| task.exit_code.is_none())?;
        let node = self.nodes.iter().find(|node| node.report.node == holder)?;
        let since = rfc3339(node.last_seen_us);
        (!node.alive)
            .then(|| format!("{holder}, which holds it, is silent since {since}; {}", self.what_next(task)))
    }

    /// The task holds no GPU: its memory is on the host.
    fn suspended(&self, task: &TaskRow) -> Option<String> {
        let holder = task.node.as_deref()?;
        let node = self.nodes.iter().find(|node| node.report.node == holder)?;
        let found = node.report.suspended.iter().find(|suspended| suspended.task == task.index.id)?;
        let (parked, since) = (Bytes(found.parked_bytes), &found.since);
        let place = format!("{parked} of GPU memory are in the memory of {holder}");
        let Some(evicted) = was_evicted(task, &format!("suspended since {since}")) else {
            return Some(format!(
                "suspended since {since}: {place}; cantle resume on {holder} lets it go on"
            ));
        };
        let waits = node.waiting(&task.index.id).map(|waiting| format!(": {}", waiting.reason));
        Some(format!("{evicted}; {place}; it goes on when there is room{}", waits.unwrap_or_default()))
    }

    /// The future of a task whose node is silent.
    fn what_next(&self, task: &TaskRow) -> String {
        let fence = self.fences.get(&task.index.id).filter(|fence| task.lease.as_ref() == Some(&fence.lease));
        let policy = task.index.queue.as_ref().and_then(|queue| self.requeues.get(queue));
        match (fence, policy) {
            (Some(fence), _) => {
                let at = fence.renewed_us.saturating_add((fence.after_ms + sweep::SLACK_MS) * 1000);
                format!("it is queued again after {}, unless the node is back before", rfc3339(at))
            }
            // Nothing ends this run by itself, so only a person knows when it is over.
            (None, Some(_)) => {
                "the node did not agree to end it by itself, so it is held; if the node is gone: cantle requeue"
                    .to_owned()
            }
            (None, None) => "if it is gone: cantle requeue".to_owned(),
        }
    }

    fn why_it_waits(&self, task: &TaskRow) -> String {
        let Some(queue) = task.index.queue.as_deref().and_then(|id| self.queues.get(id)) else {
            return "its queue does not exist any more; enqueue it again".to_owned();
        };
        let Some(position) = self.position(task) else {
            if let Some(after) = self.after.get(&task.index.id) {
                return after.clone();
            }
            if let Some(array) = self.arrays.get(&task.index.id) {
                return format!("an array: {}", array.line());
            }
            let silent = self.silent_node(task);
            return silent.unwrap_or_else(|| "taken by an agent, about to start".to_owned());
        };
        if let Some(HeldBack { user, most_milli, held_milli, .. }) = self.held_back.get(&task.index.id) {
            let [held, most] = [held_milli, most_milli].map(|milli| Resource::Gpu.text(*milli));
            return format!("{user} holds {held} and may hold {most} at once; cantle users set changes that");
        }
        if let Some(why) = self.quotas.kept_back(task.index.project.as_ref()) {
            return why;
        }
        let serving: Vec<&Node> = self.nodes.iter().filter(|node| node.serves(&queue.name)).collect();
        let mut alive: Vec<&Node> = serving.iter().copied().filter(|node| node.alive).collect();
        let rules = self.pool_rules(task, &queue.name);
        if !rules.is_empty() && !alive.is_empty() {
            alive.retain(|node| self.has_gpu_for(node, &rules));
            if alive.is_empty() {
                let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
                return format!("{}; no agent of queue {} has a GPU of these", rules.join(", "), queue.name);
            }
        }
        if let Some(waiting) = alive.iter().find_map(|node| node.waiting(&task.index.id)) {
            return match self.quotas.kept_within(task.index.project.as_ref()) {
                None => waiting.reason.clone(),
                Some(budget) => format!("{}; {budget}", waiting.reason),
            };
        }
        let stock = self.workers.iter().find(|worker| worker.queues.contains(&queue.id));
        let name = &queue.name;
        let served_by = match (alive.first(), stock, serving.first()) {
            (Some(node), _, _) => format!("{} has not looked at it yet", node.report.node),
            (None, Some(worker), _) => format!("ClearML agent {} serves it", worker.id),
            (None, None, Some(silent)) => {
                return format!("the agent on {} that serves queue {name} is silent", silent.report.node);
            }
            (None, None, None) => {
                return format!("no agent serves queue {name}; start one with: cantle daemon --queue {name}");
            }
        };
        match position {
            0 => format!("next in queue {name}; {served_by}"),
            1 => format!("behind 1 other in queue {name}"),
            n => format!("behind {n} others in queue {name}"),
        }
    }

    pub(crate) fn explain(&self, task: &TaskRow) -> TaskExplanation {
        let queue = task.index.queue.as_deref().and_then(|id| self.queue_name(id));
        let serving = self.nodes.iter().filter(|node| queue.is_some_and(|queue| node.serves(queue)));
        let reason_of = |node: &Node| {
            let waiting = node.waiting(&task.index.id);
            NodeReason {
                node: node.report.node.clone(),
                alive: node.alive,
                reason: waiting.map(|waiting| waiting.reason.clone()),
                remedy: waiting.and_then(|waiting| waiting.remedy.clone()),
            }
        };
        let waits = task.index.status == TaskStatus::Queued;
        let mut reason = self.reason(task).unwrap_or_else(|| state_line(task));
        let runs = task.node.as_ref().filter(|_| task.index.status == TaskStatus::InProgress);
        let node = runs.and_then(|name| self.nodes.iter().find(|node| node.report.node == *name));
        if let Some(connected) = node.and_then(|node| node.connection_of(&task.index.id)) {
            reason = format!("{reason}; {connected}");
        }
        if let Some(evicted) = was_evicted(task, "it was stopped").filter(|_| waits) {
            reason = format!("{reason}; {evicted}");
        }
        if waits && task.status_reason.starts_with(LOST) {
            reason = format!("{reason}; {}", task.status_reason);
        }
        TaskExplanation {
            task: task.index.id.clone(),
            name: task.index.name.clone(),
            state: task.index.status,
            queue: queue.map(str::to_owned),
            position: self.position(task).and_then(|position| u64::try_from(position).ok()),
            reason,
            nodes: if waits { serving.map(reason_of).collect() } else { Vec::new() },
        }
    }
}

/// The tasks for which the dependent tasks wait: `after train-1 (running)`. Tasks that the caller may not see have no
/// name.
async fn after(call: &Call) -> Result<BTreeMap<String, String>, ApiError> {
    let all = call.store.waiting_after().await?;
    let seen = call.seen();
    let visible: Option<BTreeSet<String>> = match seen.is_all() || all.is_empty() {
        true => None,
        false => {
            let ids: BTreeSet<String> = all.values().flatten().map(|row| row.other.clone()).collect();
            let filter = TaskFilter { ids: ids.into_iter().collect(), ..TaskFilter::default() };
            Some(call.store.task_ids(&seen, filter).await?.into_iter().collect())
        }
    };
    let one = |row: &AfterRow| {
        let is_visible = visible.as_ref().is_none_or(|visible| visible.contains(&row.other));
        let name = if is_visible { row.name() } else { "another task" };
        let state = match &row.now {
            None => "deleted".to_owned(),
            Some((_, TaskStatus::InProgress)) => "running".to_owned(),
            Some((_, TaskStatus::Created)) => "a draft; it has to be enqueued".to_owned(),
            Some((_, status)) => status.to_string(),
        };
        format!("{name} ({state})")
    };
    let line = |rows: Vec<AfterRow>| {
        let unmet = rows.iter().filter(|row| row.met() != Met::Yes);
        let unmet: Vec<String> = unmet.map(one).collect();
        // All is met: the next look lets it into its queue.
        let what =
            if unmet.is_empty() { "other tasks, which have ended".to_owned() } else { unmet.join(", ") };
        format!("after {what}")
    };
    Ok(all.into_iter().map(|(task, rows)| (task, line(rows))).collect())
}

/// Why it is or was stopped for another task.
fn was_evicted(task: &TaskRow, prefix: &str) -> Option<String> {
    task.evicted.as_ref().map(|evicted| format!("{prefix}: {}", evicted.reason))
}

fn state_line(task: &TaskRow) -> String {
    match (task.index.status, &task.node, task.exit_code) {
        (TaskStatus::Created, _, _) => "a draft; enqueue it to have it run".to_owned(),
        (TaskStatus::InProgress, Some(node), _) => format!("runs on {node}"),
        (TaskStatus::InProgress, None, _) => {
            let worker = task.last_worker.as_deref().unwrap_or("an agent that has not reported yet");
            format!("runs with {worker}")
        }
        (status, _, Some(code)) => format!("{status} with exit code {code}"),
        (status, _, None) => status.to_string(),
    }
}
