//! The memory that a graph takes: the memory at the addresses of its allocation nodes.
//!
//! The driver gives an allocation node its address when it is added. A node gets the address of memory that has been freed by then, so a
//! graph takes memory for the union of its address ranges, which can be a small part of their sum.

use core::ffi::{c_int, c_void};

use cantle_ledger::{GRANULE_BYTES, MAX_GPUS};

use super::Graph;
use crate::cuda::alloc::location::LocationKind;
use crate::cuda::alloc::slice_gpu::SliceGpu;
use crate::cuda::{Address, Device, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, driver, pool};
use crate::function::Status;
use crate::list::{Full, List};

/// The effect of a node of a graph on its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
    Allocates,
    /// `CU_GRAPH_NODE_TYPE_MEM_FREE`.
    Frees,
    /// `CU_GRAPH_NODE_TYPE_GRAPH`: it is a graph itself.
    Nests,
    /// Takes no memory. The bodies of conditional nodes are among these: CUDA admits no allocation there.
    Other,
}

impl Role {
    pub(crate) const fn of(kind: c_int) -> Self {
        match kind {
            4 => Self::Nests,
            10 => Self::Allocates,
            11 => Self::Frees,
            _ => Self::Other,
        }
    }
}

/// More than any GPU has, and less than an entry can hold.
const TOO_MUCH_BYTES: u64 = 1 << 50;

/// How deep graphs are nested at most: the driver accepts no deeper ones.
const MAX_DEPTH: u32 = 16;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct AllocParameters {
    pool: pool::Properties,
    rest_of_pool: [u64; 9],
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    address: Address,
}

/// An allocation or a release in a graph.
#[derive(Clone, Copy)]
struct Step {
    address: Address,
    /// 0 is a release.
    bytes: u64,
    gpu: usize,
}

/// The memory that a graph takes on one GPU of the slice.
#[derive(Default, Clone, Copy)]
pub(crate) struct Take {
    pub(crate) device: Device,
    pub(crate) bytes: u64,
}

/// The memory that a graph takes on each GPU of the slice.
pub(crate) struct Takes {
    pub(crate) gpus: [Take; MAX_GPUS],
    /// The answer to a program whose graph cannot be accounted for.
    pub(crate) refused: Option<Status>,
    /// In the order of their addresses.
    steps: List<Step>,
}

impl Takes {
    pub(crate) const fn nothing() -> Self {
        Self { gpus: [Take { device: 0, bytes: 0 }; MAX_GPUS], refused: None, steps: List::new() }
    }

    pub(crate) fn of(graph: Graph) -> Self {
        let mut takes = Self::nothing();
        if takes.add_graph(graph, MAX_DEPTH).is_err() {
            takes.refused = Some(OUT_OF_MEMORY);
        }
        takes.steps.sort_by_key(|step| step.address);
        takes.add_up();
        takes
    }

    fn add_graph(&mut self, graph: Graph, depth: u32) -> Result<(), Full> {
        if depth == 0 {
            return Ok(());
        }
        each_node(graph, |node| match kind_of(node).map(Role::of) {
            Some(Role::Allocates) => self.add_allocation(node),
            Some(Role::Frees) => released_by(node)
                .map_or(Ok(()), |address| self.steps.push(Step { address, bytes: 0, gpu: 0 })),
            Some(Role::Nests) => child_of(node).map_or(Ok(()), |child| self.add_graph(child, depth - 1)),
            Some(Role::Other) | None => Ok(()),
        })
    }

