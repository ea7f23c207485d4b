"""The program of a task: takes GPU memory until there is no more, says how much it was, and holds it until the file `go` is
there."""

import ctypes
import os
import time

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def check(code, what):
    if code:
        raise SystemExit(f"{what}: CUDA error {code}")


check(cuda.cuInit(0), "cuInit")
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
context = ctypes.c_void_p()
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), "cuCtxCreate")
total = ctypes.c_size_t()
check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0), "cuDeviceTotalMem")
taken, step, refusal = 0, 512 * MIB, 0
while step >= 2 * MIB:
    address = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(step))
    if code == 0:
        taken += step
        continue
    refusal = code
    step //= 2
report = f"devices {count.value} total {total.value} taken {taken} refusal {refusal}"
# The stand-in for docker has no agent inside that would send this as the task's log.
with open(os.environ["GREEDY_REPORT_DIR"] + "/" + os.environ["CLEARML_TASK_ID"], "w") as out:
    out.write(report + "\n")
while not os.path.exists(os.environ["GREEDY_REPORT_DIR"] + "/go"):
    time.sleep(0.1)
