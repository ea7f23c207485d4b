//! The parts that all endpoints share: the envelope, the meaning of `null`, and the link from a request to its answer.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// A request that knows its endpoint and its answer.
pub trait Request: Serialize + DeserializeOwned + Send + Sync {
    /// `service.action`.
    const ENDPOINT: &'static str;
    /// The `data` part of the answer, as a client reads it.
    type Response: DeserializeOwned;
}

macro_rules! endpoint {
    ($name:literal, $request:ty => $response:ty) => {
        impl $crate::Request for $request {
            const ENDPOINT: &'static str = $name;
            type Response = $response;
        }
    };
}
pub(crate) use endpoint;

/// Error subcodes of ClearML's server that clients act upon (all with code 400).
pub mod subcode {
    /// A field is missing or has the wrong type.
    pub const VALIDATION: u32 = 12;
    /// Not a regular expression.
    pub const INVALID_REGEX: u32 = 21;
    /// No such task.
    pub const INVALID_TASK_ID: u32 = 101;
    /// The task's status does not allow it.
    pub const INVALID_TASK_STATUS: u32 = 110;
    /// No such model.
    pub const INVALID_MODEL_ID: u32 = 201;
    /// No such project.
    pub const INVALID_PROJECT_ID: u32 = 401;
    /// Tasks belong to the project.
    pub const PROJECT_HAS_TASKS: u32 = 402;
    /// No such queue.
    pub const INVALID_QUEUE_ID: u32 = 701;
    /// Tasks wait in the queue.
    pub const QUEUE_NOT_EMPTY: u32 = 702;
    /// The task is not in that queue.
    pub const TASK_NOT_IN_QUEUE: u32 = 703;
    /// The task is in a queue already.
    pub const TASK_ALREADY_QUEUED: u32 = 706;
    /// No queue is tagged as the default one.
    pub const NO_DEFAULT_QUEUE: u32 = 707;
    /// Something of this name exists already.
    pub const NAME_TAKEN: u32 = 801;
    /// No such worker.
    pub const INVALID_WORKER_ID: u32 = 1001;
    /// The request exceeds the project's quota. cantle's own.
    pub const OVER_QUOTA: u32 = 9001;
    /// No such pool. cantle's own.
    pub const INVALID_POOL: u32 = 9003;
    /// Quotas name the pool. cantle's own.
    pub const POOL_IN_USE: u32 = 9004;
    /// The queue gives its tasks slices of another size than this task asks for. cantle's own.
    pub const OTHER_SIZE: u32 = 9005;
    /// The queue gives its tasks less time than this task asks for. cantle's own.
    pub const OVER_TIME: u32 = 9006;
    /// A dependency of the task can never be met. cantle's own.
    pub const NEVER_MET: u32 = 9007;
    /// The caller has no such secret. cantle's own.
    pub const INVALID_SECRET: u32 = 9008;
    /// The caller has no such receiver of notices. cantle's own.
    pub const INVALID_RECEIVER: u32 = 9009;
    /// No such user. cantle's own.
    pub const INVALID_USER: u32 = 9002;
}

/// Every answer, success or error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// The call and its result.
    pub meta: Meta,
    /// The answer itself; an empty object on errors.
    #[serde(default)]
    pub data: Value,
}

/// Head of an [`Envelope`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// Id of the call.
    pub id: String,
    /// Transaction id; clients may choose it.
    pub trx: String,
    /// The endpoint that was called.
    pub endpoint: MetaEndpoint,
    /// HTTP status.
    pub result_code: u16,
    /// Which error (see [`subcode`]); 0 for none.
    pub result_subcode: u32,
    /// One line for people.
    pub result_msg: String,
    /// Always null: clients get no stack traces.
    pub error_stack: Option<String>,
    /// Details of an error.
    pub error_data: Map<String, Value>,
}

/// The endpoint that was called.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MetaEndpoint {
    /// `service.action`.
    pub name: String,
    /// Version in the path.
    pub requested_version: String,
    /// Version that answered.
    pub actual_version: String,
}

/// An answer or request without content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// The answer of calls that change one object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Updated {
    /// How many objects changed.
    pub updated: u64,
    /// The fields that changed, with their new values.
    pub fields: Map<String, Value>,
}

/// The parameters of every `get_all`: which objects, which of their fields, which page.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Listing {
    /// Only these ids.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub id: Vec<String>,
    /// Regular expression on the name; anchored by most clients.
    pub name: Option<String>,
    /// Fields to answer with (dotted); empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub only_fields: Vec<String>,
    /// Page number from 0; all in one answer without it.
    pub page: Option<u64>,
    /// Objects per page.
    pub page_size: Option<u64>,
}

impl Listing {
    /// These fields of the objects with these ids.
    #[must_use]
    pub fn fields(ids: Vec<String>, fields: &[&str]) -> Self {
        let only_fields = fields.iter().map(|&field| field.to_owned()).collect();
        Self { id: ids, only_fields, ..Self::default() }
    }

    /// All whose name matches a regular expression.
    #[must_use]
    pub fn named(pattern: &str) -> Self {
        Self { name: Some(pattern.to_owned()), ..Self::default() }
    }
}

/// Removes all object members that are `null`: ClearML's clients and servers write `null` where they mean absent.
#[must_use]
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, v)| !v.is_null());
            Value::Object(kept.map(|(k, v)| (k, without_nulls(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// For filters: clients write one value where the schema has a list.
pub(crate) fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(items) => items,
        OneOrMany::One(item) => vec![item],
    })
}
