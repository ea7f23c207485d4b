//! Records that the server does not have yet: events, and lines for the logs of tasks.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cantle_clearml::cantle::{AddEvents, EventView};
use cantle_clearml::events::ReportedEvent;
use cantle_clearml::{Client, WireError};

/// Events, and lines for logs, kept while the server is away; beyond that the oldest are dropped.
const KEPT_MAX: usize = 1000;

/// Every part of the agent writes to it; the agent's loop sends it.
#[derive(Default)]
pub(crate) struct Journal {
    unsent: Mutex<Unsent>,
}

#[derive(Default)]
struct Unsent {
    events: Vec<EventView>,
    /// The agent's own lines for tasks' logs.
    log_lines: Vec<ReportedEvent>,
    /// The next report about the node does not wait for its interval.
    node_changed: bool,
}

impl Journal {
    fn unsent(&self) -> MutexGuard<'_, Unsent> {
        // Every statement leaves the lists whole, so a writer that panicked leaves nothing half done.
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a decision with its reason: in our log now, on the server with the next [`Journal::flush`].
    pub(crate) fn note(&self, event: EventView) {
        tracing::info!(kind = %event.kind, task = event.task.as_deref().unwrap_or(""), "{}", event.message);
        push_bounded(&mut self.unsent().events, event);
    }

    /// Adds a line of the agent to a task's log, with the next [`Journal::flush`].
    pub(crate) fn add_to_log(&self, line: ReportedEvent) {
        push_bounded(&mut self.unsent().log_lines, line);
    }

    /// Something happened that the server is to know at once.
    pub(crate) fn note_node_changed(&self) {
        self.unsent().node_changed = true;
    }

    /// Whether something happened since the last call.
    pub(crate) fn take_node_changed(&self) -> bool {
        std::mem::take(&mut self.unsent().node_changed)
    }

    /// Sends everything. Records that the server did not accept stay for the next attempt.
    pub(crate) async fn flush(&self, server: &Client) -> Result<(), WireError> {
        let lines = self.unsent().log_lines.clone();
        if !lines.is_empty() {
            match server.add_batch(&lines).await {
                Err(error) if error.is_temporary() => return Err(error),
                // The server has no such task any more.
                Err(error) => tracing::warn!(%error, "lines for tasks' logs were refused"),
                Ok(_) => {}
            }
            self.unsent().log_lines.drain(..lines.len());
        }
        let events = self.unsent().events.clone();
        if !events.is_empty() {
            let sent = events.len();
            server.call_extended(&AddEvents { events }).await?;
            self.unsent().events.drain(..sent);
        }
        Ok(())
    }
}

fn push_bounded<T>(list: &mut Vec<T>, item: T) {
    if list.len() == KEPT_MAX {
        list.remove(0);
    }
    list.push(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_dropped_while_the_server_is_away() {
        let journal = Journal::default();
        for n in 0..=KEPT_MAX {
            journal.note(EventView { message: n.to_string(), ..EventView::default() });
        }
        let unsent = journal.unsent();
        assert_eq!((unsent.events.len(), unsent.events[0].message.as_str()), (KEPT_MAX, "1"));
    }
}
