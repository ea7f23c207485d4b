"""Takes memory where a real driver is unkind: unkind.py WAY LIMIT. See unkind.c, which plays that driver."""

import ctypes
import json
import os
import sys
import threading
import time

CHUNK = 64 << 20
way, limit = sys.argv[1], int(sys.argv[2])
cuda = ctypes.CDLL("libcuda.so.1")
context, stream, pool, pointer = (ctypes.c_void_p() for _ in range(4))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
# Of exported memory.
descriptors = []


class PoolProperties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 9)]


class AllocationNode(ctypes.Structure):
    _fields_ = [("pool", PoolProperties), ("access", ctypes.c_void_p), ("count", ctypes.c_size_t), ("bytes", ctypes.c_size_t), ("at", ctypes.c_uint64)]


def must(status):
    assert status == 0, f"CUDA error {status}"


def from_stream():
    return cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(CHUNK), stream)


def from_pool():
    return cuda.cuMemAllocFromPoolAsync(ctypes.byref(pointer), ctypes.c_size_t(CHUNK), pool, None)


def uploaded():
    """A graph of one allocation, made executable and uploaded at once."""
    graph, node, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    allocation = AllocationNode(pool=PoolProperties(1, 0, 1, 0), bytes=CHUNK)
    must(cuda.cuGraphCreate(ctypes.byref(graph), 0))
    must(cuda.cuGraphAddMemAllocNode(ctypes.byref(node), graph, None, ctypes.c_size_t(0), ctypes.byref(allocation)))
    parameters = (ctypes.c_uint64 * 4)(2, stream.value, 0, 0)
    return cuda.cuGraphInstantiateWithParams(ctypes.byref(executable), graph, parameters)


class Properties(ctypes.Structure):
    """CUmemAllocationProp: memory of the first GPU, to be shared by a file descriptor."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 2)]


def exported_and_released(size=CHUNK):
    handle, descriptor = ctypes.c_ulonglong(), ctypes.c_int()
    properties = Properties(1, 1, 1, 0)
    status = cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
    if not status:
        must(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0)))
        must(cuda.cuMemRelease(handle))
        descriptors.append(descriptor.value)
    return status


def exported():
    """A quarter of the slice, exported and released; when that is charged, the rest of it."""
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    left, end = free.value - limit // 4, time.monotonic() + 60
    for _ in range(limit // CHUNK // 4):
        must(exported_and_released())
    while free.value > left and time.monotonic() < end:
        time.sleep(0.1)
        must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return fill(lambda: cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(CHUNK)))


def exported_without_end():
    """As much again as the slice, as fast as it goes, kept by copies of the descriptors."""
    for _ in range(60):
        must(exported_and_released(2 * CHUNK))
        os.dup(descriptors[-1])
        os.close(descriptors.pop())
    return 60 * 2 * CHUNK, 0


def exported_and_kept():
    """Exported and released until it is refused. Then half of the descriptors are closed, and as much is had again, this time mapped at first."""
    first = fill(exported_and_released)
    assert first[1], first
    for _ in range(len(descriptors) // 2):
        os.close(descriptors.pop())
    before = len(descriptors)
    again = fill(exported_mapped_and_released)
    assert first == ((before + again[0] // CHUNK) * CHUNK, again[1]), (first, before, again)
    while descriptors:
        os.close(descriptors.pop())
    return fill(lambda: cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(CHUNK)))


def exported_mapped_and_released():
    handle, descriptor, address = ctypes.c_ulonglong(), ctypes.c_int(), ctypes.c_ulonglong()
    size, zero, properties = ctypes.c_size_t(CHUNK), ctypes.c_uint64(0), Properties(1, 1, 1, 0)
    status = cuda.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(properties), zero)
    if not status:
        must(cuda.cuMemAddressReserve(ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero))
        must(cuda.cuMemMap(address, size, ctypes.c_size_t(0), handle, zero))
        must(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, 1, zero))
        must(cuda.cuMemRelease(handle))
        must(cuda.cuMemUnmap(address, size))
        descriptors.append(descriptor.value)
    return status


def fill(take):
    granted = 0
    while granted < 2 * limit:
        status = take()
        if status:
            return granted, status
        granted += CHUNK
    return granted, 0


def pool_in_steps():
    """Of a size of which 109 fit into a step of the pool; the ends of all steps together would hold more."""
    slot, granted, status = (300 << 10) + 512, 0, 0
    while granted < 2 * limit and not status:
        status = cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(slot), stream)
        granted += 0 if status else slot
    return granted, status


def host_pool():
    must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(1, 0, 2, 0))))
    return fill(from_pool)


def real_green_stream():
    """On the driver's own green context, whose streams have no context to tell."""
    green, told = ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cuGreenCtxCreate(ctypes.byref(green), ctypes.c_void_p(1), 0, 1))
    must(cuda.cuGreenCtxStreamCreate(ctypes.byref(stream), green, 1, 0))
    assert cuda.cuStreamGetCtx(stream, ctypes.byref(told)) == 201, "it has one: this shows nothing"
    return fill(from_stream)


def growth_waits():
    """One thread's allocation waits for another thread, which frees memory first."""
    held = ctypes.c_ulonglong()
    must(cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(CHUNK)))

    def grow():
        must(cuda.cuCtxSetCurrent(context))
        must(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(2 * CHUNK), stream))

    thread = threading.Thread(target=grow)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive(), "it does not wait: this shows nothing"
    must(cuda.cuMemFree_v2(held))
    ctypes.CDLL("/run/cantle/real/libcuda.so.1").unkind_finish()
    thread.join()
    return 2 * CHUNK, 0


