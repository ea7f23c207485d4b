"""Takes a context that no hook sees, as NVIDIA's runtime does through a private table of the driver.

The driver's real file, which the filter has loaded already, stands for that table. Reads commands from stdin and answers each with
what NVML says then: `context` (takes it, and makes it current past the hooks), `take MIB` (past the hooks, as OpenCL and video
encoders do), `look`, `calls NAME` (one function of the hooked library, as a program calls it), `fill` (2 MiB at a time).
"""

import ctypes
import json
import os
import sys

MIB = 1 << 20
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
real = ctypes.CDLL("/run/cantle/real/libcuda.so.1")
context, pointer, device = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_void_p()
memory, count = (ctypes.c_ulonglong * 3)(), ctypes.c_uint()

CALLS = {
    "cuCtxSetCurrent": lambda call: call(context),
    "cuCtxPushCurrent_v2": lambda call: call(context),
    "cuMemHostAlloc": lambda call: call(ctypes.byref(pointer), ctypes.c_size_t(MIB), 0),
    "cuMemAllocHost_v2": lambda call: call(ctypes.byref(pointer), ctypes.c_size_t(MIB)),
    "cuCtxSynchronize": lambda call: call(),
    "cuStreamSynchronize": lambda call: call(None),
    "cuMemAlloc_v2": lambda call: call(ctypes.byref(pointer), ctypes.c_size_t(2 * MIB)),
}


def must(status):
    assert status == 0, f"error {status}"


def fill():
    granted = 0
    while not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 * MIB)):
        granted += 2 * MIB
    return granted


must(cuda.cuInit(0))
must(nvml.nvmlInit_v2())
must(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
for words in map(str.split, sys.stdin):
    granted = 0
    match words:
        case ["context"]:
            must(real.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
            must(real.cuCtxSetCurrent(context))
        case ["take", mib]:
            must(real.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(mib) * MIB)))
        case ["calls", name]:
            must(CALLS[name](getattr(cuda, name)))
        case ["fill"]:
            granted = fill()
    count.value = 0
    nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), None)
    must(nvml.nvmlDeviceGetMemoryInfo(device, memory))
    answer = {"pid": os.getpid(), "granted": granted, "used": memory[2], "free": memory[1], "processes": count.value}
    print(json.dumps(answer), flush=True)
