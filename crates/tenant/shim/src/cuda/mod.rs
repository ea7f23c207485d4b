//! The hooks of the driver API: the functions that a slice changes.

mod array;
mod charge;
mod checkpoint;
mod context;
mod export;
mod graph;
mod graph_memory;
mod location;
mod lookup;
mod memory;
mod pool;
mod pool_charge;
mod pool_current;
mod pool_end;
mod pool_question;
mod report;
mod share;
mod slab;
mod visible;
mod vmm;

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::function::Status;
use crate::hooks::hooks;
use array::Array;
use graph::Graph;
use location::Location;
use pool::{Pool, Stream};
use vmm::Handle;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const INVALID_VALUE: Status = 1;
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// The queried work has not ended yet.
pub(crate) const NOT_READY: Status = 600;
pub(crate) const NOT_SUPPORTED: Status = 801;

/// `CUdeviceptr`.
type Address = u64;
/// `CUdeviceptr` of the functions without `_v2`.
type ShortAddress = c_uint;
/// `CUdevice`: an ordinal.
type Device = c_int;
/// `CUcontext`.
type Context = *mut c_void;

hooks! { CUDA, "cuda":
    Allocates cuMemAlloc_v2(address: *mut Address, bytes: usize) => memory::alloc;
    Allocates cuMemAlloc(address: *mut ShortAddress, bytes: c_uint) => memory::alloc;
    Allocates cuMemAllocPitch_v2(address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::alloc_pitch;
    Allocates cuMemAllocPitch(address: *mut ShortAddress, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => memory::alloc_pitch;
    Allocates cuMemAllocManaged(address: *mut Address, bytes: usize, flags: c_uint) => memory::alloc_managed;
    Frees cuMemFree_v2(address: Address) => memory::free;
    Frees cuMemFree(address: ShortAddress) => memory::free;

    Allocates cuMemAllocAsync(address: *mut Address, bytes: usize, stream: Stream) => pool::alloc;
    Allocates cuMemAllocAsync_ptsz(address: *mut Address, bytes: usize, stream: Stream) => pool::alloc;
    Allocates cuMemAllocFromPoolAsync(address: *mut Address, bytes: usize, pool: Pool, stream: Stream) => pool::alloc_from;
    Allocates cuMemAllocFromPoolAsync_ptsz(address: *mut Address, bytes: usize, pool: Pool, stream: Stream) => pool::alloc_from;
    Frees cuMemFreeAsync(address: Address, stream: Stream) => pool::free::<false>;
    Frees cuMemFreeAsync_ptsz(address: Address, stream: Stream) => pool::free::<true>;
    Allocates cuMemPoolCreate(pool: *mut Pool, properties: *const pool::Properties) => pool::create;
    Frees cuMemPoolDestroy(pool: Pool) => pool_end::destroy;
    Frees cuMemPoolTrimTo(pool: Pool, keep: usize) => pool::trim_to;
    Frees cuMemPoolSetAttribute(pool: Pool, which: c_int, value: *mut c_void) => pool::set_attribute;
    Frees cuCtxSynchronize() => pool::synchronize;
    Frees cuCtxSynchronize_v2(context: Context) => pool::synchronize_context;
    Frees cuStreamSynchronize(stream: Stream) => pool::synchronize_stream::<false>;
    Frees cuStreamSynchronize_ptsz(stream: Stream) => pool::synchronize_stream::<true>;
    Frees cuEventSynchronize(event: *mut c_void) => pool::synchronize_event;

    Allocates cuMemCreate(handle: *mut Handle, bytes: usize, properties: *const vmm::Properties, flags: u64) => vmm::create;
    Frees cuMemRelease(handle: Handle) => vmm::release;
    Frees cuMemRetainAllocationHandle(handle: *mut Handle, address: *mut c_void) => vmm::retain;
    Frees cuMemImportFromShareableHandle(handle: *mut Handle, shared: *mut c_void, kind: c_int) => share::import;
    Frees cuMemExportToShareableHandle(shared: *mut c_void, handle: Handle, kind: c_int, flags: u64) => share::export;
    Frees cuMemMap(address: Address, bytes: usize, offset: usize, handle: Handle, flags: u64) => vmm::map;
    Frees cuMemUnmap(address: Address, bytes: usize) => vmm::unmap;

    Allocates cuArrayCreate_v2(array: *mut Array, descriptor: *const array::Descriptor<usize>) => array::create;
    Allocates cuArray3DCreate_v2(array: *mut Array, descriptor: *const array::Descriptor3d<usize>) => array::create_3d;
    Allocates cuArrayCreate(array: *mut Array, descriptor: *const array::Descriptor<c_uint>) => array::create;
    Allocates cuArray3DCreate(array: *mut Array, descriptor: *const array::Descriptor3d<c_uint>) => array::create_3d;
    Allocates cuMipmappedArrayCreate(array: *mut Array, descriptor: *const array::Descriptor3d<usize>, levels: c_uint) => array::create_mipmapped;
    Frees cuArrayDestroy(array: Array) => array::destroy;
    Frees cuMipmappedArrayDestroy(array: Array) => array::destroy;

    Allocates cuGraphInstantiate(executable: *mut Graph, graph: Graph, error_node: *mut Graph, log: *mut c_char, log_bytes: usize) => graph::instantiate;
    Allocates cuGraphInstantiate_v2(executable: *mut Graph, graph: Graph, error_node: *mut Graph, log: *mut c_char, log_bytes: usize) => graph::instantiate;
    Allocates cuGraphInstantiateWithFlags(executable: *mut Graph, graph: Graph, flags: u64) => graph::instantiate_with_flags;
    Allocates cuGraphInstantiateWithParams(executable: *mut Graph, graph: Graph, parameters: *mut graph::InstantiateParameters) => graph::instantiate_with_parameters;
    Allocates cuGraphInstantiateWithParams_ptsz(executable: *mut Graph, graph: Graph, parameters: *mut graph::InstantiateParameters) => graph::instantiate_with_parameters;
    Allocates cuGraphUpload(executable: Graph, stream: Stream) => graph::upload;
    Allocates cuGraphUpload_ptsz(executable: Graph, stream: Stream) => graph::upload;
    Allocates cuGraphLaunch(executable: Graph, stream: Stream) => graph::launch_in_turn::<false>;
    Allocates cuGraphLaunch_ptsz(executable: Graph, stream: Stream) => graph::launch_in_turn::<true>;
    Frees cuGraphExecDestroy(executable: Graph) => graph::destroy;
    Frees cuDeviceGraphMemTrim(device: Device) => graph::trim;

    Allocates cuCtxCreate(context: *mut Context, flags: c_uint, device: Device) => context::create;
    Allocates cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: Device) => context::create;
    Allocates cuCtxCreate_v3(context: *mut Context, affinity: *mut c_void, count: c_int, flags: c_uint, device: Device) => context::create_v3;
    Allocates cuCtxCreate_v4(context: *mut Context, parameters: *mut c_void, flags: c_uint, device: Device) => context::create_v4;
    Frees cuCtxDestroy(context: Context) => context::destroy;
    Frees cuCtxDestroy_v2(context: Context) => context::destroy;
    Allocates cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) => context::retain_primary;
    Allocates cuGreenCtxCreate(context: *mut *mut c_void, resources: *mut c_void, device: Device, flags: c_uint) => context::create_green;
    Frees cuDevicePrimaryCtxRelease(device: Device) => context::end_primary;
    Frees cuDevicePrimaryCtxRelease_v2(device: Device) => context::end_primary;
    Frees cuDevicePrimaryCtxReset(device: Device) => context::end_primary;
    Frees cuDevicePrimaryCtxReset_v2(device: Device) => context::end_primary;

    Notices cuCtxSetCurrent(context: Context) => context::enter;
    Notices cuCtxPushCurrent(context: Context) => context::enter;
    Notices cuCtxPushCurrent_v2(context: Context) => context::enter;
    Notices cuDeviceSetMemPool(device: Device, pool: Pool) => pool_current::set;
    Notices cuMemSetMemPool(location: *const Location, kind: c_int, pool: Pool) => pool_current::set_at;
    Notices cuMemGetDefaultMemPool(pool: *mut Pool, location: *const Location, kind: c_int) => pool::of_location;
    Notices cuMemGetMemPool(pool: *mut Pool, location: *const Location, kind: c_int) => pool::of_location;
    Notices cuInit(flags: c_uint) => visible::init;
    Notices cuIpcGetMemHandle(handle: *mut c_void, address: Address) => share::get_memory;
    Notices cuIpcOpenMemHandle(address: *mut Address, handle: share::IpcHandle, flags: c_uint) => share::open_memory;
    Notices cuIpcOpenMemHandle_v2(address: *mut Address, handle: share::IpcHandle, flags: c_uint) => share::open_memory;
    Notices cuIpcGetEventHandle(handle: *mut c_void, event: *mut c_void) => share::get_event;
    Notices cuIpcOpenEventHandle(event: *mut *mut c_void, handle: share::IpcHandle) => share::open_event;
    Notices cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) => context::pin_with_flags;
    Notices cuMemAllocHost(address: *mut *mut c_void, bytes: c_uint) => context::pin;
    Notices cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) => context::pin;

    Refuses cuCheckpointProcessRestore(process: c_int, arguments: *const checkpoint::RestoreArguments) => checkpoint::restore;

    Reports cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => report::memory_info;
    Reports cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) => report::memory_info;
    Reports cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) => report::total_memory;
    Reports cuDeviceTotalMem(bytes: *mut c_uint, device: Device) => report::total_memory;

    Resolves cuGetProcAddress(name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64) => lookup::address;
    Resolves cuGetProcAddress_v2(name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int) => lookup::address_v2;
}