def created(size=CHUNK):
    handle, properties = ctypes.c_ulonglong(), Properties(1, 0, 1, 0)
    must(cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0)))
    return handle


def handles_reused():
    """One thread releases memory, and before that returns another one creates some and gets the same handle."""
    driver = ctypes.CDLL("/run/cantle/real/libcuda.so.1")
    first = created()
    thread = threading.Thread(target=lambda: must(cuda.cuMemRelease(first)))
    thread.start()
    while not driver.unkind_has_released():
        time.sleep(0.001)
    second = created()
    assert second.value == first.value, "it is another one: this shows nothing"
    driver.unkind_finish()
    thread.join()
    return CHUNK, 0


def everything():
    """Each kind of memory once, taken and given back, and what the filter asks the driver for about it."""
    other, pool, array, handle = (ctypes.c_void_p() for _ in range(4))
    graph, node, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    take = ctypes.c_ulonglong()
    must(cuda.cuMemAlloc_v2(ctypes.byref(take), ctypes.c_size_t(CHUNK)))
    must(cuda.cuMemFree_v2(take))
    must(cuda.cuMemRelease(created()))
    for _ in range(100):
        must(cuda.cuMemAllocAsync(ctypes.byref(take), ctypes.c_size_t(CHUNK), stream))
        must(cuda.cuMemFreeAsync(take, stream))
        must(cuda.cuStreamSynchronize(stream))
    must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(1, 0, 1, 0))))
    must(cuda.cuMemAllocFromPoolAsync(ctypes.byref(take), ctypes.c_size_t(CHUNK), pool, stream))
    must(cuda.cuMemFreeAsync(take, stream))
    must(cuda.cuMemPoolTrimTo(pool, ctypes.c_size_t(0)))
    must(cuda.cuMemPoolDestroy(pool))
    description = (ctypes.c_size_t * 3)(4096, 4096, 0x20 | 1 << 32)
    must(cuda.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(description)))
    must(cuda.cuArrayDestroy(array))
    allocation = AllocationNode(pool=PoolProperties(1, 0, 1, 0), bytes=CHUNK)
    must(cuda.cuGraphCreate(ctypes.byref(graph), 0))
    must(cuda.cuGraphAddMemAllocNode(ctypes.byref(node), graph, None, ctypes.c_size_t(0), ctypes.byref(allocation)))
    must(cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_uint64(1)))
    for _ in range(3):
        must(cuda.cuGraphLaunch(executable, stream))
    must(cuda.cuMemFreeAsync(ctypes.c_uint64(allocation.at), stream))
    must(cuda.cuGraphExecDestroy(executable))
    must(cuda.cuDeviceGraphMemTrim(0))
    must(cuda.cuCtxCreate_v2(ctypes.byref(other), 0, 0))
    must(cuda.cuCtxDestroy_v2(other))
    must(cuda.cuCtxSetCurrent(context))


def calls_back():
    """A profiler asks and allocates in each callback."""
    driver, calls = cuda, []
    mine = ctypes.c_ulonglong()

    @ctypes.CFUNCTYPE(None)
    def callback():
        calls.append(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        calls.append(cuda.cuMemAlloc_v2(ctypes.byref(mine), ctypes.c_size_t(4096)))
        calls.append(cuda.cuMemFree_v2(mine))
        calls.append(cuda.cuMemAllocAsync(ctypes.byref(mine), ctypes.c_size_t(4096), stream))
        calls.append(cuda.cuMemFreeAsync(mine, stream))

    driver.unkind_call_back(callback)
    everything()
    driver.unkind_call_back(None)
    must(cuda.cuCtxSynchronize())
    assert len(calls) > 1000 and calls.count(0) > len(calls) * 0.9, "nothing calls back: this shows nothing"
    return 0, 0


def pool_destroyed_first():
    """Pools that are destroyed while their memory is in use, more of it than the slice has. It is free when the stream has reached the end of its use."""
    for _ in range(2 * limit // CHUNK):
        must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(1, 0, 1, 0))))
        must(from_pool())
        must(cuda.cuMemPoolDestroy(pool))
        must(cuda.cuMemFreeAsync(pointer, None))
        must(cuda.cuCtxSynchronize())
    return 0, 0


def reset_takes_pools():
    """A reset with memory of a pool of its own, and a synchronization after it."""
    primary = ctypes.c_void_p()
    must(cuda.cuCtxDestroy_v2(context))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0))
    must(cuda.cuCtxSetCurrent(primary))
    must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(1, 0, 1, 0))))
    must(from_pool())
    must(cuda.cuDevicePrimaryCtxReset_v2(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 0))
    must(cuda.cuCtxSetCurrent(primary))
    must(cuda.cuCtxSynchronize())
    return 0, 0


def capture(granted=0):
    """A slice that is full, and a capture that would take more if it were launched."""
    granted, refused = fill(lambda: cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(CHUNK)))
    graph = ctypes.c_void_p()
    must(cuda.cuStreamBeginCapture_v2(stream, 0))
    must(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(4 * CHUNK), stream))
    must(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
    return granted, refused


must(cuda.cuInit(0))
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
must(cuda.cuStreamCreate(ctypes.byref(stream), 0))
match way:
    case "green_stream" | "green_stream_old":
        granted, refused = fill(from_stream)
    case "managed_pool":
        must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(2, 0, 0, 0))))
        granted, refused = fill(from_pool)
    case "upload":
        granted, refused = fill(uploaded)
    case _:
        granted, refused = globals()[way]()
must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
print(json.dumps({"granted": granted, "refused": refused, "free": free.value, "total": total.value}), flush=True)
sys.stdin.read()
