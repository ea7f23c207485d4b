//! Graphs, as far as memory is concerned: allocation and free nodes have the lifetimes that CUDA gives them; other nodes are
//! counted and do nothing. Dependencies are not kept.
//!
//! An allocation node has its address from the start and memory from a launch on, until the address is freed: by a free
//! node of this or another graph, or by `cuMemFree(Async)`. The memory comes from the device's graph pool, which keeps it
//! until `cuDeviceGraphMemTrim`. An upload lets the pool grow to what a launch needs.

use std::collections::{BTreeMap, BTreeSet};

use super::address_space::{Allocation, Kind};
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
    pub(super) captures: Captures,
    /// Addresses of allocation nodes that have memory now.
    resident: BTreeSet<u64>,
}

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

    pub(super) fn add(&mut self, graph: u64, node: Node) -> CuResult<u64> {
        self.nodes_of(graph)?;
        let handle = self.handle();
        self.nodes.insert(handle, node);
        self.graphs.entry(graph).or_default().nodes.push(handle);
        Ok(handle)
    }

    pub(super) fn instantiate(&mut self, graph: u64, auto_free: bool) -> CuResult<u64> {
        let nodes = self.nodes_of(graph)?.to_vec();
        let handle = self.handle();
        self.executables.insert(handle, Graph { nodes, auto_free });
        Ok(handle)
    }
}

impl Inner {
    /// Adds an allocation node; the node and its address.
    pub(super) fn add_allocation(
        &mut self,
        graph: u64,
        device: usize,
        size_bytes: u64,
    ) -> CuResult<(u64, u64)> {
        self.graphs.nodes_of(graph)?;
        if size_bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let kind = Kind::Graph(self.pools.graph_pool(device));
        let allocation = Allocation { size_bytes, context: 0, kind };
        let address = self.addresses.insert(allocation).ok_or(CuError::OUT_OF_MEMORY)?;
        let node = self.graphs.add(graph, Node::Alloc { address, size_bytes })?;
        Ok((node, address))
    }

    /// Adds a free node for an address of an allocation node.
    pub(super) fn add_free(&mut self, graph: u64, address: u64) -> CuResult<u64> {
        match self.addresses.get(address) {
            Some(Allocation { kind: Kind::Graph(_), .. }) => self.graphs.add(graph, Node::Free { address }),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    /// Frees the memory behind an allocation node.
    pub(super) fn free_graph_memory(&mut self, address: u64, pool: u32, size_bytes: u64) -> CuResult {
        if !self.graphs.resident.remove(&address) {
            return Err(CuError::INVALID_VALUE);
        }
        self.pool_return(pool, size_bytes)?;
        self.forget_unused(&[Node::Alloc { address, size_bytes }]);
        Ok(())
    }

    /// Runs an executable: takes memory for its allocation nodes, all or nothing, then runs its free nodes.
    pub(super) fn launch_graph(&mut self, executable: u64) -> CuResult {
        let graph = self.graphs.executables.get(&executable).ok_or(CuError::INVALID_VALUE)?.clone();
        let nodes = graph.nodes.iter().map(|&node| self.graphs.node(node)).collect::<CuResult<Vec<_>>>()?;
        let mut taken = Vec::new();
        for &node in &nodes {
            if let Node::Alloc { address, .. } = node {
                match self.launch_allocation(address, graph.auto_free) {
                    Ok(()) => taken.push(address),
                    Err(error) => {
                        taken.into_iter().try_for_each(|address| self.free(address))?;
                        return Err(error);
                    }
                }
            }
        }
        for &node in &nodes {
            if let Node::Free { address } = node {
                self.free(address)?;
            }
        }
        Ok(())
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
        let nodes = graph.nodes.iter().map(|&node| self.graphs.node(node)).collect::<CuResult<Vec<_>>>()?;
        let (mut taken, mut result) = (Vec::new(), Ok(()));
        for node in nodes {
            let Node::Alloc { address, size_bytes } = node else { continue };
            let Some(Allocation { kind: Kind::Graph(pool), .. }) = self.addresses.get(address) else {
                continue;
            };
            if self.graphs.resident.contains(&address) {
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

    fn launch_allocation(&mut self, address: u64, auto_free: bool) -> CuResult {
        let Some(Allocation { kind: Kind::Graph(pool), size_bytes, .. }) = self.addresses.get(address) else {
            return Err(CuError::INVALID_VALUE);
        };
        if self.graphs.resident.contains(&address) {
            if !auto_free {
                return Err(CuError::INVALID_VALUE);
            }
            self.free(address)?;
        }
        self.pool_take(pool, size_bytes)?;
        self.graphs.resident.insert(address);
        Ok(())
    }

    /// Ends a graph or an executable. Addresses go when nothing names them any more.
    pub(super) fn destroy_graph(&mut self, handle: u64) -> CuResult {
        let graphs = &mut self.graphs;
        let gone = graphs.graphs.remove(&handle).or_else(|| graphs.executables.remove(&handle));
        let gone = gone.ok_or(CuError::INVALID_VALUE)?;
        let nodes: Vec<Node> = gone.nodes.iter().filter_map(|node| graphs.nodes.get(node).copied()).collect();
        self.forget_unused(&nodes);
        let graphs = &mut self.graphs;
        let named = named_nodes(graphs);
        graphs.nodes.retain(|handle, _| named.contains(handle));
        Ok(())
    }

    /// Ends the address ranges of allocation nodes that no graph names and no memory is behind.
    fn forget_unused(&mut self, nodes: &[Node]) {
        let named = named_nodes(&self.graphs);
        let in_use = |address: u64| {
            self.graphs.resident.contains(&address)
                || self.graphs.nodes.iter().any(|(handle, node)| {
                    matches!(node, Node::Alloc { address: a, .. } if *a == address) && named.contains(handle)
                })
        };
        let unused = nodes.iter().filter_map(|node| match *node {
            Node::Alloc { address, .. } if !in_use(address) => Some(address),
            _ => None,
        });
        for address in unused.collect::<Vec<_>>() {
            self.addresses.remove(address);
        }
    }
}

fn named_nodes(graphs: &Graphs) -> BTreeSet<u64> {
    graphs.graphs.values().chain(graphs.executables.values()).flat_map(|g| g.nodes.iter().copied()).collect()
}
