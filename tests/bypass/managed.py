"""Takes memory that migrates to the GPU, and other memory next to it.

Reads commands from stdin and answers each: `managed MIB` (allocated and brought to the GPU), `malloc MIB` (brought to a GPU that has
HMM), `heap MIB` (which no allocation function mentions), `fill` (2 MiB at a time, until it is refused).
"""

import ctypes
import json
import mmap
import sys

MIB = 1 << 20
HEAP = 2
FRESH_HEAP_MIB = 8
cuda = ctypes.CDLL("libcuda.so.1")
pointer, free, total = ctypes.c_ulonglong(), ctypes.c_size_t(), ctypes.c_size_t()
kept = []


def bring(address, size):
    return cuda.cuMemPrefetchAsync(ctypes.c_ulonglong(address), ctypes.c_size_t(size), 0, ctypes.c_void_p())


def managed(size):
    code = cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(size), 1)
    return code or bring(pointer.value, size)


def malloc(size):
    kept.append(mmap.mmap(-1, size))
    return bring(ctypes.addressof(ctypes.c_char.from_buffer(kept[-1])), size)


def heap(size):
    return cuda.cuCtxSetLimit(HEAP, ctypes.c_size_t(FRESH_HEAP_MIB * MIB + size))


def fill(_size):
    granted = 0
    while not cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 * MIB)):
        granted += 2 * MIB
    return granted


assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(pointer), 0, 0) == 0
for word, *mib in map(str.split, sys.stdin):
    answer = globals()[word](int(mib[0]) * MIB if mib else 0)
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(json.dumps({"answer": answer, "free": free.value, "total": total.value}), flush=True)
