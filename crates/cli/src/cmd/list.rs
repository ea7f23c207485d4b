//! `cantle tasks | gpus | queues | nodes | events`: lists from the server.

use std::process::ExitCode;

use cantle_clearml::cantle::{
    EventView, GetEvents, GetNodes, GetQueues, GetTasks, GpuView, NodeView, QueueView, TaskView,
};
use cantle_clearml::{WireError, subcode};
use cantle_model::{Bytes, GpuMode, Milli, TaskStatus};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use serde::Serialize;

use super::cluster::{self, ClusterArg};
use super::delete::{self, DeleteArgs};
use crate::complete;
use crate::connect::{Connection, no_task, not_there};
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Printer};

/// `cantle tasks`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TasksArgs {
    #[command(subcommand)]
    command: Option<TasksCommand>,
    /// Only tasks of this queue
    #[arg(long, value_name = "Q", add = ArgValueCompleter::new(complete::queues))]
    queue: Option<String>,
    /// Only tasks of this project
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// Only tasks of this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only tasks in this state (queued, in_progress, completed, …)
    #[arg(long, value_name = "STATE")]
    status: Vec<String>,
    /// Only these tasks
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    tasks: Vec<String>,
    /// Maximum number of tasks, newest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

/// What can be done with many tasks.
#[derive(Subcommand, Debug)]
enum TasksCommand {
    /// Delete tasks that ended, with their output, their files on the server and their unpublished models
    Delete(DeleteArgs),
}

/// `cantle events`
#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only events of this task
    #[arg(long, value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    task: Option<String>,
    /// Maximum number of events, the newest ones
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

const TASK_COLUMNS: [Column<TaskView>; 11] = [
    Column { head: "ID", wide: false, cell: |t| t.id.clone() },
    Column { head: "NAME", wide: false, cell: |t| clip(&t.name, 32) },
    Column { head: "PROJECT", wide: true, cell: |t| or_dash(t.project.as_deref()) },
    Column { head: "USER", wide: true, cell: |t| t.user.clone() },
    Column { head: "QUEUE", wide: false, cell: |t| or_dash(t.queue.as_deref()) },
    Column { head: "STATE", wide: false, cell: |t| t.state.to_string() },
    Column { head: "GPU", wide: false, cell: |t| amount(t.milli) },
    Column { head: "MEMORY", wide: false, cell: |t| memory(t.memory_limit_bytes) },
    Column { head: "NODE", wide: false, cell: |t| or_dash(t.node.as_deref()) },
    Column { head: "CREATED", wide: true, cell: |t| t.created.clone() },
    Column { head: "REASON", wide: false, cell: |t| t.reason.clone().unwrap_or_default() },
];

/// Tasks, newest first.
pub(crate) fn tasks(context: &Context, args: TasksArgs) -> CommandResult {
    if let Some(TasksCommand::Delete(args)) = &args.command {
        return delete::delete(context, args);
    }
    let states = args.status.iter().map(|word| word.parse::<TaskStatus>()).collect::<Result<Vec<_>, _>>();
    let states = states.map_err(|error| CliError::new(ErrorKind::Usage, error))?;
    let request = GetTasks {
        id: args.tasks.clone(),
        status: states,
        queue: args.queue,
        project: args.project,
        user: args.user,
        limit: Some(args.limit.into()),
    };
    let found = Connection::open(context)?.answer(&request).map_err(|error| filtered(error, &request))?.tasks;
    if let Some(missing) = args.tasks.iter().find(|id| !found.iter().any(|t| t.id == **id)) {
        return Err(no_task(missing));
    }
    print_tasks(&context.printer, &found);
    Ok(ExitCode::SUCCESS)
}

/// Tasks, as `cantle tasks` lists them.
pub(super) fn print_tasks(printer: &Printer, tasks: &[TaskView]) {
    printer.items(tasks, |t| t.id.clone(), &TASK_COLUMNS);
}

/// A filter may name what does not exist.
fn filtered(error: WireError, request: &GetTasks) -> CliError {
    match (&request.queue, &request.project) {
        (Some(queue), _) if error.is_subcode(subcode::INVALID_QUEUE_ID) => not_there("queue", queue),
        (_, Some(project)) if error.is_subcode(subcode::INVALID_PROJECT_ID) => not_there("project", project),
        _ => error.into(),
    }
}

