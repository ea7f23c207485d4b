"""Takes GPU memory that no allocation function mentions: CUDA's heap for kernels, which the driver enlarges on request, and
modules, whose code it loads when a function of theirs is looked up.

Reads commands from stdin, and answers each with what CUDA and NVML say then: `heap MIB`, `module MIB`, `fill` (2 MiB at a time, until
it is refused), `wipe` (its own accounting, and then as `fill`), `look`.
"""

import ctypes
import json
import os
import sys

MIB = 1 << 20
HEAP = 2
FRESH_HEAP_MIB = 8
# The sums of all GPUs, in the file that the slice's processes share.
SUMS_AT, SUMS_BYTES = 64, 16 * 64
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
pointer, free, total = ctypes.c_ulonglong(), ctypes.c_size_t(), ctypes.c_size_t()
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()


def must(status):
    assert status == 0, f"error {status}"


def wipe():
    usage = os.open("/run/cantle/slice/usage", os.O_WRONLY)
    os.pwrite(usage, bytes(SUMS_BYTES), SUMS_AT)
    os.close(usage)


def fill():
    granted = 0
    while not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 * MIB)):
        granted += 2 * MIB
    return granted


must(cuda.cuInit(0))
must(cuda.cuCtxCreate_v2(ctypes.byref(pointer), 0, 0))
must(nvml.nvmlInit_v2())
must(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
for words in map(str.split, sys.stdin):
    if words[0] == "heap":
        must(cuda.cuCtxSetLimit(HEAP, ctypes.c_size_t((FRESH_HEAP_MIB + int(words[1])) * MIB)))
    if words[0] == "module":
        must(cuda.cuModuleLoadData(ctypes.byref(pointer), f"cantle_sim_module_mib_{words[1]}".encode()))
        must(cuda.cuModuleGetFunction(ctypes.byref(pointer), pointer, b"kernel"))
    if words[0] == "wipe":
        wipe()
    granted = fill() if words[0] in ("fill", "wipe") else 0
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    must(nvml.nvmlDeviceGetMemoryInfo(device, memory))
    print(json.dumps({"granted": granted, "free": free.value, "total": total.value, "nvml": list(memory)}), flush=True)
