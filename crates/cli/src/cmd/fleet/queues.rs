//! `cantle queues`: lists the queues, and sets how long the tasks of each may run and be idle, and what it does with those of a lost node.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::cantle::{GetQueues, QueueView};
use cantle_clearml::leases::{SetQueue, SetQueuePreempt};
use cantle_clearml::queues::{AddOrUpdateMetadata, CPU_KEY, DeleteMetadata, MetadataEntry};
use cantle_clearml::times::SetQueueTimes;
use cantle_clearml::{WireError, subcode};
use cantle_model::{IdleTime, IdleTimeError, Preempt, TimeLimit, TimeLimitError};
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
    /// Set how long the tasks of the queue may run and be idle, and what it does with those of a lost node
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
    #[arg(long, value_name = "TIME|none", value_parser = or_none(time))]
    max_time: Option<OrNone<TimeLimit>>,
    /// The time of a task that asks for none (2h, 1d12h). `none`: the longest time, if there is one
    #[arg(long, value_name = "TIME|none", value_parser = or_none(time))]
    default_time: Option<OrNone<TimeLimit>>,
    /// The longest time that a task may be idle (30m, 2h, at least 1m); one that asks for more is refused, and one that asks for nothing
    /// has this, if there is no default. `none`: no limit
    #[arg(long, value_name = "TIME|none", value_parser = or_none(idle_time))]
    max_idle: Option<OrNone<IdleTime>>,
    /// For how long a task may be idle that asks for nothing (30m, 2h, at least 1m). `none`: the longest time, if there is one
    #[arg(long, value_name = "TIME|none", value_parser = or_none(idle_time))]
    default_idle: Option<OrNone<IdleTime>>,
    /// How its tasks make room for others. `requeue`: they are queued again; `suspend,requeue`: they are suspended if the driver can do that.
    /// `none`: as the project of a task says
    #[arg(long, value_name = "WAYS|none", value_parser = or_none(preempt))]
    preempt: Option<OrNone<Preempt>>,
    /// `auto`: a task that asks for no CPU gets its slice's part of the processors and main memory of its node. `none`: they are not
    /// limited
    #[arg(long, value_name = "auto|none", value_parser = or_none(auto))]
    cpu: Option<OrNone<Auto>>,
}

/// The word `auto`.
#[derive(Clone, Copy, Debug)]
struct Auto;

fn auto(text: &str) -> Result<Auto, String> {
    if text == "auto" { Ok(Auto) } else { Err(format!("\"{text}\" is neither auto nor none")) }
}

impl SetArgs {
    fn check(&self) -> Result<(), CliError> {
        let others = [self.requeue_after.is_some(), self.preempt.is_some(), self.cpu.is_some()];
        if !self.has_times() && !others.contains(&true) {
            let text = "nothing to set; write --max-time, --default-time, --max-idle, --default-idle, --requeue-after, --preempt or --cpu";
            return Err(CliError::new(ErrorKind::Usage, text));
        }
        check_order(("--default-time", self.default_time), ("--max-time", self.max_time))?;
        check_order(("--default-idle", self.default_idle), ("--max-idle", self.max_idle))
    }

    const fn has_times(&self) -> bool {
        self.max_time.is_some()
            || self.default_time.is_some()
            || self.max_idle.is_some()
            || self.default_idle.is_some()
    }
}

