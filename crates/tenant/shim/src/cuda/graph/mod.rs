//! Graphs that allocate: the driver takes their memory when they are launched, so it is reserved then.
//!
//! When a graph is made executable, it is added up what it can take at most ([`Takes`]). A launch reserves what exceeds the idle part of
//! the GPU's graph memory; so does an upload, also one that is part of making the graph executable. Afterwards the driver reports what it
//! really took, and that is charged.
//!
//! An executable that frees what its last launch has left, before it allocates, can use that again: PyTorch makes all
//! of its graphs so. The memory that it still holds is known from the addresses that its graph allocates and does not
//! free.
//!
//! No lock is held while the driver is asked, because a profiler's callback may call a hook meanwhile. An answer counts only if no launch has
//! ended since it was asked for.

pub(crate) mod memory;

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

use cantle_ledger::{MAX_GPUS, Over, granules_holding};

use super::pool::{self, Stream};
use super::{Address, Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::cuda::alloc::slice_gpu::{Balance, SliceGpu};
use crate::cuda::graph::memory::{Take, Takes};
use crate::cuda::pool::reserved;
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

/// `CUgraph`, `CUgraphExec` and `CUgraphNode`.
pub(super) type Graph = *mut c_void;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` and `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const USED: c_int = 0;
const RESERVED: c_int = 2;

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
pub(super) const fn frees_first(flags: u64) -> bool {
    flags & 1 != 0
}

/// Key of an executable graph on one GPU.
fn key(executable: u64, gpu: usize) -> u64 {
    // No address of a process has these bits.
    executable ^ (gpu as u64 + 1) << 57
}

/// Makes a graph executable with `real`, and remembers what it can take. Most take nothing, and are not remembered.
///
/// # Safety
/// The call contract for `graph`. If `real` returns success, the driver has written an executable graph to `executable`.
unsafe fn instantiated(
    executable: *mut Graph,
    graph: Graph,
    flags: u64,
    real: impl FnOnce() -> Status,
) -> Status {
    let takes = Takes::of(graph);
    if let Some(status) = takes.refused {
        return status;
    }
    let status = if uploads(flags) { with_room(&takes.gpus, None, real) } else { real() };
    let Some(process) = process().filter(|_| status == SUCCESS) else { return status };
    // SAFETY: `status` is success, so by this function's condition there is a value to read.
    let executable = unsafe { *executable } as u64;
    for (gpu, take) in takes.gpus.iter().enumerate().filter(|(_, take)| take.bytes > 0) {
        let entry = Entry::new(key(executable, gpu), take.device as u64, gpu, take.bytes);
        if process.graphs.insert(entry).is_err() {
            return OUT_OF_MEMORY;
        }
        process.uses_graph_memory.store(true, Relaxed);
    }
    remember_what_stays(process, executable, &takes, frees_first(flags));
    status
}

/// Remembers what memory a launch leaves, if the next one will free it, and that what another graph frees is not left.
fn remember_what_stays(process: &Process, executable: u64, takes: &Takes, frees_first: bool) {
    let forget = |address| {
        if let Some(kept) = process.graph_kept.remove(address) {
            process.graph_left.update(key(kept.context, kept.gpu()), |left| {
                left.context = left.context.saturating_sub(kept.bytes());
                left.set_bytes(left.bytes().min(left.context));
            });
        }
    };
    let remember = |address, gpu, bytes| {
        forget(address);
        // Without room for it, it does not count as left, which is safe.
        if frees_first && process.graph_kept.insert(Entry::new(address, executable, gpu, bytes)).is_ok() {
            let _full = process.graph_left.join(Entry::new(key(executable, gpu), bytes, gpu, 0), |left| {
                left.context = left.context.saturating_add(bytes);
            });
        }
    };
    takes.each_left(remember, forget);
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
    unsafe { instantiated(executable, graph, 0, || real(executable, graph, error_node, log, log_bytes)) }
}

pub(super) unsafe fn instantiate_with_flags(
    real: unsafe extern "C" fn(*mut Graph, Graph, u64) -> Status,
    executable: *mut Graph,
    graph: Graph,
    flags: u64,
) -> Status {
    // This function knows no upload.
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `executable`.
    unsafe { instantiated(executable, graph, flags & 1, || real(executable, graph, flags)) }
}

pub(super) unsafe fn instantiate_with_parameters(
    real: unsafe extern "C" fn(*mut Graph, Graph, *mut InstantiateParameters) -> Status,
    executable: *mut Graph,
    graph: Graph,
    parameters: *mut InstantiateParameters,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `executable`; `parameters` is
    // null or valid for the driver to read, and so for the filter.
    unsafe {
        let flags = parameters.as_ref().map_or(0, |parameters| parameters.flags);
        instantiated(executable, graph, flags, || real(executable, graph, parameters))
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

/// An upload takes the memory of a launch.
pub(super) unsafe fn upload(
    real: unsafe extern "C" fn(Graph, Stream) -> Status,
    executable: Graph,
    stream: Stream,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(executable, stream) };
    match known(executable) {
        Some(gpus) => with_room(&gpus, Some(executable as u64), real),
        None => real(),
    }
}

pub(super) unsafe fn launch(
    real: unsafe extern "C" fn(Graph, Stream) -> Status,
    executable: Graph,
    stream: Stream,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(executable, stream) };
    let Some((process, gpus)) = process().zip(known(executable)) else { return real() };
    // Work that is recorded into another graph takes no memory now. SAFETY: the call contract for `stream`.
    if unsafe { pool::is_capturing(stream) } {
        return real();
    }
    let status = with_room(&gpus, Some(executable as u64), real);
    for gpu in 0..MAX_GPUS {
        process.graph_left.update(key(executable as u64, gpu), |left| {
            left.set_bytes(if status == SUCCESS { left.context } else { 0 });
        });
    }
    status
}

/// The memory that an executable takes; nothing if that is not remembered.
fn known(executable: Graph) -> Option<[Take; MAX_GPUS]> {
    let process = process().filter(|process| process.uses_graph_memory.load(Relaxed))?;
    let mut gpus = [Take::default(); MAX_GPUS];
    for (gpu, take) in gpus.iter_mut().enumerate() {
        if let Some(known) = process.graphs.get(key(executable as u64, gpu)) {
            *take = Take { device: known.context as Device, bytes: known.bytes() };
        }
    }
    Some(gpus)
}

/// The memory that a launch relies on while it is inside the driver.
#[derive(Default, Clone, Copy)]
struct Share {
    /// Granules that were reserved for growth.
    ahead: u32,
    /// Its part of the idle memory.
    claimed_bytes: u64,
}

/// Reserves what a graph may take, calls `real`, by which the driver takes it, and charges what that was. `executable` has perhaps left memory
/// that it frees first.
fn with_room(gpus: &[Take; MAX_GPUS], executable: Option<u64>, real: impl FnOnce() -> Status) -> Status {
    let mut shares = [Share::default(); MAX_GPUS];
    let mut refused = None;
    for ((gpu, take), share) in gpus.iter().enumerate().zip(&mut shares) {
        if take.bytes > 0
            && let Some(slice_gpu) = SliceGpu::charged(gpu)
        {
            let left = executable.and_then(|executable| process()?.graph_left.get(key(executable, gpu)));
            match reserve(slice_gpu, *take, left.map_or(0, |left| left.bytes())) {
                Ok(reserved) => *share = reserved,
                Err(status) => refused = Some(status),
            }
        }
    }
    let status = refused.unwrap_or_else(real);
    for ((gpu, take), share) in gpus.iter().enumerate().zip(shares) {
        if take.bytes > 0
            && let Some(gpu) = SliceGpu::charged(gpu)
        {
            settle(gpu, take.device, share);
        }
    }
    status
}

/// How often an answer of the driver's may come too late. Then other threads launch all the time, and the answer counts only as far as it is safe.
const ATTEMPTS: u32 = 4;

/// Reserves what a launch takes beyond idle memory. `left_bytes` are used, but free once it begins.
fn reserve(gpu: SliceGpu, take: Take, left_bytes: u64) -> Result<Share, Status> {
    let attempt = || -> Result<Result<Share, Over>, Status> {
        for _ in 0..ATTEMPTS {
            let before = gpu.lock().ok_or(OUT_OF_MEMORY)?.holdings.graph_launches;
            let [reserved, used] = [RESERVED, USED].map(|which| attribute(take.device, which));
            let mut balance = gpu.lock().ok_or(OUT_OF_MEMORY)?;
            if balance.holdings.graph_launches == before {
                // Without an answer nothing is known to be idle.
                let idle = reserved
                    .zip(used)
                    .map_or(0, |(reserved, used)| reserved.saturating_sub(used.saturating_sub(left_bytes)));
                return Ok(share(&mut balance, take.bytes, idle));
            }
        }
        Ok(share(&mut gpu.lock().ok_or(OUT_OF_MEMORY)?, take.bytes, 0))
    };
    match attempt()? {
        Ok(share) => Ok(share),
        Err(_) => {
            reserved::trim_all();
            attempt()?
                .map_err(|over| gpu.lock().map_or(OUT_OF_MEMORY, |balance| balance.refuse(over, take.bytes)))
        }
    }
}

/// Reserves the growth for a launch, given the GPU's idle graph memory.
fn share(balance: &mut Balance, bytes: u64, idle_bytes: u64) -> Result<Share, Over> {
    let claimed = &mut balance.holdings.graph_claimed_bytes;
    let claimed_bytes = bytes.min(idle_bytes.saturating_sub(*claimed));
    let ahead = reserved::growth_granules(bytes - claimed_bytes);
    balance.account.reserve(ahead)?;
    *claimed = claimed.saturating_add(claimed_bytes);
    Ok(Share { ahead, claimed_bytes })
}

fn attribute(device: Device, which: c_int) -> Option<u64> {
    let mut bytes = 0_u64;
    let get = driver::cuDeviceGetGraphMemAttribute.get().ok()?;
    // SAFETY: `which` is one of the two above, for which the driver writes 64 bits, and `bytes` is a live local of that size.
    (unsafe { get(device, which, (&raw mut bytes).cast()) } == SUCCESS).then_some(bytes)
}

/// Sets the charge to what the GPU's graphs have reserved, after a launch or a trim.
fn settle(gpu: SliceGpu, device: Device, share: Share) {
    for attempt in 1..=ATTEMPTS {
        let Some(before) = gpu.lock().map(|balance| balance.holdings.graph_launches) else { return };
        let answer = attribute(device, RESERVED);
        let Some(mut balance) = gpu.lock() else { return };
        let holdings = &mut balance.holdings;
        let is_current = holdings.graph_launches == before;
        if is_current || attempt == ATTEMPTS {
            // Neither an old answer nor a missing one makes the charge less: somebody's memory may have come since.
            let reserved = answer.map_or(holdings.graph_granules, granules_holding);
            let now = if is_current { reserved } else { reserved.max(holdings.graph_granules) };
            let charged = core::mem::replace(&mut holdings.graph_granules, now);
            holdings.graph_launches = holdings.graph_launches.wrapping_add(1);
            holdings.graph_claimed_bytes = holdings.graph_claimed_bytes.saturating_sub(share.claimed_bytes);
            // Growth beyond the limit is charged all the same; no allocation is left to refuse.
            let _over = balance.account_for(charged.saturating_add(share.ahead), now);
            return;
        }
    }
}

pub(super) unsafe fn trim(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(device) };
    if let Ok(gpu) = SliceGpu::of(device) {
        settle(gpu, device, Share::default());
    }
    status
}

