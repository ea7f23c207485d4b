"""PyTorch fills its memory up to its own OutOfMemoryError, waits, and continues to work. PYTORCH_ALLOC_CONF names the allocator."""

import torch
from telling import tell, tell_and_wait

MIB = 1 << 20


def allocate(size_bytes):
    return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")


def fill(size_bytes):
    kept = []
    try:
        while len(kept) < 20000:
            kept.append(allocate(size_bytes))
    except torch.OutOfMemoryError as error:
        return kept, str(error)
    return kept, ""


def count(size_bytes):
    kept, _ = fill(size_bytes)
    number = len(kept)
    del kept
    torch.cuda.empty_cache()
    return number


def graph():
    """A graph with a pool of its own: captured, replayed, given back."""
    work = torch.cuda.CUDAGraph()
    still = torch.zeros(MIB, device="cuda")
    with torch.cuda.graph(work):
        grown = still + torch.ones(25 * MIB // 25, device="cuda")
    held = torch.cuda.memory_reserved()
    work.replay()
    torch.cuda.synchronize()
    del grown, work
    return held


def work():
    """The calls of a job between allocations: pinned memory, streams, events, kernels."""
    pinned = torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=True)
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        there = pinned.to("cuda", non_blocking=True)
        event.record()
    event.synchronize()
    (there + 1).relu()
    torch.zeros(1000, 1000, device="cuda").add_(1)
    torch.cuda.synchronize()


def fraction():
    """PyTorch's own limit inside ours."""
    torch.cuda.set_per_process_memory_fraction(0.25)
    kept, text = fill(512 * MIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return len(kept), text


def pool():
    """As inference servers do: nine tenths of what is said to be free, in one piece."""
    torch.cuda.empty_cache()
    size_bytes = torch.cuda.mem_get_info()[0] // 10 * 9
    there = allocate(size_bytes)
    return there.numel() == size_bytes


def main():
    free, total = torch.cuda.mem_get_info()
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    kept, text = fill(1024 * MIB)
    full, _ = torch.cuda.mem_get_info()
    tell_and_wait(total=total, free=free, gib=len(kept), text=text, full=full, name=torch.cuda.get_device_name())
    del kept
    torch.cuda.empty_cache()
    sizes = {str(size): count(size * MIB) for size in (700, 50)}
    work()
    held = graph()
    torch.cuda.empty_cache()
    tell(sizes=sizes, graph=held, fraction=fraction(), pool=pool(), allocated=torch.cuda.memory_allocated())


main()