/// A GPU with the node it is in.
#[derive(Serialize)]
struct NodeGpu {
    node: String,
    #[serde(flatten)]
    gpu: GpuView,
}

const GPU_COLUMNS: [Column<NodeGpu>; 9] = [
    Column { head: "NODE", wide: false, cell: |g| g.node.clone() },
    Column { head: "GPU", wide: false, cell: |g| g.gpu.index.to_string() },
    Column { head: "NAME", wide: false, cell: |g| g.gpu.model.clone() },
    Column { head: "MODE", wide: false, cell: |g| mode(g.gpu.mode).to_owned() },
    Column { head: "SLICES", wide: false, cell: |g| bar(&g.gpu) },
    Column { head: "GIVEN", wide: false, cell: |g| amount(g.gpu.allocated_milli) },
    Column { head: "USED / LIMIT / TOTAL", wide: false, cell: |g| use_of(&g.gpu) },
    Column { head: "TASKS", wide: false, cell: |g| g.gpu.slices.len().to_string() },
    Column { head: "UUID", wide: true, cell: |g| g.gpu.uuid.clone() },
];

/// GPUs of the nodes that are up, with their slices.
pub(crate) fn gpus(context: &Context, from: &ClusterArg) -> CommandResult {
    if let Some(report) = from.read(context)? {
        return cluster::gpus(context, &report);
    }
    let nodes = Connection::open(context)?.call(&GetNodes {})?.nodes;
    let alive = nodes.into_iter().filter(|node| node.alive);
    let gpus: Vec<NodeGpu> = alive
        .flat_map(|NodeView { node, gpus, .. }| {
            gpus.into_iter().map(move |gpu| NodeGpu { node: node.clone(), gpu })
        })
        .collect();
    context.printer.items(&gpus, |g| g.gpu.uuid.clone(), &GPU_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const QUEUE_COLUMNS: [Column<QueueView>; 5] = [
    Column { head: "QUEUE", wide: false, cell: |q| q.name.clone() },
    Column { head: "WAITING", wide: false, cell: |q| q.waiting.to_string() },
    Column { head: "RUNNING", wide: false, cell: |q| q.running.to_string() },
    Column { head: "SERVED BY", wide: false, cell: |q| or_dash(Some(&q.nodes.join(","))) },
    Column { head: "NEXT TASK", wide: false, cell: |q| or_dash(q.tasks.first().map(String::as_str)) },
];

/// Queues by name.
pub(crate) fn queues(context: &Context) -> CommandResult {
    let queues = Connection::open(context)?.call(&GetQueues {})?.queues;
    context.printer.items(&queues, |q| q.name.clone(), &QUEUE_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const NODE_COLUMNS: [Column<NodeView>; 6] = [
    Column { head: "NODE", wide: false, cell: |n| n.node.clone() },
    Column { head: "STATE", wide: false, cell: |n| if n.alive { "up" } else { "gone" }.to_owned() },
    Column { head: "GPUS", wide: false, cell: |n| n.gpus.len().to_string() },
    Column { head: "GIVEN", wide: false, cell: |n| amount(n.gpus.iter().map(|g| g.allocated_milli).sum()) },
    Column { head: "QUEUES", wide: false, cell: queues_of },
    Column { head: "LAST SEEN", wide: true, cell: |n| n.last_seen.clone() },
];

/// Nodes that ever reported.
pub(crate) fn nodes(context: &Context) -> CommandResult {
    let nodes = Connection::open(context)?.call(&GetNodes {})?.nodes;
    context.printer.items(&nodes, |n| n.node.clone(), &NODE_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const EVENT_COLUMNS: [Column<EventView>; 6] = [
    Column { head: "TIME", wide: false, cell: |e| e.time.clone() },
    Column { head: "KIND", wide: false, cell: |e| e.kind.clone() },
    Column { head: "TASK", wide: false, cell: |e| or_dash(e.task.as_deref()) },
    Column { head: "QUEUE", wide: true, cell: |e| or_dash(e.queue.as_deref()) },
    Column { head: "NODE", wide: true, cell: |e| or_dash(e.node.as_deref()) },
    Column { head: "MESSAGE", wide: false, cell: |e| e.message.clone() },
];

/// What happened, oldest first.
pub(crate) fn events(context: &Context, args: EventsArgs) -> CommandResult {
    let request = GetEvents { task: args.task, after: None, limit: Some(args.limit.into()) };
    let events = Connection::open(context)?.call(&request)?.events;
    context.printer.items(&events, |e| e.id.to_string(), &EVENT_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

fn queues_of(node: &NodeView) -> String {
    node.queues.iter().map(|q| format!("{}={}", q.name, q.spec)).collect::<Vec<_>>().join(" ")
}

const fn mode(mode: GpuMode) -> &'static str {
    match mode {
        GpuMode::Idle => "idle",
        GpuMode::Shared => "shared",
        GpuMode::Whole => "whole",
        GpuMode::Mig => "mig",
    }
}

/// The GPU in eighths: a letter for each eighth of a slice, slices in their order, and dots for what is free. MIG instances
/// are drawn where they are.
fn bar(gpu: &GpuView) -> String {
    let mut cells = ['.'; 8];
    let mut next = 0;
    for (slice, letter) in gpu.slices.iter().zip(('A'..='Z').cycle()) {
        let (first, eighths) = match &slice.mig {
            // `size` units of the GPU's grid are this many thousandths.
            Some(mig) => (mig.start * slice.milli / (mig.size.max(1) * 125), slice.milli / 125),
            None => (next, slice.milli.div_ceil(125)),
        };
        next = first + eighths.max(1);
        cells.iter_mut().take(next as usize).skip(first as usize).for_each(|cell| *cell = letter);
    }
    format!("[{}]", cells.iter().collect::<String>())
}

fn use_of(gpu: &GpuView) -> String {
    let sum = |part: fn(&cantle_clearml::cantle::SliceView) -> u64| Bytes(gpu.slices.iter().map(part).sum());
    let (used, limit) = (sum(|s| s.memory_used_bytes), sum(|s| s.memory_limit_bytes));
    format!("{used} / {limit} / {}", Bytes(gpu.memory_bytes))
}

fn amount(milli: u32) -> String {
    if milli == 0 { "-".to_owned() } else { Milli(milli).to_string() }
}

fn memory(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { Bytes(bytes).to_string() }
}

fn or_dash(text: Option<&str>) -> String {
    text.filter(|t| !t.is_empty()).unwrap_or("-").to_owned()
}

fn clip(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let kept: String = text.chars().take(limit.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cantle_clearml::cantle::SliceView;
    use cantle_model::MigInstance;

    fn gpu(millis: &[u32]) -> GpuView {
        let slice = |&milli: &u32| SliceView {
            compute: None,
            task: "t".into(),
            lease: "l".into(),
            milli,
            memory_limit_bytes: 2 << 30,
            memory_used_bytes: 1 << 30,
            mig: None,
            enforcement: None,
            processes: Vec::new(),
        };
        GpuView {
            index: 0,
            uuid: "GPU-0".into(),
            model: "X".into(),
            memory_bytes: 40 << 30,
            mode: GpuMode::Shared,
            allocated_milli: millis.iter().sum(),
            slices: millis.iter().map(slice).collect(),
        }
    }

    #[test]
    fn a_gpu_is_drawn_in_eighths() {
        assert_eq!(bar(&gpu(&[250, 500])), "[AABBBB..]");
        assert_eq!(bar(&gpu(&[])), "[........]");
        assert_eq!(bar(&gpu(&[1000])), "[AAAAAAAA]");
        assert_eq!(use_of(&gpu(&[250, 500])), "2 GiB / 4 GiB / 40 GiB");
    }

    #[test]
    fn mig_instances_are_drawn_where_they_are() {
        let mut drawn = gpu(&[250, 125]);
        let at = |profile: &str, start, size| {
            Some(MigInstance { profile: profile.into(), start, size, uuid: String::new() })
        };
        drawn.slices[0].mig = at("2g.10gb", 4, 2);
        drawn.slices[1].mig = at("1g.5gb", 0, 1);
        assert_eq!(bar(&drawn), "[B...AA..]");
        drawn.slices.truncate(1);
        drawn.slices[0].mig = at("1g.24gb", 9, 3);
        assert_eq!(bar(&drawn), "[......AA]", "a grid of twelve");
    }

    #[test]
    fn long_names_are_clipped() {
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip("äöü", 3), "äöü");
    }
}
