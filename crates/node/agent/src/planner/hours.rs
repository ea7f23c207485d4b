//! The hours in which the agent takes tasks. As with ClearML's agent, a queue's tags have precedence over the worker's
//! properties, and both over `--uptime` and `--downtime`.

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_clearml::workers::GetRuntimeProperties;
use cantle_clearml::{WireError, cantle};
use cantle_node::clock::local_now;
use tokio::time::Instant;

use crate::environment::Environment;
use crate::queues::{Backlog, Force};
use cantle_clearml::queues::HEAD_LIMIT;

/// ClearML's agent reads them every 5 s.
const PROPERTIES_EVERY: Duration = Duration::from_secs(5);

/// The worker's runtime property `force`, and when it was read.
#[derive(Default)]
pub(crate) struct ForceProperty {
    read_at: Option<Instant>,
    force: Option<Force>,
}

impl ForceProperty {
    async fn read(&mut self, env: &Environment) -> Result<Option<Force>, WireError> {
        if self.read_at.is_some_and(|at| at.elapsed() < PROPERTIES_EVERY) {
            return Ok(self.force);
        }
        let request = GetRuntimeProperties { worker: env.worker.clone() };
        let force = match env.server.call(&request).await {
            Ok(answer) => {
                let mut all = answer.runtime_properties.into_iter();
                all.find(|property| property.key == "force")
                    .and_then(|found| Force::of_property(&found.value))
            }
            Err(error) if error.is_temporary() => return Err(error),
            // ClearML's open-source server has no such properties.
            Err(_) => None,
        };
        *self = Self { read_at: Some(Instant::now()), force };
        Ok(force)
    }
}

/// Removes from the backlog the tasks that must not start at this hour, and gives the reasons why they wait.
pub(super) async fn close(
    env: &Environment,
    property: &mut ForceProperty,
    backlog: &mut Backlog,
) -> Result<BTreeMap<String, cantle::WaitReport>, WireError> {
    let property = property.read(env).await?;
    let hours = env.config.schedule.closed(&local_now());
    let mut closed = BTreeMap::new();
    for queue in backlog.values_mut() {
        let why = match (queue.force, property) {
            (Some(Force::Off), _) => Some("the queue is tagged force_workers:off".to_owned()),
            (None, Some(Force::Off)) => Some("the worker's runtime property force is off".to_owned()),
            (Some(Force::On), _) | (None, Some(Force::On)) => None,
            (None, None) => hours.clone(),
        };
        let Some(reason) = why else { continue };
        closed.extend(std::mem::take(&mut queue.waiting).into_iter().take(HEAD_LIMIT).map(|queued| {
            let waiting =
                cantle::WaitReport { task: queued.task.clone(), reason: reason.clone(), remedy: None };
            (queued.task, waiting)
        }));
    }
    Ok(closed)
}
