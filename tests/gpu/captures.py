#!/usr/bin/env python3
"""Which calls end a capture: `captures.py` captures a stream once per call and mode, makes the call meanwhile, and prints for each call four pairs of
codes as JSON: that of the call, and that of the capture's end. The modes: global, thread-local, relaxed, and global with the thread's own mode
relaxed. A call of the program that is allowed outside of a slice must end no capture inside."""

import ctypes
import json

c, cuda = ctypes, ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
KERNEL = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry k() { ret; }\n"
POOL_RELEASE_THRESHOLD, POOL_RESERVED, POOL_USED, GRAPH_RESERVED, MALLOC_HEAP = 4, 5, 7, 2, 2


class PoolProperties(c.Structure):
    """CUmemPoolProps: memory of the first GPU."""

    _fields_ = [(name, c.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", c.c_uint64 * 9)]


def need(name, *words):
    code = getattr(cuda, name)(*words)
    assert code == 0, f"{name}: CUDA error {code}"


class Session:
    """What the calls work on. Nothing is captured while it is made."""

    def __init__(self):
        made = ("context", "stream", "other", "event", "pool", "own_pool", "module", "kernel", "scratch", "pinned")
        for name in made:
            setattr(self, name, c.c_void_p())
        self.number, self.size, self.size2, self.word, self.memory, self.ordered, self.more = c.c_int(), c.c_size_t(), c.c_size_t(), *(c.c_uint64() for _ in range(4))
        self.properties = PoolProperties(1, 0, 1, 0)
        need("cuInit", 0)
        need("cuDevicePrimaryCtxRetain", c.byref(self.context), 0)
        need("cuCtxSetCurrent", self.context)
        need("cuStreamCreate", c.byref(self.stream), 1)
        need("cuStreamCreate", c.byref(self.other), 1)
        need("cuEventCreate", c.byref(self.event), 2)
        need("cuEventRecord", self.event, self.other)
        need("cuDeviceGetDefaultMemPool", c.byref(self.pool), 0)
        need("cuMemPoolCreate", c.byref(self.own_pool), c.byref(self.properties))
        need("cuMemAlloc_v2", c.byref(self.memory), c.c_size_t(2 * MIB))
        need("cuModuleLoadData", c.byref(self.module), KERNEL)
        need("cuModuleGetFunction", c.byref(self.kernel), self.module, b"k")

    def calls(self):
        """Name and call, in this order: some free what the one before has made."""
        ref, size = c.byref, c.c_size_t(MIB)
        yield "nothing", lambda: 0
        yield "cuCtxGetDevice", lambda: cuda.cuCtxGetDevice(ref(self.number))
        yield "cuCtxGetCurrent", lambda: cuda.cuCtxGetCurrent(ref(self.scratch))
        yield "cuCtxGetLimit", lambda: cuda.cuCtxGetLimit(ref(self.size), MALLOC_HEAP)
        yield "cuCtxSetLimit", lambda: cuda.cuCtxSetLimit(MALLOC_HEAP, c.c_size_t(8 * MIB))
        yield "cuCtxSynchronize", lambda: cuda.cuCtxSynchronize()
        yield "cuDeviceGetCount", lambda: cuda.cuDeviceGetCount(ref(self.number))
        yield "cuDeviceTotalMem", lambda: cuda.cuDeviceTotalMem_v2(ref(self.size), 0)
        yield "cuDeviceGetMemPool", lambda: cuda.cuDeviceGetMemPool(ref(self.scratch), 0)
        yield "cuDeviceGetDefaultMemPool", lambda: cuda.cuDeviceGetDefaultMemPool(ref(self.scratch), 0)
        yield "cuDeviceGetGraphMemAttribute", lambda: cuda.cuDeviceGetGraphMemAttribute(0, GRAPH_RESERVED, ref(self.word))
        yield "cuDeviceGraphMemTrim", lambda: cuda.cuDeviceGraphMemTrim(0)
        yield "cuMemGetInfo", lambda: cuda.cuMemGetInfo_v2(ref(self.size), ref(self.size2))
        yield "cuMemPoolCreate", lambda: cuda.cuMemPoolCreate(ref(self.scratch), ref(self.properties))
        yield "cuMemPoolGetAttribute reserved", lambda: cuda.cuMemPoolGetAttribute(self.pool, POOL_RESERVED, ref(self.word))
        yield "cuMemPoolGetAttribute used, own pool", lambda: cuda.cuMemPoolGetAttribute(self.own_pool, POOL_USED, ref(self.word))
        yield "cuMemPoolSetAttribute", lambda: cuda.cuMemPoolSetAttribute(self.pool, POOL_RELEASE_THRESHOLD, ref(c.c_uint64(0)))
        yield "cuMemPoolTrimTo", lambda: cuda.cuMemPoolTrimTo(self.pool, c.c_size_t(0))
        yield "cuMemAllocAsync, the captured stream", lambda: cuda.cuMemAllocAsync(ref(self.more), size, self.stream)
        yield "cuMemAllocAsync, another stream", lambda: cuda.cuMemAllocAsync(ref(self.ordered), size, self.other)
        yield "cuMemFreeAsync, another stream", lambda: cuda.cuMemFreeAsync(self.ordered, self.other)
        yield "cuMemAlloc", lambda: cuda.cuMemAlloc_v2(ref(self.more), size)
        yield "cuMemFree", lambda: cuda.cuMemFree_v2(self.more)
        yield "cuMemAllocManaged", lambda: cuda.cuMemAllocManaged(ref(self.more), size, 1)
        yield "cuMemHostAlloc", lambda: cuda.cuMemHostAlloc(ref(self.pinned), size, 0)
        yield "cuMemFreeHost", lambda: cuda.cuMemFreeHost(self.pinned)
        yield "cuMemAddressReserve", lambda: cuda.cuMemAddressReserve(ref(self.word), c.c_size_t(2 * MIB), c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
        yield "cuPointerGetAttribute", lambda: cuda.cuPointerGetAttribute(ref(self.number), 2, self.memory)
        yield "cuMemsetD8Async, the captured stream", lambda: cuda.cuMemsetD8Async(self.memory, 1, c.c_size_t(64), self.stream)
        yield "cuStreamCreate", lambda: cuda.cuStreamCreate(ref(self.scratch), 1)
        yield "cuStreamGetCtx, the captured stream", lambda: cuda.cuStreamGetCtx(self.stream, ref(self.scratch))
        yield "cuStreamGetFlags, the captured stream", lambda: cuda.cuStreamGetFlags(self.stream, ref(self.number))
        yield "cuStreamIsCapturing, the captured stream", lambda: cuda.cuStreamIsCapturing(self.stream, ref(self.number))
        yield "cuStreamIsCapturing, another stream", lambda: cuda.cuStreamIsCapturing(self.other, ref(self.number))
        yield "cuStreamQuery, another stream", lambda: cuda.cuStreamQuery(self.other)
        yield "cuStreamSynchronize, another stream", lambda: cuda.cuStreamSynchronize(self.other)
        yield "cuStreamWaitEvent, another stream", lambda: cuda.cuStreamWaitEvent(self.other, self.event, 0)
        yield "cuStreamWaitEvent, an event of before", lambda: cuda.cuStreamWaitEvent(self.stream, self.event, 0)
        yield "cuEventCreate", lambda: cuda.cuEventCreate(ref(self.scratch), 2)
        yield "cuEventRecord, another stream", lambda: cuda.cuEventRecord(self.event, self.other)
        yield "cuEventQuery", lambda: cuda.cuEventQuery(self.event)
        yield "cuEventSynchronize", lambda: cuda.cuEventSynchronize(self.event)
        yield "cuLaunchKernel, the captured stream", lambda: self.launch(self.stream)
        yield "cuLaunchKernel, another stream", lambda: self.launch(self.other)
        yield "cuFuncGetAttribute", lambda: cuda.cuFuncGetAttribute(ref(self.number), 0, self.kernel)
        yield "cuModuleLoadData", lambda: cuda.cuModuleLoadData(ref(self.scratch), KERNEL)
        yield "cuModuleUnload", lambda: cuda.cuModuleUnload(self.scratch)

    def launch(self, stream):
        return cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    def capture(self, call, mode, own_mode=None):
        graph, exchanged = c.c_void_p(), c.c_int(own_mode or 0)
        need("cuStreamBeginCapture_v2", self.stream, mode)
        if own_mode is not None:
            need("cuThreadExchangeStreamCaptureMode", c.byref(exchanged))
        code = call()
        if own_mode is not None:
            need("cuThreadExchangeStreamCaptureMode", c.byref(exchanged))
        ended = cuda.cuStreamEndCapture(self.stream, c.byref(graph))
        if graph:
            need("cuGraphDestroy", graph)
        cuda.cuStreamSynchronize(self.other)
        cuda.cuCtxSynchronize()
        return [code, ended]


def main():
    session = Session()
    ways = [(GLOBAL,), (THREAD_LOCAL,), (RELAXED,), (GLOBAL, RELAXED)]
    print(json.dumps({name: [session.capture(call, *way) for way in ways] for name, call in session.calls()}))


main()
