//! The hooks of the driver API: the functions that a slice changes.

mod alloc;
mod context;
mod device;
mod graph;
mod lookup;
mod pool;
mod report;

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::function::Status;
use crate::hooks::hooks;
use alloc::array::Array;
use alloc::location::Location;
use alloc::vmm::Handle;
use graph::Graph;
use pool::{Pool, Stream};

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
    Allocates cuMemAlloc_v2(address: *mut Address, bytes: usize) => alloc::linear::alloc;
    Allocates cuMemAlloc(address: *mut ShortAddress, bytes: c_uint) => alloc::linear::alloc;
    Allocates cuMemAllocPitch_v2(address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint) => alloc::linear::alloc_pitch;
    Allocates cuMemAllocPitch(address: *mut ShortAddress, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => alloc::linear::alloc_pitch;
    Allocates cuMemAllocManaged(address: *mut Address, bytes: usize, flags: c_uint) => alloc::linear::alloc_managed;
    Frees cuMemFree_v2(address: Address) => alloc::linear::free;
    Frees cuMemFree(address: ShortAddress) => alloc::linear::free;

    Allocates cuMemAllocAsync(address: *mut Address, bytes: usize, stream: Stream) => pool::alloc;
    Allocates cuMemAllocAsync_ptsz(address: *mut Address, bytes: usize, stream: Stream) => pool::alloc;
    Allocates cuMemAllocFromPoolAsync(address: *mut Address, bytes: usize, pool: Pool, stream: Stream) => pool::alloc_from;
    Allocates cuMemAllocFromPoolAsync_ptsz(address: *mut Address, bytes: usize, pool: Pool, stream: Stream) => pool::alloc_from;
    Frees cuMemFreeAsync(address: Address, stream: Stream) => pool::free::<false>;
    Frees cuMemFreeAsync_ptsz(address: Address, stream: Stream) => pool::free::<true>;
    Allocates cuMemPoolCreate(pool: *mut Pool, properties: *const pool::Properties) => pool::create;
    Frees cuMemPoolDestroy(pool: Pool) => pool::end::destroy;
    Frees cuMemPoolTrimTo(pool: Pool, keep: usize) => pool::trim_to;
    Frees cuMemPoolSetAttribute(pool: Pool, which: c_int, value: *mut c_void) => pool::set_attribute;
    Frees cuCtxSynchronize() => pool::synchronize;
    Frees cuCtxSynchronize_v2(context: Context) => pool::synchronize_context;
    Frees cuStreamSynchronize(stream: Stream) => pool::synchronize_stream::<false>;
    Frees cuStreamSynchronize_ptsz(stream: Stream) => pool::synchronize_stream::<true>;
    Frees cuEventSynchronize(event: *mut c_void) => pool::synchronize_event;

    Allocates cuMemCreate(handle: *mut Handle, bytes: usize, properties: *const alloc::vmm::Properties, flags: u64) => alloc::vmm::create;
    Frees cuMemRelease(handle: Handle) => alloc::vmm::release;
    Frees cuMemRetainAllocationHandle(handle: *mut Handle, address: *mut c_void) => alloc::vmm::retain;
    Frees cuMemImportFromShareableHandle(handle: *mut Handle, shared: *mut c_void, kind: c_int) => context::share::import;
    Frees cuMemExportToShareableHandle(shared: *mut c_void, handle: Handle, kind: c_int, flags: u64) => context::share::export;
    Frees cuMemMap(address: Address, bytes: usize, offset: usize, handle: Handle, flags: u64) => alloc::vmm::map;
    Frees cuMemUnmap(address: Address, bytes: usize) => alloc::vmm::unmap;

    Allocates cuArrayCreate_v2(array: *mut Array, descriptor: *const alloc::array::Descriptor<usize>) => alloc::array::create;
    Allocates cuArray3DCreate_v2(array: *mut Array, descriptor: *const alloc::array::Descriptor3d<usize>) => alloc::array::create_3d;
    Allocates cuArrayCreate(array: *mut Array, descriptor: *const alloc::array::Descriptor<c_uint>) => alloc::array::create;
    Allocates cuArray3DCreate(array: *mut Array, descriptor: *const alloc::array::Descriptor3d<c_uint>) => alloc::array::create_3d;
    Allocates cuMipmappedArrayCreate(array: *mut Array, descriptor: *const alloc::array::Descriptor3d<usize>, levels: c_uint) => alloc::array::create_mipmapped;
    Frees cuArrayDestroy(array: Array) => alloc::array::destroy;
    Frees cuMipmappedArrayDestroy(array: Array) => alloc::array::destroy;

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
    Notices cuDeviceSetMemPool(device: Device, pool: Pool) => pool::current::set;
    Notices cuMemSetMemPool(location: *const Location, kind: c_int, pool: Pool) => pool::current::set_at;
    Notices cuMemGetDefaultMemPool(pool: *mut Pool, location: *const Location, kind: c_int) => pool::of_location;
    Notices cuMemGetMemPool(pool: *mut Pool, location: *const Location, kind: c_int) => pool::of_location;
    Notices cuInit(flags: c_uint) => context::visible::init;
    Notices cuIpcGetMemHandle(handle: *mut c_void, address: Address) => context::share::get_memory;
    Notices cuIpcOpenMemHandle(address: *mut Address, handle: context::share::IpcHandle, flags: c_uint) => context::share::open_memory;
    Notices cuIpcOpenMemHandle_v2(address: *mut Address, handle: context::share::IpcHandle, flags: c_uint) => context::share::open_memory;
    Notices cuIpcGetEventHandle(handle: *mut c_void, event: *mut c_void) => context::share::get_event;
    Notices cuIpcOpenEventHandle(event: *mut *mut c_void, handle: context::share::IpcHandle) => context::share::open_event;
    Notices cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) => context::pin_with_flags;
    Notices cuMemAllocHost(address: *mut *mut c_void, bytes: c_uint) => context::pin;
    Notices cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) => context::pin;

    Refuses cuCheckpointProcessRestore(process: c_int, arguments: *const context::checkpoint::RestoreArguments) => context::checkpoint::restore;

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
        cuArrayGetMemoryRequirements(*mut alloc::array::Requirements, Array, Device);
        cuMipmappedArrayGetMemoryRequirements(*mut alloc::array::Requirements, Array, Device);
        cuGraphGetNodes(Graph, *mut Graph, *mut usize);
        cuGraphNodeGetType(Graph, *mut c_int);
        cuGraphMemAllocNodeGetParams(Graph, *mut graph::memory::AllocParameters);
        cuGraphMemFreeNodeGetParams(Graph, *mut Address);
        cuGraphChildGraphNodeGetGraph(Graph, *mut Graph);
        cuDeviceGetGraphMemAttribute(Device, c_int, *mut c_void);
    }
}
