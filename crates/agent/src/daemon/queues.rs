//! The queues that the daemon serves.

use std::collections::BTreeMap;

use cantle_clearml::{Error as WireError, Listing, queues};
use cantle_model::{GpuRequest, QueueId, QueueSpec, QueueWant};

use super::Agent;
use super::link::Link;
use crate::AgentError;

/// A queue of the command line, found on the server.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// As the server knows it.
    pub(crate) id: QueueId,
    /// Its name and what its tasks get.
    pub(crate) spec: QueueSpec,
}

/// A task at its place in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub(crate) task: String,
    pub(crate) added_ms: i64,
}

/// What the command line says about a queue's tasks, as a person would write it.
pub(crate) fn spec_text(want: &QueueWant) -> String {
    match want {
        QueueWant::Fixed(GpuRequest::Fraction(milli)) => milli.to_string(),
        QueueWant::Fixed(GpuRequest::Gpus(n)) => n.to_string(),
        QueueWant::Fixed(request) => request.to_string(),
        QueueWant::Range { min, max } => format!("{min}-{max}"),
        QueueWant::Task => "task".to_owned(),
    }
}

/// Finds the queues by name or id; makes the missing ones if `create`.
pub(crate) async fn resolve(
    link: &Link,
    specs: &[QueueSpec],
    create: bool,
) -> Result<Vec<Served>, AgentError> {
    let all = link.call(&queues::GetAll::default()).await?.queues;
    let mut served: Vec<Served> = Vec::new();
    for spec in specs {
        let known = all.iter().find(|queue| queue.name == spec.name || queue.id == spec.name);
        let (id, name) = match known {
            Some(queue) => (queue.id.clone(), queue.name.clone()),
            None if create => {
                let request = queues::Create { name: spec.name.clone(), ..queues::Create::default() };
                (link.call(&request).await?.id, spec.name.clone())
            }
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

impl Agent {
    /// Who waits where, in one call.
    pub(crate) async fn read_queues(&self) -> Result<BTreeMap<QueueId, Vec<Queued>>, WireError> {
        let ids = self.queues.iter().map(|queue| queue.id.0.clone()).collect();
        let list = Listing::fields(ids, &["id", "name", "entries"]);
        let found = self.link.call(&queues::GetAll { list }).await?.queues;
        let entry = |entry: queues::Entry| Queued {
            added_ms: entry.added.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_millisecond),
            task: entry.task,
        };
        let waiting = |queue: queues::Queue| {
            (QueueId(queue.id), queue.entries.into_iter().map(entry).collect::<Vec<_>>())
        };
        Ok(found.into_iter().map(waiting).collect())
    }
}
