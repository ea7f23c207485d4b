//! Builds the scheduler's snapshot of the world at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantle_model::{Fleet, GpuUuid, Lease, LeaseId, ProjectQuota, QueueSpec, Slice, Topology};
use cantle_sched::{Fabric, Held, Host, Mix, Node, Project, Queue, Running, Snapshot, Waiting};

use crate::{Offer, quota};

/// Builds a [`Snapshot`]. The order in which nodes and queues are added is the order in which they are preferred.
#[derive(Clone, Debug, Default)]
pub struct SnapshotBuilder {
    nodes: Vec<(String, Vec<Offer>, Option<Host>)>,
    topologies: BTreeMap<String, Topology>,
    running: Vec<Running>,
    queues: Vec<Queue>,
    projects: Vec<Project>,
    elsewhere: Vec<Held>,
    expected: Mix,
    last_served: Option<String>,
    at_once: Option<usize>,
    fleet: Option<(Fleet, BTreeSet<LeaseId>)>,
}

impl SnapshotBuilder {
    /// A node with its GPUs in index order. Its CPU and memory are not counted.
    #[must_use]
    pub fn node(self, name: impl Into<String>, gpus: impl IntoIterator<Item = Offer>) -> Self {
        self.node_with_host(name, gpus, None)
    }

    /// A node with its GPUs in index order, and what its host offers to tasks if that is counted.
    #[must_use]
    pub fn node_with_host(
        mut self,
        name: impl Into<String>,
        gpus: impl IntoIterator<Item = Offer>,
        host: Option<Host>,
    ) -> Self {
        self.nodes.push((name.into(), gpus.into_iter().collect(), host));
        self
    }

    /// The connections of the GPUs of the node `node`; unknown without this.
    #[must_use]
    pub fn topology(mut self, node: &str, topology: Topology) -> Self {
        self.topologies.insert(node.to_owned(), topology);
        self
    }

    /// A lease on the node `node`, of any owner.
    #[must_use]
    pub fn lease(self, lease: &Lease, node: &str) -> Self {
        self.running([Running::of_lease(lease, node, 0)])
    }

    /// Tasks that hold slices.
    #[must_use]
    pub fn running(mut self, running: impl IntoIterator<Item = Running>) -> Self {
        self.running.extend(running);
        self
    }

    /// A queue and the tasks that wait in it, in order.
    #[must_use]
    pub fn queue(self, spec: QueueSpec, waiting: Vec<Waiting>) -> Self {
        self.queues([Queue::new(spec, waiting)])
    }

    /// Queues by priority, the first one first.
    #[must_use]
    pub fn queues(mut self, queues: impl IntoIterator<Item = Queue>) -> Self {
        self.queues.extend(queues);
        self
    }

    /// Name of the queue that was served last.
    #[must_use]
    pub fn last_served(mut self, queue: Option<String>) -> Self {
        self.last_served = queue;
        self
    }

    /// Demand that is expected, counted from the past.
    #[must_use]
    pub fn expected(mut self, mix: Mix) -> Self {
        self.expected = mix;
        self
    }

    /// How many tasks may run at once; no limit if `None`.
    #[must_use]
    pub const fn at_once(mut self, limit: Option<usize>) -> Self {
        self.at_once = limit;
        self
    }

    /// A project with a quota, below the project `parent`. `usage_ppm` is its past use in millionths of what there is.
    #[must_use]
    pub fn project(
        mut self,
        name: &str,
        parent: Option<String>,
        quota: &ProjectQuota,
        usage_ppm: u32,
    ) -> Self {
        let mut project = Project::with_quota(name, parent, quota);
        project.usage_ppm = usage_ppm;
        self.projects.push(project);
        self
    }

    /// The holdings of tasks outside this planner's nodes; shares and limits count them.
    #[must_use]
    pub fn held_elsewhere(mut self, held: impl IntoIterator<Item = Held>) -> Self {
        self.elsewhere.extend(held);
        self
    }

    /// The use under quotas, from the server: the owners of the running tasks, and what is held on other nodes. The
    /// leases in `ending` will be free soon, for any reason of their stop.
    #[must_use]
    pub fn under_quotas(mut self, fleet: &Fleet, ending: BTreeSet<LeaseId>) -> Self {
        self.fleet = Some((fleet.clone(), ending));
        self
    }

    /// The snapshot. A slice that takes nothing of what its node offers is left out.
    #[must_use]
    pub fn build(self) -> Snapshot {
        let mut running = self.running;
        for (name, gpus, _) in &self.nodes {
            let offer_of = |slice: &Slice| gpus.iter().find(|offer| offer.gpu.uuid == slice.gpu);
            for running in running.iter_mut().filter(|running| running.node == *name) {
                running.slices.retain(|slice| offer_of(slice).is_none_or(|offer| offer.counts(slice)));
            }
        }
        let mut fabrics = Fabrics::default();
        let node = |(name, gpus, host): (String, Vec<Offer>, Option<Host>)| {
            let topology = self.topologies.get(&name);
            let fabric = topology.and_then(|topology| fabrics.of(topology, &gpus));
            let mut node = Node::new(name, gpus.into_iter().map(Offer::into_state).collect());
            (node.host, node.fabric) = (host, fabric);
            node
        };
        let nodes = self.nodes.into_iter().map(node).collect();
        let mut snapshot = Snapshot::new(nodes, running, self.queues);
        snapshot.last_served = self.last_served;
        snapshot.expected = self.expected;
        snapshot.projects = self.projects;
        snapshot.at_once = self.at_once;
        snapshot.elsewhere.held = self.elsewhere;
        if let Some((fleet, ending)) = &self.fleet {
            quota::enter(&mut snapshot, fleet, ending);
        }
        snapshot
    }
}

/// The fabrics of all nodes, each different one once.
#[derive(Default)]
struct Fabrics(Vec<Arc<Fabric>>);

impl Fabrics {
    fn of(&mut self, topology: &Topology, gpus: &[Offer]) -> Option<Arc<Fabric>> {
        let uuids: Vec<&GpuUuid> = gpus.iter().map(|offer| &offer.gpu.uuid).collect();
        let fabric = Fabric::of(topology, &uuids)?;
        if let Some(known) = self.0.iter().find(|known| ***known == fabric) {
            return Some(Arc::clone(known));
        }
        let fabric = Arc::new(fabric);
        self.0.push(Arc::clone(&fabric));
        Some(fabric)
    }
}