/// Memory that a launch has left is about to be freed by the program: it is no longer what the next launch frees. An
/// address that the driver then refuses to free [`is_left`] again.
pub(super) fn is_no_longer_left(address: Address) -> Option<Entry> {
    let process = process().filter(|process| process.uses_graph_memory.load(Relaxed))?;
    let kept = process.graph_kept.get(address)?;
    let change = |left: &mut Entry| left.set_bytes(left.bytes().saturating_sub(kept.bytes()));
    process.graph_left.update(key(kept.context, kept.gpu()), change).then_some(kept)
}

/// See [`is_no_longer_left`].
pub(super) fn is_left(kept: &Entry) {
    if let Some(process) = process() {
        process.graph_left.update(key(kept.context, kept.gpu()), |left| {
            left.set_bytes(left.bytes().saturating_add(kept.bytes()).min(left.context));
        });
    }
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Graph) -> Status, executable: Graph) -> Status {
    let process = process().filter(|process| process.uses_graph_memory.load(Relaxed));
    if let Some(process) = process {
        // Memory that it has left stays, and no other launch frees it first.
        for gpu in 0..MAX_GPUS {
            process.graph_left.remove(key(executable as u64, gpu));
        }
    }
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(executable) };
    if let Some(process) = process.filter(|_| status == SUCCESS) {
        for gpu in 0..MAX_GPUS {
            process.graphs.remove(key(executable as u64, gpu));
        }
        process.graph_kept.sweep(|kept| kept.context == executable as u64, drop);
    }
    status
}
