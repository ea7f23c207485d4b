"""Graphs that allocate: graphs.py WAY, and the codes of what it did. Sizes are parts of what is free."""

import ctypes
import json
import sys

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
AUTO_FREE = 1


class AllocationNode(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "id")] + [
        ("rest", ctypes.c_uint64 * 9), ("access", ctypes.c_void_p), ("count", ctypes.c_size_t), ("bytes", ctypes.c_size_t), ("at", ctypes.c_uint64)
    ]


def must(status):
    assert status == 0, f"CUDA error {status}"


def part(of):
    """This part of what is free now, in whole granules."""
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return int(free.value * of) // (2 * MIB) * 2 * MIB


class Graph:
    """Each node waits for the one before."""

    def __init__(self):
        self.graph, self.last = ctypes.c_void_p(), None
        must(cuda.cuGraphCreate(ctypes.byref(self.graph), 0))

    def _before(self):
        return (ctypes.byref(self.last), ctypes.c_size_t(1)) if self.last else (None, ctypes.c_size_t(0))

    def alloc(self, size, kind=1, location=1):
        node, parameters = ctypes.c_uint64(), AllocationNode(type=kind, location=location, bytes=size)
        must(cuda.cuGraphAddMemAllocNode(ctypes.byref(node), self.graph, *self._before(), ctypes.byref(parameters)))
        self.last = node
        return parameters.at

    def free(self, address):
        node = ctypes.c_uint64()
        must(cuda.cuGraphAddMemFreeNode(ctypes.byref(node), self.graph, *self._before(), ctypes.c_uint64(address)))
        self.last = node

    def executable(self, flags=0):
        made = ctypes.c_void_p()
        self.code = cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), self.graph, ctypes.c_uint64(flags))
        return made


def launch(executable):
    status = cuda.cuGraphLaunch(executable, stream)
    must(cuda.cuStreamSynchronize(stream))
    return status


def freed(address):
    must(cuda.cuMemFreeAsync(ctypes.c_uint64(address), stream))
    must(cuda.cuStreamSynchronize(stream))


def reused(count, share):
    """Allocations of this share, one after the other."""
    graph = Graph()
    for _ in range(count):
        graph.free(graph.alloc(part(share)))
    return launch(graph.executable())


def reuse():
    return [reused(10, 0.2), reused(2, 0.6), reused(200, 0.45)]


def together():
    """Two at the same time are too much."""
    graph, size = Graph(), part(0.6)
    first, second = graph.alloc(size), graph.alloc(size)
    graph.free(first), graph.free(second)
    return [launch(graph.executable())]


def kept(size):
    graph = Graph()
    address = graph.alloc(size)
    return graph.executable(AUTO_FREE), address


def auto_free():
    """PyTorch's flag, and an output that stays."""
    executable, _ = kept(part(0.6))
    return [launch(executable) for _ in range(4)]


def captured():
    """As PyTorch captures a step: memory of the stream's pool, an output that stays."""
    graph, made, address, step = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64(), part(0.2)
    must(cuda.cuStreamBeginCapture_v2(stream, 0))
    for _ in range(50):
        must(cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(step), stream))
        must(cuda.cuMemFreeAsync(address, stream))
    must(cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(3 * step), stream))
    must(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
    must(cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, ctypes.c_uint64(AUTO_FREE)))
    return [launch(made) for _ in range(3)]


def freed_between():
    """What a launch has left is freed, and another graph takes it: the first one must not count on it."""
    size = part(0.6)
    first, address = kept(size)
    codes = [launch(first)]
    freed(address)
    second, _ = kept(size)
    return [*codes, launch(second), launch(first), launch(second)]


def freed_by_another():
    """The same, freed by a node of another graph."""
    size = part(0.6)
    first, address = kept(size)
    codes = [launch(first)]
    other = Graph()
    other.free(address)
    codes.append(launch(other.executable()))
    second, _ = kept(size)
    return [*codes, launch(second), launch(first), launch(second)]


def concurrent():
    """Three on streams of their own, which do not wait for each other: how they share memory is the driver's."""
    codes, size = [], part(0.45)
    for _ in range(3):
        graph, own = Graph(), ctypes.c_void_p()
        graph.free(graph.alloc(size))
        executable = graph.executable()
        must(cuda.cuStreamCreate(ctypes.byref(own), 1))
        codes.append(cuda.cuGraphLaunch(executable, own))
    must(cuda.cuCtxSynchronize())
    return codes


def on_host():
    """Takes nothing of the GPU, more than the GPU has."""
    before, graph = part(1), Graph()
    graph.alloc(8 * before, location=2)
    return [launch(graph.executable()), before - part(1)]


def managed():
    graph = Graph()
    graph.alloc(2 * MIB, kind=2)
    graph.executable()
    return [graph.code]


must(cuda.cuInit(0))
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
must(cuda.cuStreamCreate(ctypes.byref(stream), 0))
codes = globals()[sys.argv[1]]()
figures = []
for attribute in (0, 2):
    value = ctypes.c_uint64()
    must(cuda.cuDeviceGetGraphMemAttribute(0, attribute, ctypes.byref(value)))
    figures.append(value.value)
print(json.dumps({"codes": codes, "used_and_reserved": figures}), flush=True)
sys.stdin.read()
