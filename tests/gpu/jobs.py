#!/usr/bin/env python3
"""Programs of the checks, on the driver API alone: `jobs.py NAME WORD…`. They say what they see as lines of JSON, and wait for a line
where the check is to look."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

MIB = 1 << 20
OUT_OF_MEMORY = 2


class Driver:
    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self.need("cuInit", 0)
        self.need("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.need("cuCtxSetCurrent", self.context)

    def code(self, name, *args):
        return getattr(self.lib, name)(*args)

    def need(self, name, *args):
        code = self.code(name, *args)
        if code:
            sys.exit(f"{name}: CUDA error {code}")

    def take(self, size_bytes):
        """An address, or 0 if there is not so much."""
        address = ctypes.c_uint64()
        code = self.code("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        assert code in (0, OUT_OF_MEMORY), code
        return address.value

    def give(self, address):
        self.need("cuMemFree_v2", ctypes.c_uint64(address))

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.need("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def fill(self, chunk_bytes):
        taken = []
        while address := self.take(chunk_bytes):
            taken.append(address)
        return taken


def tell(**record):
    print(json.dumps(record), flush=True)


def tell_and_wait(**record):
    tell(**record)
    sys.stdin.readline()


def fill():
    """Takes all there is, down to the granule."""
    driver = Driver()
    taken = sum(size * len(driver.fill(size)) for size in (256 * MIB, 16 * MIB, 2 * MIB))
    free, total = driver.info()
    tell_and_wait(taken=taken, free=free, total=total)


def sibling(seconds="30"):
    """What is free before, during and after another process of the same slice."""
    driver = Driver()
    before, total = driver.info()
    there, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        # A new program: contexts do not survive fork.
        os.set_inheritable(there[1], True), os.set_inheritable(end[0], True)
        os.execv(sys.executable, [sys.executable, __file__, "hold", str(there[1]), str(end[0])])
    os.close(there[1])
    assert os.read(there[0], 1), "the sibling ended early"
    beside, _ = driver.info()
    os.write(end[1], b"x")
    os.waitpid(child, 0)
    deadline = time.monotonic() + float(seconds)
    while (after := driver.info()[0]) < before and time.monotonic() < deadline:
        time.sleep(0.1)
    tell(total=total, before=before, beside=beside, after=after)


def hold(there, end):
    driver = Driver()
    assert driver.take(driver.info()[0] // 2)
    os.write(int(there), b"x")
    os.read(int(end), 1)


def reset():
    """Everything comes back with the primary context, and the device can be used again."""
    driver = Driver()
    driver.take(512 * MIB)
    before, _ = driver.info()
    driver.need("cuDevicePrimaryCtxReset_v2", 0)
    driver = Driver()
    after, _ = driver.info()
    tell(before=before, after=after, again=bool(driver.take(512 * MIB)))


def forked():
    """A child that is forked after cuInit has no GPU, as on every driver; its parent continues."""
    driver = Driver()
    address = driver.take(64 * MIB)
    child = os.fork()
    if child == 0:
        os._exit(0 if driver.code("cuCtxSynchronize") else 1)
    _, status = os.waitpid(child, 0)
    driver.give(address)
    tell(child_was_refused=status == 0, parent_goes_on=bool(driver.take(64 * MIB)))


def ipc():
    """An importer sees the exporter's memory and pays for none of it."""
    driver = Driver()
    address = driver.take(1024 * MIB)
    handle = ctypes.create_string_buffer(64)
    driver.need("cuIpcGetMemHandle", handle, ctypes.c_uint64(address))
    before, _ = driver.info()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.set_inheritable(write, True)
        os.execv(sys.executable, [sys.executable, __file__, "ipc_import", handle.raw.hex(), str(write)])
    os.close(write)
    imported = int(os.read(read, 32) or -1)
    beside, _ = driver.info()
    os.waitpid(child, 0)
    tell(imported=imported, cost=before - beside)


def ipc_import(handle, write):
    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 64)]

    driver, address = Driver(), ctypes.c_uint64()
    given = Handle.from_buffer_copy(bytes.fromhex(handle))
    code = driver.code("cuIpcOpenMemHandle_v2", ctypes.byref(address), given, 1)
    os.write(int(write), str(code).encode())
    time.sleep(1)


def contexts(at_most):
    """Contexts one after the other, until one is refused or `at_most` exist: what the program sees in use with each."""
    driver, used, code = Driver(), [], 0
    while code == 0:
        free, total = driver.info()
        used.append(total - free)
        if len(used) == int(at_most):
            break
        code = driver.code("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, 0)
    tell_and_wait(used=used, code=code)


def context(seconds):
    """Nothing but a context, for a while."""
    Driver()
    time.sleep(float(seconds))
    tell(ended=True)


class Properties(ctypes.Structure):
    """CUmemAllocationProp: memory of the first GPU."""

    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "device")] + [("rest", ctypes.c_uint64 * 2)]