    /// A graph with a node that cannot be accounted for, or is outside the slice, is refused.
    fn add_allocation(&mut self, node: Graph) -> Result<(), Full> {
        let Some(parameters) = parameters_of(node) else {
            self.refused = Some(OUT_OF_MEMORY);
            return Ok(());
        };
        let gpu = match parameters.pool.place() {
            LocationKind::Host => return Ok(()),
            LocationKind::Gpu(device) => SliceGpu::of(device).map(|gpu| (device, gpu.index)),
            LocationKind::Nowhere | LocationKind::Unknown => Err(NOT_SUPPORTED),
        };
        match gpu {
            Ok((device, gpu)) => {
                if let Some(take) = self.gpus.get_mut(gpu) {
                    take.device = device;
                }
                self.steps.push(Step { address: parameters.address, bytes: parameters.bytes as u64, gpu })
            }
            Err(status) => {
                self.refused = Some(status);
                Ok(())
            }
        }
    }

    /// The union of the address ranges, in whole granules.
    fn add_up(&mut self) {
        let mut reached = [0_u64; MAX_GPUS];
        for step in self.steps.entries().iter().filter(|step| step.bytes > 0) {
            if let (Some(take), Some(reached)) = (self.gpus.get_mut(step.gpu), reached.get_mut(step.gpu)) {
                take.bytes = take.bytes.saturating_add(beyond(*reached, step)).min(TOO_MUCH_BYTES);
                *reached = end_of(step).max(*reached);
            }
        }
    }

    /// Calls `kept` with the address, the GPU and the size of memory that a launch leaves, and `other` with the addresses of memory that it frees
    /// and that is another graph's.
    pub(crate) fn each_left(
        &self,
        mut kept: impl FnMut(Address, usize, u64),
        mut other: impl FnMut(Address),
    ) {
        let mut steps = self.steps.entries();
        while let Some(&first) = steps.first() {
            let count = steps.iter().take_while(|step| step.address == first.address).count();
            let (same, rest) = steps.split_at_checked(count).unwrap_or((steps, &[]));
            let (mut open, mut least, mut gpu) = (0_i64, u64::MAX, 0);
            for step in same {
                open += if step.bytes > 0 { 1 } else { -1 };
                if step.bytes > 0 {
                    (least, gpu) = (least.min(step.bytes), step.gpu);
                }
            }
            match open {
                1.. => kept(first.address, gpu, least),
                0 => {}
                _ => other(first.address),
            }
            steps = rest;
        }
    }
}

const fn end_of(step: &Step) -> u64 {
    let end = step.address.saturating_add(step.bytes).div_ceil(GRANULE_BYTES);
    end.saturating_mul(GRANULE_BYTES)
}

/// The part of a range that lies beyond an address that the ranges before it have reached.
fn beyond(reached: u64, step: &Step) -> u64 {
    let start = step.address / GRANULE_BYTES * GRANULE_BYTES;
    // A driver that gives no addresses leaves the sum.
    let from = if step.address == 0 { start } else { start.max(reached) };
    end_of(step).saturating_sub(from)
}

