"""A program that keeps a GPU busy with one kernel over and over, and says how often it ran: `kernels.py WAY MICROSECONDS LOOPS PROCESSES`.

WAY: async (a queue that is never empty), graph (20 kernels each), sync (a synchronization per launch). The kernel is a chain of
multiplications, LOOPS long (0: as many as take MICROSECONDS alone). A simulated GPU does not compute; there the kernel's name says how long
it takes. It says {"loops": …}, reads when to count ("FROM SECONDS", monotonic clock), and says how many kernels ended in that time.
"""

import ctypes
import json
import os
import struct
import sys
import time

BLOCKS, THREADS, IN_GRAPH, QUEUED_US = 2048, 256, 20, 10_000
PTX = """.version 6.0
.target sm_50
.address_size 64
.visible .entry %s(.param .u64 to, .param .u32 loops)
{
  .reg .pred %%p; .reg .f32 %%f; .reg .u32 %%n, %%i, %%b, %%s; .reg .u64 %%a, %%o;
  ld.param.u64 %%a, [to];
  ld.param.u32 %%n, [loops];
  mov.u32 %%i, %%tid.x;
  mov.u32 %%b, %%ctaid.x;
  mov.u32 %%s, %%ntid.x;
  mad.lo.u32 %%i, %%b, %%s, %%i;
  cvt.rn.f32.u32 %%f, %%i;
again:
  fma.rn.f32 %%f, %%f, 0f3F7FFFEF, 0f3DCCCCCD;
  sub.u32 %%n, %%n, 1;
  setp.ne.u32 %%p, %%n, 0;
  @%%p bra again;
  mul.wide.u32 %%o, %%i, 4;
  add.u64 %%a, %%a, %%o;
  st.global.f32 [%%a], %%f;
  ret;
}
"""


class Gpu:
    def __init__(self, us):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context, module, self.function = (ctypes.c_void_p() for _ in range(3))
        self.stream, self.to = ctypes.c_void_p(), ctypes.c_uint64()
        name = f"cantle_sim_busy_us_{us}"
        self.ok("cuInit", 0)
        self.ok("cuCtxCreate_v2", ctypes.byref(self.context), 0, 0)
        self.ok("cuModuleLoadData", ctypes.byref(module), (PTX % name).encode())
        self.ok("cuModuleGetFunction", ctypes.byref(self.function), module, name.encode())
        self.ok("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.ok("cuMemAlloc_v2", ctypes.byref(self.to), ctypes.c_size_t(4 * BLOCKS * THREADS))

    def ok(self, call, *words):
        code = getattr(self.cuda, call)(*words)
        assert code == 0, f"{call}: {code}"

    def use(self, loops):
        self.loops = ctypes.c_uint32(loops)
        self.words = (ctypes.c_void_p * 2)(ctypes.addressof(self.to), ctypes.addressof(self.loops))

    def launch(self):
        self.ok("cuLaunchKernel", self.function, BLOCKS, 1, 1, THREADS, 1, 1, 0, self.stream, self.words, None)

    def synchronize(self):
        self.ok("cuStreamSynchronize", self.stream)

    def loops_for(self, us):
        """By how long a short and a longer chain take."""

        def took(loops):
            self.use(loops)
            self.launch()
            self.synchronize()
            began = time.monotonic()
            for _ in range(50):
                self.launch()
            self.synchronize()
            return (time.monotonic() - began) / 50 * 1e6

        short, long = took(100), took(2100)
        return int(min(max(100 + (us - short) * 2000 / max(long - short, 1e-3), 1), 1e7))

    def graph(self):
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.ok("cuStreamBeginCapture_v2", self.stream, 2)
        for _ in range(IN_GRAPH):
            self.launch()
        self.ok("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self.ok("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        return lambda: self.ok("cuGraphLaunch", made, self.stream)

    def digest(self):
        """The result of the kernels: equal in every slice, or something was changed."""
        found = (ctypes.c_uint32 * (BLOCKS * THREADS))()
        self.ok("cuMemcpyDtoH_v2", found, self.to, ctypes.c_size_t(ctypes.sizeof(found)))
        return sum(each * (at + 1) for at, each in enumerate(found[:: 1009])) & 0xFFFFFFFF


def count(gpu, way, us, begin, seconds):
    """Kernels that ended between `begin` and `seconds` later."""
    launch, each = (gpu.graph(), IN_GRAPH) if way == "graph" else (gpu.launch, 1)
    batch = 1 if way == "sync" else max(1, QUEUED_US // (us * each))
    events = [ctypes.c_void_p() for _ in range(2)]
    for event in events:
        gpu.ok("cuEventCreate", ctypes.byref(event), 2)
    done, turn = 0, 0
    while time.monotonic() < begin + seconds:
        for _ in range(batch):
            launch()
        if way == "sync":
            gpu.synchronize()
        else:
            gpu.ok("cuEventRecord", events[turn % 2], gpu.stream)
            turn += 1
            # The one before: the queue is never empty.
            gpu.ok("cuEventSynchronize", events[turn % 2])
        if begin <= time.monotonic() < begin + seconds:
            done += batch * each
    gpu.synchronize()
    return done


def child(way, us, loops, orders, answers):
    gpu = Gpu(us)
    loops = loops or gpu.loops_for(us)
    gpu.use(loops)
    gpu.launch()
    gpu.synchronize()
    os.write(answers, struct.pack("qq", loops, 0))
    begin, seconds = struct.unpack("dd", os.read(orders, 16))
    done = count(gpu, way, us, begin, seconds)
    os.write(answers, struct.pack("qq", done, gpu.digest()))


def main():
    way, (us, loops, processes) = sys.argv[1], map(int, sys.argv[2:5])
    orders, answers = os.pipe(), os.pipe()
    for _ in range(processes):
        if os.fork() == 0:
            child(way, us, loops, orders[0], answers[1])
            os._exit(0)
    said = [struct.unpack("qq", os.read(answers[0], 16)) for _ in range(processes)]
    print(json.dumps({"loops": said[0][0]}), flush=True)
    begin, seconds = map(float, sys.stdin.readline().split())
    for _ in range(processes):
        os.write(orders[1], struct.pack("dd", begin, seconds))
    said = [struct.unpack("qq", os.read(answers[0], 16)) for _ in range(processes)]
    print(json.dumps({"done": sum(done for done, _ in said), "digests": sorted({digest for _, digest in said})}), flush=True)


main()
