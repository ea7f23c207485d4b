"""Memory that is exported as a descriptor and then released, as libraries that share between processes do. Exports the given number of
GiB, or all that can be allocated. The descriptors keep it."""

import ctypes
import sys

from telling import tell, tell_and_wait

GIB = 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")


class Properties(ctypes.Structure):
    """CUmemAllocationProp: pinned memory of device 0, shareable as a descriptor."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 4)]


def need(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name}: {code}"


def exported():
    """A descriptor of a GiB whose handle is released, or None where there is not so much."""
    handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
    code = cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(GIB), ctypes.byref(Properties(1, 1, 1, 0)), ctypes.c_uint64(0))
    if code == 2:
        return None
    assert code == 0, code
    need("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))
    need("cuMemRelease", handle)
    return descriptor.value


def main():
    context = ctypes.c_void_p()
    need("cuInit", 0)
    need("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    need("cuCtxSetCurrent", context)
    kept = []
    while len(kept) < int(sys.argv[1]) and (descriptor := exported()) is not None:
        kept.append(descriptor)
    tell_and_wait(granted=len(kept))
    tell(done=True)


main()
