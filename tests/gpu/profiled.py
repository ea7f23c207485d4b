#!/usr/bin/env python3
"""A program under a profiler that subscribes to all calls of the driver. Its callback asks for the free memory, and allocates in every tenth call of
a pool. CUPTI comes with PyTorch (nvidia-cuda-cupti)."""

import ctypes
import glob
import json
import sys
import sysconfig

MIB = 1 << 20
DRIVER_API = 1
NOT_INSTALLED = 3
# The thread is inside a callback: its own calls are not answered again.
inside, callbacks, codes = False, 0, set()
cuda = ctypes.CDLL("libcuda.so.1")
free, total, taken = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()


def need(code, what):
    if code:
        sys.exit(f"{what}: error {code}")


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
def called(_user, _domain, _number, _data):
    global inside, callbacks
    if inside:
        return
    inside = True
    callbacks += 1
    codes.add(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    if callbacks % 10 == 0:
        codes.add(cuda.cuMemAlloc_v2(ctypes.byref(taken), ctypes.c_size_t(2 * MIB)))
        codes.add(cuda.cuMemFree_v2(taken))
    inside = False


def subscribe():
    found = glob.glob(f"{sysconfig.get_path('purelib')}/nvidia/**/libcupti.so.*", recursive=True)
    for name in [*sorted(found), "libcupti.so", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"]:
        try:
            cupti = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        print("not installed: libcupti", file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    subscriber = ctypes.c_void_p()
    need(cupti.cuptiSubscribe(ctypes.byref(subscriber), called, None), "cuptiSubscribe")
    need(cupti.cuptiEnableDomain(1, subscriber, DRIVER_API), "cuptiEnableDomain")
    # The library, which has to stay.
    return cupti


def main():
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    need(cuda.cuInit(0), "cuInit")
    need(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    need(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    cupti = subscribe()
    for turn in range(500):
        need(cuda.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t((1 + turn % 64) * MIB), None), "cuMemAllocAsync")
        need(cuda.cuMemFreeAsync(pointer, None), "cuMemFreeAsync")
        if turn % 8 == 0:
            need(cuda.cuStreamSynchronize(None), "cuStreamSynchronize")
    cupti.cuptiFinalize()
    print(json.dumps({"callbacks": callbacks, "codes": sorted(codes), "total": total.value}), flush=True)


if __name__ == "__main__":
    main()
