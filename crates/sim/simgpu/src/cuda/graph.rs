//! Graphs, as far as memory is concerned: allocation and free nodes have the lifetimes that CUDA gives them; other nodes are
//! counted and do nothing.
//!
//! An allocation node has its address from the start and memory from a launch on, until the address is freed: by a free
//! node of this or another graph, or by `cuMemFree(Async)`. A node that depends on a free node of its graph gets the address that is free by
//! then, if it fits there: what a graph takes is the sum over its addresses, not over its nodes. The memory comes from the device's graph
//! pool, which keeps it until `cuDeviceGraphMemTrim`. An upload lets the pool grow to what a launch needs.

use std::collections::{BTreeMap, BTreeSet};

use super::address_space::{Allocation, Kind};
use super::async_memory::PoolProps;
use super::capture::Captures;
use super::kernel_time::Takes;
use super::session::Inner;
use super::{CuError, CuResult};

const HANDLE_BASE: u64 = 0xC0DF_0000_0000;

/// Node types with a meaning here, in CUDA's numbering.
pub(super) const TYPE_KERNEL: u32 = 0;
pub(super) const TYPE_HOST: u32 = 3;
pub(super) const TYPE_MEM_ALLOC: u32 = 10;
pub(super) const TYPE_MEM_FREE: u32 = 11;
pub(super) const TYPE_BATCH_MEM_OP: u32 = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Alloc {
        address: u64,
        size_bytes: u64,
        props: PoolProps,
    },
    Free {
        address: u64,
    },
    /// A kernel that may take time.
    Kernel {
        takes: Takes,
        blocks: u32,
    },
    /// Anything else, by its type.
    Other(u32),
}

impl Node {
    pub(super) fn kind(self) -> u32 {
        match self {
            Self::Alloc { .. } => TYPE_MEM_ALLOC,
            Self::Free { .. } => TYPE_MEM_FREE,
            Self::Kernel { .. } => TYPE_KERNEL,
            Self::Other(kind) => kind,
        }
    }
}

/// A graph, or an executable made of one.
#[derive(Debug, Clone, Default)]
struct Graph {
    nodes: Vec<u64>,
    /// An executable that frees what its last launch left.
    auto_free: bool,
}

/// Graphs, executables and nodes by handle, and what is going on with them.
#[derive(Default)]
pub(super) struct Graphs {
    created: u64,
    graphs: BTreeMap<u64, Graph>,
    executables: BTreeMap<u64, Graph>,
    nodes: BTreeMap<u64, Node>,
    /// The nodes that a node waits for.
    before: BTreeMap<u64, Vec<u64>>,
    pub(super) captures: Captures,
    /// Addresses of allocation nodes that have memory now, and how much.
    resident: BTreeMap<u64, u64>,
    /// The pool of nodes that allocate memory of the host.
    host_pool: Option<u32>,
}

/// Addresses of a graph's allocation nodes: how much memory one needs, and how often it is allocated less how often it is freed.
type Places = BTreeMap<u64, (u64, i64)>;

impl Graphs {
    fn handle(&mut self) -> u64 {
        self.created += 1;
        HANDLE_BASE + self.created * 16
    }

    pub(super) fn create(&mut self) -> u64 {
        let handle = self.handle();
        self.graphs.insert(handle, Graph::default());
        handle
    }

    pub(super) fn nodes_of(&self, graph: u64) -> CuResult<&[u64]> {
        self.graphs.get(&graph).map(|g| g.nodes.as_slice()).ok_or(CuError::INVALID_VALUE)
    }

    pub(super) fn node(&self, node: u64) -> CuResult<Node> {
        self.nodes.get(&node).copied().ok_or(CuError::INVALID_VALUE)
    }

    /// Adds a node that waits for the nodes `before`.
    pub(super) fn add(&mut self, graph: u64, node: Node, before: &[u64]) -> CuResult<u64> {
        self.nodes_of(graph)?;
        let handle = self.handle();
        self.nodes.insert(handle, node);
        self.before.insert(handle, before.to_vec());
        self.graphs.entry(graph).or_default().nodes.push(handle);
        Ok(handle)
    }

    /// Adds what a captured stream does, after what it has done before.
    pub(super) fn add_captured(&mut self, graph: u64, node: Node, stream: u64) -> CuResult<u64> {
        let before = self.captures.tail(graph, stream);
        let handle = self.add(graph, node, &before)?;
        self.captures.advance(graph, stream, handle);
        Ok(handle)
    }

    /// Nodes that have ended before one begins that waits for `before`.
    fn ended_before(&self, before: &[u64]) -> BTreeSet<u64> {
        let (mut ended, mut open) = (BTreeSet::new(), before.to_vec());
        while let Some(node) = open.pop() {
            if ended.insert(node) {
                open.extend(self.before.get(&node).into_iter().flatten());
            }
        }
        ended
    }