def handles():
    """How many values 1,000 handles have that are released at once, by one thread and by four."""
    driver, properties = Driver(), Properties(1, 0, 1, 0)

    def values(count, seen):
        driver.need("cuCtxSetCurrent", driver.context)
        handle = ctypes.c_uint64()
        for _ in range(count):
            driver.need("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(2 * MIB), ctypes.byref(properties), ctypes.c_uint64(0))
            seen.append(handle.value)
            driver.need("cuMemRelease", handle)

    one, four = [], [[] for _ in range(4)]
    values(1000, one)
    threads = [threading.Thread(target=values, args=(250, seen)) for seen in four]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell(one_thread=len(set(one)), four_threads=len(set(sum(four, []))), of=1000)


def arrays(side):
    """5,000 square arrays of float, of this side."""
    driver, array = Driver(), ctypes.c_void_p()
    before, _ = driver.info()
    description = (ctypes.c_size_t * 3)(int(side), int(side), 0x20 | 1 << 32)
    for _ in range(5000):
        driver.need("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(description))
    free, total = driver.info()
    tell_and_wait(count=5000, packed=5000 * int(side) ** 2 * 4, charged=before - free, free=free, total=total)


def exports(at_most):
    """Memory that is exported and released, of which only a descriptor is left: until it is refused, or this many MiB are there. Then the
    descriptors are closed, and as much is taken again."""
    driver, properties, handle, descriptor = Driver(), Properties(1, 1, 1, 0), ctypes.c_uint64(), ctypes.c_int()
    size, open_ones, code = 512 * MIB, [], 0
    while not code and len(open_ones) * size < int(at_most) * MIB:
        code = driver.code("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
        if not code:
            driver.need("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))
            driver.need("cuMemRelease", handle)
            open_ones.append(descriptor.value)
    kept = len(open_ones) * size
    tell_and_wait(kept=kept, code=code, free=driver.info()[0])
    for each in open_ones:
        os.close(each)
    tell(kept=kept, code=code, again=size * len(driver.fill(size)))


def keep(size):
    driver = Driver()
    tell_and_wait(address=driver.take(int(size)))


def suspend():
    """Brings a process with a quarter of the free memory to host memory and back. The codes are of lock, checkpoint, restore, unlock."""
    driver = Driver()
    size = driver.info()[0] // 4
    child = subprocess.Popen([sys.executable, __file__, "keep", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    codes, seconds, free = [], [], [driver.info()[0]]
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        began = time.monotonic()
        codes.append(driver.code(f"cuCheckpointProcess{name}", child.pid, None))
        seconds.append(round(time.monotonic() - began, 3))
        free.append(driver.info()[0])
        if codes[-1]:
            break
    child.communicate("\n")
    gib = size / (1 << 30)
    tell(codes=codes, seconds=seconds, gib=round(gib, 2), free=free, seconds_per_gib=[round(each / gib, 3) for each in seconds])


def suspend_calls(size, way="plain"):
    """The driver's calls about a process that holds this much: their codes and seconds, and the seconds of `cuInit`."""
    child = subprocess.Popen([sys.executable, __file__, "hold_as", size, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    lib, began = ctypes.CDLL("libcuda.so.1"), time.monotonic()
    code = lib.cuInit(0)
    init, codes, seconds = round(time.monotonic() - began, 3), [], []
    assert code == 0, code
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        began = time.monotonic()
        codes.append(getattr(lib, f"cuCheckpointProcess{name}")(child.pid, None))
        seconds.append(round(time.monotonic() - began, 3))
        if codes[-1]:
            child.kill()
            break
    child.communicate("\n")
    tell(codes=codes, seconds=seconds, init_seconds=init)


def hold_as(size, way):
    driver = Driver()
    address = ctypes.c_uint64(driver.take(int(size)))
    if way == "managed":
        driver.need("cuMemAllocManaged", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(MIB), 1)
    if way == "ipc":
        driver.need("cuIpcGetMemHandle", ctypes.byref((ctypes.c_uint64 * 8)()), address)
    tell_and_wait(address=address.value)


def graph_loop(pauses, steps=30):
    """Trains with a CUDA graph; a line, and a wait for one, before each of so many steps. At the end the bits of all losses."""
    try:
        import torch  # noqa: PLC0415  most programs here do without
    except ImportError:
        print("PyTorch is not installed", file=sys.stderr)
        sys.exit(3)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(256, 512, device="cuda")
    loss, stream = torch.zeros((), device="cuda"), torch.cuda.Stream()

    def step():
        optimizer.zero_grad(set_to_none=False)
        now = model(batch).square().mean()
        now.backward()
        optimizer.step()
        loss.copy_(now.detach())

    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    losses = []
    for number in range(steps):
        if number < int(pauses):
            tell_and_wait(step=number)
        graph.replay()
        losses.append(loss.item().hex())
    tell(losses=losses)


def main():
    jobs = {job.__name__: job for job in (fill, sibling, hold, reset, forked, ipc, ipc_import, contexts, context, handles, arrays, exports, keep, suspend, suspend_calls, hold_as, graph_loop)}
    jobs[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()
