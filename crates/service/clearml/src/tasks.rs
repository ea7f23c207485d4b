//! `tasks.*`.

use std::collections::BTreeMap;

use cantle_model::{IdleTime, TaskStatus, TimeLimit};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::projects::Created;
use crate::wire::{endpoint, one_or_many};
use crate::{Empty, Listing, Updated};

/// Section → name → parameter.
pub type HyperParams = BTreeMap<String, BTreeMap<String, Param>>;

/// A task. With `only_fields` the rest has its default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// 32 hex digits.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `training`, `testing`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Its state.
    pub status: Option<TaskStatus>,
    /// Why it is in that state, for people; see [`crate::StopRequest`].
    pub status_message: String,
    /// Why it is in that state, for programs; see [`crate::StatusReason`].
    pub status_reason: String,
    /// Id of its project.
    pub project: Option<String>,
    /// Free text.
    pub comment: String,
    /// Code.
    pub script: Script,
    /// Its queue.
    pub execution: Execution,
    /// Image and its arguments.
    pub container: Container,
    /// Parameters.
    pub hyperparams: HyperParams,
    /// Records of the task and its agent while it runs.
    pub runtime: Map<String, Value>,
    /// The destination of its artifacts.
    pub output: TaskOutput,
    /// Tags that users set.
    pub tags: Vec<String>,
    /// System tags: `development`, `archived`, …
    pub system_tags: Vec<String>,
    /// RFC 3339.
    pub created: Option<String>,
    /// RFC 3339.
    pub started: Option<String>,
    /// RFC 3339.
    pub completed: Option<String>,
    /// RFC 3339.
    pub status_changed: Option<String>,
    /// RFC 3339.
    pub last_update: Option<String>,
    /// Last worker that reported for it.
    pub last_worker: Option<String>,
    /// cantle's own: how long its present or next run may last, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cantle_time_limit_s: Option<TimeLimit>,
    /// cantle's own: for how long it may be idle, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cantle_idle_limit_s: Option<IdleTime>,
}

/// Code of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Script {
    /// Interpreter.
    pub binary: String,
    /// Git repository.
    pub repository: String,
    /// Branch in it.
    pub branch: String,
    /// Commit.
    pub version_num: String,
    /// The entry point; for a plain command, the shell-quoted command.
    pub entry_point: String,
    /// Where to start it.
    pub working_dir: String,
    /// Uncommitted changes, or the whole script.
    pub diff: String,
    /// Packages, as text for each installer.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub requirements: serde_json::Value,
}

/// The queue of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Execution {
    /// Id of the queue that it is in or came from.
    pub queue: Option<String>,
}

/// The container of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Image; empty for none.
    pub image: String,
    /// Arguments of `docker run`, as a shell would split them.
    pub arguments: String,
    /// Run in the container before the task.
    pub setup_shell_script: String,
}

/// The destination of artifacts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskOutput {
    /// Address of the storage.
    pub destination: String,
}

/// A parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Param {
    /// Section it is in.
    pub section: String,
    /// Its name.
    pub name: String,
    /// Its value, always text.
    pub value: String,
    /// Type of the value in the task's code.
    #[serde(rename = "type")]
    pub kind: String,
    /// Free text.
    pub description: String,
}

/// `tasks.create`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// `training`, `testing`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Everything else of a task that is set from the start.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
endpoint!("tasks.create", Create => Created);

/// `tasks.edit`: replaces the fields that are given.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Edit {
    /// The task's id.
    pub task: String,
    /// Even if the task is not a draft.
    #[serde(default)]
    pub force: bool,
    /// New values of whole fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}
endpoint!("tasks.edit", Edit => Updated);

/// `tasks.get_by_id`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetById {
    /// The task's id.
    pub task: String,
}
endpoint!("tasks.get_by_id", GetById => OneTask);

/// Answer with one task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OneTask {
    /// The task.
    pub task: Task,
}

/// `tasks.get_all`: all conditions must hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetAll {
    /// The condition on tasks.
    #[serde(flatten)]
    pub list: Listing,
    /// In one of these states; `-` before a state excludes it.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub status: Vec<String>,
    /// Of one of these projects.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub project: Vec<String>,
    /// Of one of these types.
    #[serde(rename = "type", skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub kind: Vec<String>,
    /// Made from this task.
    pub parent: Option<String>,
    /// With any of these tags; `-` before a tag excludes it.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub tags: Vec<String>,
    /// With any of these system tags; `-` before a tag excludes it.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub system_tags: Vec<String>,
    /// Fields to order by; `-` before a field turns it round. `last_metrics.<metric>.<variant>.value` (or `min_value`,
    /// `max_value`), with the names or their MD5 sums, orders by a measured value.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub order_by: Vec<String>,
    /// Regular expression that one of the named fields matches.
    #[serde(rename = "_any_")]
    pub any: Option<MultiField>,
    /// Regular expression that all of the named fields match.
    #[serde(rename = "_all_")]
    pub all: Option<MultiField>,
}
endpoint!("tasks.get_all", GetAll => Tasks);

/// One pattern for several fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MultiField {
    /// Regular expression.
    pub pattern: Option<String>,
    /// Field names.
    pub fields: Vec<String>,
}

/// Answer with tasks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tasks {
    /// The results.
    pub tasks: Vec<Task>,
}

