//! The rows of the screen and their order, independent of terminals.

use cantle_clearml::cantle::{GetNodes, GetTasks, GpuView, NodeView, ProcessView, SliceView, TaskView};
use cantle_model::TaskStatus;
use clap::ValueEnum;

use crate::cmd::machine::here;
use crate::connect::Connection;
use crate::error::CliError;

/// Maximum number of waiting and running tasks; more than fit on any screen.
const TASKS: u64 = 1000;

/// The reports of the server.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(crate) nodes: Vec<NodeView>,
    /// Running and waiting ones, newest first.
    pub(crate) tasks: Vec<TaskView>,
}

impl Picture {
    /// Asks the server; without one, looks at this machine.
    pub(crate) fn fetch(server: Option<&Connection>) -> Result<Self, CliError> {
        let Some(server) = server else {
            let (node, tasks) = here::node()?;
            return Ok(Self { nodes: vec![node], tasks });
        };
        let nodes = server.call(&GetNodes {})?.nodes;
        let status = vec![TaskStatus::InProgress, TaskStatus::Queued];
        let tasks = server.call(&GetTasks { status, limit: Some(TASKS), ..GetTasks::default() })?.tasks;
        Ok(Self { nodes, tasks })
    }
}

/// Order of the GPUs.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By node and index
    Node,
    /// By used memory, highest first
    Used,
    /// By allocated share, highest first
    Given,
}

/// The view that the user has chosen.
#[derive(Debug, Clone)]
pub(crate) struct ViewOptions {
    /// Show only what has this text in a name.
    pub(crate) filter: String,
    pub(crate) sort: Sort,
}

/// One line of the list.
#[derive(Debug, Clone)]
pub(crate) enum TopRow {
    Gpu {
        node: String,
        gpu: GpuView,
    },
    Slice {
        slice: SliceView,
        at: usize,
        last: bool,
        task: Option<Box<TaskView>>,
    },
    Process {
        process: ProcessView,
        task: String,
        /// Is its slice the last one of the GPU?
        last: bool,
    },
    /// The heading of the waiting tasks, with their number.
    Waiting(usize),
    Task(TaskView),
}

impl TopRow {
    /// The task that can be stopped from here.
    pub(crate) fn task(&self) -> Option<&str> {
        match self {
            Self::Slice { slice, .. } => Some(&slice.task),
            Self::Process { task, .. } => Some(task),
            Self::Task(task) => Some(&task.id),
            Self::Gpu { .. } | Self::Waiting(_) => None,
        }
    }
}

/// Memory that the tasks of a GPU use.
pub(crate) fn used_bytes(gpu: &GpuView) -> u64 {
    gpu.slices.iter().map(|slice| slice.memory_used_bytes).sum()
}

/// GPUs with their slices, then the tasks that wait.
pub(crate) fn rows(picture: &Picture, view: &ViewOptions) -> Vec<TopRow> {
    let find = |id: &str| picture.tasks.iter().find(|task| task.id == id).cloned();
    let alive = picture.nodes.iter().filter(|node| node.alive);
    let mut gpus: Vec<(&str, &GpuView)> =
        alive.flat_map(|node| node.gpus.iter().map(|gpu| (node.node.as_str(), gpu))).collect();
    match view.sort {
        Sort::Node => {}
        Sort::Used => gpus.sort_by_key(|(_, gpu)| std::cmp::Reverse(used_bytes(gpu))),
        Sort::Given => gpus.sort_by_key(|(_, gpu)| std::cmp::Reverse(gpu.allocated_milli)),
    }
    let filter = view.filter.to_lowercase();
    let mut rows = Vec::new();
    for (node, gpu) in gpus {
        let tasks: Vec<_> = gpu.slices.iter().map(|slice| find(&slice.task)).collect();
        let named = [node, &gpu.model, &gpu.uuid].into_iter().any(|name| has(name, &filter));
        if !named && !tasks.iter().flatten().any(|task| is_about(task, &filter)) {
            continue;
        }
        rows.push(TopRow::Gpu { node: node.to_owned(), gpu: gpu.clone() });
        for (at, (slice, task)) in gpu.slices.iter().zip(tasks).enumerate() {
            let last = at + 1 == gpu.slices.len();
            rows.push(TopRow::Slice { slice: slice.clone(), at, last, task: task.map(Box::new) });
            let process = |&process| TopRow::Process { process, task: slice.task.clone(), last };
            rows.extend(slice.processes.iter().map(process));
        }
    }
    // The server lists the newest first; those that wait longest are of most interest.
    let waiting = picture.tasks.iter().rev().filter(|task| task.state == TaskStatus::Queued);
    let waiting: Vec<_> = waiting.filter(|task| is_about(task, &filter)).collect();
    if !waiting.is_empty() {
        rows.push(TopRow::Waiting(waiting.len()));
        rows.extend(waiting.into_iter().cloned().map(TopRow::Task));
    }
    rows
}

fn is_about(task: &TaskView, filter: &str) -> bool {
    let names = [Some(&task.name), Some(&task.id), task.queue.as_ref(), task.project.as_ref()];
    names.into_iter().flatten().any(|name| has(name, filter))
}

fn has(name: &str, filter: &str) -> bool {
    name.to_lowercase().contains(filter)
}
