//! Reduces a message to all pages to the part that the page's user may see.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use cantle_clearml::cantle::{GetNodes, GetQueues};
use serde_json::Value;

use super::Ui;
use super::feed::Message;
use super::session::Session;
use crate::app::Call;
use crate::error::ApiError;
use cantle_store::TaskFilter;

/// The message as this page gets it; `None`: nothing of it. Fails once the session has ended: its key was revoked, or its user
/// removed.
pub(super) async fn of<'a>(
    ui: &Ui,
    session: &mut Session,
    message: &'a Message,
) -> Result<Option<Cow<'a, Message>>, ApiError> {
    session.renew(ui)?;
    let call = Call::new(Arc::clone(&ui.api.app), String::new(), Arc::clone(&session.who));
    let sight = call.seen();
    if sight.is_all() {
        return Ok(Some(Cow::Borrowed(message)));
    }
    let data = match message.event {
        // The tasks in these messages are answered again with the rights of the page's user.
        "nodes" => serde_json::to_string(&ui.api.ask_as(&call, &GetNodes {}).await?.nodes),
        "queues" | "all_queues" => serde_json::to_string(&ui.api.ask_as(&call, &GetQueues {}).await?.queues),
        "tasks" | "events" => {
            let filter = TaskFilter { ids: message.tasks.clone(), ..TaskFilter::default() };
            let seen = match message.tasks.is_empty() {
                true => Vec::new(),
                false => call.store.task_ids(&sight, filter).await?,
            };
            let seen: BTreeSet<String> = seen.into_iter().collect();
            let member = if message.event == "tasks" { "id" } else { "task" };
            let mut items: Vec<Value> = serde_json::from_str(&message.data).unwrap_or_default();
            items.retain(|item| match item.get(member).and_then(Value::as_str) {
                Some(task) => seen.contains(task),
                // An event of a node or a queue.
                None => true,
            });
            if items.is_empty() {
                return Ok(None);
            }
            serde_json::to_string(&items)
        }
        _ => return Ok(Some(Cow::Borrowed(message))),
    };
    let data = data.map_err(ApiError::unwritable)?;
    Ok(Some(Cow::Owned(Message { event: message.event, data, tasks: Vec::new() })))
}
