//! `queues.*`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::projects::Created;
use crate::wire::endpoint;
use crate::{Empty, Listing, Updated};

/// Number of waiting tasks that a plan considers: the first of each queue, or under quotas the first of each project in a
/// queue. Tasks behind them wait for them anyway. The server names them to its agents; an agent without quotas counts itself.
pub const HEAD_LIMIT: usize = 64;

/// Grace period of a task that is in no queue and not started: the agent that took it may be about to start it. After it
/// the task goes back to its queue.
///
/// An agent waits for it when its call `queues.get_next_task` had no answer, and a queues controller when it finds a pod
/// without a task. Agents start a task within a second or two of taking it, so a few seconds would do. The value leaves
/// time for a connection that fails (5 s) and one repetition. It must stay well below the minute
/// after which cantle's server itself puts such tasks back. It delays only tasks whose agent died.
pub const START_GRACE: Duration = Duration::from_secs(15);

/// A queue with the tasks that wait in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueRecord {
    /// 32 hex digits.
    pub id: String,
    /// Its name, unique.
    pub name: String,
    /// Waiting tasks, first one first.
    pub entries: Vec<Entry>,
    /// Tags that users set; the agent acts on `force_workers:on`.
    pub tags: Vec<String>,
    /// System tags; `default` marks the default queue.
    pub system_tags: Vec<String>,
    /// Anything; an object, never a list (clients check).
    pub metadata: Map<String, Value>,
    /// When it was made, RFC 3339.
    pub created: String,
    /// Last change of the queue itself, RFC 3339.
    pub last_update: String,
}

/// The key of a queue's metadata whose value `auto` gives its tasks their part of the processors and main memory of their node.
pub const CPU_KEY: &str = "cantle/cpu";

/// Is [`CPU_KEY`] `auto` in the metadata of a queue?
#[must_use]
pub fn is_cpu_auto(metadata: &Map<String, Value>) -> bool {
    metadata.get(CPU_KEY).and_then(|entry| entry.get("value")).is_some_and(|value| value == "auto")
}

/// A task in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Entry {
    /// The task's id.
    pub task: String,
    /// Since when, RFC 3339.
    pub added: String,
    /// cantle's own, where the task was taken out: the number of the run that begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
}

/// `queues.get_all`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetAll {
    /// The condition on queues.
    #[serde(flatten)]
    pub list: Listing,
}
endpoint!("queues.get_all", GetAll => Queues);

/// Answer with queues.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Queues {
    /// The results.
    pub queues: Vec<QueueRecord>,
}

/// `queues.get_by_id`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetById {
    /// The queue's id.
    pub queue: String,
}
endpoint!("queues.get_by_id", GetById => OneQueue);

/// Answer with one queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OneQueue {
    /// The queue.
    pub queue: QueueRecord,
}

/// `queues.create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Create {
    /// Its name; must be new.
    pub name: String,
    /// Further fields (tags, system_tags, metadata), kept as they are.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
endpoint!("queues.create", Create => Created);

/// `queues.update`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Update {
    /// The queue's id.
    pub queue: String,
    /// New values.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
endpoint!("queues.update", Update => Updated);

/// `queues.add_or_update_metadata`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AddOrUpdateMetadata {
    /// The queue's id.
    pub queue: String,
    /// The entries.
    pub metadata: Vec<MetadataEntry>,
}
endpoint!("queues.add_or_update_metadata", AddOrUpdateMetadata => Updated);

/// An entry of a queue's metadata.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MetadataEntry {
    /// Its key, which replaces an entry with the same one.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// `queues.delete_metadata`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeleteMetadata {
    /// The queue's id.
    pub queue: String,
    /// The keys of the entries.
    pub keys: Vec<String>,
}
endpoint!("queues.delete_metadata", DeleteMetadata => Updated);

/// `queues.delete`: refused while tasks wait in it, unless forced.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Delete {
    /// The queue's id.
    pub queue: String,
    /// Also if tasks wait in it; they become drafts again.
    pub force: bool,
}
endpoint!("queues.delete", Delete => Deleted);

/// Answer of `queues.delete`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Deleted {
    /// How many queues are gone.
    pub deleted: u64,
}

/// `queues.get_default`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetDefault {}
endpoint!("queues.get_default", GetDefault => DefaultQueue);

/// Answer of `queues.get_default`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DefaultQueue {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// `queues.get_next_task`: takes the first task out of the queue; no other caller gets it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetNextTask {
    /// The queue's id.
    pub queue: String,
    /// Answer with `task_info` too.
    pub get_task_info: Option<bool>,
    /// cantle's own: take this task, at any position, so that a caller carries out exactly its decision, or nothing.
    /// ClearML's open server ignores it.
    pub task: Option<String>,
    /// cantle's own: if the queue is empty, the call waits for a task, up to this number of milliseconds, 10000 at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}
endpoint!("queues.get_next_task", GetNextTask => NextTask);

/// Answer of `queues.get_next_task`; no entry from an empty queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NextTask {
    /// The task that was taken out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
    /// Owner of the task, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_info: Option<TaskInfo>,
}

/// Owner of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskInfo {
    /// Company's id.
    pub company: String,
    /// User's id.
    pub user: String,
}

/// Requests that name one task in one queue.
macro_rules! queue_and_task {
    ($($(#[$doc:meta])* $endpoint:literal $name:ident => $answer:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub struct $name {
            /// The queue's id.
            pub queue: String,
            /// The task's id.
            pub task: String,
        }
        endpoint!($endpoint, $name => $answer);
    )*};
}

/// `queues.add_task`: at the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AddTask {
    /// The queue's id.
    pub queue: String,
    /// The task's id.
    pub task: String,
    /// cantle's own: the number of the run that its agent gives back; refused if that was given up, or the task has run again since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
}
endpoint!("queues.add_task", AddTask => Added);

queue_and_task! {
    /// `queues.remove_task`: the task becomes a draft again.
    "queues.remove_task" RemoveTask => Removed;
    /// `queues.move_task_to_front`.
    "queues.move_task_to_front" MoveTaskToFront => Position;
    /// `queues.move_task_to_back`.
    "queues.move_task_to_back" MoveTaskToBack => Position;
}

/// Answer of `queues.add_task`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Added {
    /// How many tasks were added.
    pub added: u64,
}

/// Answer of `queues.remove_task`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Removed {
    /// How many tasks were removed.
    pub removed: u64,
}

/// The new position of the task in its queue; 0 is the front.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Position {
    /// The position.
    pub position: u64,
}

/// `queues.move_task_forward`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveTaskForward {
    /// The queue's id.
    pub queue: String,
    /// The task's id.
    pub task: String,
    /// By how many positions; 1 by default.
    pub count: Option<u64>,
}
endpoint!("queues.move_task_forward", MoveTaskForward => Position);

/// `queues.move_task_backward`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveTaskBackward {
    /// The queue's id.
    pub queue: String,
    /// The task's id.
    pub task: String,
    /// By how many positions; 1 by default.
    pub count: Option<u64>,
}
endpoint!("queues.move_task_backward", MoveTaskBackward => Position);

/// `queues.get_num_entries`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetNumEntries {
    /// The queue's id.
    pub queue: String,
}
endpoint!("queues.get_num_entries", GetNumEntries => NumEntries);

/// Answer of `queues.get_num_entries`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NumEntries {
    /// How many tasks wait.
    pub num: u64,
}

/// `queues.clear_queue`: all its tasks become drafts again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClearQueue {
    /// The queue's id.
    pub queue: String,
}
endpoint!("queues.clear_queue", ClearQueue => Empty);
