//! `cantle queues`: lists the queues, and sets how long the tasks of each may run, and what it does with those of a lost node.

use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::cantle::{GetQueues, QueueView};
use cantle_clearml::leases::{SetQueue, SetQueuePreempt};
use cantle_clearml::times::SetQueueTimes;
use cantle_clearml::{WireError, subcode};
use cantle_model::{Preempt, TimeLimit, TimeLimitError};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;

use crate::cmd::people::quota::{OrNone, or_none, preempt};
use crate::cmd::tasks::list::or_dash;
use crate::complete;
use crate::connect::{Connection, not_there};
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
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
    /// Set how long the tasks of the queue may run, and what it does with those of a lost node
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
    requeue_after: Option<After>,
    /// The longest time that a task may run (2h, 1d12h); one that asks for more is refused, and one that asks for nothing has this,
    /// if there is no default. `none`: no limit
    #[arg(long, value_name = "TIME|none", value_parser = time)]
    max_time: Option<Time>,
    /// The time of a task that asks for none (2h, 1d12h). `none`: the longest time, if there is one
    #[arg(long, value_name = "TIME|none", value_parser = time)]
    default_time: Option<Time>,
    /// How its tasks make room for others. `requeue`: they are queued again; `suspend,requeue`: they are suspended if the driver can do that.
    /// `none`: as the project of a task says
    #[arg(long, value_name = "WAYS|none", value_parser = or_none(preempt))]
    preempt: Option<OrNone<Preempt>>,
}

impl SetArgs {
    fn check(&self) -> Result<(), CliError> {
        let times = (self.default_time.and_then(|time| time.0), self.max_time.and_then(|time| time.0));
        let has_times = self.max_time.is_some() || self.default_time.is_some();
        if !has_times && self.requeue_after.is_none() && self.preempt.is_none() {
            let text = "nothing to set; write --max-time, --default-time, --requeue-after or --preempt";
            return Err(CliError::new(ErrorKind::Usage, text));
        }
        match times {
            (Some(default), Some(max)) if default > max => {
                let text = format!("--default-time {default} is longer than --max-time {max}");
                Err(CliError::new(ErrorKind::Usage, text))
            }
            _ => Ok(()),
        }
    }
}

/// `None`: no limit.
#[derive(Clone, Copy, Debug)]
struct Time(Option<TimeLimit>);

impl Time {
    /// On the wire, 0 is no limit.
    fn seconds(self) -> u64 {
        self.0.map_or(0, TimeLimit::seconds)
    }
}

fn time(text: &str) -> Result<Time, String> {
    if text == "none" {
        return Ok(Time(None));
    }
    text.parse().map(|time| Time(Some(time))).map_err(|error: TimeLimitError| format!("{error}, or none"))
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

const QUEUE_COLUMNS: [Column<QueueView>; 8] = [
    Column { head: "QUEUE", wide: false, cell: |q| q.name.clone() },
    Column { head: "WAITING", wide: false, cell: |q| q.waiting.to_string() },
    Column { head: "RUNNING", wide: false, cell: |q| q.running.to_string() },
    Column { head: "SERVED BY", wide: false, cell: |q| or_dash(Some(&q.nodes.join(","))) },
    Column { head: "NEXT TASK", wide: false, cell: |q| or_dash(q.tasks.first().map(String::as_str)) },
    Column { head: "TIME", wide: true, cell: times },
    Column { head: "LOST NODES", wide: true, cell: policy },
    Column {
        head: "MAKES ROOM BY",
        wide: true,
        cell: |q| or_dash(q.preempt.map(|p| p.to_string()).as_deref()),
    },
];

/// `2h`, `1h, at most 2h`.
fn times(queue: &QueueView) -> String {
    match (queue.default_time_s, queue.max_time_s) {
        (None, None) => "-".to_owned(),
        (Some(default), None) => default.to_string(),
        (None, Some(max)) => format!("at most {max}"),
        (Some(default), Some(max)) => format!("{default}, at most {max}"),
    }
}

fn policy(queue: &QueueView) -> String {
    queue.requeue_after_s.map_or_else(|| "hold".to_owned(), |seconds| format!("requeue after {seconds} s"))
}

/// Queues in the order of their priority, those that no agent serves last.
pub(crate) fn queues(context: &Context, args: QueuesArgs) -> CommandResult {
    let Some(QueuesCommand::Set(args)) = args.command else {
        let connection = Connection::open(context)?;
        let queues = connection.call(&GetQueues {})?.queues;
        context.printer.items(&queues, |q| q.name.clone(), &QUEUE_COLUMNS);
        return Ok(ExitCode::SUCCESS);
    };
    args.check()?;
    let connection = Connection::open(context)?;
    set_times(context, &connection, &args)?;
    if let Some(after) = args.requeue_after {
        set_requeue(context, &connection, args.queue.clone(), after)?;
    }
    if let Some(preempt) = args.preempt {
        set_preempt(context, &connection, args.queue, preempt.into())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An error about a queue that does not exist names it.
fn about(queue: &str, error: WireError) -> CliError {
    if error.is_subcode(subcode::INVALID_QUEUE_ID) { not_there("queue", queue) } else { error.into() }
}

fn set_times(context: &Context, connection: &Connection, args: &SetArgs) -> Result<(), CliError> {
    let SetArgs { queue, max_time, default_time, .. } = args;
    if max_time.is_none() && default_time.is_none() {
        return Ok(());
    }
    let request = SetQueueTimes {
        queue: queue.clone(),
        max_time_s: max_time.map(Time::seconds),
        default_time_s: default_time.map(Time::seconds),
    };
    connection.answer(&request).map_err(|error| about(queue, error))?;
    let queues = connection.call(&GetQueues {})?.queues;
    if let Some(now) = queues.iter().find(|known| known.name == *queue || known.id == *queue) {
        let text = match times(now) {
            none if none == "-" => "tasks run as long as they like".to_owned(),
            times => format!("tasks run {times}"),
        };
        context.printer.say(&format!("queue {queue}: {text}"));
    }
    Ok(())
}

fn set_requeue(
    context: &Context,
    connection: &Connection,
    queue: String,
    after: After,
) -> Result<(), CliError> {
    let requeue_after_s = after.0.map(|time| time.as_secs());
    let request = SetQueue { queue: queue.clone(), requeue_after_s };
    connection.answer(&request).map_err(|error| about(&queue, error))?;
    context.printer.say(&match requeue_after_s {
        Some(seconds) => {
            format!("queue {queue}: a task whose node is silent for {seconds} s is queued again")
        }
        None => format!("queue {queue}: a task whose node is silent is held until the node is back"),
    });
    Ok(())
}

fn set_preempt(
    context: &Context,
    connection: &Connection,
    queue: String,
    preempt: Option<Preempt>,
) -> Result<(), CliError> {
    let request = SetQueuePreempt { queue: queue.clone(), preempt };
    connection.answer(&request).map_err(|error| about(&queue, error))?;
    context.printer.say(&match preempt {
        Some(preempt) => format!("queue {queue}: a task makes room for others by {preempt}"),
        None => format!("queue {queue}: a task makes room for others as its project says"),
    });
    Ok(())
}
