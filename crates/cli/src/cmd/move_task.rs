//! `cantle move`: where a waiting task stands in line.

use std::process::ExitCode;

use cantle_clearml::cantle::{ExplainTask, GetQueues, QueueView};
use cantle_clearml::queues::{MoveTaskBackward, MoveTaskForward, MoveTaskToBack, MoveTaskToFront};
use cantle_clearml::tasks::{Dequeue, Enqueue};

use super::Context;
use crate::args::{MoveArgs, Place};
use crate::connect::Server;
use crate::error::{CliError, Kind, Outcome};

/// Moves it and says where it is now.
pub(crate) fn move_task(context: &Context, args: &MoveArgs) -> Outcome {
    let server = Server::find(context)?;
    let task = args.task.clone();
    let found = server.about(&task, &ExplainTask { task: task.clone() })?;
    let (Some(queue), Some(position)) = (found.queue, found.position) else {
        let text = format!("task {task} is {}; only a task that waits in a queue can be moved", found.state);
        return Err(CliError::new(Kind::Conflict, text));
    };
    if args.to.out || args.to.to.is_some() {
        return leave(context, &server, task, args.to.to.clone());
    }
    let queues = server.call(&GetQueues {})?.queues;
    let queue = queues.into_iter().find(|candidate| candidate.name == queue);
    let queue = queue.ok_or_else(|| CliError::new(Kind::NotFound, "its queue was deleted meanwhile"))?;
    let place = within(&server, &queue, &task, position, &args.to)?;
    context.printer.say(&format!(
        "{} is number {} of {} in {}",
        found.name,
        place + 1,
        queue.waiting,
        queue.name
    ));
    Ok(ExitCode::SUCCESS)
}

/// To another place of the same queue; gives the new one, 0 for the front.
fn within(server: &Server, queue: &QueueView, task: &str, from: u64, to: &Place) -> Result<u64, CliError> {
    let (queue, task) = (queue.id.clone(), task.to_owned());
    let moved = match to.position.map(|position| position - 1) {
        None if to.front => server.call(&MoveTaskToFront { queue, task })?,
        None => server.call(&MoveTaskToBack { queue, task })?,
        Some(to) if to < from => server.call(&MoveTaskForward { queue, task, count: Some(from - to) })?,
        Some(to) if to > from => server.call(&MoveTaskBackward { queue, task, count: Some(to - from) })?,
        Some(_) => return Ok(from),
    };
    Ok(moved.position)
}

/// Out of its queue, and to the end of another one if that is named.
fn leave(context: &Context, server: &Server, task: String, to: Option<String>) -> Outcome {
    if let Some(name) = &to
        && !server.call(&GetQueues {})?.queues.iter().any(|queue| queue.name == *name)
    {
        return Err(CliError::new(
            Kind::NotFound,
            format!("there is no queue {name}; cantle queues lists them"),
        ));
    }
    server.about(&task, &Dequeue { task: task.clone(), ..Dequeue::default() })?;
    if let Some(name) = to {
        let request = Enqueue { task: task.clone(), queue_name: Some(name.clone()), ..Enqueue::default() };
        server.about(&task, &request)?;
        context.printer.say(&format!("{task} waits in {name}"));
    } else {
        context.printer.say(&format!("{task} is out of its queue; cantle requeue {task} puts it back"));
    }
    Ok(ExitCode::SUCCESS)
}
