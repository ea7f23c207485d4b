//! `cantle queues`: lists the queues, and sets what each does with the tasks of a lost node.

use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::cantle::{GetQueues, QueueView};
use cantle_clearml::leases::SetQueue;
use cantle_clearml::subcode;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;

use super::list::or_dash;
use crate::complete;
use crate::connect::{Connection, not_there};
use crate::context::{CommandResult, Context};
use crate::out::Column;
use crate::shared_args::values;

/// `cantle queues`
#[derive(Args, Debug)]
pub(crate) struct QueuesArgs {
    #[command(subcommand)]
    command: Option<QueuesCommand>,
}

#[derive(Subcommand, Debug)]
enum QueuesCommand {
    /// Set what the queue does with the tasks of a lost node
    Set(SetArgs),
}

/// `cantle queues set`
#[derive(Args, Debug)]
struct SetArgs {
    /// The queue
    #[arg(value_name = "QUEUE", add = ArgValueCompleter::new(complete::queues))]
    queue: String,
    /// Queue a task again when its node was silent for this time (10m, at least 10s); a node that cannot reach the server for this time
    /// ends the task by itself. `never`: the node holds the task until it is back
    #[arg(long, value_name = "TIME|never", value_parser = requeue_after)]
    requeue_after: After,
}

/// `None`: never.
#[derive(Clone, Copy, Debug)]
struct After(Option<Duration>);

fn requeue_after(text: &str) -> Result<After, String> {
    if text == "never" {
        return Ok(After(None));
    }
    let time = values::duration(text)?;
    if time < Duration::from_secs(10) {
        return Err(format!("\"{text}\" is too short; write at least 10s, or never"));
    }
    Ok(After(Some(time)))
}

const QUEUE_COLUMNS: [Column<QueueView>; 6] = [
    Column { head: "QUEUE", wide: false, cell: |q| q.name.clone() },
    Column { head: "WAITING", wide: false, cell: |q| q.waiting.to_string() },
    Column { head: "RUNNING", wide: false, cell: |q| q.running.to_string() },
    Column { head: "SERVED BY", wide: false, cell: |q| or_dash(Some(&q.nodes.join(","))) },
    Column { head: "NEXT TASK", wide: false, cell: |q| or_dash(q.tasks.first().map(String::as_str)) },
    Column { head: "LOST NODES", wide: true, cell: policy },
];

fn policy(queue: &QueueView) -> String {
    queue.requeue_after_s.map_or_else(|| "hold".to_owned(), |seconds| format!("requeue after {seconds} s"))
}

/// Queues in the order of their priority, those that no agent serves last.
pub(crate) fn queues(context: &Context, args: QueuesArgs) -> CommandResult {
    let connection = Connection::open(context)?;
    let Some(QueuesCommand::Set(SetArgs { queue, requeue_after })) = args.command else {
        let queues = connection.call(&GetQueues {})?.queues;
        context.printer.items(&queues, |q| q.name.clone(), &QUEUE_COLUMNS);
        return Ok(ExitCode::SUCCESS);
    };
    let requeue_after_s = requeue_after.0.map(|time| time.as_secs());
    let request = SetQueue { queue: queue.clone(), requeue_after_s };
    connection.answer(&request).map_err(|error| {
        if error.is_subcode(subcode::INVALID_QUEUE_ID) { not_there("queue", &queue) } else { error.into() }
    })?;
    context.printer.say(&match requeue_after_s {
        Some(seconds) => {
            format!("queue {queue}: a task whose node is silent for {seconds} s is queued again")
        }
        None => format!("queue {queue}: a task whose node is silent is held until the node is back"),
    });
    Ok(ExitCode::SUCCESS)
}
