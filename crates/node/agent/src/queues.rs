//! The queues that the agent serves, and the tasks that wait in them.

use std::collections::BTreeMap;

use cantle_clearml::{Client, Listing, WireError, queues, subcode};
use cantle_model::{GpuRequest, QueueId, QueueSpec, QueueWant};

use crate::AgentError;
use crate::environment::Environment;

/// A queue of the command line, found on the server.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// As the server knows it.
    pub(crate) id: QueueId,
    /// Its name and what its tasks get.
    pub(crate) spec: QueueSpec,
}

/// The override of the hours, from a queue's tag `force_workers:…` or a worker's runtime property `force`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Force {
    On,
    Off,
}

impl Force {
    fn of_tags(tags: &[String]) -> Option<Self> {
        let has = |tag: &str| tags.iter().any(|given| given == tag);
        // As ClearML's agent reads a queue with both.
        if has("force_workers:off") {
            return Some(Self::Off);
        }
        has("force_workers:on").then_some(Self::On)
    }

    /// `None` for anything else, which ClearML's agent ignores too.
    pub(crate) fn of_property(value: &str) -> Option<Self> {
        match value.to_ascii_lowercase().as_str() {
            "on" => Some(Self::On),
            "off" => Some(Self::Off),
            _ => None,
        }
    }
}

/// The tasks that wait in one queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueBacklog {
    pub(crate) force: Option<Force>,
    /// Tasks that ask for no CPU get their part of the processors and main memory of the node.
    pub(crate) cpu_auto: bool,
    pub(crate) waiting: Vec<Queued>,
}

/// The waiting tasks of each queue, by the queue's id.
pub(crate) type Backlog = BTreeMap<QueueId, QueueBacklog>;

/// A task at its place in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) task: String,
    pub(crate) added_ms: i64,
}

/// The slice of a queue's tasks, as written on the command line.
pub(crate) fn spec_text(want: &QueueWant) -> String {
    match want {
        QueueWant::Fixed(GpuRequest::Fraction(milli)) => milli.to_string(),
        QueueWant::Fixed(GpuRequest::Gpus(n)) => n.to_string(),
        QueueWant::Fixed(request) => request.to_string(),
        QueueWant::Range { min, max } => format!("{min}-{max}"),
        QueueWant::Task => "task".to_owned(),
        QueueWant::None => "none".to_owned(),
    }
}

/// The queue that is tagged as the default one, or the one called `default`.
pub(crate) async fn default_queue(server: &Client) -> Result<QueueSpec, AgentError> {
    let name = match server.call(&queues::GetDefault {}).await {
        Ok(queue) => queue.id,
        Err(error) if error.is_subcode(subcode::NO_DEFAULT_QUEUE) => "default".to_owned(),
        Err(error) => return Err(error.into()),
    };
    Ok(QueueSpec { name, want: QueueWant::Task })
}

/// Finds the queues by name or id; makes the missing ones if `create`.
pub(crate) async fn resolve(
    server: &Client,
    specs: &[QueueSpec],
    create: bool,
) -> Result<Vec<Served>, AgentError> {
    let all = server.call(&queues::GetAll::default()).await?.queues;
    let mut served: Vec<Served> = Vec::new();
    for spec in specs {
        let known = all.iter().find(|queue| queue.name == spec.name || queue.id == spec.name);
        let (id, name) = match known {
            Some(queue) => (queue.id.clone(), queue.name.clone()),
            None if create => (create_queue(server, &spec.name).await?, spec.name.clone()),
            None => {
                let mut names: Vec<String> = all.into_iter().map(|queue| queue.name).collect();
                names.sort();
                return Err(AgentError::UnknownQueue { queue: spec.name.clone(), known: names.join(", ") });
            }
        };
        if served.iter().any(|other| other.id.0 == id) {
            return Err(AgentError::QueueTwice(spec.name.clone()));
        }
        served.push(Served { id: QueueId(id), spec: QueueSpec { name, want: spec.want.clone() } });
    }
    Ok(served)
}

/// Creates a queue, or takes the one that another agent created in the same moment.
async fn create_queue(server: &Client, name: &str) -> Result<String, WireError> {
    let request = queues::Create { name: name.to_owned(), ..queues::Create::default() };
    match server.call(&request).await {
        Err(error) if error.is_subcode(subcode::NAME_TAKEN) => {
            let all = server.call(&queues::GetAll::default()).await?.queues;
            all.into_iter().find(|queue| queue.name == name).map(|queue| queue.id).ok_or(error)
        }
        created => Ok(created?.id),
    }
}

/// The waiting tasks of all queues, in one call.
pub(crate) async fn read_backlog(env: &Environment) -> Result<Backlog, WireError> {
    let ids = env.queues.iter().map(|queue| queue.id.0.clone()).collect();
    let list = Listing::fields(ids, &["id", "name", "entries", "tags", "metadata"]);
    let found = env.server.call(&queues::GetAll { list }).await?.queues;
    let queued = |entry: queues::Entry| Queued {
        added_ms: entry.added.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond),
        task: entry.task,
    };
    let backlog = |queue: queues::QueueRecord| {
        let waiting = queue.entries.into_iter().map(queued).collect();
        (
            QueueId(queue.id),
            QueueBacklog {
                force: Force::of_tags(&queue.tags),
                cpu_auto: queues::is_cpu_auto(&queue.metadata),
                waiting,
            },
        )
    };
    Ok(found.into_iter().map(backlog).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_both_on_and_off_is_off() {
        let of = |tags: &[&str]| Force::of_tags(&tags.iter().map(|&tag| tag.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["x"]), None);
        assert_eq!(of(&["x", "force_workers:on"]), Some(Force::On));
        assert_eq!(of(&["force_workers:on", "force_workers:off"]), Some(Force::Off));
        assert_eq!((Force::of_property("OFF"), Force::of_property("maybe")), (Some(Force::Off), None));
    }
}
