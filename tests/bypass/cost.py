"""Counts calls of the driver: cost.py WAY. Each way is a call of the driver's, made CALLS times. What the driver counts beyond
them is the filter's."""

import ctypes
import json
import sys

CALLS = 4000
SMALL = 1024
cuda = ctypes.CDLL("libcuda.so.1")
# In a slice the filter is in front of the machine's own.
try:
    counted = ctypes.CDLL("/run/cantle/real/libcuda.so.1").counted
except OSError:
    counted = cuda.counted
counted.restype = ctypes.c_ulonglong
context, stream, pool, pointer = (ctypes.c_void_p() for _ in range(4))


class PoolProperties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 9)]


def must(status):
    assert status == 0, f"CUDA error {status}"


def take(on=None, size=SMALL):
    must(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), on))


def default_stream():
    take()


def own_stream():
    take(stream)


def own_pool():
    must(cuda.cuMemAllocFromPoolAsync(ctypes.byref(pointer), ctypes.c_size_t(SMALL), pool, stream))


def middle(size=1 << 20):
    """Allocated and given back: two calls."""
    take(stream, size)
    must(cuda.cuMemFreeAsync(pointer, stream))


def large():
    """Of a size that the filter settles at once: more than a pool grows by in one step."""
    middle(48 << 20)


def freed():
    must(cuda.cuMemFreeAsync(kept.pop(), stream))


must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
must(cuda.cuStreamCreate(ctypes.byref(stream), 1))
way, kept = globals()[sys.argv[1]], []
if way is own_pool:
    must(cuda.cuMemPoolCreate(ctypes.byref(pool), ctypes.byref(PoolProperties(1, 0, 1, 0))))
for _ in range(CALLS if way is freed else 1):
    take(stream)
    kept.append(ctypes.c_void_p(pointer.value))
if way is middle:
    # The simulated driver's pools grow by what is asked for, real ones by 32 MiB.
    take(stream, 64 << 20)
    must(cuda.cuMemFreeAsync(pointer, stream))
before = counted()
for _ in range(CALLS):
    way()
print(json.dumps({"added": (counted() - before - CALLS) / CALLS}), flush=True)
sys.stdin.read()
