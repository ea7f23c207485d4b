//! At which hours tasks are taken: what a queue's tags say goes before what the worker's properties say, and both before
//! `--uptime` and `--downtime`, as with ClearML's agent.

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_clearml::workers::GetRuntimeProperties;
use cantle_clearml::{Error as WireError, cantle};
use tokio::time::Instant;

use super::Agent;
use super::queues::{Force, Lines};
use super::start::HEAD;
use crate::clock::local_now;

/// ClearML's agent looks every 5 s.
const PROPERTIES_EVERY: Duration = Duration::from_secs(5);

/// The worker's runtime property `force`, and when it was read.
#[derive(Default)]
pub(crate) struct Property {
    read: Option<Instant>,
    force: Option<Force>,
}

impl Agent {
    /// Takes the tasks out that must not start at this hour, and says why they wait.
    pub(crate) async fn close(
        &mut self,
        lines: &mut Lines,
    ) -> Result<BTreeMap<String, cantle::Waiting>, WireError> {
        let property = self.forced().await?;
        let hours = self.config.schedule.closed(&local_now());
        let mut held = BTreeMap::new();
        for line in lines.values_mut() {
            let why = match (line.force, property) {
                (Some(Force::Off), _) => Some("the queue is tagged force_workers:off".to_owned()),
                (None, Some(Force::Off)) => Some("the worker's runtime property force is off".to_owned()),
                (Some(Force::On), _) | (None, Some(Force::On)) => None,
                (None, None) => hours.clone(),
            };
            let Some(reason) = why else { continue };
            held.extend(std::mem::take(&mut line.waiting).into_iter().take(HEAD).map(|queued| {
                let waiting =
                    cantle::Waiting { task: queued.task.clone(), reason: reason.clone(), remedy: None };
                (queued.task, waiting)
            }));
        }
        Ok(held)
    }

    async fn forced(&mut self) -> Result<Option<Force>, WireError> {
        if self.property.read.is_some_and(|read| read.elapsed() < PROPERTIES_EVERY) {
            return Ok(self.property.force);
        }
        let request = GetRuntimeProperties { worker: self.worker.clone() };
        let force = match self.link.call(&request).await {
            Ok(answer) => {
                let mut all = answer.runtime_properties.into_iter();
                all.find(|property| property.key == "force")
                    .and_then(|found| Force::of_property(&found.value))
            }
            Err(error) if error.is_temporary() => return Err(error),
            // ClearML's open-source server has no such properties.
            Err(_) => None,
        };
        self.property = Property { read: Some(Instant::now()), force };
        Ok(force)
    }
}
