"""Takes 3 GiB in pieces and gives them back, again and again, for a number of seconds. Prints how often it had all of it, and how often it was
refused."""

import ctypes
import json
import sys
import time

cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(pointer), 0, 0) == 0
pieces, waves, refused, end = [], 0, 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(48):
        if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 << 20)):
            refused += 1
            break
        pieces.append(pointer.value)
    waves += len(pieces) == 48
    time.sleep(0.3)
    for piece in pieces:
        assert cuda.cuMemFree_v2(ctypes.c_ulonglong(piece)) == 0
    pieces.clear()
    time.sleep(0.3)
print(json.dumps({"waves": waves, "refused": refused}), flush=True)
sys.stdin.read()
