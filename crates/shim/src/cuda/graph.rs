//! Graphs that allocate: the driver takes their memory when they are launched, so it is reserved then.
//!
//! When a graph is made executable, its allocation nodes are added up: it cannot take more than that. A launch reserves what
//! exceeds the idle part of the GPU's graph memory; so does an upload, also one that is part of making the graph executable.
//! Afterwards the driver reports what it really took, and that is charged.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

use cantle_ledger::{GRANULE_BYTES, MAX_GPUS, granules_holding};

use super::charge::{Balance, SliceGpu};
use super::location::Place;
use super::pool::{self, Stream};
use super::{Address, Device, SUCCESS, driver, pool_charge};
use crate::function::Status;
use crate::process::process;
use crate::table::Entry;

/// `CUgraph`, `CUgraphExec` and `CUgraphNode`.
pub(super) type Graph = *mut c_void;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const USED: c_int = 0;
const RESERVED: c_int = 2;

/// What a node of a graph means for its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
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
    pub(super) const fn of(kind: c_int) -> Self {
        match kind {
            4 => Self::Nests,
            10 => Self::Allocates,
            11 => Self::Frees,
            _ => Self::Other,
        }
    }
}

/// How deep graphs are nested at most: the driver accepts no deeper ones.
const MAX_DEPTH: u32 = 16;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(super) struct AllocParameters {
    pool: pool::Properties,
    rest_of_pool: [u64; 9],
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    address: Address,
}

/// The beginning of `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
pub(super) struct InstantiateParameters {
    flags: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`: the memory is taken at once.
pub(super) const fn uploads(flags: u64) -> bool {
    flags & 2 != 0
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`: a launch first frees what the last one has left.
#[cfg(test)]
pub(super) const fn frees_first(flags: u64) -> bool {
    flags & 1 != 0
}

/// The memory that a graph's allocation nodes request on each GPU of the slice, each node in whole granules.
#[derive(Default)]
struct Sums([Sum; MAX_GPUS]);

#[derive(Default, Clone, Copy)]
struct Sum {
    device: Device,
    bytes: u64,
}

impl Sums {
    fn add_graph(&mut self, graph: Graph, depth: u32) {
        if depth == 0 {
            return;
        }
        each_node(graph, |node| match kind_of(node).map(Role::of) {
            Some(Role::Allocates) => self.add_node(node),
            Some(Role::Nests) => {
                if let Some(child) = child_of(node) {
                    self.add_graph(child, depth - 1);
                }
            }
            _ => {}
        });
    }

