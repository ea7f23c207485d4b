"""Loads libcuda.so.1 and evaluates one expression per line of stdin; answers in JSON. Used by conftest.Client."""

import ctypes
import json
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

cu = ctypes.CDLL("libcuda.so.1")


def init():
    return cu.cuInit(0)


def context(device=0, init_first=True):
    """Creates a context; its code."""
    if init_first and (code := cu.cuInit(0)):
        return code
    return cu.cuCtxCreate_v2(byref(c_void_p()), 0, device)


def alloc(size):
    """Allocates; [code, address]."""
    address = c_uint64()
    code = cu.cuMemAlloc_v2(byref(address), c_size_t(size))
    return [code, address.value]


def free(address):
    return cu.cuMemFree_v2(c_uint64(address))


def info():
    """[code, free, total]"""
    free_bytes, total = c_size_t(), c_size_t()
    return [cu.cuMemGetInfo_v2(byref(free_bytes), byref(total)), free_bytes.value, total.value]


def number(function, *arguments, kind=c_int):
    """Calls a function whose first argument is a result; [code, result]."""
    result = kind()
    return [getattr(cu, function)(byref(result), *arguments), result.value]


class Properties(ctypes.Structure):
    """CUmemAllocationProp, and near enough CUmemPoolProps: pinned memory of device 0, shareable as a descriptor."""

    _fields_ = [(name, c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", c_uint64 * 10)]


def properties(device=0):
    return byref(Properties(1, 1, 1, device))


def pool_figure(pool, attribute):
    """Reserved 5, its high 6, used 7, its high 8; in bytes."""
    value = c_uint64()
    code = cu.cuMemPoolGetAttribute(c_uint64(pool), attribute, byref(value))
    return value.value if code == 0 else -code


def set_pool(pool, attribute, value):
    return cu.cuMemPoolSetAttribute(c_uint64(pool), attribute, byref(c_uint64(value)))


def alloc_async(size, stream=0):
    return number("cuMemAllocAsync", c_size_t(size), c_uint64(stream), kind=c_uint64)


def free_async(address, stream=0):
    return cu.cuMemFreeAsync(c_uint64(address), c_uint64(stream))


def create(size, device=0):
    """cuMemCreate; [code, handle]."""
    return number("cuMemCreate", c_size_t(size), properties(device), c_uint64(0), kind=c_uint64)


def reserve(size):
    return number("cuMemAddressReserve", c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0), kind=c_uint64)


def vmm_map(address, size, handle):
    return cu.cuMemMap(c_uint64(address), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))


def unmap(address, size):
    return cu.cuMemUnmap(c_uint64(address), c_size_t(size))


def release(handle):
    return cu.cuMemRelease(c_uint64(handle))


class Array(ctypes.Structure):
    _fields_ = [(name, c_size_t) for name in ("width", "height", "depth")] + [
        (name, ctypes.c_uint) for name in ("format", "channels", "flags")
    ]


def array(width, height, depth, levels=None, channels=4, flags=0):
    """An array of floats; [code, handle]."""
    descriptor = byref(Array(width, height, depth, 0x20, channels, flags))
    if levels is None:
        return number("cuArray3DCreate_v2", descriptor, kind=c_uint64)
    return number("cuMipmappedArrayCreate", descriptor, levels, kind=c_uint64)


class AllocNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = [(name, c_int) for name in ("type", "handle_types", "location", "device")] + [
        ("rest", c_uint64 * 9), ("access", c_uint64), ("count", c_size_t), ("size", c_size_t), ("address", c_uint64)
    ]


def graph_of_steps(steps, joined=True, flags=0):
    """A graph of ("alloc", name, size) and ("free", name), each after the one before it, or (not `joined`) a free only after its allocation and the
    rest after nothing; [executable, {name: address}]."""
    graph, node, executable = c_uint64(), c_uint64(), c_uint64()
    assert cu.cuGraphCreate(byref(graph), 0) == 0
    addresses, last = {}, None
    for kind, name, *size in steps:
        before = [byref(c_uint64(last)), c_size_t(1)] if last and (joined or kind == "free") else [None, c_size_t(0)]
        if kind == "alloc":
            params = AllocNode(1, 0, 1, 0, size=size[0])
            assert cu.cuGraphAddMemAllocNode(byref(node), graph, *before, byref(params)) == 0
            addresses[name] = params.address
        else:
            assert cu.cuGraphAddMemFreeNode(byref(node), graph, *before, c_uint64(addresses[name])) == 0
        last = node.value
    assert cu.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(flags)) == 0
    return [executable.value, addresses]


def graph_with_allocation(size, then_free=False, upload=False):
    """A graph that allocates, and frees if asked; [executable, address], or the code if it can't be instantiated."""
    graph = number("cuGraphCreate", 0, kind=c_uint64)[1]
    node, params = c_uint64(), AllocNode(1, 0, 1, 0, size=size)
    assert cu.cuGraphAddMemAllocNode(byref(node), c_uint64(graph), None, c_size_t(0), byref(params)) == 0
    if then_free:
        address = c_uint64(params.address)
        assert cu.cuGraphAddMemFreeNode(byref(node), c_uint64(graph), byref(node), c_size_t(1), address) == 0
    if upload:
        instantiate = ("cuGraphInstantiateWithParams", c_uint64(graph), byref((c_uint64 * 4)(2)))
    else:
        instantiate = ("cuGraphInstantiateWithFlags", c_uint64(graph), c_uint64(0))
    code, executable = number(*instantiate, kind=c_uint64)
    assert cu.cuGraphDestroy(c_uint64(graph)) == 0
    return code or [executable, params.address]


def launch(executable):
    return cu.cuGraphLaunch(c_uint64(executable), c_uint64(0))


def in_fork(expression):
    """Evaluates in a forked child; the child's answer."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(eval(expression)).encode())
        os._exit(0)
    os.close(write)
    answer = json.loads(os.read(read, 65536))
    os.close(read)
    os.waitpid(pid, 0)
    return answer


for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
