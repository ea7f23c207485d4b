"""The view of a process on its slice when a sibling that holds GPU memory has ended: siblings.py MIB. Prints the free memory
according to CUDA and NVML before, with a sibling, and after each way to end, asked once and at once; and the duration of a
call."""

import ctypes
import json
import pathlib
import subprocess
import sys
import time

HOLDER = pathlib.Path(__file__).with_name("holder.py")
ROUNDS, ASKED = 20, 10
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
free, total, pointer = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_ulonglong()


def must(status):
    assert status == 0, f"error {status}"


def by_cuda():
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value


def by_nvml():
    must(nvml.nvmlDeviceGetMemoryInfo(device, memory))
    return memory[1]


def start():
    sibling = subprocess.Popen([sys.executable, HOLDER, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sibling.stdout.readline() == "holding\n"
    return sibling


def microseconds(ask):
    """Of the best round: in the others, other programs may have had the core."""
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(ASKED):
            ask()
        rounds.append((time.perf_counter() - begin) / ASKED * 1e6)
    return min(rounds)


must(cuda.cuInit(0))
must(nvml.nvmlInit_v2())
must(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
must(cuda.cuCtxCreate_v2(ctypes.byref(pointer), 0, 0))
seen = {"before": by_cuda(), "alone_us": microseconds(by_cuda)}
for ask, end in [(by_cuda, "terminate"), (by_cuda, "kill"), (by_nvml, "terminate"), (by_nvml, "kill"), (by_cuda, "exit")]:
    sibling = start()
    seen["with"] = ask()
    sibling.stdin.close() if end == "exit" else getattr(sibling, end)()
    sibling.wait()
    seen[f"{ask.__name__} after {end}"] = ask()
crowd = [start() for _ in range(7)]
seen["of_eight_us"] = microseconds(by_cuda)
for sibling in crowd:
    sibling.stdin.close()
    sibling.wait()
print(json.dumps(seen), flush=True)
sys.stdin.read()
