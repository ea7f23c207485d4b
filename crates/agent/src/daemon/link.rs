//! The daemon's line to the server: typed calls, and what to do when nobody answers.

use std::time::Duration;

use cantle_clearml::cantle::{AddEvents, EventView};
use cantle_clearml::events::Event;
use cantle_clearml::{Client, Error, Request};
use tokio::time::Instant;

const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_LAST: Duration = Duration::from_secs(15);
/// Events, and lines for logs, kept while the server is away; beyond that the oldest go.
const KEPT_MAX: usize = 1000;

pub(crate) struct Link {
    client: Client,
    events: Vec<EventView>,
    /// Lines of ours for tasks' logs.
    lines: Vec<Event>,
    silent_until: Option<(Instant, Duration)>,
}

impl Link {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client, events: Vec::new(), lines: Vec::new(), silent_until: None }
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn call<R: Request>(&self, request: &R) -> Result<R::Response, Error> {
        self.client.call(request).await
    }

    /// A call of cantle's own service; `None` from a server that has none.
    pub(crate) async fn call_extended<R: Request>(&self, request: &R) -> Result<Option<R::Response>, Error> {
        self.client.call_extended(request).await
    }

    /// Notes a decision with its reason: in our log now, on the server with the next [`Link::flush`].
    pub(crate) fn note(&mut self, event: EventView) {
        tracing::info!(kind = %event.kind, task = event.task.as_deref().unwrap_or(""), "{}", event.message);
        if self.events.len() == KEPT_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
    }

    /// Puts a line of ours into a task's log, with the next [`Link::flush`].
    pub(crate) fn add_to_log(&mut self, line: Event) {
        if self.lines.len() == KEPT_MAX {
            self.lines.remove(0);
        }
        self.lines.push(line);
    }

    pub(crate) async fn flush(&mut self) -> Result<(), Error> {
        if !self.lines.is_empty() {
            match self.client.add_batch(&self.lines).await {
                Err(error) if error.is_temporary() => return Err(error),
                // The server has no such task any more.
                Err(error) => tracing::warn!(%error, "lines for tasks' logs were refused"),
                Ok(_) => {}
            }
            self.lines.clear();
        }
        if !self.events.is_empty() {
            self.call_extended(&AddEvents { events: self.events.clone() }).await?;
            self.events.clear();
        }
        Ok(())
    }

    /// May the server be called, or is it too early after a failure?
    pub(crate) fn is_due(&self) -> bool {
        self.silent_until.is_none_or(|(until, _)| Instant::now() >= until)
    }

    /// The server did not answer: wait, longer each time.
    pub(crate) fn failed(&mut self, error: &Error) {
        let wait = self.silent_until.map_or(BACKOFF_FIRST, |(_, last)| (last * 2).min(BACKOFF_LAST));
        if self.silent_until.is_none() {
            tracing::warn!(%error, "running tasks go on; trying again");
        }
        self.silent_until = Some((Instant::now() + wait, wait));
    }

    /// The server answered.
    pub(crate) fn answered(&mut self) {
        if self.silent_until.take().is_some() {
            tracing::info!("the server answers again");
        }
    }
}
