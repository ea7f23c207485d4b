//! Graphs that allocate: the driver takes their memory when they are launched, so it is reserved then.
//!
//! When a graph is made executable its allocation nodes are added up: more it can't take. At a launch, what exceeds the idle part
//! of the GPU's graph memory is reserved; afterwards the driver tells what it really took, and that is charged.

use core::ffi::{c_char, c_int, c_void};

use cantle_ledger::{GRANULE_BYTES, granules_holding};

use super::charge::{self, Opened, Place};
use super::pool::Stream;
use super::{Address, Device, SUCCESS, driver};
use crate::function::Status;
use crate::process::process;
use crate::table::Entry;

/// `CUgraph`, `CUgraphExec` and `CUgraphNode`.
pub(super) type Graph = *mut c_void;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const USED: c_int = 0;
const RESERVED: c_int = 2;

/// `CU_GRAPH_NODE_TYPE_GRAPH` and `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const CHILD_GRAPH: c_int = 4;
const MEM_ALLOC: c_int = 10;
/// Graphs in graphs in graphs: deeper ones the driver does not take.
const MAX_DEPTH: u32 = 16;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
pub(super) struct AllocParameters {
    /// `CUmemPoolProps`.
    pool: [u64; 11],
    access: *const c_void,
    access_count: usize,
    bytes: usize,
    address: Address,
}

/// Bytes that a graph's allocation nodes ask for, each in whole granules.
fn allocated_bytes(graph: Graph, depth: u32) -> u64 {
    if depth == 0 {
        return 0;
    }
    let mut sum = 0_u64;
    each_node(graph, |node| {
        sum = sum.saturating_add(match kind_of(node) {
            Some(MEM_ALLOC) => node_bytes(node),
            Some(CHILD_GRAPH) => child_of(node).map_or(0, |child| allocated_bytes(child, depth - 1)),
            _ => 0,
        });
    });
    sum
}

fn each_node(graph: Graph, mut each: impl FnMut(Graph)) {
    let Ok(nodes_of) = driver::cuGraphGetNodes.get() else { return };
    let mut count = 0;
    // SAFETY: without an array it only counts.
    if unsafe { nodes_of(graph, core::ptr::null_mut(), &raw mut count) } != SUCCESS || count == 0 {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let bytes = count.saturating_mul(size_of::<Graph>());
    // SAFETY: fresh memory, filled by the driver with at most `count` nodes, unmapped at the end.
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
    // SAFETY: writes to where it is told.
    (unsafe { driver::cuGraphNodeGetType.get().ok()?(node, &raw mut kind) } == SUCCESS).then_some(kind)
}

fn node_bytes(node: Graph) -> u64 {
    let mut parameters =
        AllocParameters { pool: [0; 11], access: core::ptr::null(), access_count: 0, bytes: 0, address: 0 };
    let Ok(get) = driver::cuGraphMemAllocNodeGetParams.get() else { return 0 };
    // SAFETY: the structure has the driver's layout.
    if unsafe { get(node, &raw mut parameters) } != SUCCESS {
        return 0;
    }
    u64::from(granules_holding(parameters.bytes as u64)) * GRANULE_BYTES
}

fn child_of(node: Graph) -> Option<Graph> {
    let mut child = core::ptr::null_mut();
    // SAFETY: writes to where it is told.
    (unsafe { driver::cuGraphChildGraphNodeGetGraph.get().ok()?(node, &raw mut child) } == SUCCESS)
        .then_some(child)
}

/// Remembers what an executable graph can take. Most take nothing, and are not remembered.
fn instantiated(status: Status, executable: *mut Graph, graph: Graph) -> Status {
    if status != SUCCESS {
        return status;
    }
    let bytes = allocated_bytes(graph, MAX_DEPTH);
    if bytes > 0
        && let Some(process) = process()
    {
        // SAFETY: written by the driver.
        let entry = Entry::new(unsafe { *executable } as u64, 0, 0, bytes);
        if process.graphs.insert(entry).is_err() {
            return super::OUT_OF_MEMORY;
        }
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
    // SAFETY: the caller's arguments.
    instantiated(unsafe { real(executable, graph, error_node, log, log_bytes) }, executable, graph)
}

pub(super) unsafe fn instantiate_with_flags(
    real: unsafe extern "C" fn(*mut Graph, Graph, u64) -> Status,
    executable: *mut Graph,
    graph: Graph,
    flags: u64,
) -> Status {
    // SAFETY: the caller's arguments.
    instantiated(unsafe { real(executable, graph, flags) }, executable, graph)
}

pub(super) unsafe fn instantiate_with_parameters(
    real: unsafe extern "C" fn(*mut Graph, Graph, *mut c_void) -> Status,
    executable: *mut Graph,
    graph: Graph,
    parameters: *mut c_void,
) -> Status {
    // SAFETY: the caller's arguments.
    instantiated(unsafe { real(executable, graph, parameters) }, executable, graph)
}

/// Launch or upload.
pub(super) unsafe fn launch(
    real: unsafe extern "C" fn(Graph, Stream) -> Status,
    executable: Graph,
    stream: Stream,
) -> Status {
    // SAFETY: the caller's arguments.
    let real = || unsafe { real(executable, stream) };
    let Some(known) = process().and_then(|process| process.graphs.get(executable as u64)) else {
        return real();
    };
    let Some((_, device)) = charge::current() else { return real() };
    let place = match Place::of(device) {
        Ok(place) => place,
        Err(status) => return status,
    };
    let Some(mut opened) = place.open() else { return super::OUT_OF_MEMORY };
    let idle = attribute(device, RESERVED).saturating_sub(attribute(device, USED));
    let growth = granules_holding(known.bytes().saturating_sub(idle));
    if let Err(over) = opened.account.reserve(growth) {
        return opened.refuse(over, known.bytes());
    }
    let status = real();
    opened.account.release(growth);
    settle(&mut opened, device);
    status
}

fn attribute(device: Device, which: c_int) -> u64 {
    let mut bytes = 0_u64;
    let Ok(get) = driver::cuDeviceGetGraphMemAttribute.get() else { return 0 };
    // SAFETY: all of these attributes are 64 bits.
    if unsafe { get(device, which, (&raw mut bytes).cast()) } == SUCCESS { bytes } else { 0 }
}

/// Brings the charge to what the GPU's graphs have reserved.
fn settle(opened: &mut Opened, device: Device) {
    let now = granules_holding(attribute(device, RESERVED));
    let before = core::mem::replace(&mut opened.book.graph_granules, now);
    let _ = opened.account_for(before, now);
}

pub(super) unsafe fn trim(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the caller's argument.
    let status = unsafe { real(device) };
    if let Ok(place) = Place::of(device)
        && let Some(mut opened) = place.open()
    {
        settle(&mut opened, device);
    }
    status
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Graph) -> Status, executable: Graph) -> Status {
    // SAFETY: the caller's argument.
    let status = unsafe { real(executable) };
    if let Some(process) = process().filter(|_| status == SUCCESS) {
        process.graphs.remove(executable as u64);
    }
    status
}
