//! A scenario, read.

use cantle_decide::Offer;
use cantle_sched::{Host, Policy, Project, Queue, Waiting};

/// Nodes, queues and what happens when.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Nodes in the order given.
    pub nodes: Vec<ScenarioNode>,
    /// Queues by priority.
    pub queues: Vec<Queue>,
    /// Projects, the oldest first.
    pub projects: Vec<Project>,
    /// How the scheduler decides.
    pub policy: Policy,
    /// How long a task that is asked to stop takes to do so, in milliseconds.
    pub grace_ms: i64,
    /// What happens, by time and then in the order given.
    pub events: Vec<ScenarioEvent>,
    /// What should come of it.
    pub expectations: Vec<Expectation>,
}

/// Something happens.
#[derive(Clone, Debug)]
pub struct ScenarioEvent {
    /// When, in milliseconds from the start.
    pub at_ms: i64,
    /// What.
    pub action: ScenarioAction,
}

/// What can happen.
#[derive(Clone, Debug)]
pub enum ScenarioAction {
    /// A task comes.
    Submit {
        /// Position of its queue.
        queue: usize,
        /// The task.
        task: Box<Waiting>,
        /// How long it really runs, in milliseconds; `None` until an `end` event.
        runs_ms: Option<i64>,
    },
    /// A running task ends, or a waiting one is withdrawn.
    End(String),
    /// Others use so much memory of a GPU.
    Foreign {
        /// Position of the node.
        node: usize,
        /// Position of the GPU.
        gpu: usize,
        /// In bytes.
        bytes: u64,
    },
    /// A GPU may (not) be used from now on.
    Usable {
        /// Position of the node.
        node: usize,
        /// Position of the GPU.
        gpu: usize,
        /// May it?
        usable: bool,
    },
}

/// What should be so once all events of a time have been dealt with.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Line number in the text, from 1.
    pub line: usize,
    /// When, in milliseconds from the start.
    pub at_ms: i64,
    /// About which task.
    pub task: String,
    /// What.
    pub expected: Expected,
}

/// What is expected of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It runs somewhere.
    Runs,
    /// It runs on these GPUs, written `node:0,1`.
    On(String),
    /// It waits, and its reason contains this text.
    Waits(String),
    /// It has ended.
    Ended,
}

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct ScenarioNode {
    /// Its name.
    pub name: String,
    /// Its GPUs, in index order.
    pub gpus: Vec<Offer>,
    /// What its host offers to tasks; none if that is not counted.
    pub host: Option<Host>,
}
