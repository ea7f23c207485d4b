//! `cantle tasks | gpus | queues | nodes | events`: lists from the server.

use std::process::ExitCode;

use cantle_clearml::cantle::{EventView, GetEvents, GetNodes, GetTasks, GpuView, NodeView, TaskView};
use cantle_clearml::{WireError, subcode};
use cantle_model::{Bytes, Enforcement, Milli, TaskStatus};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use serde::Serialize;

use super::delete;
use super::delete::DeleteArgs;
use super::notebook;
use super::runs;
use super::runs::RunsArgs;
use super::starts;
use crate::cmd::fleet::topology;
use crate::cmd::kubernetes::cluster;
use crate::cmd::kubernetes::cluster::ClusterArg;
use crate::cmd::machine::here;
use crate::complete;
use crate::connect::{Connection, no_task, not_there};
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Format, Printer, age, ago, between};

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
    #[arg(long, value_name = "USER", conflicts_with = "mine")]
    user: Option<String>,
    /// Only your own tasks
    #[arg(long)]
    mine: bool,
    /// Only tasks in this state (queued, in_progress, completed, …)
    #[arg(long, value_name = "STATE")]
    status: Vec<String>,
    /// Only the tasks of this array. Without it the list has one row for those of an array that do not run
    #[arg(long, value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    array: Option<String>,
    /// List waiting tasks only, with an estimate of their start: from the time limits of the tasks before them, or from former runs
    #[arg(long, conflicts_with = "status")]
    start: bool,
    /// Only these tasks: names, ids, or beginnings of ids
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    tasks: Vec<String>,
    /// Maximum number of tasks, newest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u32,
}