/// `tasks.enqueue`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Enqueue {
    /// The task's id.
    pub task: String,
    /// Id of the queue.
    pub queue: Option<String>,
    /// Or its name; it is made if it does not exist.
    pub queue_name: Option<String>,
    /// Why, for programs.
    pub status_reason: Option<String>,
    /// Why, for people.
    pub status_message: Option<String>,
    /// Even from a state that does not allow it.
    pub force: Option<bool>,
    /// Ask whether a worker serves the queue.
    pub verify_watched_queue: Option<bool>,
}
endpoint!("tasks.enqueue", Enqueue => Enqueued);

/// Answer of `tasks.enqueue`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Enqueued {
    /// How many tasks were queued.
    pub queued: u64,
    /// How many tasks changed.
    pub updated: u64,
    /// The fields that changed.
    pub fields: Map<String, Value>,
    /// A worker serves the queue; only if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_watched: Option<bool>,
}

/// `tasks.dequeue`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dequeue {
    /// The task's id.
    pub task: String,
    /// The new state; `created` by default.
    pub new_status: Option<TaskStatus>,
    /// Why, for programs.
    pub status_reason: Option<String>,
    /// Why, for people.
    pub status_message: Option<String>,
}
endpoint!("tasks.dequeue", Dequeue => Dequeued);

/// Answer of `tasks.dequeue`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dequeued {
    /// How many tasks left a queue.
    pub dequeued: u64,
    /// How many tasks changed.
    pub updated: u64,
    /// The fields that changed.
    pub fields: Map<String, Value>,
}

/// Requests that bring a task into a state.
macro_rules! transitions {
    ($($(#[$doc:meta])* $endpoint:literal $name:ident => $answer:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            /// The task's id.
            pub task: String,
            /// Even from a state that does not allow it.
            pub force: bool,
            /// Why, for programs.
            pub status_reason: Option<String>,
            /// Why, for people.
            pub status_message: Option<String>,
            /// cantle's own: the number of the run that it is about; refused if the task has run again since.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub run: Option<i64>,
        }
        endpoint!($endpoint, $name => $answer);
    )*};
}

transitions! {
    /// `tasks.started`: it runs.
    "tasks.started" Started => StartedReply;
    /// `tasks.stop`: asks the worker that runs the task to stop it; a task that no worker runs is stopped at once.
    "tasks.stop" Stop => Updated;
    /// `tasks.stopped`: it was stopped.
    "tasks.stopped" Stopped => Updated;
    /// `tasks.failed`: it ended badly.
    "tasks.failed" Failed => Updated;
    /// `tasks.close`: its user is done with it.
    "tasks.close" Close => Updated;
    /// `tasks.publish`: makes it read-only.
    "tasks.publish" Publish => Updated;
}

/// `tasks.completed`: it ended well.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Completed {
    /// The task's id.
    pub task: String,
    /// Even from a state that does not allow it.
    pub force: bool,
    /// Make it read-only too.
    pub publish: bool,
    /// Why, for programs.
    pub status_reason: Option<String>,
    /// Why, for people.
    pub status_message: Option<String>,
    /// cantle's own: the number of the run that it is about; refused if the task has run again since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
}
endpoint!("tasks.completed", Completed => Updated);

/// Answer of `tasks.started`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartedReply {
    /// How many tasks changed.
    pub updated: u64,
    /// How many tasks started.
    pub started: u64,
    /// The fields that changed.
    pub fields: Map<String, Value>,
}

/// `tasks.reset`: back to a draft; its output is deleted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Reset {
    /// The task's id.
    pub task: String,
    /// Even while it runs or when it is read-only.
    pub force: bool,
    /// Forget its code and its parameters too.
    pub clear_all: bool,
}
endpoint!("tasks.reset", Reset => ResetReply);

/// Answer of `tasks.reset`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResetReply {
    /// How many tasks changed.
    pub updated: u64,
    /// The fields that changed.
    pub fields: Map<String, Value>,
    /// The queue from which it was removed.
    pub dequeued: Map<String, Value>,
    /// The number of deleted parts of its output, by kind.
    pub events: Map<String, Value>,
    /// How many models were deleted.
    pub deleted_models: u64,
}

/// `tasks.delete`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Delete {
    /// The task's id.
    pub task: String,
    /// Even while it is queued or runs.
    pub force: bool,
    /// Answer with the addresses of the files that it left.
    pub return_file_urls: bool,
    /// Also those of its output models that are not published and that no other task uses.
    pub delete_output_models: bool,
    /// Also its files on the server's own file store. ClearML's SDK deletes them itself.
    pub delete_external_artifacts: bool,
    /// Its runs, which accounts are made of, keep neither its name nor its tags. ClearML has no such field.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cantle_forget_name: bool,
}
endpoint!("tasks.delete", Delete => Deleted);

/// Answer of `tasks.delete`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Deleted {
    /// It is gone.
    pub deleted: bool,
    /// How many children lost their parent.
    pub updated_children: u64,
    /// How many models lost their task.
    pub updated_models: u64,
    /// How many of its output models were deleted.
    pub deleted_models: u64,
    /// The number of deleted parts of its output, by kind.
    pub events: Map<String, Value>,
    /// The files that it left, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub urls: Option<FileUrls>,
    /// How many files were deleted.
    pub deleted_files: u64,
}

/// Addresses of files that a task left.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FileUrls {
    /// Of its output models.
    pub model_urls: Vec<String>,
    /// Of its debug samples.
    pub event_urls: Vec<String>,
    /// Of its artifacts.
    pub artifact_urls: Vec<String>,
}

/// `tasks.ping`: it is still alive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Ping {
    /// The task's id.
    pub task: String,
}
endpoint!("tasks.ping", Ping => Empty);
