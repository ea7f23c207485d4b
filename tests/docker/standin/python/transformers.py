"""As much of `transformers` as the inference example names: a model that takes 1 MiB of GPU memory for each character it reads."""

import ctypes

import torch


def pipeline(task, model, device):
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0

    def mood(text, truncation):
        # Each request has a thread of its own.
        assert cuda.cuCtxSetCurrent(context) == 0
        memory = ctypes.c_uint64()
        if cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(len(text) << 20)) != 0:
            raise torch.cuda.OutOfMemoryError(f"no {len(text)} MiB left")
        assert cuda.cuMemFree_v2(memory) == 0
        return [{"label": "POSITIVE", "score": 1.0}]

    return mood
