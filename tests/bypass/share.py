"""Takes some MiB and has a second process open them: share.py WAY MIB. Prints what the second one saw, then waits.

WAY is `ipc` (a handle of 64 bytes for memory of cuMemAlloc) or `descriptor` (a file descriptor for memory of cuMemCreate).
"""

import ctypes
import json
import subprocess
import sys

DESCRIPTOR = 1
cuda = ctypes.CDLL("libcuda.so.1")


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp: memory of the first GPU, to be shared."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 2)]


def must(status):
    assert status == 0, f"CUDA error {status}"


def share_ipc(size):
    pointer, handle = ctypes.c_ulonglong(), (ctypes.c_ubyte * 64)()
    must(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    must(cuda.cuIpcGetMemHandle(handle, pointer))
    return bytes(handle).hex(), ()


def open_ipc(text, size):
    handle = Handle.from_buffer_copy(bytes.fromhex(text))
    return cuda.cuIpcOpenMemHandle_v2(ctypes.byref(ctypes.c_ulonglong()), handle, 1)


def share_descriptor(size):
    handle, descriptor = ctypes.c_ulonglong(), ctypes.c_int()
    must(cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(Properties(1, DESCRIPTOR, 1, 0)), ctypes.c_uint64(0)))
    must(cuda.cuMemExportToShareableHandle(ctypes.byref(descriptor), handle, DESCRIPTOR, ctypes.c_uint64(0)))
    return str(descriptor.value), (descriptor.value,)


def open_descriptor(text, size):
    handle, address, zero = ctypes.c_ulonglong(), ctypes.c_ulonglong(), ctypes.c_size_t(0)
    must(cuda.cuMemAddressReserve(ctypes.byref(address), ctypes.c_size_t(size), zero, ctypes.c_uint64(0), ctypes.c_uint64(0)))
    opened = cuda.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(int(text)), DESCRIPTOR)
    return opened or cuda.cuMemMap(address, ctypes.c_size_t(size), zero, handle, ctypes.c_uint64(0))


def first(way, mib):
    name, descriptors = globals()[f"share_{way}"](mib << 20)
    second = [sys.executable, __file__, way, str(mib), name]
    second = subprocess.Popen(second, stdin=subprocess.PIPE, pass_fds=descriptors)
    sys.stdin.read()
    second.communicate()


def second(way, mib, name):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    opened = globals()[f"open_{way}"](name, mib << 20)
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    print(json.dumps({"opened": opened, "free": free.value}), flush=True)
    sys.stdin.read()


must(cuda.cuInit(0))
must(cuda.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0))
way, mib, *name = sys.argv[1:]
second(way, int(mib), *name) if name else first(way, int(mib))