type Given<T> = (&'static str, Option<OrNone<T>>);

fn check_order<T: Ord + Display>(default: Given<T>, most: Given<T>) -> Result<(), CliError> {
    match (default, most) {
        ((name, Some(OrNone::Some(default))), (most_name, Some(OrNone::Some(most)))) if default > most => {
            let text = format!("{name} {default} is longer than {most_name} {most}");
            Err(CliError::new(ErrorKind::Usage, text))
        }
        _ => Ok(()),
    }
}

fn time(text: &str) -> Result<TimeLimit, String> {
    text.parse().map_err(|error: TimeLimitError| format!("{error}, or none"))
}

fn idle_time(text: &str) -> Result<IdleTime, String> {
    text.parse().map_err(|error: IdleTimeError| format!("{error}, or none"))
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

const QUEUE_COLUMNS: [Column<QueueView>; 10] = [
    Column { head: "QUEUE", wide: false, cell: |q| q.name.clone() },
    Column { head: "WAITING", wide: false, cell: |q| q.waiting.to_string() },
    Column { head: "RUNNING", wide: false, cell: |q| q.running.to_string() },
    Column { head: "SERVED BY", wide: false, cell: |q| or_dash(Some(&q.nodes.join(","))) },
    Column { head: "NEXT TASK", wide: false, cell: |q| or_dash(q.tasks.first().map(String::as_str)) },
    Column { head: "TIME", wide: true, cell: |q| times(q.default_time_s, q.max_time_s) },
    Column { head: "IDLE", wide: true, cell: |q| times(q.default_idle_s, q.max_idle_s) },
    Column { head: "CPU", wide: true, cell: |q| if q.cpu_auto { "auto" } else { "-" }.to_owned() },
    Column { head: "LOST NODES", wide: true, cell: policy },
    Column {
        head: "MAKES ROOM BY",
        wide: true,
        cell: |q| or_dash(q.preempt.map(|p| p.to_string()).as_deref()),
    },
];

/// `2h`, `1h, at most 2h`.
fn times<T: Display>(default: Option<T>, most: Option<T>) -> String {
    match (default, most) {
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
        set_preempt(context, &connection, args.queue.clone(), preempt.into())?;
    }
    if let Some(cpu) = args.cpu {
        set_cpu(context, &connection, &args.queue, Option::<Auto>::from(cpu).is_some())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An error about a queue that does not exist names it.
fn about(queue: &str, error: WireError) -> CliError {
    if error.is_subcode(subcode::INVALID_QUEUE_ID) { not_there("queue", queue) } else { error.into() }
}

fn set_times(context: &Context, connection: &Connection, args: &SetArgs) -> Result<(), CliError> {
    let SetArgs { queue, max_time, default_time, max_idle, default_idle, .. } = args;
    if !args.has_times() {
        return Ok(());
    }
    // On the wire, 0 is no limit.
    let time = |given: OrNone<TimeLimit>| Option::from(given).map_or(0, TimeLimit::seconds);
    let idle = |given: OrNone<IdleTime>| Option::from(given).map_or(0, IdleTime::seconds);
    let request = SetQueueTimes {
        queue: queue.clone(),
        max_time_s: max_time.map(time),
        default_time_s: default_time.map(time),
        max_idle_s: max_idle.map(idle),
        default_idle_s: default_idle.map(idle),
    };
    connection.answer(&request).map_err(|error| about(queue, error))?;
    let queues = connection.call(&GetQueues {})?.queues;
    if let Some(now) = queues.iter().find(|known| known.name == *queue || known.id == *queue) {
        let time = match times(now.default_time_s, now.max_time_s) {
            none if none == "-" => "tasks run as long as they like".to_owned(),
            times => format!("tasks run {times}"),
        };
        let idle = match times(now.default_idle_s, now.max_idle_s) {
            none if none == "-" => String::new(),
            times => format!(", and may be idle for {times}"),
        };
        context.printer.say(&format!("queue {queue}: {time}{idle}"));
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

fn set_cpu(context: &Context, connection: &Connection, queue: &str, is_auto: bool) -> Result<(), CliError> {
    let queues = connection.call(&GetQueues {})?.queues;
    let found = queues.iter().find(|known| known.name == queue || known.id == queue);
    let id = found.ok_or_else(|| not_there("queue", queue))?.id.clone();
    if is_auto {
        let entry = MetadataEntry { key: CPU_KEY.to_owned(), value: "auto".to_owned() };
        connection.answer(&AddOrUpdateMetadata { queue: id, metadata: vec![entry] })?;
    } else {
        connection.answer(&DeleteMetadata { queue: id, keys: vec![CPU_KEY.to_owned()] })?;
    }
    context.printer.say(&if is_auto {
        format!("queue {queue}: tasks get their part of the processors and memory of their node")
    } else {
        format!("queue {queue}: processors and memory of tasks are not limited")
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
