#!/usr/bin/env python3
"""Allocates all GPU memory that it can get, prints the amount and the refusal, and keeps the memory for a while.

Uses nothing but the CUDA driver API through ctypes, so it runs wherever libcuda.so.1 is: on a real GPU, on a simulated one,
with cantle and without. One line of JSON per GPU it can see:
  {"gpu": "GPU-…", "total_bytes": …, "allocated_bytes": …, "refused_bytes": 2097152, "refused_code": 2, "free_bytes": …}
"""

import argparse
import ctypes
import json
import sys
import time

MIB = 1 << 20
CUDA_SUCCESS = 0


def check(code, what):
    if code != CUDA_SUCCESS:
        sys.exit(f"{what} failed with CUDA error {code}")


def fill(cuda, ordinal, at_most):
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    uuid = (ctypes.c_ubyte * 16)()
    check(cuda.cuDeviceGetUuid(uuid, device), "cuDeviceGetUuid")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    allocated, refused_code = 0, CUDA_SUCCESS
    # Large steps first. The last steps are 2 MiB, the granule of a slice.
    for step in (1024 * MIB, 64 * MIB, 2 * MIB):
        while allocated + step <= at_most:
            pointer = ctypes.c_uint64()
            refused_code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(step))
            if refused_code != CUDA_SUCCESS:
                break
            allocated += step
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    h = bytes(uuid).hex()
    return {
        "gpu": f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}",
        "total_bytes": total.value,
        "allocated_bytes": allocated,
        "refused_bytes": 2 * MIB if refused_code else 0,
        "refused_code": refused_code,
        "free_bytes": free.value,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hold", type=float, default=0, metavar="SECONDS", help="keep the memory for so long")
    parser.add_argument("--at-most", type=int, default=1 << 60, metavar="BYTES", help="maximum number of bytes per GPU")
    args = parser.parse_args()
    cuda = ctypes.CDLL("libcuda.so.1")
    check(cuda.cuInit(0), "cuInit")
    count = ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    for ordinal in range(count.value):
        print(json.dumps(fill(cuda, ordinal, args.at_most)), flush=True)
    time.sleep(args.hold)


if __name__ == "__main__":
    main()
