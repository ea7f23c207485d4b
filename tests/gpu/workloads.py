#!/usr/bin/env python3
"""The workloads that the suite runs in a slice and outside: `workloads.py NAME WORD…` uses one GPU as NAME does and prints
its findings as JSON. Most report the size of the GPU that they see, and whether a larger allocation was refused with the
code that the framework's users know. Exit code 3: the framework is not installed; the line on stderr says which.
"""

import ctypes
import json
import os
import sys
import time

MIB = 1 << 20
NOT_INSTALLED = 3


def graph():
    """Driver API alone: a graph that allocates, captured from a stream, launched twice; then one that asks for too much."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *args):
        return getattr(cuda, name)(*args)

    def need(name, *args):
        code = call(name, *args)
        if code:
            sys.exit(f"{name}: CUDA error {code}")

    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    need("cuInit", 0)
    need("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    need("cuCtxSetCurrent", context)
    need("cuStreamCreate", ctypes.byref(stream), 1)
    need("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))

    def launch(size_bytes):
        captured, ready, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        need("cuStreamBeginCapture_v2", stream, 0)
        code = call("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size_bytes), stream)
        # As a program does that logs its memory. Nothing that happens behind this call may end the capture.
        code = code or call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(ctypes.c_size_t()))
        freed = code or call("cuMemFreeAsync", pointer, stream)
        ended = call("cuStreamEndCapture", stream, ctypes.byref(captured))
        code = code or freed or ended
        code = code or call("cuGraphInstantiateWithFlags", ctypes.byref(ready), captured, ctypes.c_ulonglong(0))
        for _ in range(2):
            code = code or call("cuGraphLaunch", ready, stream) or call("cuStreamSynchronize", stream)
        return code

    within, over = launch(64 * MIB), launch(total.value + 64 * MIB)
    if within:
        sys.exit(f"a graph that allocates 64 MiB: CUDA error {within}")
    return {"total": total.value, "over": "refused" if over == 2 else f"CUDA error {over}" if over else "granted"}


def torch():
    """PyTorch with the allocator that PYTORCH_CUDA_ALLOC_CONF names; a training and an inference loop, timed by events."""
    import torch

    def allocate(size_bytes):
        return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")

    _, total = torch.cuda.mem_get_info()
    try:
        allocate(total + 64 * MIB)
        over = "granted"
    except torch.cuda.OutOfMemoryError:
        over = "refused"
    # As a long job does: many sizes, most of them freed again, in total several times the slice.
    for round in range(64):
        kept = [allocate((1 + (round * 37 + i * 101) % 257) * MIB) for i in range(8)]
        del kept
    torch.cuda.empty_cache()
    model = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(8, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def train():
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    def infer():
        with torch.inference_mode():
            model(batch)

    def milliseconds(step, count):
        for _ in range(10):
            step()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(count):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / count

    train_ms = milliseconds(train, 100)
    model.eval()
    return {"total": total, "over": over, "train_ms": train_ms, "infer_ms": milliseconds(infer, 300)}


def steps():
    """Training or inference steps, as a line of stdin asks for: milliseconds of each, by events. Nothing runs between two turns."""
    import torch

    model = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(8, 512, 1024, device="cuda", dtype=torch.bfloat16)

    def train():
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    def infer():
        with torch.inference_mode():
            model(batch)

    def milliseconds(step, count):
        for _ in range(5):
            step()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(count):
            step()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / count

    ways = {"train": (train, 40), "infer": (infer, 120)}
    for step, _ in ways.values():
        milliseconds(step, 10)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"ms": milliseconds(*ways[line.strip()])}), flush=True)
    return {"ended": True}


def busy(seconds):
    """Work that is always in flight."""
    import torch

    ones, results = torch.ones(4096, 4096, device="cuda"), 0
    torch.cuda.synchronize()
    print(json.dumps({"ready": True, "pid": os.getpid()}), flush=True)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        for _ in range(8):
            product = ones @ ones
        results += 8
        torch.cuda.synchronize()
    assert float(product[0, 0]) == 4096
    return {"products": results}


def serving():
    """The load of a server of a language model, without the model: a token is eight layers of small products and a synchronization, as the token is read back.
    Every 64 tokens a prompt comes, which is large products. A line of stdin has the time of the beginning, and the number of seconds."""
    import torch

    layers = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64 for _ in range(8)]
    tokens, prompt = (torch.randn(count, 4096, device="cuda", dtype=torch.bfloat16) for count in (16, 4096))

    def forward(batch):
        for layer in layers:
            batch = torch.nn.functional.relu(batch @ layer)
        torch.cuda.synchronize()

    for batch in (tokens, prompt) * 3:
        forward(batch)
    print(json.dumps({"ready": True}), flush=True)
    begin, seconds = map(float, sys.stdin.readline().split())
    time.sleep(max(0, begin - time.monotonic()))
    took = []
    while time.monotonic() < begin + seconds:
        if len(took) % 64 == 0:
            forward(prompt)
        started = time.monotonic()
        forward(tokens)
        took.append((time.monotonic() - started) * 1000)
    took.sort()
    return {"tokens_per_s": round(16 * len(took) / seconds), "p50_ms": round(took[len(took) // 2], 3), "p99_ms": round(took[len(took) * 99 // 100], 3)}


def captured():
    """A CUDA graph by PyTorch, with the allocator that PYTORCH_ALLOC_CONF names."""
    import torch

    ones, graph = torch.ones(1024, 1024, device="cuda"), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (ones @ ones).sum()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        total = (ones @ ones).sum()
    ones.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    return {"sum": float(total)}


def captured_step():
    """A training step of a layer, captured and replayed ten times. Its outputs are kept, its activations are reused."""
    import torch

    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0, batch_first=True, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    batch, side = torch.randn(32, 512, 1024, device="cuda"), torch.cuda.Stream()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = layer(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph, replays = torch.cuda.CUDAGraph(), 0
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(10):
        graph.replay()
        torch.cuda.synchronize()
        replays += 1
    return {"replays": replays, "loss": round(float(loss), 5), "peak_bytes": torch.cuda.max_memory_allocated()}


def triton():
    """A kernel that is compiled when it is first launched."""
    import torch
    import triton_kernel

    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    return {"sum": float(triton_kernel.doubled(x).sum(dtype=torch.float64))}


def tell_and_wait(**record):
    print(json.dumps(record), flush=True)
    sys.stdin.readline()


def torch_fill(chunk_bytes):
    """Tensors until PyTorch's own error, and what that says."""
    import torch

    kept = []
    try:
        while True:
            kept.append(torch.empty(chunk_bytes, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        return kept, str(error)


def begin(way):
    """No more than a context, or pinned memory, for a while; then the GPU is used."""
    import torch

    if way == "set_device":
        torch.cuda.set_device(0)
    else:
        torch.empty(1 << 20, pin_memory=True)
    time.sleep(5)
    torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    return {"allocated": torch.cuda.memory_allocated()}


def fill(computes):
    """Fills the GPU, waits, then frees 2 GiB and continues: kernels of modules that are loaded only now."""
    import torch

    kept, text = torch_fill(512 * MIB)
    free, total = torch.cuda.mem_get_info()
    tell_and_wait(taken=512 * MIB * len(kept), free=free, total=total, text=text)
    del kept[:4]
    torch.cuda.empty_cache()
    ones = torch.ones(1024, 1024, device="cuda")
    results = {}
    if computes == "yes":
        results["product"] = float((ones @ ones)[0, 0])
        image = torch.ones(1, 3, 64, 64, device="cuda")
        results["convolution"] = float(torch.nn.Conv2d(3, 8, 3, device="cuda")(image).abs().sum()) > 0
        assert results["product"] == 1024, results
    kept.append(torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    return {"goes_on": True, **results}


def rank(all_there, full, go_on):
    import torch

    # Each has a context and something to give back before any of them fills the slice.
    first = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    all_there.wait()
    kept = [first, *torch_fill(256 * MIB)[0]]
    del first
    full.put(256 * MIB * len(kept))
    go_on.wait()
    del kept[:2]
    torch.cuda.empty_cache()
    torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()


def ranks(count):
    """Processes that fill one slice together."""
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    all_there, full, go_on = context.Barrier(int(count)), context.Queue(), context.Event()
    children = [context.Process(target=rank, args=(all_there, full, go_on)) for _ in range(int(count))]
    for child in children:
        child.start()
    tell_and_wait(taken=sum(full.get(timeout=90) for _ in children))
    go_on.set()
    for child in children:
        child.join()
    return {"codes": [child.exitcode for child in children]}


def cupy():
    import cupy

    _, total = cupy.cuda.runtime.memGetInfo()
    try:
        cupy.empty(total + 64 * MIB, dtype=cupy.uint8)
        over = "granted"
    except cupy.cuda.memory.OutOfMemoryError:
        over = "refused"
    ones = cupy.ones((2048, 2048), dtype=cupy.float32)
    assert float((ones @ ones)[0, 0]) == 2048
    return {"total": total, "over": over}


def jax():
    import jax

    device = jax.devices("gpu")[0]
    total = ctypes.c_size_t()
    ctypes.CDLL("libcuda.so.1").cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    ones = jax.device_put(jax.numpy.ones((2048, 2048)), device)
    assert float((ones @ ones)[0, 0]) == 2048
    try:
        jax.numpy.zeros(total.value + 64 * MIB, dtype="uint8").block_until_ready()
        over = "granted"
    except Exception as error:  # jaxlib's own exception has changed its name more than once
        over = "refused" if "RESOURCE_EXHAUSTED" in str(error) else f"{type(error).__name__}: {error}"
    return {"total": total.value, "over": over}


def main():
    workload = {each.__name__: each for each in (graph, torch, steps, busy, serving, captured, captured_step, triton, cupy, jax, begin, fill, ranks)}[sys.argv[1]]
    try:
        print(json.dumps(workload(*sys.argv[2:])))
    except ImportError as error:
        print(f"not installed: {error}", file=sys.stderr)
        sys.exit(NOT_INSTALLED)


if __name__ == "__main__":
    main()