/// Functions of the driver that the hooks ask themselves.
mod driver {
    #![allow(non_upper_case_globals, reason = "the names are the driver's")]
    use super::*;

    crate::function::driver_functions! { CUDA:
        cuDeviceGetCount(*mut c_int);
        cuDeviceGetUuid(*mut [u8; 16], Device);
        cuDeviceGetUuid_v2(*mut [u8; 16], Device);
        cuDevicePrimaryCtxGetState(Device, *mut c_uint, *mut c_int);
        cuCtxGetDevice(*mut Device);
        cuCtxGetCurrent(*mut Context);
        cuCtxPushCurrent_v2(Context);
        cuCtxPopCurrent_v2(*mut Context);
        cuStreamGetCtx(Stream, *mut Context);
        cuStreamGetDevice(Stream, *mut Device);
        cuStreamIsCapturing(Stream, *mut c_int);
        cuDeviceGetMemPool(*mut Pool, Device);
        cuDeviceGetDefaultMemPool(*mut Pool, Device);
        cuMemPoolGetAttribute(Pool, c_int, *mut c_void);
        cuArrayGetMemoryRequirements(*mut array::Requirements, Array, Device);
        cuMipmappedArrayGetMemoryRequirements(*mut array::Requirements, Array, Device);
        cuGraphGetNodes(Graph, *mut Graph, *mut usize);
        cuGraphNodeGetType(Graph, *mut c_int);
        cuGraphMemAllocNodeGetParams(Graph, *mut graph_memory::AllocParameters);
        cuGraphMemFreeNodeGetParams(Graph, *mut Address);
        cuGraphChildGraphNodeGetGraph(Graph, *mut Graph);
        cuDeviceGetGraphMemAttribute(Device, c_int, *mut c_void);
    }
}
