//! The exported functions for graphs and stream capture.

use std::ffi::c_void;

use super::async_memory::PoolProps;
use super::capture::{STATUS_ACTIVE, exchange_mode};
use super::execution::takes_of;
use super::graph::{Node, TYPE_HOST, TYPE_KERNEL, TYPE_MEM_ALLOC, TYPE_MEM_FREE};
use super::session::session;
use super::stream::{per_thread, place};
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out};

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const UPLOAD: u64 = 2;
const TYPE_MEMCPY: u32 = 1;
const TYPE_MEMSET: u32 = 2;
const TYPE_EMPTY: u32 = 5;

const USED_CURRENT: i32 = 0;
const USED_HIGH: i32 = 1;
const RESERVED_CURRENT: i32 = 2;
const RESERVED_HIGH: i32 = 3;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AllocParams {
    pool: PoolProps,
    pool_rest: [u64; 9],
    access: usize,
    access_count: usize,
    size_bytes: usize,
    address: u64,
}

/// `CUgraphNodeParams` of an allocation or free node; other types are not looked into.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NodeParams {
    kind: u32,
    reserved: [u32; 3],
    alloc: AllocParams,
}

/// The beginning of `CUDA_KERNEL_NODE_PARAMS`, in both versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelParams {
    function: u64,
    blocks: u32,
}

const _: () = assert!(size_of::<AllocParams>() == 120);

/// The nodes that a new node waits for, as a program passes them.
#[derive(Clone, Copy)]
struct Before(In<u64>, usize);

impl Before {
    fn get(self) -> CuResult<Vec<u64>> {
        Ok(self.0.get_all(self.1)?)
    }
}

fn add_alloc(node: Out<u64>, graph: u64, before: Before, params: Out<AllocParams>) -> CuResult {
    let mut wanted = params.get()?;
    let (before, size_bytes) = (before.get()?, wanted.size_bytes as u64);
    let (handle, address) = session()?.lock().add_allocation(graph, wanted.pool, size_bytes, &before)?;
    wanted.address = address;
    params.set(wanted)?;
    Ok(node.set(handle)?)
}

fn add_free(node: Out<u64>, graph: u64, before: Before, address: u64) -> CuResult {
    let before = before.get()?;
    let handle = session()?.lock().add_free(graph, address, &before)?;
    Ok(node.set(handle)?)
}

fn add_other(node: Out<u64>, graph: u64, before: Before, kind: u32) -> CuResult {
    let before = before.get()?;
    let handle = session()?.lock().graphs.add(graph, Node::Other(kind), &before)?;
    Ok(node.set(handle)?)
}

fn add_any(node: Out<u64>, graph: u64, before: Before, params: *mut NodeParams) -> CuResult {
    match Out(params.cast::<u32>()).get()? {
        TYPE_MEM_ALLOC => {
            // SAFETY: `get` has found `params` not null; by the C contract it points to a whole node description, so the address
            // of the field is inside it. Nothing is read here.
            add_alloc(node, graph, before, Out(unsafe { &raw mut (*params).alloc }))
        }
        // The union of a free node begins with the address.
        TYPE_MEM_FREE => {
            // SAFETY: `get` has found `params` not null; by the C contract it points to a whole node description, so the address
            // of the field is inside it. Nothing is read by this expression itself.
            let address = Out(unsafe { &raw mut (*params).alloc }.cast::<u64>()).get()?;
            add_free(node, graph, before, address)
        }
        // The union of a kernel node begins with the function.
        TYPE_KERNEL => {
            // SAFETY: `get` has found `params` not null; by the C contract it points to a whole node description, so the address
            // of the field is inside it. Nothing is read here.
            add_kernel(node, graph, before, In(unsafe { &raw const (*params).alloc }.cast()))
        }
        kind => add_other(node, graph, before, kind),
    }
}

fn instantiate(executable: Out<u64>, graph: u64, flags: u64) -> CuResult {
    let handle = session()?.lock().graphs.instantiate(graph, flags & AUTO_FREE_ON_LAUNCH != 0)?;
    Ok(executable.set(handle)?)
}

/// With the flag `UPLOAD`, which the form with parameters takes, the graph's memory is there when this returns.
fn instantiate_with_parameters(executable: Out<u64>, graph: u64, flags: u64) -> CuResult {
    instantiate(executable, graph, flags)?;
    if flags & UPLOAD == 0 {
        return Ok(());
    }
    let handle = executable.get()?;
    upload(handle).or_else(|error| session()?.lock().destroy_graph(handle).and(Err(error)))
}

