"""Kernels that Triton compiles when the slice is full: each is another module, and the driver takes memory for it by itself."""

import torch
import triton
import triton.language as tl
from telling import tell, tell_and_wait

MIB = 1 << 20
COUNT = 1 << 20
KERNELS = 6


@triton.jit
def scale(numbers, count, factor: tl.constexpr, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(numbers + at, tl.load(numbers + at, mask=at < count) * factor, mask=at < count)


def compile_and_launch(numbers, factors):
    """The number of launched kernels, and the error that ended it."""
    for launched, factor in enumerate(factors):
        try:
            scale[(COUNT // 1024,)](numbers, COUNT, factor, 1024)
            torch.cuda.synchronize()
        except Exception as error:
            return launched, f"{type(error).__name__}: {error}"
    return len(factors), ""


def fill():
    kept = []
    # PyTorch gets memory for small tensors in granules of 2 MiB.
    for size in (64 * MIB, MIB):
        try:
            while len(kept) < 100000:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
    return kept


def main():
    numbers = torch.zeros(COUNT, device="cuda")
    kept = fill()
    first, error = compile_and_launch(numbers, range(2, 2 + KERNELS))
    tell_and_wait(launched=first, text=error, free=torch.cuda.mem_get_info()[0])
    # Something is given back: what failed is possible now.
    kept.clear()
    torch.cuda.empty_cache()
    again, error = compile_and_launch(numbers, range(2 + first, 2 + KERNELS))
    tell(launched=first + again, text=error)


main()
