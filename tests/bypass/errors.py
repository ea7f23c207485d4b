"""Calls that the driver refuses, and what it says: errors.py EARLY prints it, after EARLY was called before `cuInit`."""

import ctypes
import json
import sys

cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
MIB, DEVICE = 1 << 20, 1
context, pointer, handle = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_ulonglong()
free, total = ctypes.c_size_t(), ctypes.c_size_t()


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of a GPU."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 2)]


def create(size=2 * MIB, device=0):
    properties = Properties(1, 0, DEVICE, device)
    return cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))


EARLY = {
    "cuDevicePrimaryCtxRetain": lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    "cuCtxCreate_v2": lambda: cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    "cuMemCreate": create,
    "cuDeviceTotalMem_v2": lambda: cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0),
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(None, None, None),
}
said = {"early": EARLY[sys.argv[1]](), "init": cuda.cuInit(0)}
said["retain"] = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
said["current"] = cuda.cuCtxSetCurrent(context)
said["create"] = create()
said["of no device"] = [create(device=7), create(device=99), create(device=-1)]
said["of an odd size"] = create((1 << 50) + 1)
said["allocate"] = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(MIB))
said["info"] = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(json.dumps({"said": said, "free": free.value, "total": total.value}), flush=True)
sys.stdin.read()