/// Calls `each` with the nodes of a graph that the program passed to the current call.
fn each_node(graph: Graph, mut each: impl FnMut(Graph) -> Result<(), Full>) -> Result<(), Full> {
    let Ok(nodes_of) = driver::cuGraphGetNodes.get() else { return Ok(()) };
    let mut count = 0;
    // SAFETY: the call contract for `graph`; without an array the driver writes the count only, to a live local.
    if unsafe { nodes_of(graph, core::ptr::null_mut(), &raw mut count) } != SUCCESS || count == 0 {
        return Ok(());
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = count.saturating_mul(size_of::<Graph>());
    // SAFETY: the call contract for `graph`. The mapping is new (the kernel chooses unused addresses), page-aligned, zeroed (null
    // is a valid `Graph`) and has room for `count` nodes; the driver writes at most those, and sets `count` to how many
    // it wrote. Nothing refers to the mapping after the loop.
    unsafe {
        let at = libc::mmap(core::ptr::null_mut(), bytes, protection, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(Full);
        }
        let listed = if nodes_of(graph, at.cast(), &raw mut count) == SUCCESS {
            core::slice::from_raw_parts(at.cast::<Graph>(), count).iter().try_for_each(|&node| each(node))
        } else {
            Err(Full)
        };
        libc::munmap(at, bytes);
        listed
    }
}

fn kind_of(node: Graph) -> Option<c_int> {
    let mut kind = 0;
    // SAFETY: `node` is one that the driver listed for a graph of this call; `kind` is a live local of the type it writes.
    (unsafe { driver::cuGraphNodeGetType.get().ok()?(node, &raw mut kind) } == SUCCESS).then_some(kind)
}

fn parameters_of(node: Graph) -> Option<AllocParameters> {
    let mut parameters = core::mem::MaybeUninit::<AllocParameters>::zeroed();
    // SAFETY: `node` is one that the driver listed for a graph of this call. `parameters` is a live local with the layout of the
    // driver's structure: integers and pointers, for which zero bytes, and any that the driver writes, are valid.
    unsafe {
        let status = driver::cuGraphMemAllocNodeGetParams.get().ok()?(node, parameters.as_mut_ptr());
        (status == SUCCESS).then(|| parameters.assume_init())
    }
}

fn released_by(node: Graph) -> Option<Address> {
    let mut address = 0;
    // SAFETY: `node` is one that the driver listed for a graph of this call; `address` is a live local of the type it writes.
    (unsafe { driver::cuGraphMemFreeNodeGetParams.get().ok()?(node, &raw mut address) } == SUCCESS)
        .then_some(address)
}

fn child_of(node: Graph) -> Option<Graph> {
    let mut child = core::ptr::null_mut();
    // SAFETY: `node` is one that the driver listed for a graph of this call; `child` is a live local of the type it writes.
    (unsafe { driver::cuGraphChildGraphNodeGetGraph.get().ok()?(node, &raw mut child) } == SUCCESS)
        .then_some(child)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn takes(steps: &[(u64, u64, usize)]) -> Takes {
        let mut takes = Takes::nothing();
        for &(address, bytes, gpu) in steps {
            takes.steps.push(Step { address, bytes, gpu }).unwrap();
        }
        takes.steps.sort_by_key(|step| step.address);
        takes.add_up();
        takes
    }

    #[test]
    fn a_graph_takes_the_union_of_its_ranges() {
        let at = 0x2000_0000_0000;
        let of = |steps: &[(u64, u64, usize)]| takes(steps).gpus.map(|take| take.bytes / MIB);
        assert_eq!(of(&[(at, 64 * MIB, 0), (at, 0, 0), (at, 60 * MIB, 0)])[0], 64);
        assert_eq!(of(&[(at, 64 * MIB, 0), (at + 32 * MIB, 64 * MIB, 0)])[0], 96, "they overlap");
        assert_eq!(of(&[(at, 64 * MIB, 0), (at + 64 * MIB, 64 * MIB, 0)])[0], 128, "side by side");
        assert_eq!(of(&[(at, 64 * MIB, 0), (at + 8 * MIB, 8 * MIB, 0), (at + 70 * MIB, MIB, 0)])[0], 66);
        assert_eq!(of(&[(at, 512, 0), (at + 512, 512, 0)])[0], 2, "they share a granule");
        assert_eq!(of(&[(at, 64 * MIB, 1), (at + 128 * MIB, 64 * MIB, 0)])[..2], [64, 64]);
        assert_eq!(of(&[(0, 64 * MIB, 0), (0, 64 * MIB, 0)])[0], 128, "without addresses, the sum");
        assert_eq!(takes(&[(at, u64::MAX, 0), (at, 1, 0)]).gpus[0].bytes, TOO_MUCH_BYTES);
    }

    #[test]
    fn what_a_launch_leaves_is_told_from_what_it_frees() {
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        let steps = [(8, 100, 0), (16, 100, 0), (16, 0, 0), (16, 60, 0), (24, 0, 0), (32, 5, 1), (32, 0, 0)];
        takes(&steps).each_left(
            |address, gpu, bytes| kept.push((address, gpu, bytes)),
            |address| others.push(address),
        );
        assert_eq!((kept, others), ([(8, 0, 100), (16, 0, 60)].to_vec(), [24].to_vec()));
    }
}
