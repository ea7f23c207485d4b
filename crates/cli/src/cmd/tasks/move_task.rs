//! `cantle move`: the position of a waiting task, and the GPU of a running one.

use std::process::ExitCode;

use cantle_clearml::cantle::{ExplainTask, GetQueues, QueueView};
use cantle_clearml::queues::{MoveTaskBackward, MoveTaskForward, MoveTaskToBack, MoveTaskToFront};
use cantle_clearml::tasks::{Dequeue, Enqueue};

use clap::Args;
use clap_complete::ArgValueCompleter;

use crate::cmd::machine::suspend;
use crate::complete;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};

/// `cantle move`
#[derive(Args, Debug)]
pub(crate) struct MoveArgs {
    /// Name of the task, its id, or the beginning of it
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: String,
    #[command(flatten)]
    to: MoveTarget,
}

/// Where a waiting task is moved to.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct MoveTarget {
    /// Move it to the front of its queue
    #[arg(long)]
    front: bool,
    /// Move it to the back of its queue
    #[arg(long)]
    back: bool,
    /// Move it to this position of its queue; 1 is the front
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    position: Option<u64>,
    /// Move it to the back of another queue
    #[arg(long, value_name = "Q", add = ArgValueCompleter::new(complete::queues))]
    to: Option<String>,
    /// Take it out of its queue; it becomes a draft again
    #[arg(long)]
    out: bool,
    /// Move a running task of this machine to this GPU, by its number, without ending it
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,
}

/// Moves the task and prints its new position.
pub(crate) fn move_task(context: &Context, args: &MoveArgs) -> CommandResult {
    if let Some(gpu) = args.to.gpu {
        return suspend::move_to_gpu(context, &args.task, gpu);
    }
    let server = Connection::open(context)?;
    let task = server.find_task(&args.task)?;
    let found = server.about(&task, &ExplainTask { task: task.clone() })?;
    let (Some(queue), Some(position)) = (found.queue, found.position) else {
        let text = format!("task {task} is {}; only a task that waits in a queue can be moved", found.state);
        return Err(CliError::new(ErrorKind::Conflict, text));
    };
    if args.to.out || args.to.to.is_some() {
        return leave(context, &server, task, args.to.to.clone());
    }
    let queues = server.call(&GetQueues {})?.queues;
    let queue = queues.into_iter().find(|candidate| candidate.name == queue);
    let queue =
        queue.ok_or_else(|| CliError::new(ErrorKind::NotFound, "its queue was deleted in the meantime"))?;
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

/// Moves the task within its queue; returns the new position, 0 for the front.
fn within(
    server: &Connection,
    queue: &QueueView,
    task: &str,
    from: u64,
    to: &MoveTarget,
) -> Result<u64, CliError> {
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

/// Takes the task out of its queue, and puts it at the end of another one if one is named.
fn leave(context: &Context, server: &Connection, task: String, to: Option<String>) -> CommandResult {
    if let Some(name) = &to
        && !server.call(&GetQueues {})?.queues.iter().any(|queue| queue.name == *name)
    {
        return Err(CliError::new(ErrorKind::NotFound, format!("there is no queue {name}"))
            .with_hint("cantle queues lists them"));
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