fn upload(executable: u64) -> CuResult {
    let mut inner = session()?.lock();
    inner.current_device()?;
    inner.upload_graph(executable)
}

fn launch(executable: u64, stream: u64) -> CuResult {
    let mut inner = session()?.lock();
    inner.current_device()?;
    if let Some(graph) = inner.capture_of(stream)? {
        return inner.add_child(graph, executable);
    }
    inner.launch_graph(executable)?;
    let units = inner.timed_kernels(executable)?;
    drop(inner);
    units.into_iter().try_for_each(|(takes, blocks)| takes.queue(place(stream)?, blocks))
}

/// Both versions of the parameters of a kernel node begin with the function, three dimensions of the grid and of the blocks.
fn add_kernel(node: Out<u64>, graph: u64, before: Before, params: In<KernelParams>) -> CuResult {
    let KernelParams { function, blocks, .. } = params.get()?;
    let before = before.get()?;
    let mut inner = session()?.lock();
    let takes = takes_of(&inner, function);
    let handle = inner.graphs.add(graph, Node::Kernel { takes, blocks }, &before)?;
    Ok(node.set(handle)?)
}

fn begin_capture(stream: u64, mode: u32) -> CuResult {
    let mut inner = session()?.lock();
    inner.current_device()?;
    inner.begin_capture(stream, mode)
}

/// A capture that failed is over too, and leaves null.
fn end_capture(stream: u64, graph: Out<u64>) -> CuResult {
    let ended = session()?.lock().end_capture(stream);
    graph.set(ended.unwrap_or(0))?;
    ended.map(|_| ())
}

/// Status, capture id (the graph's handle will do), graph; dependencies are not kept.
fn capture_info(stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>) -> CuResult {
    let (found, capturing) = session()?.lock().graphs.captures.status(stream);
    status.set(found)?;
    if let Some(handle) = capturing.filter(|_| found == STATUS_ACTIVE) {
        id.set_if_asked(handle);
        graph.set_if_asked(handle);
    }
    Ok(())
}