    /// The smallest address of a graph that is free for a node after `before`, with room for `size_bytes`: each of its allocations has
    /// been freed by then.
    fn reusable(&self, graph: u64, before: &[u64], size_bytes: u64, props: PoolProps) -> Option<u64> {
        let ended = self.ended_before(before);
        let mut places: BTreeMap<u64, (u64, i64)> = BTreeMap::new();
        for handle in self.nodes_of(graph).ok()? {
            match *self.nodes.get(handle)? {
                Node::Alloc { address, size_bytes, props: of } if of == props => {
                    let (room, open) = places.entry(address).or_default();
                    (*room, *open) = ((*room).max(size_bytes), *open + 1);
                }
                Node::Free { address } if ended.contains(handle) => places.entry(address).or_default().1 -= 1,
                _ => {}
            }
        }
        let fitting = places.into_iter().filter(|&(_, (room, open))| open == 0 && room >= size_bytes);
        fitting.min_by_key(|&(_, (room, _))| room).map(|(address, _)| address)
    }

    fn places(&self, nodes: &[u64]) -> CuResult<Places> {
        let mut places = Places::new();
        for &node in nodes {
            match self.node(node)? {
                Node::Alloc { address, size_bytes, .. } => {
                    let (room, open) = places.entry(address).or_default();
                    (*room, *open) = ((*room).max(size_bytes), *open + 1);
                }
                Node::Free { address } => places.entry(address).or_default().1 -= 1,
                _ => {}
            }
        }
        Ok(places)
    }

    pub(super) fn instantiate(&mut self, graph: u64, auto_free: bool) -> CuResult<u64> {
        let nodes = self.nodes_of(graph)?.to_vec();
        let handle = self.handle();
        self.executables.insert(handle, Graph { nodes, auto_free });
        Ok(handle)
    }
}

impl Inner {
    /// Adds an allocation node, after those that it waits for; the node and its address.
    pub(super) fn add_allocation(
        &mut self,
        graph: u64,
        props: PoolProps,
        size_bytes: u64,
        before: &[u64],
    ) -> CuResult<(u64, u64)> {
        self.graphs.nodes_of(graph)?;
        if size_bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let pool = match props.graph_device()? {
            Some(device) => self.pools.graph_pool(device),
            None => *self.graphs.host_pool.get_or_insert_with(|| self.pools.create(0, true)),
        };
        let address = match self.graphs.reusable(graph, before, size_bytes, props) {
            Some(address) => address,
            None => {
                let allocation = Allocation { size_bytes, context: 0, kind: Kind::Graph(pool) };
                self.addresses.insert(allocation).ok_or(CuError::OUT_OF_MEMORY)?
            }
        };
        let node = self.graphs.add(graph, Node::Alloc { address, size_bytes, props }, before)?;
        Ok((node, address))
    }

