//! `workers.*`. A worker id may contain `:`, `,`, `.` and spaces: `node1:gpu0,1`, `node1:gpu2.25a`, `node1:dgpu0, 1`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Empty;
use crate::wire::{endpoint, one_or_many};

/// `workers.register`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Register {
    /// Worker id.
    pub worker: String,
    /// Seconds without a report after which it counts as gone; 600 by default.
    pub timeout: Option<u64>,
    /// Ids of the queues that it serves.
    #[serde(deserialize_with = "one_or_many")]
    pub queues: Vec<String>,
    /// Tags that users set.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub tags: Vec<String>,
    /// System tags.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub system_tags: Vec<String>,
}
endpoint!("workers.register", Register => Empty);

/// `workers.unregister`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unregister {
    /// Worker id.
    pub worker: String,
    /// Ids of its queues.
    #[serde(deserialize_with = "one_or_many")]
    pub queues: Vec<String>,
}
endpoint!("workers.unregister", Unregister => Empty);

/// `workers.status_report`: registers the worker if it is not known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusReport {
    /// Worker id.
    pub worker: String,
    /// When, in milliseconds since 1970.
    pub timestamp: i64,
    /// The task it works on.
    pub task: Option<String>,
    /// The queue that the task came from.
    pub queue: Option<String>,
    /// Ids of the queues that it serves.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub queues: Vec<String>,
    /// Tags that users set.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub tags: Vec<String>,
    /// A daemon, not a task's own reporter.
    pub is_daemon: Option<bool>,
    /// Load of the machine.
    pub machine_stats: Option<MachineStats>,
}
endpoint!("workers.status_report", StatusReport => Empty);

/// Load of a machine in ClearML's units: percent, MB and MB/s. Lists have one item per CPU or GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineStats {
    /// Percent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_usage: Vec<f64>,
    /// MB.
    pub memory_used: Option<f64>,
    /// MB.
    pub memory_free: Option<f64>,
    /// Percent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_usage: Vec<f64>,
    /// °C.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_temperature: Vec<f64>,
    /// MB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_memory_used: Vec<f64>,
    /// MB.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_memory_free: Vec<f64>,
    /// Everything else that was reported.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// `workers.get_all`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetAll {
    /// Only workers that reported within this number of seconds; 0 for all; 3600 by default.
    pub last_seen: Option<i64>,
    /// Pattern with `*` and `?` on the id.
    pub worker_pattern: Option<String>,
}
endpoint!("workers.get_all", GetAll => Workers);

/// Answer of `workers.get_all`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Workers {
    /// The results.
    pub workers: Vec<Worker>,
}

/// A worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Worker id.
    pub id: String,
    /// Address it calls from.
    pub ip: String,
    /// When it registered, RFC 3339.
    pub register_time: String,
    /// Seconds after which it counts as gone.
    pub register_timeout: u64,
    /// When it last called, RFC 3339.
    pub last_activity_time: String,
    /// Last status report, RFC 3339.
    pub last_report_time: String,
    /// The task it works on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<IdName>,
    /// The queue that the task came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<IdName>,
    /// The queues that it serves.
    pub queues: Vec<IdName>,
    /// Tags that users set.
    pub tags: Vec<String>,
    /// System tags.
    pub system_tags: Vec<String>,
    /// Its user.
    pub user: IdName,
    /// Its company.
    pub company: IdName,
    /// Last reported load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_stats: Option<MachineStats>,
}

/// Id and name of something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdName {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
}

/// `workers.get_runtime_properties` (ClearML's open server lacks it).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetRuntimeProperties {
    /// Worker id.
    pub worker: String,
}
endpoint!("workers.get_runtime_properties", GetRuntimeProperties => RuntimeProperties);

/// Answer of `workers.get_runtime_properties`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RuntimeProperties {
    /// All of them.
    pub runtime_properties: Vec<Property>,
}

/// A property of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// `workers.set_runtime_properties` (ClearML's open server lacks it).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SetRuntimeProperties {
    /// Worker id; need not be registered yet.
    pub worker: String,
    /// The properties to set; others do not change.
    pub runtime_properties: Vec<Property>,
}
endpoint!("workers.set_runtime_properties", SetRuntimeProperties => Empty);