driver_api! {
    fn cuGraphCreate(graph: Out<u64>, _flags: u32) {
        let handle = session()?.lock().graphs.create();
        Ok(graph.set(handle)?)
    }
    fn cuGraphDestroy(graph: u64) { session()?.lock().destroy_graph(graph) }
    fn cuGraphExecDestroy(executable: u64) { session()?.lock().destroy_graph(executable) }

    fn cuGraphAddMemAllocNode(
        node: Out<u64>, graph: u64, before: In<u64>, count: usize, params: Out<AllocParams>,
    ) {
        add_alloc(node, graph, Before(before, count), params)
    }
    fn cuGraphAddMemFreeNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize, address: u64) {
        add_free(node, graph, Before(before, count), address)
    }
    fn cuGraphMemAllocNodeGetParams(node: u64, out: Out<AllocParams>) {
        let Node::Alloc { address, size_bytes, props: pool } = session()?.lock().graphs.node(node)? else {
            return Err(CuError::INVALID_VALUE);
        };
        let size_bytes = size_bytes as usize;
        Ok(out.set(AllocParams { pool, pool_rest: [0; 9], access: 0, access_count: 0, size_bytes, address })?)
    }
    fn cuGraphMemFreeNodeGetParams(node: u64, out: Out<u64>) {
        match session()?.lock().graphs.node(node)? {
            Node::Free { address } => Ok(out.set(address)?),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
    fn cuGraphAddNode(
        node: Out<u64>, graph: u64, before: In<u64>, count: usize, params: *mut NodeParams,
    ) {
        add_any(node, graph, Before(before, count), params)
    }
    fn cuGraphAddNode_v2(
        node: Out<u64>, graph: u64, before: In<u64>, _edges: *const c_void, count: usize,
        params: *mut NodeParams,
    ) {
        add_any(node, graph, Before(before, count), params)
    }
    fn cuGraphAddEmptyNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize) {
        add_other(node, graph, Before(before, count), TYPE_EMPTY)
    }
    fn cuGraphAddKernelNode(
        node: Out<u64>, graph: u64, before: In<u64>, count: usize, params: In<KernelParams>,
    ) {
        add_kernel(node, graph, Before(before, count), params)
    }
    fn cuGraphAddKernelNode_v2(
        node: Out<u64>, graph: u64, before: In<u64>, count: usize, params: In<KernelParams>,
    ) {
        add_kernel(node, graph, Before(before, count), params)
    }
    fn cuGraphAddMemcpyNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize) {
        add_other(node, graph, Before(before, count), TYPE_MEMCPY)
    }
    fn cuGraphAddMemsetNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize) {
        add_other(node, graph, Before(before, count), TYPE_MEMSET)
    }
    fn cuGraphAddHostNode(node: Out<u64>, graph: u64, before: In<u64>, count: usize) {
        add_other(node, graph, Before(before, count), TYPE_HOST)
    }
    fn cuGraphNodeGetType(node: u64, kind: Out<u32>) {
        Ok(kind.set(session()?.lock().graphs.node(node)?.kind())?)
    }
    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let inner = session()?.lock();
        let found = inner.graphs.nodes_of(graph)?;
        if !nodes.is_null() {
            nodes.fill(count.get()?, found.iter().copied())?;
        }
        Ok(count.set(found.len())?)
    }

    fn cuGraphInstantiate(executable: Out<u64>, graph: u64) { instantiate(executable, graph, 0) }
    fn cuGraphInstantiate_v2(executable: Out<u64>, graph: u64) { instantiate(executable, graph, 0) }
    fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64) {
        instantiate(executable, graph, flags)
    }
    /// The parameters begin with the flags.
    fn cuGraphInstantiateWithParams(executable: Out<u64>, graph: u64, params: Out<u64>) {
        instantiate_with_parameters(executable, graph, params.get()?)
    }
    fn cuGraphInstantiateWithParams_ptsz(executable: Out<u64>, graph: u64, params: Out<u64>) {
        instantiate_with_parameters(executable, graph, params.get()?)
    }
    fn cuGraphUpload(executable: u64, _stream: u64) { upload(executable) }
    fn cuGraphUpload_ptsz(executable: u64, _stream: u64) { upload(executable) }
    fn cuGraphLaunch(executable: u64, stream: u64) { launch(executable, stream) }
    fn cuGraphLaunch_ptsz(executable: u64, stream: u64) { launch(executable, per_thread(stream)) }

    fn cuDeviceGraphMemTrim(device: i32) {
        let session = session()?;
        session.device(device)?;
        let mut inner = session.lock();
        let pool = inner.pools.graph_pool(device as usize);
        inner.trim(pool, 0)
    }
    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>) {
        let session = session()?;
        session.device(device)?;
        let mut inner = session.lock();
        let pool = inner.pools.graph_pool(device as usize);
        let figures = inner.pools.get(pool)?.figures;
        Ok(value.set(match attribute {
            USED_CURRENT => figures.used_bytes,
            USED_HIGH => figures.used_high_bytes,
            RESERVED_CURRENT => figures.reserved_bytes(),
            RESERVED_HIGH => figures.reserved_high_bytes(),
            _ => return Err(CuError::INVALID_VALUE),
        })?)
    }
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: Out<u64>) {
        let session = session()?;
        session.device(device)?;
        let mut inner = session.lock();
        let pool = inner.pools.graph_pool(device as usize);
        let figures = &mut inner.pools.get(pool)?.figures;
        match (attribute, value.get()?) {
            (USED_HIGH, 0) => figures.reset_used_high(),
            (RESERVED_HIGH, 0) => figures.reset_reserved_high(),
            _ => return Err(CuError::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuStreamBeginCapture(stream: u64) { begin_capture(stream, 0) }
    fn cuStreamBeginCapture_ptsz(stream: u64) { begin_capture(per_thread(stream), 0) }
    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) { begin_capture(stream, mode) }
    fn cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) { begin_capture(per_thread(stream), mode) }
    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) { end_capture(stream, graph) }
    fn cuStreamEndCapture_ptsz(stream: u64, graph: Out<u64>) { end_capture(per_thread(stream), graph) }
    fn cuStreamIsCapturing(stream: u64, status: Out<i32>) {
        capture_info(stream, status, Out(std::ptr::null_mut()), Out(std::ptr::null_mut()))
    }
    fn cuStreamIsCapturing_ptsz(stream: u64, status: Out<i32>) {
        capture_info(stream, status, Out(std::ptr::null_mut()), Out(std::ptr::null_mut()))
    }
    fn cuStreamGetCaptureInfo(stream: u64, status: Out<i32>, id: Out<u64>) {
        capture_info(stream, status, id, Out(std::ptr::null_mut()))
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<usize>, count: Out<usize>,
    ) {
        dependencies.set_if_asked(0);
        count.set_if_asked(0);
        capture_info(stream, status, id, graph)
    }
    fn cuStreamGetCaptureInfo_v3(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<usize>, edges: Out<usize>,
        count: Out<usize>,
    ) {
        dependencies.set_if_asked(0);
        edges.set_if_asked(0);
        count.set_if_asked(0);
        capture_info(stream, status, id, graph)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        Ok(mode.set(exchange_mode(mode.get()?)?)?)
    }
}