    /// Adds a free node for an address of an allocation node.
    pub(super) fn add_free(&mut self, graph: u64, address: u64, before: &[u64]) -> CuResult<u64> {
        match self.addresses.get(address) {
            Some(Allocation { kind: Kind::Graph(_), .. }) => {
                self.graphs.add(graph, Node::Free { address }, before)
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    /// An allocation in a captured stream; its address.
    pub(super) fn capture_allocation(
        &mut self,
        graph: u64,
        props: PoolProps,
        size_bytes: u64,
        stream: u64,
    ) -> CuResult<u64> {
        let before = self.graphs.captures.tail(graph, stream);
        let (node, address) = self.add_allocation(graph, props, size_bytes, &before)?;
        self.graphs.captures.advance(graph, stream, node);
        Ok(address)
    }

    /// A release in a captured stream.
    pub(super) fn capture_free(&mut self, graph: u64, address: u64, stream: u64) -> CuResult {
        let before = self.graphs.captures.tail(graph, stream);
        let node = self.add_free(graph, address, &before)?;
        self.graphs.captures.advance(graph, stream, node);
        Ok(())
    }

    /// Frees the memory behind an allocation node.
    pub(super) fn free_graph_memory(&mut self, address: u64, pool: u32) -> CuResult {
        let size_bytes = self.graphs.resident.remove(&address).ok_or(CuError::INVALID_VALUE)?;
        self.pool_return(pool, size_bytes)?;
        self.forget_unused(&[address]);
        Ok(())
    }

    /// Runs an executable: takes memory for its addresses, all or nothing, and frees what its free nodes name.
    pub(super) fn launch_graph(&mut self, executable: u64) -> CuResult {
        let graph = self.graphs.executables.get(&executable).ok_or(CuError::INVALID_VALUE)?.clone();
        let places = self.graphs.places(&graph.nodes)?;
        let mut taken = Vec::new();
        for (&address, &(size_bytes, _)) in places.iter().filter(|(_, (size_bytes, _))| *size_bytes > 0) {
            match self.launch_allocation(address, size_bytes, graph.auto_free) {
                Ok(()) => taken.push(address),
                Err(error) => {
                    taken.into_iter().try_for_each(|address| self.free(address))?;
                    return Err(error);
                }
            }
        }
        // Memory that another graph allocated has room for nothing here, and is freed.
        places.iter().filter(|(_, (_, open))| *open <= 0).try_for_each(|(&address, _)| self.free(address))
    }

    /// Launching an executable in a captured stream makes its nodes part of the new graph.
    pub(super) fn add_child(&mut self, graph: u64, executable: u64) -> CuResult {
        let child = self.graphs.executables.get(&executable).ok_or(CuError::INVALID_VALUE)?.clone();
        self.graphs.graphs.get_mut(&graph).ok_or(CuError::INVALID_VALUE)?.nodes.extend(child.nodes);
        Ok(())
    }

    /// The kernels of an executable that take time, in order, with their blocks. Those that follow each other are one unit.
    pub(super) fn timed_kernels(&self, executable: u64) -> CuResult<Vec<(Takes, u32)>> {
        let graph = self.graphs.executables.get(&executable).ok_or(CuError::INVALID_VALUE)?;
        let mut units: Vec<(Takes, u32)> = Vec::new();
        for &node in &graph.nodes {
            let Node::Kernel { takes, blocks } = self.graphs.node(node)? else { continue };
            match (units.last_mut(), takes) {
                (Some((Takes::Busy { ns: sum_ns }, _)), Takes::Busy { ns }) => {
                    *sum_ns = sum_ns.saturating_add(ns)
                }
                (_, Takes::NoTime) => {}
                _ => units.push((takes, blocks)),
            }
        }
        Ok(units)
    }

    /// Has the pools reserve what a launch would take. After a refusal, they stay at the size that they could reach.
    pub(super) fn upload_graph(&mut self, executable: u64) -> CuResult {
        let graph = self.graphs.executables.get(&executable).ok_or(CuError::INVALID_VALUE)?;
        let places = self.graphs.places(&graph.nodes)?;
        let (mut taken, mut result) = (Vec::new(), Ok(()));
        for (address, (size_bytes, _)) in places {
            let Some(Allocation { kind: Kind::Graph(pool), .. }) = self.addresses.get(address) else {
                continue;
            };
            if size_bytes == 0 || self.graphs.resident.contains_key(&address) {
                continue;
            }
            result = self.pool_take(pool, size_bytes);
            if result.is_err() {
                break;
            }
            taken.push((pool, size_bytes));
        }
        taken.iter().try_for_each(|&(pool, size_bytes)| self.pool_return(pool, size_bytes))?;
        result
    }

    fn launch_allocation(&mut self, address: u64, size_bytes: u64, auto_free: bool) -> CuResult {
        let Some(Allocation { kind: Kind::Graph(pool), .. }) = self.addresses.get(address) else {
            return Err(CuError::INVALID_VALUE);
        };
        if self.graphs.resident.contains_key(&address) {
            if !auto_free {
                return Err(CuError::INVALID_VALUE);
            }
            self.free(address)?;
        }
        self.pool_take(pool, size_bytes)?;
        self.graphs.resident.insert(address, size_bytes);
        Ok(())
    }

    /// Ends a graph or an executable. Addresses go when nothing names them any more.
    pub(super) fn destroy_graph(&mut self, handle: u64) -> CuResult {
        let graphs = &mut self.graphs;
        let gone = graphs.graphs.remove(&handle).or_else(|| graphs.executables.remove(&handle));
        let gone = gone.ok_or(CuError::INVALID_VALUE)?;
        let addresses = gone.nodes.iter().filter_map(|node| match graphs.nodes.get(node) {
            Some(Node::Alloc { address, .. }) => Some(*address),
            _ => None,
        });
        let addresses: Vec<u64> = addresses.collect();
        self.forget_unused(&addresses);
        let graphs = &mut self.graphs;
        let named = named_nodes(graphs);
        graphs.nodes.retain(|handle, _| named.contains(handle));
        graphs.before.retain(|handle, _| named.contains(handle));
        Ok(())
    }

    /// Ends the address ranges of allocation nodes that no graph names and no memory is behind.
    fn forget_unused(&mut self, addresses: &[u64]) {
        let graphs = &self.graphs;
        let named = named_nodes(graphs);
        let is_named = |(handle, node): (&u64, &Node)| match node {
            Node::Alloc { address, .. } if named.contains(handle) => Some(*address),
            _ => None,
        };
        let in_use: BTreeSet<u64> =
            graphs.nodes.iter().filter_map(is_named).chain(graphs.resident.keys().copied()).collect();
        for address in addresses.iter().filter(|address| !in_use.contains(address)) {
            self.addresses.remove(*address);
        }
    }
}

fn named_nodes(graphs: &Graphs) -> BTreeSet<u64> {
    graphs.graphs.values().chain(graphs.executables.values()).flat_map(|g| g.nodes.iter().copied()).collect()
}
