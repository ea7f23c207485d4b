"""A graph that takes the GiB that the argument gives when it is instantiated, before it is ever launched."""

import ctypes
import sys

from telling import tell, tell_and_wait

GIB = 1 << 30
UPLOAD = 2
cuda = ctypes.CDLL("libcuda.so.1")


class AllocationNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS: pinned memory of device 0."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 9)]
    _fields_ += [("access", ctypes.c_void_p), ("accesses", ctypes.c_size_t), ("size", ctypes.c_size_t), ("address", ctypes.c_uint64)]


def need(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name}: {code}"


def main():
    context, graph, node, ready = (ctypes.c_void_p() for _ in range(4))
    need("cuInit", 0)
    need("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    need("cuCtxSetCurrent", context)
    need("cuGraphCreate", ctypes.byref(graph), 0)
    parameters = AllocationNode(type=1, location=1, size=int(sys.argv[1]) * GIB)
    need("cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, ctypes.c_size_t(0), ctypes.byref(parameters))
    how = (ctypes.c_uint64 * 4)(UPLOAD)
    code = cuda.cuGraphInstantiateWithParams(ctypes.byref(ready), graph, ctypes.byref(how))
    tell_and_wait(code=code)
    tell(done=True)


main()
