"""Triton's compiler reads a kernel's source from its module."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def double(x, y, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)


def doubled(x):
    y = torch.empty_like(x)
    double[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), block=BLOCK)
    return y