/// Actions on many tasks.
#[derive(Subcommand, Debug)]
enum TasksCommand {
    /// Delete ended tasks, with their output, their files on the server and their unpublished models
    Delete(DeleteArgs),
    /// List all runs of a task: time, node, slices, and the reason why each ended
    Runs(RunsArgs),
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

const TASK_COLUMNS: [Column<TaskView>; 15] = [
    Column { head: "ID", wide: false, cell: |t| t.id.clone() },
    Column { head: "NAME", wide: false, cell: name_of },
    Column { head: "PROJECT", wide: true, cell: |t| or_dash(t.project.as_deref()) },
    Column { head: "USER", wide: true, cell: |t| t.user.clone() },
    Column { head: "QUEUE", wide: false, cell: |t| or_dash(t.queue.as_deref()) },
    Column { head: "STATE", wide: false, cell: |t| t.state.to_string() },
    Column { head: "GPU", wide: false, cell: |t| amount(t.milli) },
    Column { head: "MEMORY", wide: false, cell: |t| memory(t.memory_limit_bytes) },
    Column { head: "CPU", wide: true, cell: cores },
    Column { head: "MAIN MEMORY", wide: true, cell: |t| memory(t.host.map_or(0, |host| host.memory_bytes)) },
    Column { head: "NODE", wide: false, cell: |t| or_dash(t.node.as_deref()) },
    Column { head: "AGE", wide: false, cell: |t| age(&t.created) },
    Column { head: "TIME", wide: false, cell: |t| run_time(t) },
    Column { head: "CREATED", wide: true, cell: |t| t.created.clone() },
    Column { head: "REASON", wide: false, cell: |t| t.reason.clone().unwrap_or_default() },
];

/// An array with its indices: `train[0-99%8]`.
pub(super) fn name_of(task: &TaskView) -> String {
    let name = clip(&task.name, 32);
    task.array.as_ref().map_or_else(|| name.clone(), |array| format!("{name}[{}]", array.indices))
}

/// The CPU cores that it counts with, or gets.
fn cores(task: &TaskView) -> String {
    let milli = task.host.map_or(0, |host| u32::try_from(host.cpu_milli).unwrap_or(u32::MAX));
    amount(milli)
}

/// For how long it has run, and may run: `12m`, `12m / 2h`.
fn run_time(task: &TaskView) -> String {
    let ran = task.started.as_deref();
    let ran = ran.map_or_else(|| "-".to_owned(), |started| between(started, task.ended.as_deref()));
    match task.time_limit_s {
        Some(limit) => format!("{ran} / {limit}"),
        None => ran,
    }
}

/// Tasks, newest first.
pub(crate) fn tasks(context: &Context, args: TasksArgs) -> CommandResult {
    match &args.command {
        Some(TasksCommand::Delete(args)) => return delete::delete(context, args),
        Some(TasksCommand::Runs(args)) => return runs::runs(context, args),
        None => {}
    }
    if args.start {
        return starts::starts(context, &args);
    }
    let states = args.status.iter().map(|word| word.parse::<TaskStatus>()).collect::<Result<Vec<_>, _>>();
    let states = states.map_err(|error| CliError::new(ErrorKind::Usage, error))?;
    let server = Connection::open(context)?;
    let mut found = listed(&server, &args, states)?;
    if matches!(context.printer.format, Format::Table | Format::Wide) {
        server.name_tasks(&mut found.iter_mut().filter_map(|task| task.reason.as_mut()).collect::<Vec<_>>());
    }
    print_tasks(&context.printer, &found);
    if let ([task], false, Format::Table | Format::Wide) =
        (found.as_slice(), args.tasks.is_empty(), context.printer.format)
        && let Some(address) = notebook::address_of(&server, task)?
    {
        context.printer.say(&format!("its notebook, with your login: {address}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The tasks that the options name.
pub(super) fn listed(
    server: &Connection,
    args: &TasksArgs,
    status: Vec<TaskStatus>,
) -> Result<Vec<TaskView>, CliError> {
    let named = server.find_tasks(&args.tasks)?;
    let request = GetTasks {
        id: named.clone(),
        status,
        queue: args.queue.clone(),
        project: args.project.clone(),
        user: args.user.clone(),
        mine: args.mine,
        array: args.array.as_ref().map(|word| server.find_task(word)).transpose()?,
        limit: Some(args.limit.into()),
        ..GetTasks::default()
    };
    let found = server.answer(&request).map_err(|error| filtered(error, &request))?.tasks;
    match named.iter().find(|id| !found.iter().any(|task| task.id == **id)) {
        Some(missing) => Err(no_task(missing)),
        None => Ok(found),
    }
}

/// Tasks, as `cantle tasks` lists them.
pub(crate) fn print_tasks(printer: &Printer, tasks: &[TaskView]) {
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

const GPU_COLUMNS: [Column<NodeGpu>; 10] = [
    Column { head: "NODE", wide: false, cell: |g| g.node.clone() },
    Column { head: "GPU", wide: false, cell: |g| g.gpu.index.to_string() },
    Column { head: "NAME", wide: false, cell: |g| g.gpu.model.clone() },
    Column { head: "MODE", wide: false, cell: |g| state(&g.gpu) },
    Column { head: "SLICES", wide: false, cell: |g| bar(&g.gpu) },
    Column { head: "ALLOCATED", wide: false, cell: |g| allocated(&g.gpu) },
    Column { head: "USED / LIMIT / TOTAL", wide: false, cell: |g| use_of(&g.gpu) },
    Column { head: "TASKS", wide: false, cell: |g| tasks_on(&g.gpu) },
    Column { head: "COMPUTE", wide: true, cell: |g| compute(&g.gpu) },
    Column { head: "UUID", wide: true, cell: |g| g.gpu.uuid.clone() },
];

/// Each slice's share of the compute time, with its letter in [`bar`]; `even` where the driver divides.
fn compute(gpu: &GpuView) -> String {
    let lettered = gpu.slices.iter().zip(('A'..='Z').cycle());
    let shares: Vec<String> = lettered
        .filter_map(|(slice, letter)| Some(format!("{letter} {}", slice.compute.as_ref()?)))
        .collect();
    if shares.is_empty() { "even".to_owned() } else { shares.join("; ") }
}

/// Its mode, and the reason if it is out of service: `idle`, `shared, Xid 79 (GPU has fallen off the bus)`.
fn state(gpu: &GpuView) -> String {
    let mode = gpu.mode.word();
    gpu.fault.as_ref().map_or_else(|| mode.to_owned(), |fault| format!("{mode}, {fault}"))
}

/// The number of tasks, with the names of those that could evade their limit: `2`, `2 (B privileged: 3f2a…)`.
fn tasks_on(gpu: &GpuView) -> String {
    let count = gpu.slices.len();
    let lettered = gpu.slices.iter().zip(('A'..='Z').cycle());
    let loose: Vec<String> = lettered
        .filter(|(slice, _)| slice.enforcement == Some(Enforcement::PrivilegedMountNamespace))
        .map(|(slice, letter)| format!("{letter} privileged: {}", slice.task))
        .collect();
    if loose.is_empty() { count.to_string() } else { format!("{count} ({})", loose.join(", ")) }
}

/// `cantle gpus`
#[derive(Args, Debug)]
pub(crate) struct GpusArgs {
    #[command(flatten)]
    from: ClusterArg,
    /// Print how the GPUs of each node are connected (NVLink, PCIe), as nvidia-smi topo -m does
    #[arg(long)]
    topology: bool,
}

/// GPUs of the nodes that are up, with their slices or their connections.
pub(crate) fn gpus(context: &Context, GpusArgs { from, topology }: &GpusArgs) -> CommandResult {
    if let Some(report) = from.read(context)? {
        if *topology {
            let why = "--topology is for nodes with cantle's agent, not for a cluster";
            return Err(CliError::new(ErrorKind::Usage, why));
        }
        return cluster::gpus(context, &report);
    }
    let Some(server) = Connection::open_if_any(context)? else {
        return if *topology { topology::print(context, &[here::connected()?]) } else { here::gpus(context) };
    };
    let nodes = server.call(&GetNodes {})?.nodes;
    let alive = nodes.into_iter().filter(|node| node.alive);
    if *topology {
        return topology::print(context, &alive.collect::<Vec<_>>());
    }
    let gpus: Vec<NodeGpu> = alive
        .flat_map(|NodeView { node, gpus, .. }| {
            gpus.into_iter().map(move |gpu| NodeGpu { node: node.clone(), gpu })
        })
        .collect();
    context.printer.items(&gpus, |g| g.gpu.uuid.clone(), &GPU_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const NODE_COLUMNS: [Column<NodeView>; 6] = [
    Column { head: "NODE", wide: false, cell: |n| n.node.clone() },
    Column { head: "STATE", wide: false, cell: |n| if n.alive { "up" } else { "gone" }.to_owned() },
    Column { head: "GPUS", wide: false, cell: |n| n.gpus.len().to_string() },
    Column {
        head: "ALLOCATED",
        wide: false,
        cell: |n| amount(n.gpus.iter().map(|g| g.allocated_milli).sum()),
    },
    Column { head: "QUEUES", wide: false, cell: queues_of },
    Column { head: "LAST SEEN", wide: true, cell: |n| ago(Some(&n.last_seen)) },
];

/// Nodes that ever reported.
pub(crate) fn nodes(context: &Context) -> CommandResult {
    let nodes = Connection::open(context)?.call(&GetNodes {})?.nodes;
    context.printer.items(&nodes, |n| n.node.clone(), &NODE_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const EVENT_COLUMNS: [Column<EventView>; 7] = [
    Column { head: "TIME", wide: false, cell: |e| e.time.clone() },
    Column { head: "KIND", wide: false, cell: |e| e.kind.clone() },
    Column { head: "TASK", wide: false, cell: |e| or_dash(e.task.as_deref()) },
    Column { head: "QUEUE", wide: true, cell: |e| or_dash(e.queue.as_deref()) },
    Column { head: "NODE", wide: true, cell: |e| or_dash(e.node.as_deref()) },
    Column { head: "WHO", wide: true, cell: |e| or_dash(Some(e.who.as_str()).filter(|who| !who.is_empty())) },
    Column { head: "MESSAGE", wide: false, cell: |e| e.message.clone() },
];

/// The events, oldest first.
pub(crate) fn events(context: &Context, args: EventsArgs) -> CommandResult {
    let server = Connection::open(context)?;
    let task = args.task.map(|word| server.find_task(&word)).transpose()?;
    let request = GetEvents { task, after: None, limit: Some(args.limit.into()) };
    let events = server.call(&request)?.events;
    context.printer.items(&events, |e| e.id.to_string(), &EVENT_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

fn queues_of(node: &NodeView) -> String {
    node.queues.iter().map(|q| format!("{}={}", q.name, q.spec)).collect::<Vec<_>>().join(" ")
}

/// The part of a GPU that tasks have, and the part that MIG instances of others take: `0.125, 0.5 foreign`.
pub(crate) fn allocated(gpu: &GpuView) -> String {
    let foreign = Milli(gpu.foreign.iter().map(|instance| instance.milli).sum());
    match (gpu.allocated_milli, foreign) {
        (given, Milli(0)) => amount(given),
        (0, foreign) => format!("{foreign} foreign"),
        (given, foreign) => format!("{}, {foreign} foreign", amount(given)),
    }
}

/// The GPU in eighths: a letter for each eighth of a slice, slices in their order, `#` for MIG instances of others, and dots for what is free.
/// MIG instances are drawn where they are.
pub(crate) fn bar(gpu: &GpuView) -> String {
    let mut cells = ['.'; 8];
    for instance in &gpu.foreign {
        let (first, eighths) = place(instance.start, instance.size, instance.milli);
        cells.iter_mut().skip(first as usize).take(eighths.max(1) as usize).for_each(|cell| *cell = '#');
    }
    let mut next = 0;
    for (slice, letter) in gpu.slices.iter().zip(('A'..='Z').cycle()) {
        let (first, eighths) = match &slice.mig {
            Some(mig) => place(mig.start, mig.size, slice.milli),
            None => (next, slice.milli.div_ceil(125)),
        };
        next = first + eighths.max(1);
        cells.iter_mut().take(next as usize).skip(first as usize).for_each(|cell| *cell = letter);
    }
    format!("[{}]", cells.iter().collect::<String>())
}

/// The first eighth and the number of eighths of a MIG instance: `size` units of the GPU's grid are this many thousandths.
fn place(start: u32, size: u32, milli: u32) -> (u32, u32) {
    (start * milli / (size.max(1) * 125), milli / 125)
}

fn use_of(gpu: &GpuView) -> String {
    let sum = |part: fn(&cantle_clearml::cantle::SliceView) -> u64| Bytes(gpu.slices.iter().map(part).sum());
    let (used, limit) = (sum(|s| s.memory_used_bytes), sum(|s| s.memory_limit_bytes));
    format!("{used} / {limit} / {}", Bytes(gpu.memory_bytes))
}

pub(crate) fn amount(milli: u32) -> String {
    if milli == 0 { "-".to_owned() } else { Milli(milli).to_string() }
}

pub(crate) fn memory(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { Bytes(bytes).to_string() }
}

pub(crate) fn or_dash(text: Option<&str>) -> String {
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
    use cantle_clearml::cantle::{ComputeView, ForeignView, SliceView};
    use cantle_model::{ComputeMode, GpuMode, MigInstance};

    fn gpu(millis: &[u32]) -> GpuView {
        let slice = |&milli: &u32| SliceView {
            compute: None,
            direct: None,
            task: "t".into(),
            lease: "l".into(),
            milli,
            memory_limit_bytes: 2 << 30,
            memory_used_bytes: 1 << 30,
            mig: None,
            enforcement: None,
            enforced_by: Vec::new(),
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
            foreign: Vec::new(),
            fault: None,
        }
    }

    #[test]
    fn who_could_evade_a_limit_is_named() {
        let mut shared = gpu(&[250, 250]);
        shared.slices[0].enforcement = Some(Enforcement::MountNamespace);
        assert_eq!((tasks_on(&shared), state(&shared)), ("2".to_owned(), "shared".to_owned()));
        shared.slices[1].enforcement = Some(Enforcement::PrivilegedMountNamespace);
        assert_eq!(tasks_on(&shared), "2 (B privileged: t)");
        shared.fault = Some("Xid 79".to_owned());
        assert_eq!(state(&shared), "shared, Xid 79");
    }

    #[test]
    fn compute_is_named_with_its_slice() {
        let mut shared = gpu(&[250, 250]);
        assert_eq!(compute(&shared), "even");
        shared.slices[1].compute = Some(ComputeView {
            mode: ComputeMode::Fair,
            request_milli: 250,
            limit_milli: Some(600),
            share_ppm: Some(247_300),
            gpu_time_us: 4_000_000,
            gate_wait_us: 12_345_678,
        });
        assert_eq!(compute(&shared), "B fair 0.25, at most 0.6, had 0.247, waited 12.3 s");
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
        let foreign = |start, size, milli| ForeignView { profile: "x".into(), start, size, milli };
        drawn.foreign = vec![foreign(2, 2, 250)];
        assert_eq!((bar(&drawn), allocated(&drawn)), ("[B.##AA..]".into(), "0.375, 0.25 foreign".into()));
        let mut full = gpu(&[]);
        full.foreign = vec![foreign(4, 4, 500), foreign(0, 2, 250), foreign(2, 1, 125), foreign(3, 1, 125)];
        assert_eq!((bar(&full), allocated(&full)), ("[########]".into(), "1 foreign".into()));
        drawn.foreign.clear();
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
