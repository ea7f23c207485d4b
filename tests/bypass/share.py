"""Allocates some MiB and has a second process open them: share.py MIB. Prints what the second one saw, then waits."""

import ctypes
import json
import subprocess
import sys


def start():
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for status in (cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
        assert status == 0, f"CUDA error {status}"
    return cuda


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


def first(mib):
    cuda = start()
    pointer, handle = ctypes.c_ulonglong(), (ctypes.c_ubyte * 64)()
    status = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
    assert status == 0, f"CUDA error {status}"
    assert cuda.cuIpcGetMemHandle(handle, pointer) == 0
    second = subprocess.Popen([sys.executable, __file__, "open", bytes(handle).hex()], stdin=subprocess.PIPE)
    sys.stdin.read()
    second.communicate()


def second(text):
    cuda = start()
    pointer, free, total = ctypes.c_ulonglong(), ctypes.c_size_t(), ctypes.c_size_t()
    handle = Handle.from_buffer_copy(bytes.fromhex(text))
    opened = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, 1)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    print(json.dumps({"opened": opened, "free": free.value}), flush=True)
    sys.stdin.read()


second(sys.argv[2]) if sys.argv[1] == "open" else first(int(sys.argv[1]))
