"""Takes as much GPU memory as it gets, in steps of 2 MiB, and says how much that was: `fill.py [HOLD_SECONDS [COUNT]]`.

Before it takes memory it waits until COUNT of these programs have a context: there is none for a program that comes after the first is greedy.
Prints one line: MiB taken, the driver's answer to the step that failed, and the total that CUDA shows, in MiB.
"""

import ctypes
import os
import sys
import time

STEP = 2 << 20
CONTEXTS = "/tmp/contexts"
hold, count = (float(word) for word in (sys.argv[1:] + ["0", "1"])[:2])
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context = ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
if count > 1:
    os.makedirs(CONTEXTS, exist_ok=True)
    open(f"{CONTEXTS}/{os.getpid()}", "w").close()
    while len(os.listdir(CONTEXTS)) < count:
        time.sleep(0.01)
taken, code = 0, 0
while code == 0:
    pointer = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(STEP))
    taken += STEP if code == 0 else 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(taken >> 20, code, total.value >> 20, flush=True)
time.sleep(hold)