    /// A node that can't be accounted for, or is outside the slice, counts as more than any limit: such a graph is not launched.
    fn add_node(&mut self, node: Graph) {
        let parameters = node_parameters(node);
        let device = match parameters.as_ref().map(|parameters| parameters.pool.place()) {
            Some(Place::Host) => return,
            Some(Place::Gpu(device)) => Some(device),
            _ => None,
        };
        let (device, gpu, bytes) = device
            .and_then(|device| {
                let bytes = u64::from(granules_holding(parameters?.bytes as u64)) * GRANULE_BYTES;
                Some((device, SliceGpu::of(device).ok()?.index, bytes))
            })
            .unwrap_or((0, 0, TOO_MUCH_BYTES));
        if let Some(sum) = self.0.get_mut(gpu) {
            *sum = Sum { device, bytes: sum.bytes.saturating_add(bytes).min(TOO_MUCH_BYTES) };
        }
    }
}

/// More than any GPU has, and less than an entry can hold.
const TOO_MUCH_BYTES: u64 = 1 << 50;

/// Calls `each` with the nodes of a graph that the program passed to the current call.
fn each_node(graph: Graph, mut each: impl FnMut(Graph)) {
    let Ok(nodes_of) = driver::cuGraphGetNodes.get() else { return };
    let mut count = 0;
    // SAFETY: the call contract for `graph`; without an array the driver writes the count only, to a live local.
    if unsafe { nodes_of(graph, core::ptr::null_mut(), &raw mut count) } != SUCCESS || count == 0 {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = count.saturating_mul(size_of::<Graph>());
    // SAFETY: the call contract for `graph`. The mapping is new (the kernel chooses unused addresses), page-aligned, zeroed (null
    // is a valid `Graph`) and has room for `count` nodes; the driver writes at most those, and sets `count` to how many
    // it wrote. Nothing refers to the mapping after the loop.
    unsafe {
        let at = libc::mmap(core::ptr::null_mut(), bytes, protection, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return;
        }
        if nodes_of(graph, at.cast(), &raw mut count) == SUCCESS {
            core::slice::from_raw_parts(at.cast::<Graph>(), count).iter().for_each(|&node| each(node));
        }
        libc::munmap(at, bytes);
    }
}

fn kind_of(node: Graph) -> Option<c_int> {
    let mut kind = 0;
    // SAFETY: `node` is one that the driver listed for a graph of this call; `kind` is a live local of the type it writes.
    (unsafe { driver::cuGraphNodeGetType.get().ok()?(node, &raw mut kind) } == SUCCESS).then_some(kind)
}

fn node_parameters(node: Graph) -> Option<AllocParameters> {
    let mut parameters = core::mem::MaybeUninit::<AllocParameters>::zeroed();
    // SAFETY: `node` is one that the driver listed for a graph of this call. `parameters` is a live local with the layout of the
    // driver's structure: integers and pointers, for which zero bytes, and any that the driver writes, are valid.
    unsafe {
        let status = driver::cuGraphMemAllocNodeGetParams.get().ok()?(node, parameters.as_mut_ptr());
        (status == SUCCESS).then(|| parameters.assume_init())
    }
}

fn child_of(node: Graph) -> Option<Graph> {
    let mut child = core::ptr::null_mut();
    // SAFETY: `node` is one that the driver listed for a graph of this call; `child` is a live local of the type it writes.
    (unsafe { driver::cuGraphChildGraphNodeGetGraph.get().ok()?(node, &raw mut child) } == SUCCESS)
        .then_some(child)
}

/// Key of what an executable graph can take on one GPU.
fn key(executable: Graph, gpu: usize) -> u64 {
    // No address of a process has these bits.
    executable as u64 ^ (gpu as u64 + 1) << 57
}

/// Remembers what an executable graph can take. Most take nothing, and are not remembered.
///
/// # Safety
/// If `status` is success, the driver has written an executable graph to `executable`.
unsafe fn instantiated(status: Status, executable: *mut Graph, graph: Graph) -> Status {
    let Some(process) = process().filter(|_| status == SUCCESS) else { return status };
    let mut sums = Sums::default();
    sums.add_graph(graph, MAX_DEPTH);
    for (gpu, sum) in sums.0.iter().enumerate().filter(|(_, sum)| sum.bytes > 0) {
        // SAFETY: `status` is success, so by this function's condition there is a value to read.
        let entry = Entry::new(key(unsafe { *executable }, gpu), sum.device as u64, gpu, sum.bytes);
        if process.graphs.insert(entry).is_err() {
            return super::OUT_OF_MEMORY;
        }
        process.uses_graph_memory.store(true, Relaxed);
    }
    status
}

pub(super) unsafe fn instantiate(
    real: unsafe extern "C" fn(*mut Graph, Graph, *mut Graph, *mut c_char, usize) -> Status,
    executable: *mut Graph,
    graph: Graph,
    error_node: *mut Graph,
    log: *mut c_char,
    log_bytes: usize,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `executable`.
    unsafe { instantiated(real(executable, graph, error_node, log, log_bytes), executable, graph) }
}

pub(super) unsafe fn instantiate_with_flags(
    real: unsafe extern "C" fn(*mut Graph, Graph, u64) -> Status,
    executable: *mut Graph,
    graph: Graph,
    flags: u64,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `executable`.
    unsafe { instantiated(real(executable, graph, flags), executable, graph) }
}

pub(super) unsafe fn instantiate_with_parameters(
    real: unsafe extern "C" fn(*mut Graph, Graph, *mut InstantiateParameters) -> Status,
    executable: *mut Graph,
    graph: Graph,
    parameters: *mut InstantiateParameters,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; `parameters` is null or valid for the driver to read, and so for us;
    // the out-parameter contract for `executable`.
    unsafe {
        let real = || real(executable, graph, parameters);
        let uploads = parameters.as_ref().is_some_and(|parameters| uploads(parameters.flags));
        let status = if uploads {
            let mut sums = Sums::default();
            sums.add_graph(graph, MAX_DEPTH);
            with_room(&sums, real)
        } else {
            real()
        };
        instantiated(status, executable, graph)
    }
}

/// A launch: where compute is shared by weight, once it is the slice's turn.
pub(super) unsafe fn launch_in_turn<const PER_THREAD: bool>(
    real: unsafe extern "C" fn(Graph, Stream) -> Status,
    executable: Graph,
    stream: Stream,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let launch = || unsafe { launch(real, executable, stream) };
    if cfg!(feature = "gate") {
        crate::gate::graph(executable, stream, PER_THREAD, &launch)
    } else {
        launch()
    }
}

/// Launch or upload.
pub(super) unsafe fn launch(
    real: unsafe extern "C" fn(Graph, Stream) -> Status,
    executable: Graph,
    stream: Stream,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(executable, stream) };
    let Some(process) = process().filter(|process| process.uses_graph_memory.load(Relaxed)) else {
        return real();
    };
    let mut sums = Sums::default();
    for (gpu, sum) in sums.0.iter_mut().enumerate() {
        if let Some(known) = process.graphs.get(key(executable, gpu)) {
            *sum = Sum { device: known.context as Device, bytes: known.bytes() };
        }
    }
    with_room(&sums, real)
}

/// Reserves what a graph may take, calls `real`, by which the driver takes it, and charges what that was.
fn with_room(sums: &Sums, real: impl FnOnce() -> Status) -> Status {
    let mut growths = [0_u32; MAX_GPUS];
    let mut refused = None;
    for ((gpu, sum), growth) in sums.0.iter().enumerate().zip(&mut growths) {
        if sum.bytes == 0 {
            continue;
        }
        let Some(mut balance) = SliceGpu::charged(gpu).and_then(SliceGpu::lock) else { continue };
        let idle = attribute(sum.device, RESERVED).saturating_sub(attribute(sum.device, USED));
        let needed = pool_charge::growth_granules(sum.bytes.saturating_sub(idle));
        match balance.account.reserve(needed) {
            Ok(()) => *growth = needed,
            Err(over) => refused = Some(balance.refuse(over, sum.bytes)),
        }
    }
    let status = refused.unwrap_or_else(real);
    for ((gpu, sum), &growth) in sums.0.iter().enumerate().zip(&growths) {
        if sum.bytes > 0
            && let Some(mut balance) = SliceGpu::charged(gpu).and_then(SliceGpu::lock)
        {
            settle(&mut balance, sum.device, growth);
        }
    }
    status
}

fn attribute(device: Device, which: c_int) -> u64 {
    let mut bytes = 0_u64;
    let Ok(get) = driver::cuDeviceGetGraphMemAttribute.get() else { return 0 };
    // SAFETY: `which` is one of the two above, for which the driver writes 64 bits, and `bytes` is a live local of that size.
    if unsafe { get(device, which, (&raw mut bytes).cast()) } == SUCCESS { bytes } else { 0 }
}

/// Sets the charge to what the GPU's graphs have reserved; `ahead` was reserved for growth.
fn settle(balance: &mut Balance, device: Device, ahead: u32) {
    let now = granules_holding(attribute(device, RESERVED));
    let before = core::mem::replace(&mut balance.holdings.graph_granules, now);
    // Growth beyond the limit is charged all the same; no allocation is left to refuse.
    let _over = balance.account_for(before.saturating_add(ahead), now);
}

pub(super) unsafe fn trim(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(device) };
    if let Ok(gpu) = SliceGpu::of(device)
        && let Some(mut balance) = gpu.lock()
    {
        settle(&mut balance, device, 0);
    }
    status
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Graph) -> Status, executable: Graph) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(executable) };
    if let Some(process) =
        process().filter(|process| status == SUCCESS && process.uses_graph_memory.load(Relaxed))
    {
        for gpu in 0..MAX_GPUS {
            process.graphs.remove(key(executable, gpu));
        }
    }
    status
}
