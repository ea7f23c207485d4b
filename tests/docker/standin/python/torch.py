"""As much of PyTorch as the inference example and a documented manifest name."""

import ctypes


class cuda:
    class OutOfMemoryError(RuntimeError):
        """As PyTorch's."""

    @staticmethod
    def mem_get_info():
        driver = ctypes.CDLL("libcuda.so.1")
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        assert driver.cuInit(0) == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert driver.cuCtxSetCurrent(context) == 0
        assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value, total.value
