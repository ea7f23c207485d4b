//! A parsed scenario.

use cantle_decide::Offer;
use cantle_model::Topology;
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
    /// The scheduler's policy.
    pub policy: Policy,
    /// The time that a task takes to stop, in milliseconds.
    pub grace_ms: i64,
    /// The events, by time and then in the given order.
    pub events: Vec<ScenarioEvent>,
    /// The expected results.
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

/// The kinds of event.
#[derive(Clone, Debug)]
pub enum ScenarioAction {
    /// A task comes.
    Submit {
        /// Position of its queue.
        queue: usize,
        /// The task.
        task: Box<Waiting>,
        /// The real run time, in milliseconds; `None` until an `end` event.
        runs_ms: Option<i64>,
        /// Where it runs from now on; the scheduler decides if `None`.
        on: Option<ScenarioPlace>,
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

/// A node, and which of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioPlace {
    /// Position of the node.
    pub node: usize,
    /// Positions of the GPUs; any if empty.
    pub gpus: Vec<usize>,
}

/// An expectation after all events of a time have been handled.
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

/// An expectation about a task.
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
    /// The offer of its host to tasks; none if it is not counted.
    pub host: Option<Host>,
    /// The connections of its GPUs; unknown unless it is named.
    pub topology: Topology,
}
